"""Leases that are not in the rows of their messages yet: kept in memory, and in a log.

To write a lease into its message's row takes the message out of one index and puts it into another, and the delete that
mostly follows soon takes it out again. So a receive from a plain queue leaves the rows as they are. Its leases are kept in
memory (`QueueLeases`) and noted in the log, one row of the table `lease_log` for all that a transaction did; a renewal changes
them there; a delete finds them there and removes the row; a look puts them into what it has read. Whatever needs rows as they
ought to be has the leases of its messages, or of all the queue's (a lapse, a purge), written into them first
(`Database.write_back`).

What always holds: of a queue's rows that are visible by their columns, those up to `taken_seq` have a lease here, and no
others do. So the next receive reads on behind it; a message that becomes visible before it moves it back, and the leases behind
that message are written. Leases are held in the order of their keys, which is that of their receives.

After a crash the log is folded into the rows when the database is opened; after a rollback it is read into memory again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise, repeat, takewhile
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from veil.core.event import LeaseFacts
from veil.core.lease import State
from veil.core.message import LeaseState, StoredMessage
from veil.core.sequence import expires_at_ms

_IN_FLIGHT: Final = int(State.IN_FLIGHT)
NEVER: Final = 1 << 62
# Of all queues together; beyond it, receives write their leases into the rows. A lease takes some 400 bytes, and 2 µs to write
# into its row: the release of the oldest, which needs all others of its queue there, takes 50 ms at most. Nobody can release a
# message of a hold, so for holds there is room for a batch that a stream deletes and the next one, which it receives meanwhile
# (behind a message that an ordinary receiver of the same queue releases, they take 150 ms).
LEASES_MAX: Final = 20_000
HELD_MAX: Final = 60_000
# A log that has become longer by so much is started over, with the leases that are left; and one that names so many messages,
# however few bytes that takes: to read it takes 2 µs for each, also of those that were deleted since.
LOG_BYTES_MAX: Final = 1 << 20
LOGGED_MAX: Final = 200_000

Spans = list[int]  # the first and the last order key of each run


class _Opened(msgspec.Struct, array_like=True, tag=0):
    queue_id: int
    spans: Spans
    deadline_ms: int
    received_at_ms: int
    wall_ms: int


class _Extended(msgspec.Struct, array_like=True, tag=1):
    queue_id: int
    spans: Spans
    deadline_ms: int


class _Written(msgspec.Struct, array_like=True, tag=2):
    queue_id: int
    spans: Spans


_Entry = _Opened | _Extended | _Written
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Entry]).decode


class LoggedLease(NamedTuple):
    """What a receive, and the renewals after it, made of a message whose row does not say so."""

    deadline_ms: int
    received_at_ms: int
    wall_ms: int


# The same in memory: what a delete or a renewal tells the journal, and the lease, which is one object for all of a receive. A
# plain tuple: one with names takes three times as long to make.
CachedLease = tuple[LeaseFacts, LoggedLease]


class QueueLeases:
    """The leases of one queue that are not in their rows."""

    __slots__ = ("by_seq", "taken_seq")

    def __init__(self) -> None:
        self.by_seq: dict[int, CachedLease] = {}
        self.taken_seq = 0

    def held(
        self,
        seqs: Sequence[int],
        holders: Sequence[int],
        now_ms: int,
        alive_from: int,
        received_from_ms: int = 0,
        deadline_max_ms: int = NEVER,
    ) -> tuple[list[CachedLease], list[int]]:
        """The leases here that are open and held by whom it is said, and the places of the other messages: `may_delete` and
        `may_extend` of queries.sql say the same of rows."""
        found: list[CachedLease] = []
        places: list[int] = []
        by_seq = self.by_seq
        for place, seq in enumerate(seqs):
            cached = by_seq.get(seq)
            if cached is not None and cached[0][2] == holders[place] and seq >= alive_from:
                deadline_ms, received_at_ms, _ = cached[1]
                if now_ms < deadline_ms <= deadline_max_ms and received_at_ms >= received_from_ms:
                    found.append(cached)
                    continue
            places.append(place)
        return found, places

    def put_into(self, message: StoredMessage) -> StoredMessage:
        """The message, read from its row, as it stands: with the lease that it has here, if it has one."""
        if (cached := self.by_seq.get(message.seq)) is not None:
            (_, _, delivery, _, count, *_), (deadline_ms, received_at_ms, wall_ms) = cached
            first_ms = message.first_received_wall_ms
            first_ms = wall_ms if first_ms is None else first_ms
            lease = LeaseState(_IN_FLIGHT, deadline_ms, received_at_ms, delivery, delivery, count, first_ms)
            message.set_lease(lease)
        return message

    def behind(self, seq: int) -> list[int]:
        """The keys above that one whose leases are here."""
        return [*takewhile(seq.__lt__, reversed(self.by_seq))][::-1]

    def first_wake_ms(self, retention_s: int) -> int:
        """No later than the first of them, of which there must be one, lapses or its message passes its retention."""
        first_seq = next(iter(self.by_seq))
        return min(
            expires_at_ms(first_seq, retention_s),
            *[lease.deadline_ms for _, lease in self.by_seq.values()],
        )


class LeaseLog:
    """What the open transaction has to note in the log, and how much there is."""

    def __init__(self) -> None:
        self.noted = 0  # entries ever: tells whether an operation made one
        self.bytes = 0  # in the table
        self.logged = 0  # messages that its entries name
        self.leases = 0  # in memory, of all queues
        self._begun_bytes = 0  # in the table when it last started over
        self.entries: list[_Entry] = []  # of the open transaction

    def clear(self) -> None:
        """Forget everything, as before the log is read."""
        self.bytes = self.logged = self.leases = self._begun_bytes = 0
        self.entries.clear()

    def has_room(self, count: int, *, hold: bool) -> bool:
        """Whether that many more leases may be kept in memory."""
        return self.leases + count <= (HELD_MAX if hold else LEASES_MAX)

    @property
    def is_long(self) -> bool:
        """Whether the log is to be started over."""
        return self.bytes > LOG_BYTES_MAX + self._begun_bytes or self.logged > LOGGED_MAX

    def pack_all(self, queues: Iterable[tuple[int, QueueLeases]]) -> bytes | None:
        """The only row of a log that starts over: all leases in memory as they are now."""
        self.entries.clear()
        self.logged = 0
        for queue_id, leases in queues:
            for lease, alike in groupby(leases.by_seq.values(), itemgetter(1)):
                seqs = [facts[0] for facts, _ in alike]
                self._note(_Opened(queue_id, spans_of(seqs), *lease), len(seqs))
        self.bytes = 0
        packed = self.take_packed()
        self._begun_bytes = self.bytes
        return packed

    def open(
        self,
        queue_id: int,
        leases: QueueLeases,
        opened: Sequence[LeaseFacts],
        deadline_ms: int,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        """A receive took the queue's next messages."""
        lease = LoggedLease(deadline_ms, now_ms, wall_ms)
        seqs = [facts[0] for facts in opened]
        leases.by_seq.update(zip(seqs, zip(opened, repeat(lease)), strict=True))
        spans = spans_of(seqs)
        leases.taken_seq = spans[-1]
        self.leases += len(opened)
        self._note(_Opened(queue_id, spans, deadline_ms, now_ms, wall_ms), len(opened))

    def extend(
        self, queue_id: int, leases: QueueLeases, extended: Sequence[CachedLease], deadline_ms: int
    ) -> list[LeaseFacts]:
        """Leases of a queue got another deadline; their facts with it."""
        changed: list[LeaseFacts] = []
        by_seq = leases.by_seq
        before = after = None
        for (seq, message_id, delivery, _, count, size, type_), lease in extended:
            if lease is not before or after is None:  # those of one receive go on sharing theirs
                before, after = lease, lease._replace(deadline_ms=deadline_ms)
            facts = (seq, message_id, delivery, deadline_ms, count, size, type_)
            by_seq[seq] = (facts, after)
            changed.append(facts)
        self._note(_Extended(queue_id, spans_of([facts[0] for facts in changed]), deadline_ms), len(changed))
        return changed

    def forget(self, leases: QueueLeases, seqs: Sequence[int]) -> None:
        """Messages were deleted; the log need not record it, since their rows are gone."""
        for seq in seqs:
            del leases.by_seq[seq]
        self.leases -= len(seqs)

    def written(self, queue_id: int, leases: QueueLeases, seqs: Sequence[int]) -> None:
        """Leases of a queue are in their rows now."""
        self.forget(leases, seqs)
        self._note(_Written(queue_id, spans_of(seqs)), len(seqs))

    def take_packed(self) -> bytes | None:
        """The open transaction's row of the log."""
        if not self.entries:
            return None
        packed = _encode(self.entries)
        self.entries.clear()
        self.bytes += len(packed)
        return packed

    def _note(self, entry: _Entry, messages: int) -> None:
        self.entries.append(entry)
        self.noted += 1
        self.logged += messages


