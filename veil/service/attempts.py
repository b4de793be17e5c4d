"""Who works on what at the moment: callers, the attempts that they hold, and what came of those that have ended.

Kept in memory, for people who look and for the journal, which is told of holders that were seen, or not, after their leases
had lapsed (`core.attempt`). The hot path pays a few dictionary entries for each receive and delete.

Several nodes on one store tell one another every few seconds whom they have heard (`HeardCallers`), so that the one which gave a
lease can judge its lapse by what all of them know.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from veil.core.attempt import PATIENCE_MIN_MS, AttemptOutcome, ReportedOutcome, patience_ms
from veil.core.clock import Clock, Trouble
from veil.core.decide import graced_deadline_ms
from veil.core.effect import HolderLate, HolderSeen, HolderSign, HolderSilent
from veil.core.lease import HoldKey
from veil.core.message import Caller, StoredMessage
from veil.core.queue import Queue
from veil.journal.lives import LifeEvent

# What is beyond these bounds is forgotten, oldest first: nobody then knows the holder, and a lapse stays unknown.
LEASES_MAX: Final = 100_000
LAPSES_MAX: Final = 100_000
CONSUMERS_MAX: Final = 1_000
QUEUES_MAX: Final = 1_000  # of each consumer: some go from one queue to the next all day, for an answer each
RECENT_MAX: Final = 50  # attempts that did not complete, of each consumer
HELD_SHOWN_MAX: Final = 200
# Judged at once; the rest a second later.
JUDGED_MAX: Final = 1_000
# A lapse of which nothing is learned for so long stays unknown.
UNKNOWN_AFTER_MS: Final = 24 * 3_600_000
# A server that was stopped for longer than this could not hear anybody: silence counts from its return.
_GAP_MS: Final = 5_000
# How often nodes tell one another whom they have heard; of one that has not told it for so long nobody knows whether it still
# hears somebody, and after that it is dead. What was heard is told for an hour.
SHARE_EVERY_MS: Final = 5_000
_DEAD_AFTER_MS: Final = 15_000
HEARD_MS: Final = 3_600_000
_QUEUES_TOLD_MAX: Final = 32  # of each caller: fewer signs that others went on, never a wrong one
# A plain text: to look a member of an enum up takes long.
_GIVEN_BACK: Final = AttemptOutcome.GIVEN_BACK.value


class EndedAttempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that did not complete."""

    queue: Queue
    seq: int
    message_id: str  # empty where nobody here knows it
    at_ms: int
    outcome: str
    reported: ReportedOutcome | None = None


class KnownConsumer:
    """One caller: what it did since the server started, as far as it is remembered."""

    def __init__(self, caller: Caller, now_ms: int) -> None:
        self.caller = caller
        self.last_seen_ms = now_ms  # engine time
        self.reports_outcomes = caller.reports_outcomes
        self.polls = self.empty_polls = self.received = self.renewals = 0
        # Of its attempts, by core.attempt.Outcome; a lapse is unknown until it is judged.
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.in_progress = 0  # as of the last `settle`
        self.waiting = 0  # for a retry, the same
        self.queues: dict[int, int] = {}  # messages received, by queue id, the latest last
        # Those that did not complete, the last one last.
        self.recent: deque[EndedAttempt] = deque(maxlen=RECENT_MAX)


class KnownHolder(NamedTuple):
    """What is known about who holds a message in flight, or held it until its attempt was over."""

    caller: Caller
    queue: Queue
    seq: int
    message_id: str
    received_at_ms: int
    deadline_ms: int
    renewals: int = 0
    last_renewed_ms: int | None = None
    outcome: str | None = None  # of an attempt that is over: the message waits for its retry
    reported: ReportedOutcome | None = None


class ChangedLease(msgspec.Struct, frozen=True, gc=False):
    """What has become of one lease of a claim since its receive."""

    renewals: int
    last_ms: int  # when the deadline was last set
    deadline_ms: int
    outcome: str | None = None  # the attempt is over, and the message waits for its retry
    reported: ReportedOutcome | None = None


