"""One message: where it is, who holds it until when, and its whole life as a drawn timeline; also when it is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from veil.console.life_drawing import HOW, WENT, draw
from veil.console.messages import BYTES_AT_ONCE, attributes_of, cut, show_body
from veil.console.queue_views import Present, Told, find_present, tell_message
from veil.console.visit import Visit
from veil.console.web import Answer, NotFound, link, live, page, see_other
from veil.core.queue import Queue, QueueKey
from veil.core.sequence import instant_of
from veil.core.text import seq_number
from veil.journal.attempts import FURTHER_MAX
from veil.journal.message_finding import Sighting
from veil.service.dead_letters import read_letter

# ---- search by id

ROWS_LOOKED_AT_MAX: Final = 5_000
BYTES_LOOKED_AT_MAX: Final = 64 << 20
_ROWS_AT_ONCE: Final = 500
_ID_CHARS_MAX: Final = 128
_QUEUES_LISTED_MAX: Final = 500


class MessageFound(NamedTuple):
    """What a search has come to."""

    sightings: Sequence[Sighting] = ()
    older: str | None = None  # where the journal is to be looked through next
    looked_until: str | None = None
    rows: int = 0  # of queues that were looked at
    is_cut: bool = False  # not all rows were
    problems: Sequence[str] = ()


@page("/messages")
async def find_page(visit: Visit) -> Answer:
    """The form, and what it finds; one message alone is shown at once."""
    message_id = visit.query.text("id")[:_ID_CHARS_MAX]
    before = visit.query.text("before")[:300] or None
    queues = sorted(
        (q for q in await visit.service.store.all_queues() if q.key.account == visit.identity.account),
        key=lambda queue: queue.name,
    )
    chosen = visit.query.text("queue")[:150]
    found = MessageFound()
    if message_id:
        found = await _find(
            visit, message_id, before, [q for q in queues if chosen in ("", _region_and_name(q))]
        )
        # One key in several queues is one message, which went from one to the next: its page tells of all.
        if len({each.seq for each in found.sightings}) == 1 and before is None:
            only = found.sightings[0]
            return see_other(link("queues", only.queue.region, only.queue.name, "messages", str(only.seq)))
    return await visit.page(
        "find_message.html",
        title="Find a message",
        message_id=message_id,
        chosen=chosen,
        queue_names=[_region_and_name(queue) for queue in queues[:_QUEUES_LISTED_MAX]],
        found=found,
        is_journal_kept=visit.console.journal_looks.is_kept,
    )


def _region_and_name(queue: Queue) -> str:
    return f"{queue.key.region}/{queue.name}"


async def _find(visit: Visit, message_id: str, before: str | None, queues: Sequence[Queue]) -> MessageFound:
    looks = visit.console.journal_looks
    keys = {queue.key for queue in queues}
    # A sequence number: the key itself, with zeros before it on FIFO queues.
    seq = seq_number(message_id.lstrip("0")) if 10 < len(message_id) <= 20 else None
    if seq is not None:
        events = (await looks.life(seq)).events
        named = [Sighting(each.queue, seq, each.at_ms) for each in events if each.seq == seq][-1:]
        if _own(visit, named, keys):
            return MessageFound(named)
    sightings = await looks.find(message_id, before)
    own = _own(visit, sightings.found, keys)
    found = MessageFound(own, sightings.older, sightings.looked_until, problems=sightings.problems)
    if own or before is not None:
        return found
    there, rows, is_cut = await _look_into_queues(visit, message_id, queues)
    return found._replace(sightings=there, rows=rows, is_cut=is_cut)


def _own(visit: Visit, sightings: Sequence[Sighting], keys: set[QueueKey]) -> list[Sighting]:
    # Of the visitor's account; a queue that is gone counts too, unless one was chosen.
    own = [each for each in sightings if each.queue.account == visit.identity.account]
    return [each for each in own if not visit.query.text("queue") or each.queue in keys]


async def _look_into_queues(
    visit: Visit, message_id: str, queues: Sequence[Queue]
) -> tuple[list[Sighting], int, bool]:
    """Look at messages as they stand, a bounded number of them: no store finds one by its id."""
    rows = looked_bytes = 0
    seq = seq_number(message_id)
    for queue in queues:
        after = 0
        while rows < ROWS_LOOKED_AT_MAX and looked_bytes < BYTES_LOOKED_AT_MAX:
            messages = await visit.service.store.peek(
                queue, after_seq=after, limit=_ROWS_AT_ONCE, bytes_max=BYTES_AT_ONCE
            )
            await visit.turn.pause()
            if not messages:
                break
            rows += len(messages)
            looked_bytes += sum(each.held_bytes for each in messages)
            after = messages[-1].seq
            for message in messages:
                if message.message_id == message_id or message.seq == seq:
                    return [Sighting(queue.key, message.seq, instant_of(message.seq))], rows, False
        else:
            return [], rows, True
    return [], rows, False


_BODY_CHARS_MAX: Final = 100_000
_ATTRIBUTE_CHARS_MAX: Final = 10_000
_TRACE_CHARS_MAX: Final = 1_000
_EVENTS_SHOWN: Final = 200
_DRAWN_MAX: Final = 200

# What the streams have drawn: a life is read again only when the store says that something has happened.
_Drawn = tuple[tuple[object, ...], tuple[QueueKey, int], dict[str, str]]

WHAT: Final = {
    "sent": "Sent",
    "received": "Received",
    "extended": "Renewed",
    "given_back": "Given back",
    "released": "Released",
    "holder_seen": "Its holder went on, and did not come back for it",
    "holder_silent": "Nothing was heard of its holder, while others went on",
    "undone": "Undone: the answer never left",
    "deleted": "Deleted",
    "delete_refused": "Delete refused: the receipt no longer counts",
    "extension_refused": "Renewal refused: the receipt no longer counts",
    "dead_lettered": "Dead-lettered",
    "redriven": "Redriven",
    "expired": "Expired: its retention ended",
    "purged": "Purged",
    "delayed": "Delay set anew",
}


@page("/queues/{region}/{name}/messages/{seq}")
async def message_page(visit: Visit) -> Answer:
    """The message of that key in the queue, or what is known of it."""
    key, seq = _named(visit)
    further = visit.query.number("further", 1, 1, FURTHER_MAX)
    told = await tell_message(visit, key, seq, further)
    if told is None:
        kept = visit.console.journal_looks.is_kept
        raise NotFound(
            f"Neither queue {key.name[:100]} nor the journal knows a message with the key {seq}."
            if kept
            else f"Queue {key.name[:100]} has no message with the key {seq}. It is gone, and no journal tells its life."
        )
    message = None if told.present is None else told.present.message
    return await visit.page(
        "message.html",
        title="Message",
        key=key,
        seq=seq,
        further=further,
        body=None if message is None else show_body(message.body, _BODY_CHARS_MAX),
        attributes=[] if message is None else attributes_of(message, _ATTRIBUTE_CHARS_MAX),
        letter=None if message is None else read_letter(told.present.queue, message),  # type: ignore[union-attr]
        body_chars_max=_BODY_CHARS_MAX,
        trace_header="" if message is None else cut(message.trace_header or "", _TRACE_CHARS_MAX),
        is_live=False,
        live_path=link("queues", key.region, key.name, "messages", str(seq), "live"),
        **_values(visit, told),
    )


@live("/queues/{region}/{name}/messages/{seq}/live")
async def message_live(visit: Visit) -> Mapping[str, str]:
    """Where it is now; the timeline is drawn anew when something has happened."""
    key, seq = _named(visit)
    kept: dict[tuple[QueueKey, int], _Drawn] = visit.console.drawn_lives
    known = kept.get((key, seq))
    if known is not None:
        signature, place, fragments = known
        if _signature(await find_present(visit, *place)) == signature:
            return fragments
    told = await tell_message(visit, key, seq)
    if told is None:
        raise NotFound("The message is gone.")
    values = _values(visit, told)
    await visit.turn.pause()
    fragments = {
        "message-state": await visit.fragment("message_state.html", key=key, is_live=True, **values),
        "message-life": await visit.fragment("message_life.html", key=key, is_live=True, **values),
    }
    last = told.life.stays[-1]
    if len(kept) >= _DRAWN_MAX:
        kept.clear()
    kept[key, seq] = _signature(told.present), (last.queue, last.seq), fragments
    return fragments


def _values(visit: Visit, told: Told) -> dict[str, Any]:
    return {
        "told": told,
        "life": told.life,
        "present": told.present,
        "last": told.life.stays[-1],
        "drawing": draw(told.life, visit.now_ms),
        "events": list(reversed(told.life.events))[:_EVENTS_SHOWN],
        "what": WHAT,
        "went": WENT,
        "how": HOW,
        "is_journal_kept": visit.console.journal_looks.is_kept,
    }


def _signature(present: Present | None) -> tuple[object, ...]:
    return () if present is None else present.signature


def _named(visit: Visit) -> tuple[QueueKey, int]:
    text = visit.parts["seq"]
    seq = seq_number(text)
    if seq is None:
        raise NotFound(f"{text[:40]!r} is not the key of a message: expected a whole number.")
    return QueueKey(visit.parts["region"], visit.identity.account, visit.parts["name"]), seq
