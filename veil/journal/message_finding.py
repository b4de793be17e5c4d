"""Find where a message is, or was, by its id: the newest segments first, a bounded piece of the journal at a time."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from veil.core.queue import QueueKey
from veil.journal.lives import OUTBOX_BYTES_MAX, LifeEvent, from_packed, rows_where, waiting_rows
from veil.journal.schema import Outbox
from veil.journal.segments import Segment, SegmentIndex, list_segments

SEGMENTS_MAX: Final = 300  # for one look
EVENTS_MAX: Final = 4_000_000


class Sighting(NamedTuple):
    """A message of that id was in this queue under this key, last seen then."""

    queue: QueueKey
    seq: int
    at_ms: int


class Sightings(NamedTuple):
    """What one look has found, and from which segment the next one goes on; None: there is nothing older."""

    found: list[Sighting]
    older: str | None
    looked_until: str | None  # the day that the look has come to
    problems: list[str]


async def find_message(
    outbox: Outbox, index: SegmentIndex | None, message_id: str, *, before: str | None = None
) -> Sightings:
    """Sightings of the message, the latest first; `before` is the `older` of the look before this one."""
    found: dict[tuple[QueueKey, int], int] = {}
    if before is None:
        await _waiting(outbox, message_id, found)
    older, until, problems = None, None, list[str]()
    if index is not None:
        older, until, problems = await asyncio.to_thread(_exported, index, message_id, before, found)
    sightings = [Sighting(queue, seq, at_ms) for (queue, seq), at_ms in found.items()]
    sightings.sort(key=lambda each: each.at_ms, reverse=True)
    return Sightings(sightings, older, until, problems)


async def _waiting(outbox: Outbox, message_id: str, found: dict[tuple[QueueKey, int], int]) -> None:
    wanted = message_id.encode("utf-8", "replace")
    async for row in waiting_rows(outbox, OUTBOX_BYTES_MAX):
        if row is not None and wanted in row.packed:
            for event in from_packed(row.number, row.packed):
                if event.message_id == message_id:
                    _note(event, found)


def _note(event: LifeEvent, found: dict[tuple[QueueKey, int], int]) -> None:
    key = (event.queue, event.seq)
    found[key] = max(found.get(key, 0), event.at_ms)


def _exported(
    index: SegmentIndex, message_id: str, before: str | None, found: dict[tuple[QueueKey, int], int]
) -> tuple[str | None, str | None, list[str]]:
    segments = list_segments(index.place)
    segments.reverse()
    if before is not None:
        # By its name, not by its place: new segments have come meanwhile, and old days may have gone.
        names = [each.name for each in segments]
        older = (place for place, name in enumerate(names) if name < before)
        segments = segments[names.index(before) if before in names else next(older, len(names)) :]
    problems: list[str] = []
    looked = 0
    for number, segment in enumerate(segments):
        # A message is mostly in one queue: what one segment tells is enough, its page then follows the life.
        if found or number >= SEGMENTS_MAX or looked >= EVENTS_MAX:
            return segment.name, segment.day, problems
        try:
            looked += _look_into(index, segment, message_id, found)
        except (ValueError, OSError) as problem:
            problems.append(f"{segment.name}: {problem}")
    return None, None, problems


def _look_into(
    index: SegmentIndex, segment: Segment, message_id: str, found: dict[tuple[QueueKey, int], int]
) -> int:
    from pyarrow import compute as pc
    from pyarrow import parquet as pq

    footer = index.footer(segment)
    with index.place.open_input(segment.name) as file:
        parquet = pq.ParquetFile(file)
        for group in range(len(footer.groups)):
            for event in rows_where(parquet, group, "message_id", lambda ids: pc.equal(ids, message_id)):
                _note(event, found)
    return footer.events
