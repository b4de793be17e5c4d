"""Who does what at the moment, and how much of it: what people look at and no store tells.

Kept for the console, in memory, from the start of the server on. The hot path pays a few dictionary entries for each
receive and delete; everything that can wait (rates, lapses, sums) is done when somebody looks, or once a second.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from veil.core.clock import Clock, Timer
from veil.core.message import Caller, StoredMessage

# ---- counters


class Tallies(defaultdict[tuple[str, int], int]):
    """Counters by event and queue id; `tallies["sent", queue_id] += 1` costs next to nothing.

    The service counts `sent`, `received`, `empty_receive`, `deleted`, `extended`, `released`, `undone`, `purged`; the
    store, through `counted`, what only it sees: `lapsed`, `dead_lettered`, `expired`, `stale_receipt`, `duplicate`,
    `repeated_send`. What stands in the dictionary itself is what is new since `take_fresh`; `of` and `totals` tell of all.
    """

    def __init__(self) -> None:
        super().__init__(int)
        self._taken: defaultdict[tuple[str, int], int] = defaultdict(int)

    def take_fresh(self) -> Mapping[tuple[str, int], int]:
        """What was counted since this was last asked."""
        fresh = dict(self)
        self.clear()
        for key, count in fresh.items():
            self._taken[key] += count
        return fresh

    def of(self, event: str, queue_id: int) -> int:
        """How often the event happened in that queue since the server started."""
        key = (event, queue_id)
        return self._taken.get(key, 0) + self.get(key, 0)

    def totals(self) -> list[tuple[str, int, int]]:
        """Every counter as event, queue id and count since the server started."""
        return [(*key, self._taken.get(key, 0) + self.get(key, 0)) for key in self._taken | self]

    def forget(self, queue_id: int) -> None:
        """Drop the counters of a queue that no longer exists."""
        for counts in (self._taken, self):
            for key in [key for key in counts if key[1] == queue_id]:
                del counts[key]


TICK_MS: Final = 1_000
FINE_S: Final = 5  # seconds of one bucket: ten minutes of them
COARSE_S: Final = 60  # four hours of these
_FINE_BUCKETS: Final = 120
_COARSE_BUCKETS: Final = 240
# What is beyond these bounds is forgotten, oldest first: the console then says that it does not know the holder.
LEASES_MAX: Final = 100_000
CONSUMERS_MAX: Final = 1_000
SERIES_MAX: Final = 20_000


class Consumer:
    """One caller: what it did since the server started, as far as it is remembered."""

    __slots__ = (
        "caller",
        "deleted",
        "empty_polls",
        "first_seen_ms",
        "in_flight",
        "lapses",
        "last_seen_ms",
        "polls",
        "queues",
        "received",
        "released",
        "renewals",
    )

    def __init__(self, caller: Caller, now_ms: int) -> None:
        self.caller = caller
        self.first_seen_ms = self.last_seen_ms = now_ms  # engine time
        self.polls = self.empty_polls = self.received = self.deleted = 0
        self.renewals = self.released = self.lapses = 0
        self.in_flight = 0  # as of the last `settle`
        self.queues: dict[int, int] = {}  # messages received, by queue id


class Claim:
    """One receive: its messages' leases share it. A new deadline is each lease's own."""

    __slots__ = ("consumer", "deadline_ms", "queue_id", "received_at_ms", "renewed")

    def __init__(self, consumer: Consumer, queue_id: int, received_at_ms: int, deadline_ms: int) -> None:
        self.consumer = consumer
        self.queue_id = queue_id
        self.received_at_ms = received_at_ms
        self.deadline_ms = deadline_ms
        self.renewed: dict[int, tuple[int, int, int]] | None = None  # seq: how often, when last, deadline

    def deadline_of(self, seq: int) -> int:
        """When that lease lapses."""
        renewed = self.renewed
        return self.deadline_ms if renewed is None or seq not in renewed else renewed[seq][2]


class Holder:
    """What is known about an open lease."""

    __slots__ = ("caller", "last_renewed_ms", "received_at_ms", "renewals")

    def __init__(
        self, caller: Caller, received_at_ms: int, renewals: int, last_renewed_ms: int | None
    ) -> None:
        self.caller = caller
        self.received_at_ms = received_at_ms
        self.renewals = renewals
        self.last_renewed_ms = last_renewed_ms


class _Ring:
    """Counts in buckets of equal length, the latest ones only."""

    __slots__ = ("_counts", "_latest")

    def __init__(self, buckets: int) -> None:
        self._counts = array("L", bytes(array("L").itemsize * buckets))
        self._latest = 0  # the number of the bucket that was written last

    def add(self, bucket: int, count: int) -> None:
        counts = self._counts
        size = len(counts)
        for skipped in range(max(self._latest + 1, bucket - size + 1), bucket + 1):
            counts[skipped % size] = 0
        self._latest = max(self._latest, bucket)
        counts[bucket % size] += count

    def last(self, bucket: int, buckets: int) -> list[int]:
        counts, size = self._counts, len(self._counts)
        wanted = bucket - buckets + 1
        first = min(max(wanted, self._latest - size + 1), bucket + 1)
        after = max(min(bucket, self._latest) + 1, first)  # those from first up to here are kept
        begin, end = first % size, after % size
        if first == after:
            kept = counts[:0]
        elif begin < end:
            kept = counts[begin:end]
        else:
            kept = counts[begin:] + counts[:end]
        return [0] * (first - wanted) + kept.tolist() + [0] * (bucket + 1 - after)


class Activity:
    """Rates of every queue, callers and the holders of leases; all of it bounded."""

    def __init__(self, clock: Clock, tallies: Tallies) -> None:
        self._clock = clock
        self._tallies = tallies
        self._consumers: dict[Caller, Consumer] = {}
        self._leases: dict[int, Claim] = {}  # by seq, in the order of their receives
        self._fine: dict[tuple[str, int], _Ring] = {}
        self._coarse: dict[tuple[str, int], _Ring] = {}
        self._timer: Timer | None = None

    # ---- the hot path

    def received(
        self, queue_id: int, messages: Sequence[StoredMessage], visibility_s: int, caller: Caller
    ) -> None:
        """A receive was answered, with nothing or with these."""
        now_ms = self._clock.now_ms()
        consumer = self._consumers.get(caller) or self._newcomer(caller, now_ms)
        consumer.last_seen_ms = now_ms
        consumer.polls += 1
        if not messages:
            consumer.empty_polls += 1
            return
        consumer.received += len(messages)
        consumer.queues[queue_id] = consumer.queues.get(queue_id, 0) + len(messages)
        if visibility_s == 0:
            return
        received_at_ms = messages[0].received_at_ms or now_ms
        claim = Claim(consumer, queue_id, received_at_ms, received_at_ms + visibility_s * 1000)
        leases = self._leases
        if len(leases) >= LEASES_MAX:
            self._make_room()
        for message in messages:
            seq = message.seq
            earlier = leases.pop(seq, None)  # taken out and put in again: the order is that of the receives
            if earlier is not None and earlier.deadline_of(seq) <= now_ms:
                earlier.consumer.lapses += 1  # it was neither deleted nor released
            leases[seq] = claim

    def renewed(self, seqs: Iterable[int], visibility_s: int, caller: Caller) -> None:
        """These leases got a new deadline, counted from now."""
        now_ms = self._clock.now_ms()
        consumer = self._consumers.get(caller) or self._newcomer(caller, now_ms)
        consumer.last_seen_ms = now_ms
        deadline_ms = now_ms + visibility_s * 1000
        for seq in seqs:
            consumer.renewals += 1
            claim = self._leases.get(seq)
            if claim is not None:
                if claim.renewed is None:
                    claim.renewed = {}
                times = claim.renewed[seq][0] if seq in claim.renewed else 0
                claim.renewed[seq] = (times + 1, now_ms, deadline_ms)

    def ended(self, seqs: Iterable[int], how: str, caller: Caller) -> None:
        """These leases are over: `deleted`, `released`, or `undone` because the answer found nobody."""
        now_ms = self._clock.now_ms()
        consumer = self._consumers.get(caller) or self._newcomer(caller, now_ms)
        consumer.last_seen_ms = now_ms
        count = 0
        for seq in seqs:
            count += 1
            self._leases.pop(seq, None)
        if how == "deleted":
            consumer.deleted += count
        elif how == "released":
            consumer.released += count

    # ---- what people look at

    def holder(self, queue_id: int, message: StoredMessage) -> Holder | None:
        """Who holds the message in flight; None where the receive was before the start, or elsewhere."""
        claim = self._leases.get(message.seq)
        if claim is None or claim.queue_id != queue_id or claim.received_at_ms != message.received_at_ms:
            return None
        times, last_ms = (claim.renewed or {}).get(message.seq, (0, None, 0))[:2]
        return Holder(claim.consumer.caller, claim.received_at_ms, times, last_ms)

    def consumers(self) -> list[Consumer]:
        """Every caller that is remembered, the one seen last first, with `in_flight` and `lapses` as of now."""
        self.settle()
        return sorted(self._consumers.values(), key=lambda each: each.last_seen_ms, reverse=True)

    def settle(self) -> None:
        """Take out the leases whose deadline has passed: their holders let them lapse."""
        now_ms = self._clock.now_ms()
        for consumer in self._consumers.values():
            consumer.in_flight = 0
        lapsed: list[int] = []
        for seq, claim in self._leases.items():
            if claim.deadline_of(seq) > now_ms:
                claim.consumer.in_flight += 1
            else:
                claim.consumer.lapses += 1
                lapsed.append(seq)
        for seq in lapsed:
            del self._leases[seq]

    def fine(self, event: str, queue_id: int, buckets: int = _FINE_BUCKETS) -> list[int]:
        """How often the event happened in each of the last spans of FINE_S seconds, the oldest first."""
        return self._last(self._fine, FINE_S, event, queue_id, buckets)

    def coarse(self, event: str, queue_id: int, buckets: int = _COARSE_BUCKETS) -> list[int]:
        """The same in spans of COARSE_S seconds."""
        return self._last(self._coarse, COARSE_S, event, queue_id, buckets)

    def emptied(self, queue_id: int) -> None:
        """Every message of the queue is gone, and its leases with it."""
        for seq in [seq for seq, claim in self._leases.items() if claim.queue_id == queue_id]:
            del self._leases[seq]

    def is_quiet(self, events: Iterable[str], queue_id: int) -> bool:
        """Whether none of the events has happened in the queue for as long as is remembered."""
        self.tick()
        return not any((event, queue_id) in self._fine for event in events)

    def forget(self, queue_id: int) -> None:
        """Drop what is known about a queue that no longer exists."""
        self.emptied(queue_id)
        for rings in (self._fine, self._coarse):
            for key in [key for key in rings if key[1] == queue_id]:
                del rings[key]

    # ---- once a second

    def start(self) -> None:
        """Note from now on how much happens when."""
        self._timer = self._clock.call_at(self._clock.now_ms() + TICK_MS, self._again)

    def stop(self) -> None:
        """Note no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        """Put what was counted since the last tick into the present buckets."""
        now_s = self._clock.now_ms() // 1000
        for key, count in self._tallies.take_fresh().items():
            for rings, span_s, buckets in (
                (self._fine, FINE_S, _FINE_BUCKETS),
                (self._coarse, COARSE_S, _COARSE_BUCKETS),
            ):
                ring = rings.get(key)
                if ring is None:
                    if len(rings) >= SERIES_MAX:
                        del rings[next(iter(rings))]
                    ring = rings[key] = _Ring(buckets)
                ring.add(now_s // span_s, count)

    def _again(self) -> None:
        self.tick()
        self.start()

    def _last(
        self, rings: dict[tuple[str, int], _Ring], span_s: int, event: str, queue_id: int, buckets: int
    ) -> list[int]:
        self.tick()
        ring = rings.get((event, queue_id))
        bucket = self._clock.now_ms() // 1000 // span_s
        return [0] * buckets if ring is None else ring.last(bucket, buckets)

    def _newcomer(self, caller: Caller, now_ms: int) -> Consumer:
        consumers = self._consumers
        if len(consumers) >= CONSUMERS_MAX:
            longest_silent = min(consumers.values(), key=lambda each: each.last_seen_ms)
            del consumers[longest_silent.caller]
        consumer = consumers[caller] = Consumer(caller, now_ms)
        return consumer

    def _make_room(self) -> None:
        self.settle()
        for seq in list(self._leases)[: len(self._leases) - LEASES_MAX * 9 // 10]:
            del self._leases[seq]
