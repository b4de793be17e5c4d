"""What happened to one message, looked up by its key."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from veil.core.event import NOBODY, Event, ExportPlan, Kind, OutboxRow, unpack
from veil.core.queue import QueueKey
from veil.core.sequence import instant_of
from veil.journal.schema import COLUMNS, POSITION_BITS, Outbox
from veil.journal.segments import Segment, SegmentIndex, list_segments

# ---- one event of a life


class LifeEvent(NamedTuple):
    """An event with its names written out; instants are engine milliseconds."""

    position: int
    at_ms: int
    kind: str  # core.event.Kind.label
    queue: QueueKey
    seq: int
    message_id: str | None = None
    delivery: int = 0
    deadline_ms: int | None = None
    receive_count: int | None = None
    body_bytes: int | None = None
    message_type: str | None = None
    other_queue: str | None = None
    other_seq: int | None = None
    caller_key: str | None = None
    caller_address: str | None = None
    user_agent: str | None = None
    outcome: str | None = None  # from here on what the holder said of the end of its attempt
    error_type: str | None = None
    error_text: str | None = None
    traceback: str | None = None


_COLUMNS: Final = [column.name for column in COLUMNS if column.name not in ("rule", "worked_ms")]


# What an event as it is packed has under the same names, and in the same form.
_ALIKE: Final = frozenset(LifeEvent._fields) & frozenset(Event._fields) - {"kind", "queue", "other_queue"}


def from_row(row: Mapping[str, Any]) -> LifeEvent:
    """The event in a row of a segment."""
    alike = {name: row[name] for name in LifeEvent._fields if name in row}
    alike["queue"] = QueueKey(row["region"], row["account"], row["queue"])
    return LifeEvent(**alike, at_ms=_ms(row["at"]) or 0, deadline_ms=_ms(row["deadline"]))


def from_packed(number: int, packed: bytes) -> Iterator[LifeEvent]:
    """The events of a row of the outbox that waits to be exported."""
    queues, callers, events, *_ = unpack(packed)
    for place, event in enumerate(events):
        caller = callers[event.caller] if callers else NOBODY
        alike = {name: getattr(event, name) for name in _ALIKE}
        yield LifeEvent(
            **alike,
            position=number << POSITION_BITS | place,
            kind=Kind(event.kind).label,
            queue=queues[event.queue],
            other_queue=None if event.other_queue is None else queues[event.other_queue].name,
            caller_key=caller.key_id or None,
            caller_address=caller.peer or None,
            user_agent=caller.user_agent or None,
        )


def _ms(instant: datetime | None) -> int | None:
    # By whole parts: a float of seconds would lose milliseconds.
    return None if instant is None else int(instant.timestamp()) * 1000 + instant.microsecond // 1000


# ---- looking a life up
#
# A message keeps its key for as long as it is in one queue, and mostly among the dead letters too. A redrive gives it a new
# one, and its events name both, so that a life is followed from key to key. The look is bounded: by segments that must be
# opened for the first time, by events, and by bytes of the outbox; where a bound is met the answer says so.

OPENED_MAX: Final = 500  # segments opened for the first time in one look
EVENTS_MAX: Final = 10_000_000
OUTBOX_BYTES_MAX: Final = 64 << 20
KEYS_MAX: Final = 16  # redrives and back again that are followed
KEPT_MAX: Final = 5_000  # events of one life
# After a message's end: who comes late with its receipt mostly comes soon.
_SEGMENTS_AFTER_END: Final = 10
_SEGMENTS_OF_AN_INSTANT: Final = 3  # an event may be recorded a little after the instant that it tells of
_ROWS_AT_ONCE: Final = 64
_DIED: Final = Kind.DEAD_LETTERED.label
_ENDS: Final = {each.label for each in (Kind.DELETED, Kind.EXPIRED, Kind.PURGED, Kind.REDRIVEN)}


# A plan that is none: over whatever rows wait. It is for looking; nothing is exported by it.
EVERY_ROW: Final = ExportPlan("", 1, (1 << 63) - 1, "")


async def waiting_rows(outbox: Outbox, bytes_max: int) -> AsyncIterator[OutboxRow | None]:
    """The rows that wait to be exported, up to so many bytes; None at the end where that was not all."""
    after = size = 0
    while size < bytes_max:
        rows = await outbox.outbox_rows(EVERY_ROW, after=after, limit=_ROWS_AT_ONCE)
        if not rows:
            return
        for row in rows:
            size += len(row.packed)
            yield row
        after = rows[-1].number
        await asyncio.sleep(0)  # a store that has them at hand does not wait by itself
    yield None


def events_where(
    index: SegmentIndex,
    segment: Segment,
    column: str,
    matches: Callable[[Any], Any],
    groups: Iterable[int] | None = None,
) -> Iterator[LifeEvent]:
    """The events of a segment in which a column matches; the other columns are read only where one does."""
    from pyarrow import compute as pc
    from pyarrow import parquet as pq

    with index.place.open_input(segment.name) as file:
        parquet = pq.ParquetFile(file)
        names = [name for name in _COLUMNS if name in parquet.schema_arrow.names]
        for group in range(parquet.num_row_groups) if groups is None else groups:
            mask = matches(parquet.read_row_group(group, columns=[column])[column])
            if pc.any(mask).as_py():
                for row in parquet.read_row_group(group, columns=names).filter(mask).to_pylist():
                    yield from_row(dict.fromkeys(_COLUMNS) | row)


def _one_of(seqs: Set[int]) -> Callable[[Any], Any]:
    import pyarrow as pa
    from pyarrow import compute as pc

    # Asked for each row group: the keys may have become more meanwhile.
    return lambda column: pc.is_in(column, value_set=pa.array(sorted(seqs), pa.int64()))


class Look(NamedTuple):
    """What was found of a life, in the order in which it happened."""

    events: list[LifeEvent]
    is_whole: bool  # False: a bound was met, there may be more
    looked_until: str | None  # the day up to which segments were looked into, where that is not the last
    problems: list[str]  # segments that could not be read


@dataclass(slots=True)
class _Search:
    """The keys that are followed, what was found of them, and how far the look has come."""

    keys: set[int]
    begins_ms: int
    further: int  # times the bounds
    ended: set[int] = field(default_factory=set)
    found: dict[tuple[int, str, int, int], LifeEvent] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)  # segments
    is_whole: bool = True
    looked_until: str | None = None
    problems: list[str] = field(default_factory=list)

    def take(self, events: Iterable[LifeEvent]) -> bool:
        """Keep what is of our keys; True if that has brought a new key, whose events may stand beside it."""
        grown = False
        for event in events:
            if event.seq not in self.keys or len(self.found) >= KEPT_MAX:
                continue
            # In a segment and in the outbox still, for a moment: it is the same event.
            self.found[event.position, event.kind, event.seq, event.at_ms] = event
            if event.kind in _ENDS or (event.kind == _DIED and event.other_seq is not None):
                self.ended.add(event.seq)
            follows = event.kind in (Kind.REDRIVEN.label, _DIED)
            other_seq = event.other_seq
            if follows and other_seq is not None and other_seq not in self.keys and len(self.keys) < KEYS_MAX:
                self.keys.add(other_seq)
                grown = True
        return grown

    @property
    def is_over(self) -> bool:
        return self.keys <= self.ended


async def read_life(outbox: Outbox, index: SegmentIndex | None, seq: int, *, further: int = 1) -> Look:
    """The events of the message that has, or had, this key, with those of its life before and after a redrive.

    `index` None: nothing is exported. `further` multiplies the bounds.
    """
    first = seq
    look = Look([], True, None, [])
    for _ in range(KEYS_MAX):
        look = await read_events(outbox, index, {first}, further=further)
        came_from = next(
            (each.other_seq for each in look.events if each.seq == first and each.kind == Kind.SENT.label),
            None,
        )
        if came_from is None or came_from >= first:
            break
        first = came_from
    return look


async def read_events(
    outbox: Outbox, index: SegmentIndex | None, seqs: Set[int], *, further: int = 1
) -> Look:
    """The events of the messages that have these keys, at least one of them, and of what they became later."""
    search = _Search(set(seqs), instant_of(min(seqs)), further)
    # An export may move rows from the outbox into a segment between the two looks: then that segment is looked into too.
    for round_ in range(3):
        is_exported = index is not None and await index.look(_look_through, search)
        if round_ and not is_exported:
            break  # nothing was exported meanwhile
        await _look_at_waiting(outbox, search)
    events = sorted(search.found.values(), key=lambda each: (each.at_ms, each.position))
    is_whole = search.is_whole and len(search.found) < KEPT_MAX
    return Look(events, is_whole, search.looked_until, search.problems)


async def keys_before(outbox: Outbox, index: SegmentIndex | None, seqs: Set[int]) -> dict[int, int]:
    """By their keys among the dead letters, the keys that messages had on the FIFO queue where they died.

    A letter gets its new key at the instant of its death, and the event of that names both: only the segments of those
    instants are looked into.
    """
    found: dict[int, int] = {}
    async for row in waiting_rows(outbox, OUTBOX_BYTES_MAX):
        if row is not None and any(msgspec.msgpack.encode(key) in row.packed for key in seqs):
            found |= _moved(from_packed(*row), seqs)
    if index is not None and len(found) < len(seqs):
        found |= await index.look(_exported_moves, seqs - found.keys())
    return found


def _moved(events: Iterable[LifeEvent], seqs: Set[int]) -> dict[int, int]:
    moves = ((each.other_seq, each.seq) for each in events if each.kind == _DIED)
    return {new: old for new, old in moves if new is not None and new in seqs}


def _exported_moves(index: SegmentIndex, seqs: Set[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    opened_max = index.opened + OPENED_MAX
    segments = _since_day(index, instant_of(min(seqs)))
    for seq in sorted(seqs):
        if seq in found or index.opened >= opened_max:
            continue
        died_ms = instant_of(seq)
        of_then = _begun(index, [each for each in segments if each.day >= _day(died_ms)], died_ms)
        for segment in of_then[:_SEGMENTS_OF_AN_INSTANT]:
            if seq not in found:
                with suppress(ValueError, OSError):
                    found |= _moved(events_where(index, segment, "other_seq", _one_of(seqs)), seqs)
    return found


async def _look_at_waiting(outbox: Outbox, search: _Search) -> None:
    """Look through what waits to be exported."""
    async for row in waiting_rows(outbox, OUTBOX_BYTES_MAX * search.further):
        if row is None:
            search.is_whole = False
            return
        # As the key is packed, so it stands in the row: most rows need not be unpacked to be passed over.
        while any(msgspec.msgpack.encode(key) in row.packed for key in search.keys):
            if not search.take(from_packed(*row)):
                break


def _look_through(index: SegmentIndex, search: _Search) -> bool:
    """Look into the segments that were not seen yet; False where there are none."""
    segments = [each for each in _since_day(index, search.begins_ms) if each.name not in search.seen]
    search.seen.update(each.name for each in segments)  # also those that a bound leaves out
    opened_max = index.opened + OPENED_MAX * search.further
    events = after_end = 0
    for segment in _begun(index, segments, search.begins_ms):
        after_end += search.is_over
        if after_end > _SEGMENTS_AFTER_END:
            break
        if events > EVENTS_MAX * search.further or (
            index.opened >= opened_max and not index.is_known(segment)
        ):
            search.is_whole, search.looked_until = False, search.looked_until or segment.day
            break
        try:
            events += _look_into(index, segment, search)
        except (ValueError, OSError) as problem:
            search.problems.append(f"{segment.name}: {problem}")
    return bool(segments)


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def _since_day(index: SegmentIndex, begins_ms: int) -> list[Segment]:
    return list_segments(index.place, since_day=_day(begins_ms))


def _begun(index: SegmentIndex, segments: Sequence[Segment], begins_ms: int) -> list[Segment]:
    """Without the segments of the first day that ended before the message was sent: their footers tell, and they rise."""
    kept: list[Segment] = []
    for _, run in groupby(segments, key=lambda each: (each.day, each.journal_id)):
        rising = list(run)
        first = 0
        if not kept:
            try:
                first = bisect_left(rising, begins_ms, key=lambda each: index.footer(each).last_ms)
            except (ValueError, OSError):
                first = 0  # one of them cannot be read: look at all, and say which
        kept += rising[first:]
    return kept


def _look_into(index: SegmentIndex, segment: Segment, search: _Search) -> int:
    """Take what the segment has of our keys, and say how many events had to be looked at."""
    footer = index.footer(segment)
    looked = 0
    while groups := footer.groups_with(search.keys):
        looked += sum(footer.groups[group].events for group in groups)
        if not search.take(events_where(index, segment, "seq", _one_of(search.keys), groups)):
            break
    return looked


# ---- finding where a message is, or was, by its id: the newest segments first, a bounded piece of the journal at a time

SEGMENTS_MAX: Final = 300  # for one look
_FOUND_EVENTS_MAX: Final = 4_000_000


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
    events: list[LifeEvent] = []
    if before is None:
        wanted = message_id.encode("utf-8", "replace")
        async for row in waiting_rows(outbox, OUTBOX_BYTES_MAX):
            if row is not None and wanted in row.packed:
                events += [each for each in from_packed(*row) if each.message_id == message_id]
    older, problems = None, list[str]()
    if index is not None:
        older, problems = await index.look(_exported_sightings, message_id, before, events)
    latest = {(each.queue, each.seq): each.at_ms for each in sorted(events, key=lambda each: each.at_ms)}
    found = [Sighting(*key, at_ms) for key, at_ms in latest.items()]
    found.sort(key=lambda each: each.at_ms, reverse=True)
    return Sightings(found, older and older.name, older and older.day, problems)


def _exported_sightings(
    index: SegmentIndex, message_id: str, before: str | None, events: list[LifeEvent]
) -> tuple[Segment | None, list[str]]:
    """Add what the segments tell; the first that was not looked into, and those that cannot be read."""
    from pyarrow import compute as pc

    segments = list_segments(index.place)[::-1]
    if before is not None:
        # By its name, not by its place: new segments have come meanwhile, and old days may have gone.
        names = [each.name for each in segments]
        older = (place for place, name in enumerate(names) if name < before)
        segments = segments[names.index(before) if before in names else next(older, len(names)) :]
    problems: list[str] = []
    looked = 0
    for number, segment in enumerate(segments):
        # A message is mostly in one queue: what one segment tells is enough, its page then follows the life.
        if events or number >= SEGMENTS_MAX or looked >= _FOUND_EVENTS_MAX:
            return segment, problems
        try:
            looked += index.footer(segment).events
            events += events_where(index, segment, "message_id", lambda ids: pc.equal(ids, message_id))
        except (ValueError, OSError) as problem:
            problems.append(f"{segment.name}: {problem}")
    return None, problems