class Claim:
    """One receive: its messages' leases share it, until something happens to one of them."""

    __slots__ = (
        "changes", "consumer", "deadline_ms", "deliveries", "hold", "message_ids", "queue", "received_at_ms", "renewals",
        "set_at_ms",
    )  # fmt: skip

    def __init__(
        self,
        consumer: KnownConsumer,
        queue: Queue,
        received_at_ms: int,
        deadline_ms: int,
        hold: HoldKey | None = None,
    ) -> None:
        self.consumer = consumer
        self.queue = queue
        self.received_at_ms = received_at_ms
        self.deadline_ms = deadline_ms
        self.hold = hold  # the name that it was received under: its stream renews all of it at once
        self.renewals, self.set_at_ms = 0, received_at_ms  # when the deadline was last set
        self.message_ids: dict[int, str] = {}  # of those that it has still, by seq
        self.changes: dict[int, ChangedLease] | None = None  # by seq
        self.deliveries: dict[int, int] | None = None  # of messages that were received before, by seq

    def change_of(self, seq: int) -> ChangedLease | None:
        return None if self.changes is None else self.changes.get(seq)

    def holder_of(self, seq: int) -> KnownHolder:
        facts = (self.consumer.caller, self.queue, seq, self.message_ids[seq], self.received_at_ms)
        change = self.change_of(seq)
        if change is None:
            change = ChangedLease(self.renewals, self.set_at_ms, self.deadline_ms)
        last_ms = change.last_ms if change.renewals else None
        return KnownHolder(
            *facts, change.deadline_ms, change.renewals, last_ms, change.outcome, change.reported
        )

    def deadline_of(self, seq: int) -> int:
        change = self.change_of(seq)
        return self.deadline_ms if change is None else change.deadline_ms

    def delivery_of(self, seq: int) -> int:
        return 1 if self.deliveries is None else self.deliveries.get(seq, 1)


class _Lapse(NamedTuple):
    consumer: KnownConsumer
    queue: Queue
    message_id: str
    deadline_ms: int
    patience_ms: int


def _name_of(caller: Caller) -> int:
    return int.from_bytes(hashlib.blake2s("\0".join(map(str, caller)).encode(), digest_size=8).digest())


class HeardCallers(msgspec.Struct, array_like=True, frozen=True):
    """Whom one of several nodes has heard, as it tells the others."""

    until_ms: int  # it has told everything up to then
    complete_since_ms: int  # of callers that it last heard before then it has forgotten some
    back_since_ms: int  # before then it could not hear anybody
    is_over: bool  # it hears nobody any more
    callers: dict[int, tuple[int, list[int]]]  # when each was last heard, and queues that it receives from

    def covers(self, deadline_ms: int, patience_ms: int) -> bool:
        """Whether the silence of somebody whom it does not name, for so long after the deadline, is certain as far as it goes."""
        if self.until_ms + (0 if self.is_over else _DEAD_AFTER_MS) <= deadline_ms:
            return True  # it was gone by then
        heard_ms = max(deadline_ms, self.back_since_ms) + patience_ms
        return self.complete_since_ms <= deadline_ms and (self.is_over or self.until_ms >= heard_ms)


_encode_heard = msgspec.msgpack.Encoder().encode
_decode_heard = msgspec.msgpack.Decoder(HeardCallers).decode
# What is known of a node that tells nothing: it goes on hearing whom it likes.
_TELLS_NOTHING: Final = HeardCallers(1 << 62, 1 << 62, 0, False, {})


def read_heard(packed: Iterable[bytes | None]) -> list[HeardCallers]:
    """What other nodes have told; of one that tells nothing, or what cannot be read, nothing is certain."""
    return [_TELLS_NOTHING if each is None else _read_heard(each) for each in packed]


