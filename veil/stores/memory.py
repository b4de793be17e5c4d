"""The store in memory: the contract of `stores.store` written to be read; other stores are compared with it.

Everything is a linear scan over plain dicts. Each operation settles first, so what it sees has already
happened, and afterwards tells its owner what has become receivable by comparing what was with what is. What an operation
comes to is decided in `core.decide`; here the effects are applied, each in a line or two (`_apply`).
Where the contract leaves room, these are the readings, and they hold for every store:

* Every operation settles first, not only those that look: to a send, a group whose last message has expired
  is a new group; a longer retention does not bring back what the shorter one had ended, nor does a late
  extension.
* A FIFO group exists while it has messages. Its turn is set when it appears and each time it gives a
  message; a receive that only dead-letters from it, or that repeats an attempt, takes no turn.
* Noisy groups are determined once per receive, before its first message.
* One receive never takes more than the limit of messages in flight leaves room for.
* Dead-lettering keeps the delivery number, so that the fencing token goes on rising; the old receipts are
  void since they name the old queue.
* An attempt is remembered for five minutes from its latest repetition. "Changed" means that a message's
  holder or deadline is another one now. Repeating it sets `received_at_ms` (the twelve hours count from the
  restarted lease), counts as no receive, and ignores `count`. With visibility 0 there is no lease to
  restart: that is an ordinary receive.
* A queue that names itself as its dead letters has none.
* A change of a FIFO queue's delay reaches the messages that are still waiting; on a standard queue it does
  not.
* A hold's receive is a receive: it takes turns, and dead-letters. What is given again takes no turn.
* A move task moves what is visible, held back by its group or not. What it moves gets the delay of its new
  queue and is never taken for a duplicate: on a FIFO queue its new id is its deduplication id too.
  `to_move` counts the visible messages. The step that finds fewer than it might move completes the task; a
  source that is gone has nothing left to move.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import uuid4

from msgspec import structs

from veil.core import decide, errors
from veil.core.attempt import NOTHING_REPORTED, ReportedOutcome
from veil.core.clock import Clock, LeaseTime, Trouble
from veil.core.effect import (
    AnyEffect,
    DeadLettered,
    Deleted,
    Enqueued,
    HolderSign,
    LeaseChange,
    Postponed,
    Redriven,
    Removal,
    counted_as,
)
from veil.core.event import NOBODY, EventRecorder
from veil.core.lease import (
    NOTHING_CLOSED,
    STREAM_REST_MS,
    Deletion,
    HoldContent,
    HoldKey,
    HoldTally,
    Member,
    State,
)
from veil.core.limits import ATTEMPT_MS, DEDUPLICATION_MS, REPEATED_SEND_MS, SECOND_MS
from veil.core.message import Caller, HeldMessage, NewContent, NewMessage, Sent, StoredMessage
from veil.core.queue import Chosen, DeduplicationScope, MoveTask, Queue, QueueCounts, QueueKey, ScanStep
from veil.core.receipt import Receipt, ReceiptBook
from veil.core.sequence import SequenceSource, expires_at_ms, instant_of, noisy_groups
from veil.stores.outbox import OUTBOX_BYTES_MAX, OutboxBound, PlanBuilder
from veil.stores.store import (
    ExportPlan,
    Extension,
    NoEvents,
    OutboxRow,
    OutboxSize,
    OwnLeaseTime,
    QueueContent,
    Rotated,
    StoreEvents,
    sources_of,
)

# ---- what is kept


class FirstSend(NamedTuple):
    """The message that later ones with its deduplication id are duplicates of."""

    message_id: str
    seq: int
    until_ms: int


class Attempt(NamedTuple):
    """What an attempt gave, in the order of the answer."""

    until_ms: int
    claims: list[decide.AttemptClaim]


@dataclass(slots=True)
class Hold:
    """What a named receive took and still has, in that order, and how many it lost."""

    members: list[Member]
    lost: int = 0


@dataclass(slots=True)
class HoldStream:
    """Who reads a queue under names."""

    used_at_ms: int
    owner: str | None = None
    closed: int = NOTHING_CLOSED
    holds: dict[tuple[int, int], Hold] = field(default_factory=dict)  # by batch and part


@dataclass(slots=True)
class QueueContents:
    """A queue and everything in it, with the scans that say what may be received."""

    queue: Queue
    scope: DeduplicationScope  # as it was at creation: later edits of the setting change nothing
    messages: dict[int, StoredMessage] = field(default_factory=dict)  # by seq
    turns: dict[str | None, int] = field(default_factory=dict)
    first_sends: dict[tuple[str, str], FirstSend] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    streams: dict[str, HoldStream] = field(default_factory=dict)
    # What was answered, and until when that is remembered, by retry key.
    sends: dict[bytes, tuple[int, list[Sent]]] = field(default_factory=dict)
    purged_at_ms: int | None = None

    @property
    def fifo(self) -> bool:
        return self.queue.settings.fifo

    def in_order(self) -> list[StoredMessage]:
        return [message for _, message in sorted(self.messages.items())]

    def of_state(self, state: State) -> list[StoredMessage]:
        return [message for message in self.in_order() if message.state == state]

    def remove(self, message: StoredMessage) -> None:
        del self.messages[message.seq]
        if not any(other.group == message.group for other in self.messages.values()):
            self.turns.pop(message.group, None)

    def receivable(self) -> list[StoredMessage]:
        """The messages that may be taken now, in the order in which a receive would."""
        return self._receivable_by_turn() if self.fifo else self._receivable_fairly()

    def _receivable_by_turn(self) -> list[StoredMessage]:
        groups: dict[str | None, list[StoredMessage]] = {
            group: [] for group in sorted(self.turns, key=self.turns.__getitem__)
        }
        blocked: set[str | None] = set()
        for message in self.in_order():
            if message.state != State.VISIBLE:
                blocked.add(message.group)
            if message.group not in blocked:
                groups[message.group].append(message)
        return [message for run in groups.values() for message in run]

    def _receivable_fairly(self) -> list[StoredMessage]:
        in_flight = self.of_state(State.IN_FLIGHT)
        by_group = Counter(message.group for message in in_flight if message.group is not None)
        noisy = noisy_groups(by_group, len(in_flight))
        visible = sorted(self.of_state(State.VISIBLE), key=lambda message: (message.priority, message.seq))
        quiet = [message for message in visible if message.group not in noisy]
        return quiet + [message for group in noisy for message in visible if message.group == group]


class Operation(NamedTuple):
    """One operation under way: the instant at which all of it happens, who asked, and what its owner will hear of it."""

    now_ms: int
    wall_ms: int
    caller: Caller
    happened: Counter[tuple[str, int]]  # by event and queue


class MemoryStore(OwnLeaseTime):
    """Keeps the contract of a store, except that nothing outlives the process; `Store` says what each operation is."""

    is_shared = False

    def __init__(
        self,
        clock: Clock,
        *,
        journal: bool = False,
        outbox_bytes_max: int = OUTBOX_BYTES_MAX,
        lease_grace: bool = False,
    ) -> None:
        self.store_id = secrets.token_hex(8)
        self.receipts = ReceiptBook(secrets.token_bytes(32))
        self.events: StoreEvents = NoEvents()
        self._clock = clock
        self.lease_time = LeaseTime(clock, is_on=lease_grace)
        self.lease_time.on_trouble = self._note_trouble
        self._outbox = MemoryOutbox(outbox_bytes_max) if journal else None
        self._queues: dict[int, QueueContents] = {}
        self._deleted_at_ms: dict[QueueKey, int] = {}
        self._moves: dict[str, MoveTask] = {}
        self._move_callers: dict[str, Caller] = {}
        self._sequence = SequenceSource()
        self._queue_id_last = 0
        self._turn_last = 0
        self._receivable: set[tuple[int, int]] = set()  # as the last operation left it

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to let go of."""

    # ---- the frame of an operation

    @contextmanager
    def _operation(self, caller: Caller = NOBODY) -> Iterator[Operation]:
        """Settle, let the caller work, then tell the owner what came of both, also when the work raises."""
        op = Operation(self._clock.now_ms(), self._clock.wall_ms(), caller, Counter())
        self._settle(op)
        try:
            yield op
        finally:
            if self._outbox is not None:
                self._outbox.write(op.now_ms)
            before = self._receivable
            self._receivable = {
                (queue_id, message.seq)
                for queue_id, contents in self._queues.items()
                if not contents.queue.settings.paused
                for message in contents.receivable()
            }
            for queue_id, count in Counter(queue_id for queue_id, _ in self._receivable - before).items():
                self.events.messages_available(queue_id, count)
            for (event, queue_id), count in op.happened.items():
                self.events.counted(event, queue_id, count)
            self.events.due_sooner()

    def _settle(self, op: Operation) -> None:
        """Let everything happen that is due by now, in every queue."""
        for contents in self._queues.values():
            for name, stream in list(contents.streams.items()):
                if op.now_ms - stream.used_at_ms >= STREAM_REST_MS:
                    del contents.streams[name]
            settings, lease_time = contents.queue.settings, self.lease_time
            trouble = lease_time.trouble_at(op.now_ms)
            due = (
                decide.decide_due(each, settings, op.now_ms, trouble, lease_time)
                for each in contents.in_order()
            )
            happens = [effect for effect in due if effect is not None and not isinstance(effect, Postponed)]
            self._apply(op, contents, happens, NOBODY)

    def _note_trouble(self, trouble: Trouble) -> None:
        self.events.troubled(trouble)
        if self._outbox is not None:
            self._outbox.recorder.record_trouble(trouble)

    def _apply(
        self,
        op: Operation,
        contents: QueueContents,
        effects: Iterable[AnyEffect],
        caller: Caller | None = None,
    ) -> None:
        """Make effects on messages of a queue true, and tell the journal and the owner of them."""
        effects = list(effects)
        self._record(op, contents.queue.key, effects, op.caller if caller is None else caller)
        for effect in effects:
            if (event := counted_as(effect)) is not None:
                op.happened[event, contents.queue.id] += 1
            match effect:
                case Enqueued():
                    self._put(contents, _stored(effect, op.wall_ms))
                case LeaseChange():
                    contents.messages[effect.message.seq].set_lease(effect.lease)
                case Removal():
                    contents.remove(contents.messages[effect.message.seq])
                case DeadLettered():
                    message = contents.messages[effect.message.seq]
                    contents.remove(message)
                    message.dead_letter_source = contents.queue.key.arn
                    message.seq, message.deduplication_id = effect.new_seq, effect.deduplication_id
                    self._put(self._queues[effect.target.id], message)
                    op.happened["arrived", effect.target.id] += 1
                case Redriven():
                    contents.remove(contents.messages[effect.message.seq])
                    self._put(self._queues[effect.target.id], effect.moved)
                    op.happened["arrived", effect.target.id] += 1

    def _record(self, op: Operation, queue: QueueKey, effects: Sequence[AnyEffect], caller: Caller) -> None:
        """Tell the journal, if there is one."""
        if self._outbox is not None:
            self._outbox.recorder.record(op.now_ms, queue, effects, caller)

    def _put(self, contents: QueueContents, message: StoredMessage) -> None:
        contents.messages[message.seq] = message
        if contents.fifo and message.group not in contents.turns:
            contents.turns[message.group] = self._next_turn()

    def _next_turn(self) -> int:
        """A turn behind all that were given."""
        self._turn_last += 1
        return self._turn_last

    def _of(self, queue: Queue) -> QueueContents:
        # By id: a queue that was created again is another queue. The caller's settings may be old.
        if queue.id not in self._queues:
            raise errors.QueueMissing(queue.name)
        return self._queues[queue.id]

    def _find(self, key: QueueKey) -> Queue | None:
        return next((each.queue for each in self._queues.values() if each.queue.key == key), None)

    # ---- time

    def next_due_ms(self) -> int | None:
        due: list[int] = []
        for contents in self._queues.values():
            for message in contents.messages.values():
                due.append(expires_at_ms(message.seq, contents.queue.settings.retention_s))
                if message.due_at_ms is not None:
                    due.append(message.due_at_ms)
        return min(due, default=None)

    async def settle(self) -> None:
        with self._operation():
            pass  # every operation settles first

    async def has_duty(self, duty: str) -> bool:
        return True

    # ---- queues

    async def find_queue(self, key: QueueKey) -> Queue | None:
        return self._find(key)

    async def create_queue(self, key: QueueKey, content: QueueContent, *, rest_ms: int) -> Queue:
        with self._operation() as op:
            existing = self._find(key)
            if existing is not None:
                return existing
            deleted_at_ms = self._deleted_at_ms.get(key)
            if deleted_at_ms is not None and op.now_ms - deleted_at_ms < rest_ms:
                raise errors.QueueDeletedRecently(key.name)
            for task in [each for each in self._moves.values() if each.source == key]:
                del self._moves[task.id]
            self._queue_id_last += 1
            settings, tags = content.settings, dict(content.tags)
            queue = Queue(self._queue_id_last, key, settings, tags, op.wall_ms, op.wall_ms)
            self._queues[queue.id] = QueueContents(queue, settings.deduplication_scope)
            return queue

    async def edit_queue(self, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
        with self._operation() as op:
            contents = self._of(queue)
            before = contents.queue
            settings, tags = edit(QueueContent(before.settings, dict(before.tags)))
            contents.queue = replace(before, settings=settings, tags=dict(tags), modified_wall_ms=op.wall_ms)
            if contents.fifo and settings.delay_s != before.settings.delay_s:
                for message in contents.of_state(State.DELAYED):
                    message.due_at_ms = instant_of(message.seq) + settings.delay_s * SECOND_MS
            return contents.queue

    async def delete_queue(self, queue: Queue, *, caller: Caller = NOBODY) -> None:
        with self._operation(caller) as op:
            contents = self._of(queue)
            self._apply(op, contents, map(decide.purge, contents.in_order()))
            del self._queues[queue.id]
            self._deleted_at_ms[contents.queue.key] = op.now_ms

    async def list_queues(
        self, region: str, account: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Queue]:
        found = [queue for queue in self._of_account(region, account) if queue.name.startswith(prefix)]
        return [queue for queue in found if queue.name > after][:limit]

    async def dead_letter_sources(self, key: QueueKey, *, after: str = "", limit: int = 1000) -> list[Queue]:
        found = [queue for queue in self._of_account(key.region, key.account) if queue.name > after]
        return sources_of(found, key, limit)

    def _of_account(self, region: str, account: str) -> list[Queue]:
        queues = sorted((contents.queue for contents in self._queues.values()), key=lambda queue: queue.key)
        return [queue for queue in queues if queue.key[:2] == (region, account)]

    async def all_queues(self) -> list[Queue]:
        return [contents.queue for _, contents in sorted(self._queues.items())]

    # ---- send

    async def send(
        self,
        queue: Queue,
        messages: Sequence[NewMessage],
        *,
        retry_key: bytes | None = None,
        caller: Caller = NOBODY,
    ) -> list[Sent]:
        with self._operation(caller) as op:
            contents = self._of(queue)
            until_ms, first = contents.sends.get(retry_key or b"", (0, []))
            if op.now_ms < until_ms:
                op.happened["repeated_send", queue.id] += 1
                return first
            sent = [self._send_one(op, contents, message) for message in messages]
            if retry_key is not None:
                contents.sends[retry_key] = (op.now_ms + REPEATED_SEND_MS, sent)
            return sent

    def _send_one(self, op: Operation, contents: QueueContents, new: NewMessage) -> Sent:
        key = decide.deduplication_key(contents.scope, new)
        if contents.fifo:
            first = contents.first_sends.get(key)
            if first is not None and op.now_ms < first.until_ms:
                op.happened["duplicate", contents.queue.id] += 1
                return Sent(first.message_id, first.seq, duplicate=True)
        enqueued = decide.enqueue(new, self._sequence.next(op.now_ms), contents.queue.settings, op.now_ms)
        self._apply(op, contents, [enqueued])
        if contents.fifo:
            until_ms = op.now_ms + DEDUPLICATION_MS
            contents.first_sends[key] = FirstSend(new.message_id, enqueued.seq, until_ms)
        return Sent(new.message_id, enqueued.seq)

    # ---- receive

    async def receive(
        self,
        queue: Queue,
        count: int,
        *,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        caller: Caller = NOBODY,
    ) -> list[StoredMessage]:
        with self._operation(caller) as op:
            contents = self._of(queue)
            if visibility_s is None:
                visibility_s = contents.queue.settings.visibility_s
            taken = self._repeat(op, contents, attempt_id, visibility_s)
            if not taken:
                taken = self._take(op, contents, count, visibility_s)
            if attempt_id is not None and taken:
                claims = [(message.seq, message.delivery, message.due_at_ms) for message in taken]
                contents.attempts[attempt_id] = Attempt(op.now_ms + ATTEMPT_MS, claims)
            return taken

    def _repeat(
        self, op: Operation, contents: QueueContents, attempt_id: str | None, visibility_s: int
    ) -> list[StoredMessage]:
        attempt = contents.attempts.get(attempt_id or "")
        if attempt is None or op.now_ms >= attempt.until_ms:
            return []
        trouble = self.lease_time.trouble_at(op.now_ms)
        repeated = decide.repeat_attempt(
            attempt.claims, contents.messages, contents.queue.settings, visibility_s, op.now_ms, trouble
        )
        self._apply(op, contents, repeated or [])
        return [copy(contents.messages[effect.message.seq]) for effect in repeated or []]

    def _take(
        self, op: Operation, contents: QueueContents, count: int, visibility_s: int, *, hold: bool = False
    ) -> list[StoredMessage]:
        in_flight = len(contents.of_state(State.IN_FLIGHT))
        target = decide.dead_letters_of(contents.queue, self._find)
        taken: list[StoredMessage] = []
        is_cut = True
        while is_cut and not taken:
            budget = decide.receive_budget(contents.queue, in_flight, count, target, hold=hold)
            taken, spent = budget.choose(contents.receivable())
            for message in spent:
                assert target is not None  # nothing is spent where there is nowhere to go
                new_seq = self._sequence.next(op.now_ms) if contents.fifo else message.seq
                self._apply(op, contents, [decide.dead_letter(message, target, new_seq)], NOBODY)
            is_cut = budget.is_cut
        opened = decide.open_leases(taken, visibility_s, op.now_ms, op.wall_ms)
        self._apply(op, contents, opened)
        if contents.fifo:
            for group in dict.fromkeys(message.group for message in taken):
                contents.turns[group] = self._next_turn()
        return [copy(message) for message in taken]

    # ---- what a receipt can do

    async def delete(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        *,
        strict: bool = False,
        caller: Caller = NOBODY,
        reported: Mapping[int, ReportedOutcome] = NOTHING_REPORTED,
    ) -> list[Deletion | errors.VeilError]:
        with self._operation(caller) as op:
            contents = self._of(queue)
            messages = self._held(op, contents, receipts)
            effects, answers = decide.decide_deletions(
                messages, receipts, op.now_ms, fifo=contents.fifo, strict=strict, reported=reported
            )
            self._apply(op, contents, effects)
            return answers

    def _held(
        self, op: Operation, contents: QueueContents, receipts: Iterable[Receipt]
    ) -> decide.HeldMessages:
        """Those of the messages that the queue has, as the request finds them."""
        found = [contents.messages.get(receipt.seq) for receipt in receipts]
        held = [HeldMessage(*[getattr(each, name) for name in HeldMessage._fields]) for each in found if each]
        return {each.seq: decide.excused(each, op.now_ms, self.lease_time) for each in held}

    async def extend(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> list[errors.VeilError | None]:
        with self._operation(caller) as op:
            contents = self._of(queue)
            messages = self._held(op, contents, [each.receipt for each in extensions])
            effects, answers = decide.decide_extensions(messages, extensions, op.now_ms, fifo=contents.fifo)
            self._apply(op, contents, effects)
            return answers

    async def rotate(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> list[Rotated | errors.VeilError]:
        with self._operation(caller) as op:
            contents = self._of(queue)
            messages = self._held(op, contents, [each.receipt for each in extensions])
            effects, answers = decide.decide_rotations(messages, extensions, op.now_ms)
            self._apply(op, contents, effects)
            return answers

    async def undo_receive(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        *,
        opened_ms: Sequence[int | None] | None = None,
        caller: Caller = NOBODY,
    ) -> None:
        with self._operation(caller) as op:
            contents = self._of(queue)
            messages = self._held(op, contents, receipts)
            self._apply(op, contents, decide.decide_undos(messages, receipts, opened_ms, op.now_ms))

    async def share_heard(self, packed: bytes) -> list[bytes | None]:
        return []

    async def note_holders(self, queue: Queue, signs: Sequence[HolderSign]) -> None:
        with self._operation() as op:
            self._record(op, self._of(queue).queue.key, signs, NOBODY)

    # ---- the content of a queue as a whole

    async def purge(self, queue: Queue, *, rest_ms: int, caller: Caller = NOBODY) -> None:
        with self._operation(caller) as op:
            contents = self._of(queue)
            if contents.purged_at_ms is not None and op.now_ms - contents.purged_at_ms < rest_ms:
                raise errors.PurgeInProgress(queue.name)
            contents.purged_at_ms = op.now_ms
            self._apply(op, contents, map(decide.purge, contents.in_order()))
            contents.first_sends.clear()

    async def counts(self, queue: Queue) -> QueueCounts:
        with self._operation():
            states = Counter(message.state for message in self._of(queue).messages.values())
            return QueueCounts(states[State.VISIBLE], states[State.IN_FLIGHT], states[State.DELAYED])

    async def oldest_sent_ms(self, queue: Queue) -> int | None:
        with self._operation():
            visible = self._of(queue).of_state(State.VISIBLE)
            return instant_of(visible[0].seq) if visible else None

    async def peek(
        self,
        queue: Queue,
        *,
        after_seq: int = 0,
        up_to_seq: int | None = None,
        sent_after_ms: int | None = None,
        sent_before_ms: int | None = None,
        limit: int = 100,
        bytes_max: int | None = None,
    ) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        found_bytes = 0
        with self._operation():
            for message in self._of(queue).in_order():
                if len(found) == limit or (bytes_max is not None and found_bytes >= bytes_max):
                    break
                if (
                    message.seq > after_seq
                    and (up_to_seq is None or message.seq <= up_to_seq)
                    and (sent_after_ms is None or message.sent_wall_ms >= sent_after_ms)
                    and (sent_before_ms is None or message.sent_wall_ms <= sent_before_ms)
                ):
                    found.append(copy(message))
                    found_bytes += message.held_bytes
        return found

    async def peek_next(self, queue: Queue, *, limit: int = 100) -> list[StoredMessage]:
        with self._operation():
            return [copy(message) for message in self._of(queue).receivable()[:limit]]

    # ---- holds: receives that have a name

    async def open_stream(self, queue: Queue, stream: str, owner: str) -> None:
        with self._operation() as op:
            _used_now(op, self._of(queue), stream).owner = owner

    async def receive_hold(
        self, queue: Queue, key: HoldKey, count: int, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldContent:
        with self._operation(caller) as op:
            contents = self._of(queue)
            known = contents.streams.get(key.stream)
            if known is not None and key.batch <= known.closed:
                raise errors.HoldClosed(key.stream, key.batch, known.closed)
            stream = _used_now(op, contents, key.stream)
            hold = stream.holds.get((key.batch, key.part))
            if hold is None:
                taken = self._take(op, contents, count, visibility_s, hold=True)
                members = [Member(message.seq, message.delivery) for message in taken]
                stream.holds[key.batch, key.part] = Hold(members)
                return HoldContent(taken)
            kept = self._keep_hold(op, contents, hold, visibility_s, again=True)
            messages = [structs.replace(contents.messages[seq], delivery=delivery) for seq, delivery in kept]
            return HoldContent(messages, hold.lost, again=True)

    async def extend_holds(
        self, queue: Queue, stream: str, owner: str, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldTally:
        with self._operation(caller) as op:
            contents = self._of(queue)
            tally = HoldTally()
            for _, hold in _own_holds(op, contents, stream, owner):
                kept = self._keep_hold(op, contents, hold, visibility_s, again=False)
                # What has reached its twelve hours is not struck, only not there for now.
                tally = tally.plus(HoldTally(len(kept), hold.lost + len(hold.members) - len(kept)))
            return tally

    async def delete_holds(
        self, queue: Queue, stream: str, owner: str, *, up_to_batch: int, caller: Caller = NOBODY
    ) -> HoldTally:
        with self._operation(caller) as op:
            contents = self._of(queue)
            tally = HoldTally()
            for (batch, part), hold in _own_holds(op, contents, stream, owner):
                if batch > up_to_batch:
                    continue
                deleted = 0
                for member in hold.members:
                    message = contents.messages.get(member.seq)
                    effect = decide.delete_member(member, message, contents.queue, op.now_ms)
                    self._apply(op, contents, [effect])
                    deleted += isinstance(effect, Deleted)
                tally = tally.plus(HoldTally(deleted, hold.lost + len(hold.members) - deleted))
                del contents.streams[stream].holds[batch, part]
            if stream in contents.streams:
                known = contents.streams[stream]
                known.closed = max(known.closed, up_to_batch)
            return tally

    def _keep_hold(
        self, op: Operation, contents: QueueContents, hold: Hold, visibility_s: int, *, again: bool
    ) -> list[Member]:
        """Keep what can be kept of a hold and strike the rest; the members with an open lease."""
        group_seqs: dict[str, list[int]] = {}
        for message in contents.in_order():
            group_seqs.setdefault(message.group or "", []).append(message.seq)
        members, messages = hold.members, contents.messages
        kept = decide.keep_hold(
            contents.queue, members, messages, group_seqs, visibility_s, op.now_ms, again=again
        )
        self._apply(op, contents, kept.effects)
        hold.members, hold.lost = kept.left, hold.lost + len(members) - len(kept.left)
        return kept.open

    # ---- redrives

    async def redrive(
        self, queue: Queue, chosen: Sequence[Chosen], *, caller: Caller = NOBODY
    ) -> list[Sent | errors.VeilError]:
        with self._operation(caller) as op:
            return self._redrive(op, self._of(queue), chosen)

    async def discard(
        self, queue: Queue, chosen: Sequence[tuple[int, str]], *, caller: Caller = NOBODY
    ) -> list[errors.VeilError | None]:
        with self._operation(caller) as op:
            source = self._of(queue)
            effects, answers = decide.decide_discards(chosen, dict(source.messages))
            self._apply(op, source, effects)
            return answers

    def _redrive(
        self, op: Operation, source: QueueContents, chosen: Sequence[Chosen]
    ) -> list[Sent | errors.VeilError]:
        given = (source.queue, chosen, dict(source.messages), self._find, self._redriver(op))
        effects, answers = decide.decide_redrives(*given)
        self._apply(op, source, effects)
        return answers

    def _redriver(self, op: Operation) -> decide.Redrive:
        def make(message: StoredMessage, target: Queue, content: NewContent | None) -> Redriven:
            new = (self._sequence.next(op.now_ms), str(uuid4()))
            return decide.redrive(message, target, *new, op.now_ms, op.wall_ms, content)

        return make

    async def start_move(self, task: MoveTask, *, caller: Caller = NOBODY) -> MoveTask:
        with self._operation():
            if any(other.source == task.source and other.is_active for other in self._moves.values()):
                raise errors.MoveTaskRunning(task.source.name)
            self._move_callers[task.id] = caller
            self._moves[task.id] = replace(task, status="RUNNING", to_move=len(self._movable(task)))
            return self._moves[task.id]

    async def step_move(self, task_id: str, count: int, found: ScanStep | None = None) -> MoveTask:
        with self._operation(self._move_callers.get(task_id, NOBODY)) as op:
            task = self._find_move(task_id)
            source = self._find(task.source)
            if task.status == "CANCELLING":
                self._moves[task_id] = replace(task, status="CANCELLED")
            elif task.status == "RUNNING" and found is not None:
                answers = self._redrive(op, self._of(source), found.chosen) if source else []
                self._moves[task_id] = decide.step_scan(task, found, answers)
            elif task.status == "RUNNING":
                messages = self._movable(task)[:count]
                given = (task, messages, count, self._find, self._redriver(op))
                moves, self._moves[task_id] = decide.step_move(*given)
                if source is not None:
                    self._apply(op, self._of(source), moves)
            return self._moves[task_id]

    async def cancel_move(self, task_id: str) -> MoveTask:
        with self._operation():
            self._moves[task_id] = decide.cancel_move(self._find_move(task_id))
            return self._moves[task_id]

    async def list_moves(self, source: QueueKey, limit: int) -> list[MoveTask]:
        return [task for task in reversed(self._moves.values()) if task.source == source][:limit]

    async def active_moves(self) -> list[MoveTask]:
        return [task for task in self._moves.values() if task.is_active]

    def _find_move(self, task_id: str) -> MoveTask:
        if task_id not in self._moves:
            raise errors.MoveTaskMissing
        return self._moves[task_id]

    def _movable(self, task: MoveTask) -> list[StoredMessage]:
        source = self._find(task.source)
        return self._of(source).of_state(State.VISIBLE) if source else []

    # ---- the journal

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None:
        return None if self._outbox is None else self._outbox.plan(rows_max, bytes_max)

    async def outbox_rows(self, plan: ExportPlan, *, after: int = 0, limit: int = 1000) -> list[OutboxRow]:
        return [] if self._outbox is None else self._outbox.rows(plan, after, limit)

    async def finish_export(self, plan: ExportPlan) -> None:
        if self._outbox is not None:
            self._outbox.finish(plan)

    async def outbox_size(self) -> OutboxSize:
        return OutboxSize(0, 0, None, 0) if self._outbox is None else self._outbox.size()


def _stored(effect: Enqueued, wall_ms: int) -> StoredMessage:
    new = structs.asdict(effect.new)
    del new["delay_s"]
    return StoredMessage(
        **new,
        seq=effect.seq,
        sent_wall_ms=wall_ms,
        dead_letter_source=None,
        receive_count=0,
        first_received_wall_ms=None,
        delivery=0,
        state=effect.state,
        due_at_ms=effect.due_at_ms,
        received_at_ms=None,
        body_bytes=effect.body_bytes,
    )


def _used_now(op: Operation, contents: QueueContents, name: str) -> HoldStream:
    """The stream of that name, which is used now; a new one if there is none."""
    stream = contents.streams.setdefault(name, HoldStream(op.now_ms))
    stream.used_at_ms = op.now_ms
    return stream


def _own_holds(
    op: Operation, contents: QueueContents, name: str, owner: str
) -> list[tuple[tuple[int, int], Hold]]:
    """The stream's holds by batch and part; raises StreamTaken for somebody else's."""
    stream = contents.streams.get(name)
    if stream is None:
        return []
    if stream.owner not in (None, owner):
        raise errors.StreamTaken(name, owner)
    return sorted(_used_now(op, contents, name).holds.items(), key=lambda item: item[0])


class WaitingRow(NamedTuple):
    """A row of the outbox, and when it was written."""

    row: OutboxRow
    at_ms: int


class MemoryOutbox:
    """What happened and is not exported yet: rows in a list, a plan over the first of them."""

    def __init__(self, bytes_max: int) -> None:
        self.recorder = EventRecorder()
        self._bound = OutboxBound(bytes_max)
        self._journal_id = secrets.token_hex(8)
        self._waiting: list[WaitingRow] = []
        self._last = 0
        self._plan: ExportPlan | None = None

    def write(self, now_ms: int) -> None:
        """The operation is over: what it recorded becomes a row."""
        if not self.recorder.events:
            return
        if self._bytes() < self._bound.bytes_max:
            self._last += 1
            self._waiting.append(WaitingRow(OutboxRow(self._last, self.recorder.pack()), now_ms))
        else:
            self._bound.give_up(self.recorder.count, now_ms)
            self.recorder.forget()

    def plan(self, rows_max: int, bytes_max: int) -> ExportPlan | None:
        """The plan under way, else a new one: rows of one day within the bounds, and at least one."""
        if self._plan is None and self._waiting:
            taken = PlanBuilder()
            for row, at_ms in self._waiting[:rows_max]:
                if not taken.take(row.number, at_ms, len(row.packed), bytes_max):
                    break
            first = self._waiting[0].row.number
            self._plan = ExportPlan(self._journal_id, first, taken.last, taken.day)
        return self._plan

    def rows(self, plan: ExportPlan, after: int, limit: int) -> list[OutboxRow]:
        """Rows of the plan, those after a number."""
        found = [row for row, _ in self._waiting if plan.first <= row.number <= plan.last]
        return [row for row in found if row.number > after][:limit]

    def finish(self, plan: ExportPlan) -> None:
        """Drop the plan and its rows, if it is the one under way."""
        if plan == self._plan:
            self._waiting = [each for each in self._waiting if each.row.number > plan.last]
            self._plan = None

    def size(self) -> OutboxSize:
        """How much waits."""
        oldest_ms = self._waiting[0].at_ms if self._waiting else None
        return OutboxSize(len(self._waiting), self._bytes(), oldest_ms, self._bound.lost_events)

    def _bytes(self) -> int:
        return sum(len(row.packed) for row, _ in self._waiting)
