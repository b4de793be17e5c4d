"""The store in memory: the contract of `stores.store` written to be read; other stores are compared with it.

Everything is a linear scan over plain dicts. Each operation settles first, so what it sees has already
happened, and afterwards tells its owner what has become receivable by comparing what was with what is.
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
  restarted window), counts as no receive, and ignores `count`. With visibility 0 there is no window to
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
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from veil.core.clock import Clock
from veil.core.errors import (
    ArnRefused,
    HoldClosed,
    InFlightLimit,
    MessageGone,
    MessageMissing,
    MessageNotVisible,
    MoveTaskMissing,
    MoveTaskNotRunning,
    MoveTaskRunning,
    NotForQueueType,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueMissing,
    ReceiptExpired,
    SourceUnknown,
    StreamTaken,
    VeilError,
)
from veil.core.event import NOBODY
from veil.core.hold import HOLD_BYTES_MAX, STREAM_REST_MS, HoldContent, HoldKey, HoldTally, Member
from veil.core.lease import Deletion, State, is_spent, judge_deletion, judge_extension, judge_rotation
from veil.core.limits import ATTEMPT_MS, DEDUPLICATION_MS, IN_FLIGHT_MAX, REPEATED_SEND_MS, SECOND_MS
from veil.core.message import Caller, NewMessage, Sent, StoredMessage
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, QueueCounts, QueueKey, parse_arn
from veil.core.receipt import Receipt, ReceiptBook
from veil.core.sequence import SequenceSource, expires_at_ms, instant_of
from veil.stores.memory_holds import Hold, Stream, keep
from veil.stores.memory_outbox import MemoryOutbox
from veil.stores.memory_shelf import Attempt, FirstSend, Row, Shelf
from veil.stores.outbox_bound import OUTBOX_BYTES_MAX
from veil.stores.recorder import (
    DEAD_LETTERED,
    DELETE_REFUSED,
    DELETED,
    EXPIRED,
    EXTENDED,
    EXTENSION_REFUSED,
    PURGED,
    RECEIVED,
    REDRIVEN,
    RELEASED,
    SENT,
    UNDONE,
)
from veil.stores.silent_events import SilentEvents
from veil.stores.store import (
    Chosen,
    ExportPlan,
    Extension,
    NewContent,
    OutboxRow,
    OutboxSize,
    QueueContent,
    Rotated,
    StoreEvents,
)


class MemoryStore:
    """Keeps the contract of a store, except that nothing outlives the process."""

    is_shared = False

    def __init__(
        self, clock: Clock, *, journal: bool = False, outbox_bytes_max: int = OUTBOX_BYTES_MAX
    ) -> None:
        self.store_id = secrets.token_hex(8)
        self._outbox = MemoryOutbox(outbox_bytes_max) if journal else None
        self.receipts = ReceiptBook(secrets.token_bytes(32))
        self.events: StoreEvents = SilentEvents()
        self._clock = clock
        self._shelves: dict[int, Shelf] = {}
        self._deleted_at_ms: dict[QueueKey, int] = {}
        self._moves: dict[str, MoveTask] = {}
        self._move_callers: dict[str, Caller] = {}
        self._streams: dict[tuple[int, str], Stream] = {}  # by queue and name
        self._sends: dict[tuple[int, bytes | None], tuple[int, list[Sent]]] = {}
        self._sequence = SequenceSource()
        self._queue_id_last = 0
        self._turn_last = 0
        self._receivable: set[tuple[int, int]] = set()  # queue and seq, as the last operation left them
        self._happened: Counter[tuple[str, int]] = Counter()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def next_due_ms(self) -> int | None:
        """The next lapse, end of a delay, or expiry."""
        due: list[int] = []
        for shelf in self._shelves.values():
            retention_s = shelf.queue.settings.retention_s
            for row in shelf.rows.values():
                due.append(expires_at_ms(row.message.seq, retention_s))
                if row.message.due_at_ms is not None:
                    due.append(row.message.due_at_ms)
        return min(due, default=None)

    async def settle(self) -> None:
        """Let everything happen that is due by now, in every queue."""
        with self._operation():
            pass

    async def has_duty(self, duty: str) -> bool:
        """There is nobody else."""
        return True

    # ---- queues

    async def find_queue(self, key: QueueKey) -> Queue | None:
        """The queue of that key, or None."""
        shelf = self._shelf_of_key(key)
        return shelf.queue if shelf is not None else None

    async def create_queue(self, key: QueueKey, content: QueueContent, *, rest_ms: int) -> Queue:
        """A new queue, or the one that already has the key."""
        with self._operation() as now_ms:
            existing = self._shelf_of_key(key)
            if existing is not None:
                return existing.queue
            deleted_at_ms = self._deleted_at_ms.get(key)
            if deleted_at_ms is not None and now_ms - deleted_at_ms < rest_ms:
                raise QueueDeletedRecently(key.name)
            self._queue_id_last += 1
            wall_ms = self._clock.wall_ms()
            queue = Queue(self._queue_id_last, key, content.settings, dict(content.tags), wall_ms, wall_ms)
            self._shelves[queue.id] = Shelf(queue, content.settings.deduplication_scope)
            return queue

    async def edit_queue(self, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
        """Apply a pure function to settings and tags."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            delay_s = shelf.queue.settings.delay_s
            content = edit(QueueContent(shelf.queue.settings, dict(shelf.queue.tags)))
            shelf.queue = replace(
                shelf.queue,
                settings=content.settings,
                tags=dict(content.tags),
                modified_wall_ms=self._clock.wall_ms(),
            )
            if shelf.fifo and content.settings.delay_s != delay_s:
                for row in shelf.of_state(State.DELAYED):
                    row.delay_until(
                        instant_of(row.message.seq) + content.settings.delay_s * SECOND_MS, now_ms
                    )
            return shelf.queue

    async def delete_queue(self, queue: Queue, *, caller: Caller = NOBODY) -> None:
        """Remove the queue and everything in it."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            self._record_purged(shelf, now_ms, caller)
            del self._shelves[shelf.queue.id]
            self._deleted_at_ms[shelf.queue.key] = now_ms

    async def list_queues(
        self, region: str, account: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Queue]:
        """Queues by rising name."""
        found = [
            queue
            for queue in await self.all_queues()
            if (queue.key.region, queue.key.account) == (region, account) and queue.name.startswith(prefix)
        ]
        return _page(found, after, limit)

    async def dead_letter_sources(self, key: QueueKey, *, after: str = "", limit: int = 1000) -> list[Queue]:
        """The queues whose redrive policy names that key."""
        found = [
            queue
            for queue in await self.all_queues()
            if queue.settings.redrive is not None and queue.settings.redrive.dead_letters == key
        ]
        return _page(found, after, limit)

    async def all_queues(self) -> list[Queue]:
        """Every queue, oldest first."""
        return [shelf.queue for _, shelf in sorted(self._shelves.items())]

    # ---- messages

    async def send(
        self,
        queue: Queue,
        messages: Sequence[NewMessage],
        *,
        retry_key: bytes | None = None,
        caller: Caller = NOBODY,
    ) -> list[Sent]:
        """Store the messages in order."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            known_as = (queue.id, retry_key)
            first = self._sends.get(known_as)
            if first is not None and now_ms < first[0]:
                self._happened["repeated_send", queue.id] += 1
                return first[1]
            sent = [self._send(shelf, message, now_ms, caller) for message in messages]
            if retry_key is not None:
                self._sends[known_as] = (now_ms + REPEATED_SEND_MS, sent)
            return sent

    def _send(self, shelf: Shelf, new: NewMessage, now_ms: int, caller: Caller) -> Sent:
        deduplicated = shelf.fifo and new.deduplication_id is not None
        known_as = (new.group if shelf.scope == "messageGroup" else None, new.deduplication_id or "")
        if deduplicated:
            first = shelf.first_sends.get(known_as)
            if first is not None and now_ms < first.until_ms:
                self._happened["duplicate", shelf.queue.id] += 1
                return Sent(first.message_id, first.seq, duplicate=True)
        delay_s = shelf.queue.settings.delay_s if new.delay_s is None else new.delay_s
        seq = self._sequence.next(now_ms)
        message = StoredMessage(
            seq=seq,
            message_id=new.message_id,
            body=new.body,
            body_md5=new.body_md5,
            attributes=new.attributes,
            trace_header=new.trace_header,
            sender=new.sender,
            sent_wall_ms=self._clock.wall_ms(),
            group=new.group,
            deduplication_id=new.deduplication_id,
            dead_letter_source=None,
            receive_count=0,
            first_received_wall_ms=None,
            delivery=0,
            state=State.VISIBLE,
            due_at_ms=None,
            received_at_ms=None,
            message_type=new.message_type,
            body_bytes=len(new.body.encode()),
            priority=new.priority,
        )
        row = Row(message)
        row.delay_until(now_ms + delay_s * SECOND_MS, now_ms)
        shelf.put(row, self._next_turn)
        if deduplicated:
            shelf.first_sends[known_as] = FirstSend(new.message_id, seq, now_ms + DEDUPLICATION_MS)
        self._record(SENT, shelf, message, now_ms, caller, deadline_ms=message.due_at_ms)
        return Sent(new.message_id, seq)

    async def receive(
        self,
        queue: Queue,
        count: int,
        *,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        caller: Caller = NOBODY,
    ) -> list[StoredMessage]:
        """Take up to `count` messages, without waiting."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            if visibility_s is None:
                visibility_s = shelf.queue.settings.visibility_s
            if attempt_id is not None:
                again = self._repeat_attempt(shelf, attempt_id, visibility_s, now_ms)
                if again:
                    self._record_leases(EXTENDED, shelf, again, now_ms, caller)
                    return again
            if len(shelf.of_state(State.IN_FLIGHT)) >= IN_FLIGHT_MAX and not shelf.fifo:
                raise InFlightLimit(IN_FLIGHT_MAX)
            taken = self._take_some(shelf, count, visibility_s, now_ms, caller)
            if attempt_id is not None and taken:
                self._record_attempt(shelf, attempt_id, taken, now_ms)
            return [replace(row.message) for row in taken]

    def _take_some(
        self,
        shelf: Shelf,
        count: int,
        visibility_s: int,
        now_ms: int,
        caller: Caller,
        bytes_max: int | None = None,
    ) -> list[Row]:
        """Take up to `count`, as many as may be in flight, and no more once the bodies have `bytes_max` bytes."""
        room = min(count, IN_FLIGHT_MAX - len(shelf.of_state(State.IN_FLIGHT)))
        taken: list[Row] = []
        taken_bytes = 0
        for row in shelf.receivable():
            if len(taken) >= room or (bytes_max is not None and taken_bytes >= bytes_max):
                break
            dead_letters = self._dead_letters_for(shelf, row)
            if dead_letters is not None:
                self._dead_letter(row, shelf, dead_letters, now_ms)
            else:
                self._take(row, visibility_s, now_ms)
                taken.append(row)
                taken_bytes += row.message.body_bytes
        if shelf.fifo:
            for group in dict.fromkeys(row.message.group for row in taken):
                shelf.turns[group] = self._next_turn()
        self._record_leases(RECEIVED, shelf, [row.message for row in taken], now_ms, caller)
        return taken

    def _take(self, row: Row, visibility_s: int, now_ms: int) -> None:
        message = row.message
        message.delivery += 1
        message.receive_count += 1
        message.received_at_ms = now_ms
        if message.first_received_wall_ms is None:
            message.first_received_wall_ms = self._clock.wall_ms()
        if visibility_s:
            row.hide(message.delivery, now_ms + visibility_s * SECOND_MS)

    def _repeat_attempt(
        self, shelf: Shelf, attempt_id: str, visibility_s: int, now_ms: int
    ) -> list[StoredMessage]:
        """What the attempt gave, its windows restarted; nothing if it must be an ordinary receive."""
        attempt = shelf.attempts.get(attempt_id)
        if attempt is None or now_ms >= attempt.until_ms or visibility_s == 0:
            return []
        rows = [shelf.rows.get(seq) for seq, _, _ in attempt.given]
        held = [
            row
            for row, (_, delivery, deadline_ms) in zip(rows, attempt.given, strict=True)
            if row is not None
            and (row.holder, row.rotation, row.message.due_at_ms) == (delivery, 0, deadline_ms)
        ]
        if len(held) < len(rows):
            return []
        for row in held:
            row.message.received_at_ms = now_ms
            row.hide(row.holder, now_ms + visibility_s * SECOND_MS)
        self._record_attempt(shelf, attempt_id, held, now_ms)
        return [replace(row.message) for row in held]

    def _record_attempt(self, shelf: Shelf, attempt_id: str, rows: list[Row], now_ms: int) -> None:
        given = [(row.message.seq, row.message.delivery, row.message.due_at_ms) for row in rows]
        shelf.attempts[attempt_id] = Attempt(now_ms + ATTEMPT_MS, given)

    def _dead_letters_for(self, shelf: Shelf, row: Row) -> Shelf | None:
        """Where the message must go instead of being delivered, if it must."""
        redrive = shelf.queue.settings.redrive
        if redrive is None or not is_spent(row.message.receive_count, redrive):
            return None
        target = self._shelf_of_key(redrive.dead_letters)
        if target is None or target is shelf or target.fifo != shelf.fifo:
            return None
        return target

    def _dead_letter(self, row: Row, source: Shelf, target: Shelf, now_ms: int) -> None:
        source.remove(row)
        message = replace(row.message, dead_letter_source=source.queue.key.arn)
        if target.fifo:
            message.seq = self._sequence.next(now_ms)
            message.deduplication_id = message.message_id
        target.put(Row(message), self._next_turn)
        self._happened["dead_lettered", source.queue.id] += 1
        self._record(
            DEAD_LETTERED,
            source,
            row.message,
            now_ms,
            delivery=message.delivery,
            other_queue=target.queue.key,
            other_seq=message.seq if target.fifo else None,
        )

    async def delete(
        self, queue: Queue, receipts: Sequence[Receipt], *, strict: bool = False, caller: Caller = NOBODY
    ) -> list[Deletion | VeilError]:
        """Delete by receipt, each on its own."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            return [self._delete(shelf, receipt, now_ms, caller, strict) for receipt in receipts]

    def _delete(
        self, shelf: Shelf, receipt: Receipt, now_ms: int, caller: Caller, strict: bool = False
    ) -> Deletion | VeilError:
        row = shelf.find(receipt)
        held = None if row is None else row.held()
        try:
            deletion = judge_deletion(held, receipt, now_ms, fifo=shelf.fifo, strict=strict)
        except ReceiptExpired as refusal:
            self._happened["stale_receipt", shelf.queue.id] += 1
            self._record_by_receipt(DELETE_REFUSED, shelf, row, receipt, now_ms, caller)
            return refusal
        if deletion is Deletion.DELETED and row is not None:
            own_ms = row.message.due_at_ms if row.holder and row.holder == receipt.delivery else None
            self._record_by_receipt(DELETED, shelf, row, receipt, now_ms, caller, own_ms)
            shelf.remove(row)
        else:
            self._record_by_receipt(DELETE_REFUSED, shelf, row, receipt, now_ms, caller)
        if deletion is Deletion.STALE:
            self._happened["stale_receipt", shelf.queue.id] += 1
        return deletion

    async def extend(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> list[VeilError | None]:
        """Change visibility by receipt, each on its own."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            return [self._extend(shelf, extension, now_ms, caller) for extension in extensions]

    def _extend(self, shelf: Shelf, extension: Extension, now_ms: int, caller: Caller) -> VeilError | None:
        receipt, visibility_s = extension
        row = shelf.find(receipt)
        try:
            deadline_ms = judge_extension(
                row.held() if row is not None else None, receipt, visibility_s, now_ms, fifo=shelf.fifo
            )
        except VeilError as refusal:
            if isinstance(refusal, MessageGone | ReceiptExpired):
                self._happened["stale_receipt", shelf.queue.id] += row is not None
                self._record_by_receipt(EXTENSION_REFUSED, shelf, row, receipt, now_ms, caller)
            return refusal
        assert row is not None  # the rule refuses where there is no message
        if deadline_ms is not None:
            row.hide(receipt.delivery, deadline_ms, receipt.rotation)
            self._record_by_receipt(EXTENDED, shelf, row, receipt, now_ms, caller, deadline_ms)
        elif row.message.state != State.VISIBLE:
            own_ms = row.message.due_at_ms if row.holder == receipt.delivery else None
            self._record_by_receipt(RELEASED, shelf, row, receipt, now_ms, caller, own_ms)
            row.show()
        return None

    async def rotate(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> list[Rotated | VeilError]:
        """Change visibility and receipt, each on its own."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            return [self._rotate(shelf, extension, now_ms, caller) for extension in extensions]

    def _rotate(self, shelf: Shelf, extension: Extension, now_ms: int, caller: Caller) -> Rotated | VeilError:
        receipt, visibility_s = extension
        row = shelf.find(receipt)
        try:
            deadline_ms = judge_rotation(None if row is None else row.held(), receipt, visibility_s, now_ms)
        except MessageGone as refusal:
            self._happened["stale_receipt", shelf.queue.id] += row is not None
            self._record_by_receipt(EXTENSION_REFUSED, shelf, row, receipt, now_ms, caller)
            return refusal
        assert row is not None  # the rule refuses where there is no message
        renewed = receipt._replace(rotation=receipt.rotation + 1, text="")
        if deadline_ms is None:
            self._record_by_receipt(RELEASED, shelf, row, receipt, now_ms, caller, row.message.due_at_ms)
            row.show()
            return Rotated(renewed, now_ms)
        row.message.received_at_ms = now_ms
        row.hide(receipt.delivery, deadline_ms, renewed.rotation)
        self._record_by_receipt(EXTENDED, shelf, row, receipt, now_ms, caller, deadline_ms)
        return Rotated(renewed, deadline_ms)

    async def undo_receive(
        self, queue: Queue, receipts: Sequence[Receipt], *, caller: Caller = NOBODY
    ) -> None:
        """Make the messages visible again and do not count the receive."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            for receipt in receipts:
                row = shelf.find(receipt)
                if row is None or not row.held().is_open(now_ms) or not row.held().is_held_by(receipt):
                    continue
                deadline_ms = row.message.due_at_ms
                row.show()
                row.message.receive_count -= 1
                self._record_by_receipt(UNDONE, shelf, row, receipt, now_ms, caller, deadline_ms)
                if row.message.receive_count == 0:
                    row.message.first_received_wall_ms = None

    async def purge(self, queue: Queue, *, rest_ms: int, caller: Caller = NOBODY) -> None:
        """Remove every message and the deduplication history."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            if shelf.purged_at_ms is not None and now_ms - shelf.purged_at_ms < rest_ms:
                raise PurgeInProgress(queue.name)
            shelf.purged_at_ms = now_ms
            self._record_purged(shelf, now_ms, caller)
            shelf.rows.clear()
            shelf.turns.clear()
            shelf.first_sends.clear()

    async def counts(self, queue: Queue) -> QueueCounts:
        """How many messages are where, exactly, now."""
        with self._operation():
            states = Counter(row.message.state for row in self._shelf(queue).rows.values())
            return QueueCounts(states[State.VISIBLE], states[State.IN_FLIGHT], states[State.DELAYED])

    async def oldest_sent_ms(self, queue: Queue) -> int | None:
        """Engine time at which the oldest visible message was sent."""
        with self._operation():
            visible = self._shelf(queue).of_state(State.VISIBLE)
            return instant_of(visible[0].message.seq) if visible else None

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
        """Messages in whatever state by rising `seq`, without receiving them."""
        found: list[StoredMessage] = []
        found_bytes = 0
        with self._operation():
            for row in self._shelf(queue).in_order():
                message = row.message
                if len(found) == limit or (bytes_max is not None and found_bytes >= bytes_max):
                    break
                if (
                    message.seq > after_seq
                    and (up_to_seq is None or message.seq <= up_to_seq)
                    and (sent_after_ms is None or message.sent_wall_ms >= sent_after_ms)
                    and (sent_before_ms is None or message.sent_wall_ms <= sent_before_ms)
                ):
                    found.append(replace(message))
                    found_bytes += message.body_bytes
        return found

    async def peek_next(self, queue: Queue, *, limit: int = 100) -> list[StoredMessage]:
        """The messages that a receive would come to first, in its order."""
        with self._operation():
            return [replace(row.message) for row in self._shelf(queue).receivable()[:limit]]

    # ---- holds

    async def open_stream(self, queue: Queue, stream: str, owner: str) -> None:
        """Make `owner` the stream's owner."""
        with self._operation() as now_ms:
            self._stream(self._shelf(queue), stream, now_ms).owner = owner

    async def receive_hold(
        self, queue: Queue, key: HoldKey, count: int, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldContent:
        """What is under that name, taken now or before."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            known = self._streams.get((queue.id, key.stream))
            if known is not None and key.batch <= known.closed:
                raise HoldClosed(key.stream, key.batch, known.closed)
            stream = self._stream(shelf, key.stream, now_ms)
            hold = stream.holds.get((key.batch, key.part))
            if hold is None:
                taken = self._take_some(shelf, count, visibility_s, now_ms, caller, HOLD_BYTES_MAX)
                members = [Member(row.message.seq, row.message.delivery) for row in taken]
                stream.holds[key.batch, key.part] = Hold(members)
                return HoldContent([replace(row.message) for row in taken])
            kept = self._keep(shelf, hold, visibility_s, now_ms, caller, anew=True)
            messages = [replace(row.message, delivery=member.delivery) for member, row in kept]
            return HoldContent(messages, hold.lost, again=True)

    async def extend_holds(
        self, queue: Queue, stream: str, owner: str, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldTally:
        """A new deadline for every member of the stream's holds."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            tally = HoldTally()
            for _, hold in self._own_holds(shelf, stream, owner, now_ms):
                kept = self._keep(shelf, hold, visibility_s, now_ms, caller, anew=False)
                # What has reached its twelve hours is not struck, only not there for now.
                tally = tally.plus(HoldTally(len(kept), hold.lost + len(hold.members) - len(kept)))
            return tally

    async def delete_holds(
        self, queue: Queue, stream: str, owner: str, *, up_to_batch: int, caller: Caller = NOBODY
    ) -> HoldTally:
        """Close the names up to that batch and delete what they hold."""
        with self._operation() as now_ms:
            shelf = self._shelf(queue)
            tally = HoldTally()
            for (batch, part), hold in self._own_holds(shelf, stream, owner, now_ms):
                if batch > up_to_batch:
                    continue
                deleted = sum(
                    self._delete(shelf, _receipt_now(shelf, member), now_ms, caller) is Deletion.DELETED
                    for member in hold.members
                )
                tally = tally.plus(HoldTally(deleted, hold.lost + len(hold.members) - deleted))
                del self._streams[queue.id, stream].holds[batch, part]
            if (queue.id, stream) in self._streams:
                known = self._streams[queue.id, stream]
                known.closed = max(known.closed, up_to_batch)
            return tally

    def _stream(self, shelf: Shelf, name: str, now_ms: int) -> Stream:
        """The stream of that name, which is used now; a new one if there is none."""
        stream = self._streams.setdefault((shelf.queue.id, name), Stream(now_ms))
        stream.used_at_ms = now_ms
        return stream

    def _own_holds(
        self, shelf: Shelf, name: str, owner: str, now_ms: int
    ) -> list[tuple[tuple[int, int], Hold]]:
        stream = self._streams.get((shelf.queue.id, name))
        if stream is None:
            return []
        if stream.owner not in (None, owner):
            raise StreamTaken(name, owner)
        return sorted(self._stream(shelf, name, now_ms).holds.items(), key=lambda item: item[0])

    def _keep(
        self, shelf: Shelf, hold: Hold, visibility_s: int, now_ms: int, caller: Caller, *, anew: bool
    ) -> list[tuple[Member, Row]]:
        """Keep what can be kept of a hold and strike the rest."""
        kept = keep(shelf, hold.members, now_ms + visibility_s * SECOND_MS, now_ms, anew=anew)
        hold.members = [member for member in hold.members if member not in kept.lost]
        hold.lost += len(kept.lost)
        for member in kept.lost:
            row = shelf.rows.get(member.seq)
            self._happened["stale_receipt", shelf.queue.id] += row is not None
            receipt = Receipt(shelf.queue.id, *member)
            self._record_by_receipt(EXTENSION_REFUSED, shelf, row, receipt, now_ms, caller)
        for member, row in kept.open:
            receipt, deadline_ms = Receipt(shelf.queue.id, *member), row.message.due_at_ms
            self._record_by_receipt(EXTENDED, shelf, row, receipt, now_ms, caller, deadline_ms)
        return kept.open

    def _forget_streams(self, now_ms: int) -> None:
        for key, stream in list(self._streams.items()):
            if key[0] not in self._shelves or now_ms - stream.used_at_ms >= STREAM_REST_MS:
                del self._streams[key]

    # ---- chosen redrives

    async def redrive(
        self, queue: Queue, chosen: Sequence[Chosen], *, caller: Caller = NOBODY
    ) -> list[Sent | VeilError]:
        """Move the chosen messages, each on its own."""
        with self._operation() as now_ms:
            source = self._shelf(queue)
            moved: list[Sent | VeilError] = []
            for one in chosen:
                try:
                    moved.append(self._redrive(source, one, now_ms, caller))
                except VeilError as refusal:
                    moved.append(refusal)
            return moved

    def _redrive(self, source: Shelf, chosen: Chosen, now_ms: int, caller: Caller) -> Sent:
        row = source.rows.get(chosen.seq)
        if row is None or row.message.message_id != chosen.message_id:
            raise MessageMissing(chosen.message_id, chosen.seq)
        state = State(row.message.state)
        if state is not State.VISIBLE:
            raise MessageNotVisible(chosen.message_id, state.name.lower().replace("_", " "))
        key = chosen.destination or _source_of(row.message)
        if key is None:
            raise SourceUnknown(chosen.message_id)
        target = self._shelf_of_key(key)
        if target is None:
            raise QueueMissing(key.name)
        if target.fifo != source.fifo:
            raise NotForQueueType("DestinationQueueUrl", key.name, fifo=source.fifo)
        content = None if chosen.change is None else chosen.change(replace(row.message), target.queue)
        return self._move_message(row, source, target, now_ms, caller, content)

    # ---- the journal

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None:
        """The plan that was made and not finished, else a new one."""
        return None if self._outbox is None else self._outbox.plan(rows_max, bytes_max)

    async def outbox_rows(self, plan: ExportPlan, *, after: int = 0, limit: int = 1000) -> list[OutboxRow]:
        """Rows of the plan by rising number."""
        return [] if self._outbox is None else self._outbox.rows(plan, after, limit)

    async def finish_export(self, plan: ExportPlan) -> None:
        """Drop the rows of the plan, and the plan."""
        if self._outbox is not None:
            self._outbox.finish(plan)

    async def outbox_size(self) -> OutboxSize:
        """How much waits to be exported."""
        return OutboxSize(0, 0, None, 0) if self._outbox is None else self._outbox.size()

    def _record(
        self,
        kind: int,
        shelf: Shelf,
        message: StoredMessage,
        now_ms: int,
        caller: Caller = NOBODY,
        **given: Any,
    ) -> None:
        if self._outbox is not None:
            self._outbox.recorder.note(
                kind,
                now_ms,
                shelf.queue.key,
                message.seq,
                message.message_id,
                receive_count=message.receive_count,
                body_bytes=message.body_bytes,
                message_type=message.message_type,
                caller=caller,
                **given,
            )

    def _record_leases(
        self, kind: int, shelf: Shelf, messages: list[StoredMessage], now_ms: int, caller: Caller
    ) -> None:
        for message in messages:
            # A receive with visibility 0 opens no window: the lease is over at once.
            deadline_ms = now_ms if message.due_at_ms is None else message.due_at_ms
            delivery = message.delivery
            self._record(kind, shelf, message, now_ms, caller, delivery=delivery, deadline_ms=deadline_ms)

    def _record_by_receipt(
        self,
        kind: int,
        shelf: Shelf,
        row: Row | None,
        receipt: Receipt,
        now_ms: int,
        caller: Caller,
        deadline_ms: int | None = None,
    ) -> None:
        lease = {"delivery": receipt.delivery, "deadline_ms": deadline_ms}
        if row is not None:
            self._record(kind, shelf, row.message, now_ms, caller, **lease)
        elif self._outbox is not None:
            key = shelf.queue.key
            self._outbox.recorder.note(
                kind, now_ms, key, receipt.seq, None, delivery=receipt.delivery, caller=caller
            )

    def _record_end(self, kind: int, shelf: Shelf, row: Row, now_ms: int, caller: Caller = NOBODY) -> None:
        # With the message its lease ends too, if one is open.
        deadline_ms = row.message.due_at_ms if row.holder else None
        self._record(kind, shelf, row.message, now_ms, caller, delivery=row.holder, deadline_ms=deadline_ms)

    def _record_purged(self, shelf: Shelf, now_ms: int, caller: Caller) -> None:
        for row in shelf.in_order():
            self._record_end(PURGED, shelf, row, now_ms, caller)

    # ---- move tasks

    async def start_move(self, task: MoveTask, *, caller: Caller = NOBODY) -> MoveTask:
        """Record a running task, with `to_move` counted now."""
        with self._operation():
            if any(other.source == task.source and other.is_active for other in self._moves.values()):
                raise MoveTaskRunning(task.source.name)
            self._move_callers[task.id] = caller
            return self._put_move(replace(task, status="RUNNING", to_move=len(self._movable(task))))

    async def step_move(self, task_id: str, count: int) -> MoveTask:
        """Move up to `count` visible messages, oldest first, each to its destination as a new message."""
        with self._operation() as now_ms:
            task = self._move(task_id)
            if task.status == "CANCELLING":
                return self._put_move(replace(task, status="CANCELLED"))
            if task.status != "RUNNING":
                return task
            rows = self._movable(task)[:count]
            for row in rows:
                key = task.destination or _source_of(row.message)
                if key is None:
                    failure = "CouldNotDetermineMessageSource"
                    return self._put_move(replace(task, status="FAILED", failure=failure))
                target = self._shelf_of_key(key)
                if target is None:
                    failure = "AWS.SimpleQueueService.NonExistentQueue"
                    return self._put_move(replace(task, status="FAILED", failure=failure))
                source = self._shelf_of_key(task.source)
                assert source is not None  # the row was found in it
                self._move_message(row, source, target, now_ms, self._move_callers[task.id])
                task = replace(task, moved=task.moved + 1)
            return self._put_move(replace(task, status="COMPLETED") if len(rows) < count else task)

    async def cancel_move(self, task_id: str) -> MoveTask:
        """Ask a running task to stop."""
        with self._operation():
            task = self._move(task_id)
            if task.status != "RUNNING":
                raise MoveTaskNotRunning(task.status)
            return self._put_move(replace(task, status="CANCELLING"))

    async def list_moves(self, source: QueueKey, limit: int) -> list[MoveTask]:
        """The tasks of a source, newest first."""
        return [task for task in reversed(self._moves.values()) if task.source == source][:limit]

    async def active_moves(self) -> list[MoveTask]:
        """Every task that is not at its end, oldest first."""
        return [task for task in self._moves.values() if task.is_active]

    def _move(self, task_id: str) -> MoveTask:
        if task_id not in self._moves:
            raise MoveTaskMissing
        return self._moves[task_id]

    def _put_move(self, task: MoveTask) -> MoveTask:
        self._moves[task.id] = task
        return task

    def _movable(self, task: MoveTask) -> list[Row]:
        source = self._shelf_of_key(task.source)
        return source.of_state(State.VISIBLE) if source else []

    def _move_message(
        self,
        row: Row,
        source: Shelf,
        target: Shelf,
        now_ms: int,
        caller: Caller,
        content: NewContent | None = None,
    ) -> Sent:
        source.remove(row)
        message_id = str(uuid.uuid4())
        message = replace(
            row.message,
            seq=self._sequence.next(now_ms),
            message_id=message_id,
            deduplication_id=message_id if target.fifo else None,
            sent_wall_ms=self._clock.wall_ms(),
            dead_letter_source=None,
            receive_count=0,
            first_received_wall_ms=None,
            delivery=0,
            received_at_ms=None,
        )
        if content is not None:
            message = replace(message, **content._asdict())
        moved = Row(message)
        moved.delay_until(now_ms + target.queue.settings.delay_s * SECOND_MS, now_ms)
        target.put(moved, self._next_turn)
        there, old = target.queue.key, row.message
        self._record(REDRIVEN, source, old, now_ms, caller, other_queue=there, other_seq=message.seq)
        self._record(SENT, target, message, now_ms, caller, deadline_ms=message.due_at_ms, other_seq=old.seq)
        return Sent(message_id, message.seq)

    # ---- the frame around every operation

    @contextmanager
    def _operation(self) -> Iterator[int]:
        """Settle, let the caller work, then tell the owner what came of both, also when the work raises."""
        now_ms = self._clock.now_ms()
        self._settle(now_ms)
        try:
            yield now_ms
        finally:
            if self._outbox is not None:
                self._outbox.write(now_ms)
            receivable = {
                (shelf.queue.id, row.message.seq)
                for shelf in self._shelves.values()
                for row in shelf.receivable()
            }
            available = Counter(queue_id for queue_id, _ in receivable - self._receivable)
            happened, self._happened, self._receivable = self._happened, Counter(), receivable
            for queue_id, count in available.items():
                self.events.messages_available(queue_id, count)
            for (event, queue_id), count in happened.items():
                self.events.counted(event, queue_id, count)

    def _settle(self, now_ms: int) -> None:
        self._forget_streams(now_ms)
        for shelf in self._shelves.values():
            for row in shelf.in_order():
                message = row.message
                expiry_ms = expires_at_ms(message.seq, shelf.queue.settings.retention_s)
                # A lease that outlasts its message never lapses, however late we look.
                if (
                    message.due_at_ms is not None
                    and message.due_at_ms <= now_ms
                    and message.due_at_ms < expiry_ms
                ):
                    if message.state == State.IN_FLIGHT:
                        self._happened["lapsed", shelf.queue.id] += 1
                    row.show()
                if expiry_ms <= now_ms:
                    self._record_end(EXPIRED, shelf, row, now_ms)
                    shelf.remove(row)
                    self._happened["expired", shelf.queue.id] += 1

    def _shelf(self, queue: Queue) -> Shelf:
        # By id: a queue that was created again is another queue. The caller's settings may be old.
        if queue.id not in self._shelves:
            raise QueueMissing(queue.name)
        return self._shelves[queue.id]

    def _shelf_of_key(self, key: QueueKey) -> Shelf | None:
        return next((shelf for shelf in self._shelves.values() if shelf.queue.key == key), None)

    def _next_turn(self) -> int:
        self._turn_last += 1
        return self._turn_last


def _receipt_now(shelf: Shelf, member: Member) -> Receipt:
    """A hold goes by its leases: whatever receipt has come to belong to one."""
    row = shelf.rows.get(member.seq)
    return Receipt(shelf.queue.id, *member, rotation=0 if row is None else row.rotation)


def _page(queues: list[Queue], after: str, limit: int) -> list[Queue]:
    queues = sorted(queues, key=lambda queue: (queue.name, queue.id))
    return [queue for queue in queues if queue.name > after][:limit]


def _source_of(message: StoredMessage) -> QueueKey | None:
    if message.dead_letter_source is None:
        return None
    try:
        return parse_arn(message.dead_letter_source)
    except ArnRefused:
        return None
