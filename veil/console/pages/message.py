"""One message: where it is, who holds it until when, and its whole life as a drawn timeline; also when it is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from veil.console.life_drawing import HOW, WENT, draw
from veil.console.messages import PAGE_ROWS, Search, read_search, search_messages
from veil.console.queue_views import CurrentMessage, MessageHistory, find_present, message_history
from veil.console.visit import Visit
from veil.console.web import NotFound, live, page, queue_link, see_other
from veil.core.message import StoredMessage
from veil.core.queue import Queue, QueueKey
from veil.core.text import seq_number
from veil.journal.attempts import FURTHER_MAX
from veil.journal.lives import Sighting
from veil.service.dead_letters import read_letter
from veil.service.messages import SEARCH_BYTES_MAX, SEARCH_ROWS_MAX
from veil.wire.exchange import Response

_ID_CHARS: Final = 36  # of a whole message id
_ID_CHARS_MAX: Final = 128
_QUEUES_LISTED_MAX: Final = 500


class MessagesFound(NamedTuple):
    """What a search has come to: in the journal, and in the queues as they stand."""

    sightings: Sequence[Sighting] = ()
    older: str | None = None  # where the journal is to be looked through next
    looked_until: str | None = None
    problems: Sequence[str] = ()
    hits: Sequence[tuple[Queue, StoredMessage]] = ()
    rows: int = 0  # of queues that were looked at
    behind: Mapping[str, int] | None = None  # where to go on in the queues; None: at their end
    is_full: bool = False


@page("/messages")
async def find_page(visit: Visit) -> Response:
    """The form, and what it finds; one message alone is shown at once."""
    search = read_search(visit.query)
    search = search._replace(id=search.id[:_ID_CHARS_MAX])
    before = visit.query.text("before")[:300] or None
    queues = sorted(await visit.own_queues(), key=lambda queue: (queue.name, queue.key.region))
    chosen = visit.query.text("queue")[:150]
    own = [queue for queue in queues if chosen in ("", _region_and_name(queue))]
    found = MessagesFound()
    if search.is_filtered and not search.problem:
        found = await _find(visit, search, before, own)
        # One key in several queues is one message, which went from one to the next: its page tells of all.
        if len({each.seq for each in found.sightings}) == 1 and before is None:
            only = found.sightings[0]
            return see_other(queue_link(only.queue, "messages", str(only.seq)))
        if _is_whole_id(search) and len(found.hits) == 1:
            queue, message = found.hits[0]
            return see_other(queue_link(queue.key, "messages", str(message.seq)))
    return await visit.page(
        "find_message.html",
        title="Find messages",
        search=search,
        chosen=chosen,
        queue_names=[_region_and_name(queue) for queue in queues[:_QUEUES_LISTED_MAX]],
        found=found,
        is_whole_id=_is_whole_id(search),
        is_journal_kept=visit.console.journal_lookup.is_kept,
    )


def _region_and_name(queue: Queue) -> str:
    return f"{queue.key.region}/{queue.name}"


def _is_whole_id(search: Search) -> bool:
    """Whether one message is looked for, and by nothing but its id or key: the journal can tell of one that is gone."""
    alone = search == Search(id=search.id, after=search.after)
    return alone and (len(search.id) >= _ID_CHARS or _as_seq(search.id) is not None)


def _as_seq(text: str) -> int | None:
    # A sequence number: the key itself, with zeros before it on FIFO queues.
    return seq_number(text.lstrip("0")) if 10 < len(text) <= 20 else None


async def _find(visit: Visit, search: Search, before: str | None, queues: Sequence[Queue]) -> MessagesFound:
    found = MessagesFound()
    if _is_whole_id(search) and not search.after:
        lookup, keys = visit.console.journal_lookup, {queue.key for queue in queues}
        seq = _as_seq(search.id)
        if seq is not None:
            events = (await lookup.life(seq)).events
            named = [Sighting(each.queue, seq, each.at_ms) for each in events if each.seq == seq][-1:]
            if _own(visit, named, keys):
                return MessagesFound(named)
        sightings = await lookup.find(search.id, before)
        own = _own(visit, sightings.found, keys)
        found = MessagesFound(own, sightings.older, sightings.looked_until, sightings.problems)
        if own or before is not None:
            return found
    return await _search_queues(visit, search, queues, found)


def _own(visit: Visit, sightings: Sequence[Sighting], keys: set[QueueKey]) -> list[Sighting]:
    # Of the visitor's account; a queue that is gone counts too, unless one was chosen.
    own = [each for each in sightings if each.queue.account == visit.identity.account]
    return [each for each in own if not visit.query.text("queue") or each.queue in keys]


async def _search_queues(
    visit: Visit, search: Search, queues: Sequence[Queue], found: MessagesFound
) -> MessagesFound:
    """Look at messages as they stand, in one queue after the other, up to a page of hits or a bounded number of rows: no
    store finds one by what is in it."""
    first = visit.query.number("from", 0, 0, 1 << 62)  # the id of the queue to go on in
    ids = [queue.id for queue in queues]
    if first in ids:
        queues = queues[ids.index(first) :]
    elif first:  # it is gone meanwhile: what came behind it is not known any more
        search = search._replace(after=0)
    depths = await visit.console.depths.at(queues, with_oldest=False)
    hits: list[tuple[Queue, StoredMessage]] = []
    rows = looked_bytes = 0
    for queue in queues:
        if queue.id not in depths or not depths[queue.id].total:
            continue
        if rows >= SEARCH_ROWS_MAX or looked_bytes >= SEARCH_BYTES_MAX or len(hits) == PAGE_ROWS:
            behind = {"from": queue.id, "after": 0}
            return found._replace(hits=hits, rows=rows, behind=behind, is_full=len(hits) == PAGE_ROWS)
        result = await search_messages(
            visit.service,
            queue,
            search if queue.id == first or not first else search._replace(after=0),
            visit.time_slice,
            page_rows=PAGE_ROWS - len(hits),
            rows_max=SEARCH_ROWS_MAX - rows,
            bytes_max=SEARCH_BYTES_MAX - looked_bytes,
        )
        rows, looked_bytes = rows + result.rows, looked_bytes + result.bytes
        hits += [(queue, message) for message in result.messages]
        if result.behind is not None:
            behind = {"from": queue.id, "after": result.behind}
            return found._replace(hits=hits, rows=rows, behind=behind, is_full=result.is_full)
    return found._replace(hits=hits, rows=rows)


_BODY_CHARS_MAX: Final = 100_000
_EVENTS_SHOWN: Final = 200
_DRAWN_MAX: Final = 200

# What the streams have drawn: a life is read again only when the store says that something has happened.
_Drawn = tuple[tuple[object, ...], tuple[QueueKey, int], dict[str, str]]


@page("/queues/{region}/{name}/messages/{seq}")
async def message_page(visit: Visit) -> Response:
    key, seq = _named(visit)
    further = visit.query.number("further", 1, 1, FURTHER_MAX)
    history = await message_history(visit, key, seq, further)
    if history is None:
        if visit.console.journal_lookup.is_kept:
            raise NotFound(
                f"Neither queue {key.name[:100]} nor the journal has a message with the sequence number {seq}."
            )
        gone = "It is gone, and there is no journal to look it up in."
        raise NotFound(f"Queue {key.name[:100]} has no message with the sequence number {seq}. {gone}")
    return await visit.page(
        "message.html",
        title="Message",
        key=key,
        seq=seq,
        further=further,
        letter=None
        if history.present is None
        else read_letter(history.present.queue, history.present.message),
        body_chars_max=_BODY_CHARS_MAX,
        live_path=queue_link(key, "messages", str(seq), "live"),
        **_values(visit, history),
    )


@live("/queues/{region}/{name}/messages/{seq}/live")
async def message_live(visit: Visit) -> Mapping[str, str]:
    """Where it is now; the timeline is drawn again when something has happened."""
    key, seq = _named(visit)
    kept: dict[tuple[QueueKey, int], _Drawn] = visit.console.drawn_lives
    known = kept.get((key, seq))
    if known is not None:
        signature, place, fragments = known
        if _signature(await find_present(visit, *place)) == signature:
            return fragments
    history = await message_history(visit, key, seq)
    if history is None:
        raise NotFound("The message is gone.")
    values = _values(visit, history)
    await visit.time_slice.yield_if_spent()
    fragments = {
        "message-state": await visit.fragment("message_state.html", key=key, **values),
        "message-life": await visit.fragment("message_life.html", key=key, **values),
    }
    last = history.life.stays[-1]
    if len(kept) >= _DRAWN_MAX:
        kept.clear()
    kept[key, seq] = _signature(history.present), (last.queue, last.seq), fragments
    return fragments


def _values(visit: Visit, history: MessageHistory) -> dict[str, Any]:
    return {
        "history": history,
        "life": history.life,
        "present": history.present,
        "last": history.life.stays[-1],
        "drawing": draw(history.life, visit.now_ms),
        "events": list(reversed(history.life.events))[:_EVENTS_SHOWN],
        "went": WENT,
        "how": HOW,
        "is_journal_kept": visit.console.journal_lookup.is_kept,
    }


def _signature(present: CurrentMessage | None) -> tuple[object, ...]:
    return () if present is None else present.signature


def _named(visit: Visit) -> tuple[QueueKey, int]:
    text = visit.parts["seq"]
    seq = seq_number(text)
    if seq is None:
        raise NotFound(f"{text[:40]!r} is not the sequence number of a message: expected a whole number.")
    return QueueKey(visit.parts["region"], visit.identity.account, visit.parts["name"]), seq
