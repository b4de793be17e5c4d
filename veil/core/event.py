"""What happened to a message: the event that a store records in the same transaction as the change itself.

Events are made of effects (`core.effect`), here and nowhere else: another column of the journal is another field of Event and
a value for it in `EventRecorder`.

Events are written by the hundred in one packed row (`pack`), since a row each would cost more than the change. The names
of queues and callers stand once in front of the events that mention them, so that a packed row can be read on its own,
also after the queue is gone. Many alike, such as those of a hold, are packed as one whose fields are lists (`spread`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import repeat
from typing import Any, Final, NamedTuple

import msgspec

from veil.core import effect
from veil.core.attempt import NOTHING_REPORTED, RULE, ReportedOutcome
from veil.core.clock import Trouble
from veil.core.effect import Enqueued, LeaseChange, Opened
from veil.core.message import Caller
from veil.core.queue import QueueKey


class Kind(IntEnum):
    """What happened. The numbers are stored; the names, in lower case, are what readers of the journal see."""

    SENT = 1
    RECEIVED = 2
    EXTENDED = 3
    RELEASED = 4  # the holder set the visibility to zero
    # The answer to the receive never left: the message is visible again and the receive does not count.
    UNDONE = 5
    DELETED = 6
    DELETE_REFUSED = 7  # by a receipt that no longer counts: somebody else holds the message, or it is gone
    EXTENSION_REFUSED = 8
    DEAD_LETTERED = 9
    REDRIVEN = 10  # left the dead letters; it goes on under a new id
    EXPIRED = 11  # its retention ended
    PURGED = 12  # with its queue's content, or with the queue
    DELAYED = 13  # its sender changed when it becomes visible
    GIVEN_BACK = 14  # the holder ended its attempt and set when the message is visible again
    HOLDER_SEEN = 15  # after the lapse: its holder went on, and did not come back for it (core.attempt)
    HOLDER_SILENT = 16  # after the lapse: nothing was heard of its holder, while others of the queue went on
    GRACED = 17  # Veil's own trouble moved the deadline of its lease
    TROUBLE = 18  # of no message: Veil could not take renewals from the deadline on until then (core.clock)
    HOLDER_LATE = 19  # after the lapse: its holder reports how its attempts end, and had not ended this one

    @property
    def label(self) -> str:
        """The kind as the journal's readers see it."""
        return self.name.lower()


class Event(NamedTuple):
    """One change of one message. `queue` and `caller` are indexes into the lists of the packed row it stands in."""

    kind: int
    at_ms: int  # engine time
    queue: int
    seq: int  # which message: its order key, the one thing that a receipt of a message long gone still knows
    message_id: str | None = None  # None: a refused receipt of a message that is gone
    delivery: int = 0  # which lease; 0 where none is concerned
    deadline_ms: int | None = None  # of the lease; of the delay, when sent or delayed; when a trouble began
    receive_count: int | None = None
    body_bytes: int | None = None
    message_type: str | None = None
    caller: int = 0
    other_queue: int | None = None  # where it went: dead letters, or the redrive's destination
    # Its key there, or (when sent by a redrive) the key it had in the dead letters.
    other_seq: int | None = None
    # What the holder reported of the end of its attempt: core.attempt.ReportedOutcome. For a trouble, its kind.
    outcome: str | None = None
    error_type: str | None = None
    error_text: str | None = None
    traceback: str | int | None = None  # packed: which of the batch's; the text itself once it is unpacked
    worked_ms: int | None = None


class EventBatch(NamedTuple):
    """The events of one transaction, in the order in which they happened."""

    queues: list[QueueKey]
    callers: list[Caller]
    events: list[Event]
    rule: int = 1  # that attempts can be judged by: core.attempt.RULE of who recorded them
    traces: Sequence[str] = ()  # what fails together mostly fails at one place: each traceback stands once


_SEQ: Final = Event._fields.index("seq")
_MANY: Final = 50  # from here on they are packed as one: a third of the time and of the bytes
NO_QUEUE: Final = QueueKey("", "", "")
NOBODY: Final = Caller()  # what the store does by itself: retention, dead-lettering
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode

