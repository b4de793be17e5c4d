"""Find a message by its id: in the journal, the newest first, and in the queues themselves where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from veil.console.exchange import Answer, see_other
from veil.console.journal_looks import journal_looks
from veil.console.message_search import BYTES_AT_ONCE
from veil.console.routes import link, page
from veil.console.visit import Visit
from veil.core.numbers import seq_number
from veil.core.queue import Queue, QueueKey
from veil.core.sequence import instant_of
from veil.journal.message_finding import Sighting

ROWS_LOOKED_AT_MAX: Final = 5_000
BYTES_LOOKED_AT_MAX: Final = 64 << 20
_ROWS_AT_ONCE: Final = 500
_ID_CHARS_MAX: Final = 128
_QUEUES_LISTED_MAX: Final = 500


class Found(NamedTuple):
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
    found = Found()
    if message_id:
        found = await _find(visit, message_id, before, [q for q in queues if chosen in ("", _named(q))])
        # One key in several queues is one message, which went from one to the next: its page tells of all.
        if len({each.seq for each in found.sightings}) == 1 and before is None:
            only = found.sightings[0]
            return see_other(link("queues", only.queue.region, only.queue.name, "messages", str(only.seq)))
    return await visit.page(
        "find_message.html",
        title="Find a message",
        message_id=message_id,
        chosen=chosen,
        queue_names=[_named(queue) for queue in queues[:_QUEUES_LISTED_MAX]],
        found=found,
        is_journal_kept=journal_looks(visit.console).is_kept,
    )


def _named(queue: Queue) -> str:
    return f"{queue.key.region}/{queue.name}"


async def _find(visit: Visit, message_id: str, before: str | None, queues: Sequence[Queue]) -> Found:
    looks = journal_looks(visit.console)
    keys = {queue.key for queue in queues}
    # A sequence number: the key itself, with zeros before it on FIFO queues.
    seq = seq_number(message_id.lstrip("0")) if 10 < len(message_id) <= 20 else None
    if seq is not None:
        events = (await looks.life(seq)).events
        named = [Sighting(each.queue, seq, each.at_ms) for each in events if each.seq == seq][-1:]
        if _own(visit, named, keys):
            return Found(named)
    sightings = await looks.find(message_id, before)
    own = _own(visit, sightings.found, keys)
    found = Found(own, sightings.older, sightings.looked_until, problems=sightings.problems)
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