def _read_heard(packed: bytes) -> HeardCallers:
    try:
        return _decode_heard(packed)
    except msgspec.DecodeError:  # of another version
        return _TELLS_NOTHING


class JudgedLapse(NamedTuple):
    """A lapse that its own node has judged, by what it and the others have heard."""

    lapse: _Lapse
    outcome: AttemptOutcome
    sign: HolderSign


class LiveAttempts:
    """Callers, the leases that they hold, and the lapses that are not judged yet; all of it bounded."""

    def __init__(
        self,
        clock: Clock,
        tallies: MutableMapping[tuple[str, int], int],
        handled: Callable[[int, int, int], None] | None = None,
        trouble_at: Callable[[int], Trouble | None] = lambda now_ms: None,
        *,
        is_shared: bool = False,
    ) -> None:
        """`handled` hears how long after their receive messages of a queue were deleted, in milliseconds, and how many;
        `trouble_at` tells what leases are excused by, as the store's own does; `is_shared`: other nodes may have heard a
        caller too."""
        self._unknown_after_ms = HEARD_MS if is_shared else UNKNOWN_AFTER_MS
        self._told_after_ms = 2 * SHARE_EVERY_MS if is_shared else 0  # all nodes know what the others heard
        self._clock, self._tallies, self._handled, self._trouble_at = clock, tallies, handled, trouble_at
        self._consumers: dict[Caller, KnownConsumer] = {}
        self._leases: dict[int, Claim] = {}  # by seq, in the order of their receives
        self._waiting: dict[int, dict[int, int]] = {}  # queue id: seq: when it is visible again
        self._lapses: dict[tuple[int, int], _Lapse] = {}  # by seq and delivery
        self._due: list[tuple[int, int, int]] = []  # a heap: when to judge which of them
        self._judged_at_ms = self._back_since_ms = self._swept_at_ms = clock.now_ms()
        self._forgot_ms = 0  # callers that were last heard before then may be forgotten

    # ---- the hot path

    def received(
        self,
        queue: Queue,
        messages: Sequence[StoredMessage],
        visibility_s: int,
        caller: Caller,
        hold: HoldKey | None = None,
    ) -> None:
        """A receive was answered, with nothing or with these; `hold` is the name that it had."""
        now_ms = self._clock.now_ms()
        consumer = self._consumers.get(caller) or self._newcomer(caller, now_ms)
        consumer.last_seen_ms = now_ms
        consumer.polls += 1
        queues = consumer.queues
        queues[queue.id] = queues.pop(queue.id, 0) + len(messages)  # the latest last
        if len(queues) > QUEUES_MAX:
            del queues[next(iter(queues))]
        if not messages:
            consumer.empty_polls += 1
            return
        consumer.received += len(messages)
        if visibility_s == 0:
            self._judged(consumer, queue, AttemptOutcome.GIVEN_BACK, len(messages))
            return
        received_at_ms = messages[0].received_at_ms or now_ms
        claim = Claim(consumer, queue, received_at_ms, received_at_ms + visibility_s * 1000, hold)
        self._hold(claim, messages)

    def _hold(self, claim: Claim, messages: Sequence[StoredMessage]) -> None:
        leases = self._leases
        if len(leases) >= LEASES_MAX:
            self.settle()
            for seq in list(leases)[: len(leases) - LEASES_MAX * 9 // 10]:
                self._let_go(seq)
        now_ms = self._clock.now_ms()
        claim.message_ids = {message.seq: message.message_id for message in messages}
        claim.deliveries = {each.seq: each.delivery for each in messages if each.delivery != 1} or None
        for seq in leases.keys() & claim.message_ids.keys():
            earlier = leases[seq]
            if earlier.deadline_of(seq) <= now_ms:
                self._lapsed(seq, earlier)
            self._let_go(seq)  # taken out and put in again: the order is that of the receives
        leases.update(dict.fromkeys(claim.message_ids, claim))

    def _let_go(self, seq: int) -> None:
        del self._leases.pop(seq).message_ids[seq]

    def changed(
        self, queue: Queue, changes: Iterable[tuple[int, int, ReportedOutcome | None]], caller: Caller
    ) -> int:
        """Leases of a queue got new deadlines: order key, seconds from now, and what the holder reports of an attempt that is
        over with it. How many of them go on."""
        now_ms = self._clock.now_ms()
        consumer = self._seen(caller, now_ms)
        waiting = self._waiting.setdefault(queue.id, {})
        over: dict[tuple[KnownConsumer, str], int] = {}
        renewed = 0
        for seq, visibility_s, reported in changes:
            outcome = None if reported is None else reported.outcome
            claim = self._leases.get(seq)
            if claim is None:
                renewed += outcome is None
                continue
            if claim.changes is None:
                claim.changes = {}
            deadline_ms, before = now_ms + visibility_s * 1000, claim.changes.get(seq)
            renewals, last_ms, due_ms, is_over = claim.renewals, claim.set_at_ms, claim.deadline_ms, False
            if before is not None:
                renewals, last_ms, due_ms = before.renewals, before.last_ms, before.deadline_ms
                is_over = before.outcome is not None
            if outcome is None and now_ms < due_ms and deadline_ms < due_ms:
                outcome = _GIVEN_BACK
            if outcome is None:
                renewed += 1
                claim.changes[seq] = ChangedLease(renewals + 1, now_ms, deadline_ms)
                waiting.pop(seq, None)
                continue
            if not is_over:
                holder = claim.consumer
                over[holder, outcome] = over.get((holder, outcome), 0) + 1
                holder.recent.append(
                    EndedAttempt(queue, seq, claim.message_ids[seq], now_ms, outcome, reported)
                )
            claim.changes[seq] = ChangedLease(renewals, last_ms, deadline_ms, outcome, reported)
            waiting[seq] = deadline_ms
        consumer.renewals += renewed
        for (holder, outcome), count in over.items():
            self._judged(holder, queue, outcome, count)
        return renewed

    def _whole_claim(self, seqs: Sequence[int]) -> Claim | None:
        """The claim that has these leases and no others, all as it got them or as they were renewed together. It is noted as one:
        lease by lease that takes a tenth of a request of ten."""
        claim = self._leases.get(seqs[0])
        if claim is None or claim.changes is not None or len(claim.message_ids) != len(seqs):
            return None
        return claim if claim.message_ids.keys() == set(seqs) else None

    def renewed(self, queue: Queue, seqs: Sequence[int], visibility_s: int, caller: Caller) -> int:
        """`changed` for leases that all got the same new deadline, and of which nothing is reported."""
        claim = self._whole_claim(seqs)
        if claim is not None:
            now_ms = self._clock.now_ms()
            deadline_ms = now_ms + visibility_s * 1000
            if deadline_ms >= claim.deadline_ms or now_ms >= claim.deadline_ms:  # or it gives them back
                claim.renewals, claim.set_at_ms, claim.deadline_ms = claim.renewals + 1, now_ms, deadline_ms
                if waiting := self._waiting.get(queue.id):
                    for seq in seqs:
                        waiting.pop(seq, None)
                self._seen(caller, now_ms).renewals += len(seqs)
                return len(seqs)
        return self.changed(queue, [(seq, visibility_s, None) for seq in seqs], caller)

    def ended(
        self,
        queue: Queue,
        seqs: Sequence[int],
        outcome: str,
        caller: Caller,
        reported: Sequence[ReportedOutcome | None] = (),
    ) -> None:
        """These attempts are over, and their messages do not wait; `reported` has what their holders report instead."""
        now_ms = self._clock.now_ms()
        consumer = self._seen(caller, now_ms)
        is_handled = outcome == AttemptOutcome.COMPLETED and self._handled is not None
        whole = self._whole_claim(seqs) if is_handled and seqs and not reported else None
        if whole is not None:
            for seq in seqs:
                del self._leases[seq]
            whole.message_ids = {}
            self._handled(queue.id, now_ms - whole.received_at_ms, len(seqs))  # type: ignore[misc]  # there is one
            self._judged(consumer, queue, outcome, len(seqs))
            return
        plain = 0
        lengths_ms: dict[int, int] = {}  # how many took that long: all of a receive did
        for at, seq in enumerate(seqs):
            claim = self._leases.pop(seq, None)
            message_id = "" if claim is None else claim.message_ids.pop(seq)
            change = None if claim is None or claim.changes is None else claim.changes.get(seq)
            if claim is not None and change is not None and change.outcome is not None:
                self._waiting.get(claim.queue.id, {}).pop(seq, None)
                continue  # it was over before
            own = reported[at] if reported else None
            word = None if own is None else own.outcome
            if is_handled and claim is not None and word is None:
                worked_ms = None if own is None else own.worked_ms
                length_ms = now_ms - claim.received_at_ms if worked_ms is None else worked_ms
                lengths_ms[length_ms] = lengths_ms.get(length_ms, 0) + 1
            elif word is not None or outcome == AttemptOutcome.GIVEN_BACK:
                consumer.recent.append(EndedAttempt(queue, seq, message_id, now_ms, word or outcome, own))
            if word is None:
                plain += 1
            else:
                self._judged(consumer, queue, word)
        for length_ms, count in lengths_ms.items():
            self._handled(queue.id, length_ms, count)  # type: ignore[misc]  # there is one
        if plain:
            self._judged(consumer, queue, outcome, plain)

    def stream_renewed(self, queue: Queue, stream: str, visibility_s: int, caller: Caller) -> None:
        """All that the stream holds got a new deadline, so many seconds from now."""
        now_ms = self._clock.now_ms()
        self._seen(caller, now_ms)
        for claim, _ in self._of_stream(queue, stream):
            claim.renewals, claim.set_at_ms = claim.renewals + 1, now_ms
            claim.deadline_ms = now_ms + visibility_s * 1000
            if claim.changes is not None:
                over = {seq: each for seq, each in claim.changes.items() if each.outcome is not None}
                claim.changes = over or None

    def stream_completed(self, queue: Queue, stream: str, up_to_batch: int, caller: Caller) -> None:
        """What the stream held up to that batch was deleted."""
        for claim, batch in self._of_stream(queue, stream):
            if batch <= up_to_batch:
                # Claim by claim: one that is as it was received is noted as one.
                self.ended(queue, list(claim.message_ids), AttemptOutcome.COMPLETED, caller)

    def _of_stream(self, queue: Queue, stream: str) -> list[tuple[Claim, int]]:
        """The claims of the stream that hold something still, and their batches."""
        # A look at every lease takes some milliseconds for a hundred thousand, and a stream asks for it once a batch.
        return [
            (claim, claim.hold.batch)
            for claim in dict.fromkeys(self._leases.values())
            if claim.hold is not None and claim.hold.stream == stream and claim.queue.id == queue.id
        ]

    def came_late(self, seq: int, delivery: int, caller: Caller) -> None:
        """A receipt was refused: its holder is there, and its lease is not."""
        self._seen(caller, self._clock.now_ms())
        lapse = self._lapses.pop((seq, delivery), None)
        if lapse is not None:
            self._settle_lapse(seq, lapse, AttemptOutcome.OVERRAN)

    # ---- what people look at

    def holder(self, queue_id: int, message: StoredMessage) -> KnownHolder | None:
        """Who holds the message in flight; None where nobody here knows: it was received before the start, or elsewhere."""
        claim = self._leases.get(message.seq)
        if claim is None or claim.queue.id != queue_id or claim.received_at_ms != message.received_at_ms:
            return None
        return claim.holder_of(message.seq)

    def waiting(self, queue_id: int) -> int:
        """How many of the queue's messages in flight wait for their retry, their attempts being over."""
        waiting = self._waiting.get(queue_id)
        if not waiting:
            return 0
        now_ms = self._clock.now_ms()
        trouble = self._trouble_at(now_ms)
        for seq in [seq for seq, visible_ms in waiting.items() if visible_ms <= now_ms]:
            claim = self._leases.get(seq)
            if claim is None or not self._is_graced(seq, claim, now_ms, trouble):
                del waiting[seq]
        return len(waiting)

    def consumers(self) -> list[KnownConsumer]:
        """Every caller that is remembered, the one seen last first, with what it holds as of now."""
        self.settle()
        return sorted(self._consumers.values(), key=lambda each: each.last_seen_ms, reverse=True)

    def held_by(self, consumer: KnownConsumer) -> list[KnownHolder]:
        """What one consumer holds, and what waits for a retry after it, the oldest first; a bounded number of them."""
        self._sweep(self._clock.now_ms())
        own = (claim.holder_of(seq) for seq, claim in self._leases.items() if claim.consumer is consumer)
        return list(islice(own, HELD_SHOWN_MAX))

    def settle(self) -> None:
        """Take out the leases whose deadline has passed, and count the others."""
        self._sweep(self._clock.now_ms())
        for consumer in self._consumers.values():
            consumer.in_progress = consumer.waiting = 0
        for seq, claim in self._leases.items():
            change = claim.change_of(seq)
            if change is None or change.outcome is None:
                claim.consumer.in_progress += 1
            else:
                claim.consumer.waiting += 1

    def _sweep(self, now_ms: int) -> None:
        over = [
            (seq, claim)
            for seq, claim in self._leases.items()
            if (claim.deadline_ms if claim.changes is None else claim.deadline_of(seq)) <= now_ms
        ]
        trouble = self._trouble_at(now_ms) if over else None
        for seq, claim in over:
            if not self._is_graced(seq, claim, now_ms, trouble):
                self._lapsed(seq, claim)
                self._let_go(seq)

    def _is_graced(self, seq: int, claim: Claim, now_ms: int, trouble: Trouble | None) -> bool:
        """Whether a lease whose deadline has passed is open still because of Veil's own trouble; its new deadline is noted."""
        deadline_ms = claim.deadline_of(seq)
        until_ms = graced_deadline_ms(deadline_ms, claim.received_at_ms, claim.queue.settings, trouble)
        if until_ms <= now_ms:
            return False
        change = claim.change_of(seq) or ChangedLease(claim.renewals, claim.set_at_ms, deadline_ms)
        if claim.changes is None:
            claim.changes = {}
        claim.changes[seq] = msgspec.structs.replace(change, deadline_ms=until_ms)
        if change.outcome is not None:
            self._waiting.setdefault(claim.queue.id, {})[seq] = until_ms
        return True

    def emptied(self, queue_id: int) -> None:
        """Every message of the queue is gone, and its leases with it."""
        for seq in [seq for seq, claim in self._leases.items() if claim.queue.id == queue_id]:
            self._let_go(seq)
        self._waiting.pop(queue_id, None)
        for key in [key for key, lapse in self._lapses.items() if lapse.queue.id == queue_id]:
            del self._lapses[key]

    def restore(self, queue: Queue, message: StoredMessage | None, event: LifeEvent) -> None:
        """An event of a message that was in flight when the server started; what it tells of others, or of leases that are
        over, is passed over."""
        if message is None or event.delivery != message.delivery or message.due_at_ms is None:
            return
        claim = self._leases.get(message.seq)
        if event.kind == "received" and claim is None:
            agent, address = event.user_agent or "", event.caller_address or ""
            caller = Caller(queue.key.account, event.caller_key or "", agent, address)
            consumer = self._consumers.get(caller) or self._newcomer(caller, event.at_ms)
            consumer.queues.setdefault(queue.id, 0)
            received_at_ms = message.received_at_ms or event.at_ms
            self._hold(Claim(consumer, queue, received_at_ms, message.due_at_ms), [message])
        elif claim is not None and event.kind in ("extended", "given_back"):
            before = claim.change_of(message.seq) or ChangedLease(0, 0, message.due_at_ms)
            outcome, reported = None, None
            if event.kind == "given_back":
                outcome = event.outcome or AttemptOutcome.GIVEN_BACK.value
                reported = ReportedOutcome(outcome, event.error_type, event.error_text, event.traceback)
            renewals = before.renewals + (outcome is None)
            change = ChangedLease(renewals, event.at_ms, message.due_at_ms, outcome, reported)
            claim.changes = {message.seq: change}
            waiting = self._waiting.setdefault(queue.id, {})
            waiting.pop(message.seq, None)
            if outcome is not None:
                waiting[message.seq] = message.due_at_ms

    # ---- what is learned of lapses

    def heard(self, *, is_over: bool = False) -> bytes:
        """Whom this node has heard, for the others; `is_over`: it hears nobody any more."""
        now_ms = self._clock.now_ms()
        callers = {
            _name_of(each.caller): (each.last_seen_ms, list(islice(reversed(each.queues), _QUEUES_TOLD_MAX)))
            for each in self._consumers.values()
            if each.last_seen_ms > now_ms - HEARD_MS
        }
        since_ms = max(self._forgot_ms, now_ms - HEARD_MS)
        return _encode_heard(HeardCallers(now_ms, since_ms, self._back_since_ms, is_over, callers))

    def judge(self, others: Sequence[HeardCallers] | None) -> Iterator[JudgedLapse]:
        """Judge the lapses that have waited long enough, a bounded number of them. `others`: what other nodes of the store have
        told; None: nobody knows."""
        now_ms = self._clock.now_ms()
        if now_ms - self._judged_at_ms > _GAP_MS:
            self._back_since_ms = now_ms
        self._judged_at_ms = now_ms
        # A look at every lease: a hundred thousand take some milliseconds, so with many of them it is taken less often.
        if now_ms - self._swept_at_ms >= len(self._leases) // 10:
            self._swept_at_ms = now_ms
            self._sweep(now_ms)
        active: dict[int, list[tuple[int, int]]] = {}
        for _ in range(JUDGED_MAX):
            if not self._due or self._due[0][0] > now_ms:
                return
            _, seq, delivery = heappop(self._due)
            lapse = self._lapses.get((seq, delivery))
            if lapse is None:
                continue
            caller, outcome = lapse.consumer.caller, AttemptOutcome.UNKNOWN
            sign: HolderSign | None = None
            consumer, name = self._consumers.get(caller), _name_of(caller) if others else 0
            last_ms = [lapse.consumer.last_seen_ms, 0 if consumer is None else consumer.last_seen_ms]
            last_ms += [node.callers[name][0] for node in others or () if name in node.callers]
            if max(last_ms) > lapse.deadline_ms:
                if lapse.consumer.reports_outcomes:
                    outcome, sign = AttemptOutcome.OVERRAN, HolderLate(seq, delivery, lapse.deadline_ms + 1)
                else:
                    outcome, sign = AttemptOutcome.FAILED, HolderSeen(seq, delivery)
            elif (
                others is not None
                and (consumer is lapse.consumer or self._forgot_ms <= lapse.deadline_ms)
                and all(node.covers(lapse.deadline_ms, lapse.patience_ms) for node in others)
                and self._is_silent(lapse, now_ms, others, active)
            ):
                outcome, sign = AttemptOutcome.CRASHED, HolderSilent(seq, delivery)
            elif now_ms - lapse.deadline_ms <= self._unknown_after_ms:
                heappush(self._due, (now_ms + PATIENCE_MIN_MS, seq, delivery))
                continue
            del self._lapses[seq, delivery]
            if sign is not None:
                yield JudgedLapse(lapse, outcome, sign)

    def settle_lapse(self, judged: JudgedLapse) -> None:
        self._settle_lapse(judged.sign.seq, judged.lapse, judged.outcome)

    def was_no_lapse(self, judged: JudgedLapse) -> None:
        """The lease was extended, or ended, through another node."""
        judged.lapse.consumer.outcomes[AttemptOutcome.UNKNOWN] -= 1

    def _is_silent(
        self,
        lapse: _Lapse,
        now_ms: int,
        others: Sequence[HeardCallers],
        active: dict[int, list[tuple[int, int]]],
    ) -> bool:
        """Whether others of the queue went on, until lately, while nothing was heard of this one."""
        if now_ms < self._back_since_ms + lapse.patience_ms:
            return False  # the server itself was away
        queue_id = lapse.queue.id
        if queue_id not in active:
            latest: dict[int, int] = {}
            for each in self._consumers.values():
                if queue_id in each.queues:
                    latest[_name_of(each.caller)] = each.last_seen_ms
            for node in others:
                for name, (at_ms, queues) in node.callers.items():
                    if queue_id in queues:
                        latest[name] = max(at_ms, latest.get(name, 0))
            active[queue_id] = sorted((at_ms, name) for name, at_ms in latest.items())[-2:]
        since_ms, own = now_ms - lapse.patience_ms // 2, _name_of(lapse.consumer.caller)
        return any(at_ms >= since_ms for at_ms, name in active[queue_id] if name != own)

    def _lapsed(self, seq: int, claim: Claim) -> None:
        """The deadline of a lease has passed: an attempt that was over waits no more, another is to be judged."""
        change = claim.change_of(seq)
        if change is not None and change.outcome is not None:
            self._waiting.get(claim.queue.id, {}).pop(seq, None)
            return
        set_at_ms, deadline_ms = claim.set_at_ms, claim.deadline_ms
        if change is not None:
            set_at_ms, deadline_ms = change.last_ms, change.deadline_ms
        claim.consumer.outcomes[AttemptOutcome.UNKNOWN] += 1
        if len(self._lapses) >= LAPSES_MAX:
            del self._lapses[next(iter(self._lapses))]
        key = (seq, claim.delivery_of(seq))
        patience = patience_ms(deadline_ms - set_at_ms)
        lapse = _Lapse(claim.consumer, claim.queue, claim.message_ids[seq], deadline_ms, patience)
        self._lapses[key] = lapse
        heappush(self._due, (deadline_ms + lapse.patience_ms + self._told_after_ms, *key))

    def _settle_lapse(self, seq: int, lapse: _Lapse, outcome: AttemptOutcome) -> None:
        lapse.consumer.outcomes[AttemptOutcome.UNKNOWN] -= 1
        facts = (lapse.message_id, lapse.deadline_ms, outcome.value)
        lapse.consumer.recent.append(EndedAttempt(lapse.queue, seq, *facts))
        self._judged(lapse.consumer, lapse.queue, outcome)

    def _judged(self, consumer: KnownConsumer, queue: Queue, outcome: str, count: int = 1) -> None:
        consumer.outcomes[outcome] += count
        if outcome != AttemptOutcome.COMPLETED:
            self._tallies[outcome, queue.id] += count

    def _seen(self, caller: Caller, now_ms: int) -> KnownConsumer:
        consumer = self._consumers.get(caller) or self._newcomer(caller, now_ms)
        consumer.last_seen_ms = now_ms
        return consumer

    def _newcomer(self, caller: Caller, now_ms: int) -> KnownConsumer:
        consumers = self._consumers
        if len(consumers) >= CONSUMERS_MAX:
            longest_silent = min(consumers.values(), key=lambda each: each.last_seen_ms)
            del consumers[longest_silent.caller]
            self._forgot_ms = max(self._forgot_ms, longest_silent.last_seen_ms)
        consumer = consumers[caller] = KnownConsumer(caller, now_ms)
        return consumer