# Plain numbers: an event is written for every change, and the members of an enum take longer to pack.
_KINDS: Final[dict[type, int]] = {
    effect.Enqueued: int(Kind.SENT),
    effect.Opened: int(Kind.RECEIVED),
    effect.Extended: int(Kind.EXTENDED),
    effect.GivenBack: int(Kind.GIVEN_BACK),
    effect.Graced: int(Kind.GRACED),
    effect.Released: int(Kind.RELEASED),
    effect.Undone: int(Kind.UNDONE),
    effect.Deleted: int(Kind.DELETED),
    effect.DeleteRefused: int(Kind.DELETE_REFUSED),
    effect.ExtensionRefused: int(Kind.EXTENSION_REFUSED),
    effect.DeadLettered: int(Kind.DEAD_LETTERED),
    effect.Redriven: int(Kind.REDRIVEN),
    effect.Expired: int(Kind.EXPIRED),
    effect.Purged: int(Kind.PURGED),
    effect.Discarded: int(Kind.PURGED),
    effect.DelayChanged: int(Kind.DELAYED),
    effect.HolderSeen: int(Kind.HOLDER_SEEN),
    effect.HolderLate: int(Kind.HOLDER_LATE),
    effect.HolderSilent: int(Kind.HOLDER_SILENT),
    effect.Lapsed: 0,  # not recorded: it follows from the deadline
}
_SENT, _RECEIVED = int(Kind.SENT), int(Kind.RECEIVED)
_NOWHERE: Final = (None, None)  # other_queue and other_seq, before what was reported

# Seq, message id, delivery, deadline, receive count, size and type: as they follow one another in an event.
LeaseFacts = tuple[int, str, int, int | None, int, int, str | None]


def pack(
    queues: Iterable[QueueKey],
    callers: Iterable[Caller],
    events: list[tuple[object, ...]],
    traces: Iterable[str] = (),
) -> bytes:
    """The packed row of one transaction; `events` holds tuples in the order of Event's fields."""
    return _encode((tuple(queues), tuple(callers), events, RULE, tuple(traces)))


def unpack(packed: bytes) -> EventBatch:
    """The events of a packed row, each with its own traceback."""
    queues, callers, events, *rest = _decode(packed)
    batch = msgspec.convert((queues, callers, [*spread(events)], *rest), EventBatch)
    if not batch.traces:
        return batch
    events = [
        event._replace(traceback=batch.traces[event.traceback]) if isinstance(event.traceback, int) else event
        for event in batch.events
    ]
    return batch._replace(events=events, traces=())