def folded(packed: Iterable[bytes]) -> dict[int, dict[int, LoggedLease]]:
    """The leases that the rows of the log leave, by queue and order key; some of their messages may have been deleted since."""
    queues: dict[int, dict[int, LoggedLease]] = {}
    for row in packed:
        for entry in _decode(row):
            leases = queues.setdefault(entry.queue_id, {})
            match entry:
                case _Opened(_, spans, deadline_ms, received_at_ms, wall_ms):
                    opened = LoggedLease(deadline_ms, received_at_ms, wall_ms)
                    leases.update((seq, opened) for seq in _keys(spans))
                case _Extended(_, spans, deadline_ms):
                    for seq in _keys(spans):
                        if seq in leases:  # unless a row of the log could not be saved
                            leases[seq] = leases[seq]._replace(deadline_ms=deadline_ms)
                case _Written(_, spans):
                    for seq in _keys(spans):
                        leases.pop(seq, None)
    return queues


def spans_of(seqs: Sequence[int]) -> Spans:
    """Runs of keys without a gap, each by its first and its last."""
    bounds = [seqs[0]]
    for before, seq in pairwise(seqs):
        if seq != before + 1:
            bounds += (before, seq)
    bounds.append(seqs[-1])
    return bounds


def _keys(spans: Sequence[int]) -> Iterator[int]:
    for first, last in zip(spans[::2], spans[1::2], strict=True):
        if last - first >= HELD_MAX:
            raise ValueError(f"no lease log has {last - first + 1} leases in a row")
        yield from range(first, last + 1)