def spread(events: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Each event by itself: where one stands for many, its fields are lists, apart from those that all of them share."""
    for event in events:
        if isinstance(event[_SEQ], list):
            fields = [each if isinstance(each, list) else repeat(each) for each in event]
            yield from zip(*fields, strict=False)
        else:
            yield event


def _shared(column: list[Any]) -> Any:
    return column[0] if column.count(column[0]) == len(column) else column


class EventRecorder:
    """Makes events of the effects of one transaction, and packs them into one row when it ends."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []  # in the order of Event's fields
        self._queues: dict[QueueKey, int] = {}
        self._callers: dict[Caller, int] = {}
        self._traces: dict[str, int] = {}
        self._last_queue: QueueKey | None = None
        self._last_caller: Caller | None = None
        self._indexes = (0, 0)

    def record(
        self, at_ms: int, queue: QueueKey, effects: Iterable[effect.AnyEffect], caller: Caller = NOBODY
    ) -> None:
        """Tell of effects on messages of one queue, which happened at that instant of engine time."""
        # Mostly the very same objects as the last time: to compare seven texts takes longer than to write the event.
        if queue is not self._last_queue or caller is not self._last_caller:
            self._look_up(queue, caller)
        index, who = self._indexes
        append = self.events.append
        for one in effects:
            kind = _KINDS[type(one)]
            # The most frequent by their very types: to be told whether it is of another class takes several times as long.
            if type(one) is Enqueued:
                new = one.new
                about = (new.message_id, 0, one.due_at_ms, 0, one.body_bytes, new.message_type)
                append((kind, at_ms, index, one.seq, *about, who))
            elif type(one) is Opened or isinstance(one, LeaseChange):
                message = one.message
                if kind:
                    told = () if kind == _RECEIVED else self._told(one)
                    lease = (message.message_id, one.delivery, one.deadline_ms, one.lease.receive_count)
                    size_and_type = (message.body_bytes, message.message_type)
                    append((kind, at_ms, index, message.seq, *lease, *size_and_type, who, *told))
            elif isinstance(one, effect.DeadLettered | effect.Redriven):
                self._record_move(kind, at_ms, index, one, who)
            elif one.message is None:
                nothing = (None, one.delivery, None, None, None, None)
                then_ms = one.at_ms if isinstance(one, effect.HolderLate) else at_ms
                append((kind, then_ms, index, one.seq, *nothing, who, *self._told(one)))
            else:
                message = one.message
                facts = (message.receive_count, message.body_bytes, message.message_type)
                deadline_ms = one.deadline_ms if isinstance(one, effect.Effect) else None
                lease_told = (message.message_id, one.delivery, deadline_ms)
                append((kind, at_ms, index, message.seq, *lease_told, *facts, who, *self._told(one)))

    def record_facts(
        self,
        kind: Kind,
        at_ms: int,
        queue: QueueKey,
        leases: Sequence[LeaseFacts],
        caller: Caller,
        reported: Mapping[int, ReportedOutcome] = NOTHING_REPORTED,
    ) -> None:
        """The same for deletes and extensions of which nothing but the facts is known."""
        number = int(kind)
        if queue is not self._last_queue or caller is not self._last_caller:
            self._look_up(queue, caller)
        index, who = self._indexes
        if not reported and len(leases) >= _MANY:
            seqs, ids, *others = map(list, zip(*leases, strict=True))
            self.events.append((number, at_ms, index, seqs, ids, *map(_shared, others), who))
        elif not reported:
            # Each field by itself: to unpack them all into the event takes half as long again.
            self.events += [
                (number, at_ms, index, seq, message_id, delivery, due_ms, count, size, type_, who)
                for seq, message_id, delivery, due_ms, count, size, type_ in leases
            ]
        else:
            for facts in leases:
                each = reported.get(facts[0])
                fields = () if each is None else self._in_fields(each)
                self.events.append((number, at_ms, index, *facts, who, *fields))

    def record_trouble(self, trouble: Trouble) -> None:
        """Veil could not take renewals: an event of no message and of no queue."""
        self._look_up(NO_QUEUE, NOBODY)
        index, who = self._indexes
        facts = (None, 0, trouble.from_ms, None, None, None, who, *_NOWHERE, trouble.kind)
        self.events.append((int(Kind.TROUBLE), trouble.to_ms, index, 0, *facts))

    def _record_move(
        self, kind: int, at_ms: int, index: int, one: effect.DeadLettered | effect.Redriven, who: int
    ) -> None:
        message = one.message
        there = self._queues.setdefault(one.target.key, len(self._queues))
        facts = (message.receive_count, message.body_bytes, message.message_type, who, there)
        gone = (kind, at_ms, index, message.seq, message.message_id, one.delivery, one.deadline_ms, *facts)
        if isinstance(one, effect.DeadLettered):
            self.events.append((*gone, None if one.new_seq == message.seq else one.new_seq))
            return
        moved = one.moved
        self.events.append((*gone, moved.seq))
        come = (_SENT, at_ms, there, moved.seq, moved.message_id, 0, moved.due_at_ms, 0)
        self.events.append((*come, moved.body_bytes, moved.message_type, who, None, message.seq))

    def _told(self, one: effect.AnyEffect) -> tuple[object, ...]:
        """The end of an event's fields: what the holder reported, if anything."""
        reported: ReportedOutcome | None = getattr(one, "reported", None)
        return () if reported is None else self._in_fields(reported)

    def _in_fields(self, each: ReportedOutcome) -> tuple[object, ...]:
        traces, trace = self._traces, each.traceback
        number = None if trace is None else traces.setdefault(trace, len(traces))
        return None, None, each.outcome, each.error_type, each.error_text, number, each.worked_ms

    def _look_up(self, queue: QueueKey, caller: Caller) -> None:
        self._last_queue, self._last_caller = queue, caller
        self._indexes = (
            self._queues.setdefault(queue, len(self._queues)),
            self._callers.setdefault(caller, len(self._callers)),
        )

    def pack(self) -> bytes:
        """What was recorded, as a row of the outbox; begins the next transaction."""
        packed = pack(self._queues, self._callers, self.events, self._traces)
        self.forget()
        return packed

    @property
    def count(self) -> int:
        """How many events there are."""
        return sum(1 for _ in spread(self.events))

    def forget(self) -> None:
        """The transaction was undone, or there is no room for its events."""
        self.events = []
        self._queues.clear()
        self._callers.clear()
        self._traces.clear()
        self._last_queue = self._last_caller = None


# ---- the outbox, where packed events wait until they are safe in a segment of the journal


class ExportPlan(NamedTuple):
    """Which rows of the outbox the next export holds: decided durably before the first of them is written elsewhere."""

    journal_id: str  # renewed when older data is restored: from there on the numbers tell another story
    first: int
    last: int
    day: str  # of the first row, engine time: YYYY-MM-DD; no plan reaches over midnight


class OutboxRow(NamedTuple):
    """The packed events of one transaction."""

    number: int
    packed: bytes


class OutboxSize(NamedTuple):
    """How much waits to be exported."""

    rows: int
    packed_bytes: int
    oldest_ms: int | None  # engine time of the oldest row
    lost_events: int  # not recorded since the start, because the outbox was at its bound
