"""The contract of a store: whole operations, atomic, in bulk, durable before they return.

A store keeps queues and messages and applies the rules of `core` to them. Every method here is one transaction: it
happened as a whole or not at all, and when it has returned it survives kill -9 and power loss (the memory store, which
is the executable specification, promises all but that). A StoreError means *unknown*: the caller may retry.

What every store must keep, besides the rules in `core.lease`:

* **Order.** `receive` on a standard queue hands out visible messages by rising `priority`, those of one priority by rising
  `seq` (fairness aside, see `core.sequence`: what is noisy waits, whatever its priority); a message that comes back has its
  old `seq`, so it takes its old place. A message keeps its priority wherever it goes. FIFO queues pay no heed to it.
* **FIFO.** Per group, in `seq` order, the leading run of visible messages may be taken: a message that is in flight or
  delayed blocks those behind it. Groups take turns: the least recently served first, a new group last; one receive takes
  all it can from a group before it goes to the next.
* **Settling.** Before an operation looks at the messages of a queue, everything due there by now has happened: delays and
  leases that ended (ordered by instant, then `seq`), retention. An expired message is gone, held or not.
* **Edits.** A new retention counts for every message at once. A new delay does not reach messages that are waiting, except
  on FIFO queues, where their delay then counts again from their send.
* **Pauses.** A paused queue gives nothing to a receive, nor to a hold's first one, and dead-letters nothing; what was received
  before stays with its holder, repeated attempts and holds included, and deadlines go on. A resume announces what is visible.
* **Dead letters.** A message that `is_spent` when a receive would take it moves to the dead-letter queue in the same
  transaction and is not returned; the receive goes on to the next message. It keeps id, body, attributes and receive
  count, gets `dead_letter_source`; on standard queues it keeps its `seq`, on FIFO it gets a new one (so retention starts
  again) and its own message id as deduplication id. It arrives visible, its receipts are void. At most one move per
  message and receive. If the dead-letter queue does not exist or is of the other type, the message is delivered as usual.
* **Deduplication** (FIFO): for five minutes from the first send a message with a known deduplication id (within the queue,
  or the group, as the queue's scope was when it was created) is not stored; the answer carries the first one's id and seq.
* **Repeated sends.** A send that brings the retry key of one that was stored within the last five minutes in the same queue
  is answered like that one and stores nothing; this holds for the latest 32,768 messages. So a client that got no answer
  may send again.
* **Attempts.** A receive with an attempt id seen within five minutes returns the same messages with the same receipts and
  restarts their windows, unless one of them was deleted, changed or has lapsed since; then it is an ordinary receive that
  replaces the record. An attempt that returned nothing is not recorded.
* **Holds** (`core.lease`). A hold's first receive is an ordinary one (dead-lettering, order, fairness), except that it takes
  fewer where the limit of messages in flight leaves less room, none included, and that it takes no more bodies than
  HOLD_BYTES_MAX bytes together; what it took is recorded in the same transaction, also when that is nothing. Every later
  receive under the name gives the members in the same order, each with its first delivery number, as if received now (the
  window and the twelve hours begin again; the receive is not counted). A member that lapsed and that nobody has received
  since is taken back; on FIFO queues only if all that is left of its group before it is kept by the same hold. What cannot
  be kept is struck from the hold for good and counted as lost from then on. An extension keeps, strikes and counts in the
  same way, except that it never passes twelve hours after the receive: a member that has reached them is kept until then,
  and is counted as lost afterwards, but not struck. Limits of messages in flight do not concern what is taken back. A
  deletion closes the names up to its batch in the transaction of its first deletes; each member goes, or does not, by the
  rules of a delete. A stream that was not used for STREAM_REST_MS is forgotten with its holds; with the queue, at once.
* **Rotations** (`core.lease.judge_rotation`) are extensions that replace the receipt: the lease keeps its delivery number, and
  counts from then on as received at that instant, without a receive being counted. A lease that is opened or begun again
  otherwise (by a receive, a repeated attempt, a hold) has rotation 0, one that a late receipt takes back that receipt's own.
  The journal tells of a rotation as of an extension.
* **Waiting messages.** A receipt with delivery 0 deletes its message while that waits out its delay, and a rotation by it sets
  the delay again, counted from now, and replaces the receipt; it does nothing else. The message stays delayed, no receive is
  counted, and its retention goes on from the send. The journal tells of it as `delayed`.
* **Chosen redrives** move as a move task moves; each on its own, all in one transaction.
* **The journal.** A store that is told to keep one records what happened to each message (`core.event`) in the same
  transaction as the change, in an outbox, from which an exporter takes it away. Outbox rows are numbered from 1, without
  reuse; the rows of a plan never change, so that an export that was cut short can be done again and comes to the same.
  `caller` is who asked, for the events that come of it; what the store does by itself (retention, dead-lettering) was
  asked by nobody, and what a move task moves by whoever started it. A send that stores nothing, a release of what is
  visible already and an extension beyond the longest lease record nothing. An outbox at its bound records nothing either
  and counts what it lost: the queues go on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from veil.core.attempt import NOTHING_REPORTED, ReportedOutcome
from veil.core.clock import LeaseTime, Trouble
from veil.core.effect import HolderSign
from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.core.event import ExportPlan as ExportPlan
from veil.core.event import OutboxRow as OutboxRow
from veil.core.event import OutboxSize as OutboxSize
from veil.core.lease import Deletion, HoldContent, HoldKey, HoldTally
from veil.core.lease import Extension as Extension
from veil.core.lease import Rotated as Rotated
from veil.core.message import Caller, NewMessage, Sent, StoredMessage
from veil.core.queue import Chosen as Chosen
from veil.core.queue import MoveTask, Queue, QueueCounts, QueueKey, QueueSettings, ScanStep
from veil.core.receipt import Receipt, ReceiptBook

T = TypeVar("T")


class QueueContent(NamedTuple):
    """What an edit may change of a queue."""

    settings: QueueSettings
    tags: dict[str, str]


class StoreEvents(Protocol):
    """What a store tells its owner, on the event loop: nothing here may block."""

    def messages_available(self, queue_id: int, count: int) -> None:
        """Up to that many messages of the queue may have become receivable, durably: sent, delayed no longer, lapsed,
        released, unlocked by a delete in their group, or in a queue that was resumed. More than there are is allowed, fewer is
        not."""

    def counted(self, event: str, queue_id: int, count: int) -> None:
        """Something happened that only the store sees: `lapsed`, `dead_lettered`, `arrived` (where a dead letter or a redriven
        message has come to), `expired`, `stale_receipt`, `duplicate`, `repeated_send`."""

    def due_sooner(self) -> None:
        """Something may be due before the instant that `next_due_ms` gave when it was last asked. Told with the change, or
        before it is durable."""

    def troubled(self, trouble: Trouble) -> None:
        """Renewals could not be taken, here or on another node, and can be again. One may be told twice, the second time with
        more of it."""


class NoEvents:
    """What a store speaks to before its owner has taken over: nobody listens."""

    def messages_available(self, queue_id: int, count: int) -> None: ...
    def counted(self, event: str, queue_id: int, count: int) -> None: ...
    def due_sooner(self) -> None: ...
    def troubled(self, trouble: Trouble) -> None: ...


class Store(Protocol):
    """See the module's text for the rules; each method says what is its own."""

    receipts: ReceiptBook
    events: StoreEvents
    is_shared: bool  # other nodes may work on the same data
    store_id: str  # which store this is, from `open` on: made with the data, and kept over a restore

    def trouble_at(self, now_ms: int) -> Trouble | None:
        """The trouble of Veil's own that leases which would lapse at that instant are excused by; None: there is none."""

    async def open(self) -> None:
        """Make ready without reading the backlog; raises StoreBusy, StoreDamaged or StoreTooNew."""

    async def close(self) -> None:
        """Finish what is under way and let go of the data."""

    def begin_serving(self) -> None:
        """Requests are taken from now on: from here on the time counts for leases, unless it shows that they were not."""

    def end_serving(self) -> None:
        """No more requests are taken."""

    def next_due_ms(self) -> int | None:
        """An instant not later than the next lapse, end of a delay, or expiry; None when nothing waits."""

    async def settle(self) -> None:
        """Let everything happen that is due by now, in every queue."""

    async def has_duty(self, duty: str) -> bool:
        """Whether it is ours to do what only one node at a time does (`export`, `move:ID`): asked again before every step. A
        store with one node says yes; of several nodes one has the duty, and loses it a few seconds after it last asked."""

    # ---- queues

    async def find_queue(self, key: QueueKey) -> Queue | None:
        """The queue of that key, or None."""

    async def create_queue(self, key: QueueKey, content: QueueContent, *, rest_ms: int) -> Queue:
        """A new queue, or the one that already has the key (the caller compares); raises QueueDeletedRecently while the
        key's last queue was deleted less than `rest_ms` ago. A new one has none of the move tasks of an earlier one."""

    async def edit_queue(self, queue: Queue, edit: Callable[[QueueContent], QueueContent]) -> Queue:
        """Apply a pure function to settings and tags; what it raises is raised and changes nothing. Raises QueueMissing."""

    async def delete_queue(self, queue: Queue, *, caller: Caller = NOBODY) -> None:
        """Remove the queue and everything in it; raises QueueMissing."""

    async def list_queues(
        self, region: str, account: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[Queue]:
        """Queues by rising name, those after a name, at most so many."""

    async def dead_letter_sources(self, key: QueueKey, *, after: str = "", limit: int = 1000) -> list[Queue]:
        """The queues of its account whose redrive policy names that key, by rising name."""

    async def all_queues(self) -> list[Queue]:
        """Every queue of every account and region."""

    # ---- messages

    def send(
        self,
        queue: Queue,
        messages: Sequence[NewMessage],
        *,
        retry_key: bytes | None = None,
        caller: Caller = NOBODY,
    ) -> Awaitable[list[Sent]]:
        """Store the messages in order; `retry_key` names this call over its repetitions. Raises QueueMissing, StoreFull."""

    async def receive(
        self,
        queue: Queue,
        count: int,
        *,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
        caller: Caller = NOBODY,
    ) -> list[StoredMessage]:
        """Take up to `count` messages, without waiting; `visibility_s` None means the queue's own. Of more than RECEIVE_MAX no
        more are taken once their bodies come to RECEIVE_BYTES_MAX. Raises QueueMissing, and InFlightLimit on a standard queue
        that has 120,000 in flight (a FIFO queue gives nothing then)."""

    def delete(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        *,
        strict: bool = False,
        caller: Caller = NOBODY,
        reported: Mapping[int, ReportedOutcome] = NOTHING_REPORTED,
    ) -> Awaitable[list[Deletion | VeilError]]:
        """Delete by receipt, each on its own; refusals are returned in place. With `strict` a receipt dies with its deadline.
        `reported` has what the holders report of the attempts that they end, by seq. Raises QueueMissing."""

    def extend(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> Awaitable[list[VeilError | None]]:
        """Change visibility by receipt, each on its own; refusals are returned in place. Raises QueueMissing."""

    def rotate(
        self, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
    ) -> Awaitable[list[Rotated | VeilError]]:
        """Change visibility and receipt, each on its own; refusals are returned in place. Raises QueueMissing."""

    async def undo_receive(
        self,
        queue: Queue,
        receipts: Sequence[Receipt],
        *,
        opened_ms: Sequence[int | None] | None = None,
        caller: Caller = NOBODY,
    ) -> None:
        """The answer to a receive never left: make its messages visible again and do not count the receive. Receipts that no
        longer hold their lease are passed over, and those whose lease was not opened at the instant given for it, where
        instants are given: the attempt was repeated, and another answer has it."""

    async def share_heard(self, packed: bytes) -> list[bytes | None]:
        """Where the data is shared: tell the other nodes whom this one has heard (`service/attempts.py`), and learn what they
        have told, those that have gone lately included. None: a node is there that has told nothing."""

    async def note_holders(self, queue: Queue, signs: Sequence[HolderSign]) -> None:
        """Record what was learned of holders whose leases had lapsed; nothing else changes. Raises QueueMissing."""

    async def purge(self, queue: Queue, *, rest_ms: int, caller: Caller = NOBODY) -> None:
        """Remove every message sent before the call and the deduplication history; raises QueueMissing, and PurgeInProgress
        within `rest_ms` of the last purge."""

    async def counts(self, queue: Queue) -> QueueCounts:
        """How many messages are where, exactly, now; raises QueueMissing."""

    async def oldest_sent_ms(self, queue: Queue) -> int | None:
        """Engine time at which the oldest visible message was sent."""

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
        """Messages in whatever state by rising `seq`, without receiving them: those sent within the two wall times, both
        included, and none after the one that brings bodies and attributes to `bytes_max` bytes. Raises QueueMissing."""

    async def peek_next(self, queue: Queue, *, limit: int = 100) -> list[StoredMessage]:
        """The messages that a receive would come to first, in its order, without receiving them; also those that it would
        move to the dead letters. Raises QueueMissing."""

    # ---- holds

    async def open_stream(self, queue: Queue, stream: str, owner: str) -> None:
        """Make `owner` the stream's owner from now on; raises QueueMissing."""

    async def receive_hold(
        self, queue: Queue, key: HoldKey, count: int, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldContent:
        """What is under that name, its windows (of at least a second) started over; `count` is for the first time. Raises
        QueueMissing, HoldClosed."""

    async def extend_holds(
        self, queue: Queue, stream: str, owner: str, *, visibility_s: int, caller: Caller = NOBODY
    ) -> HoldTally:
        """A new deadline for every member of the stream's holds; nothing for a stream that is not known. Not one
        transaction but several, each of whole holds. Raises QueueMissing, StreamTaken."""

    async def delete_holds(
        self, queue: Queue, stream: str, owner: str, *, up_to_batch: int, caller: Caller = NOBODY
    ) -> HoldTally:
        """Close the stream's names up to that batch and delete what they hold; nothing for a stream that is not known. Not
        one transaction but several, each of whole holds, the first with the closing in it: repeated after a crash it goes
        on. Raises QueueMissing, StreamTaken."""

    # ---- chosen redrives

    async def redrive(
        self, queue: Queue, chosen: Sequence[Chosen], *, caller: Caller = NOBODY
    ) -> list[Sent | VeilError]:
        """Move the chosen messages, in that order; the new id and seq, or in its place why not: MessageMissing,
        MessageNotVisible, SourceUnknown, QueueMissing (the destination), DestinationRefused, what `change` raises. Raises
        QueueMissing."""

    async def discard(
        self, queue: Queue, chosen: Sequence[tuple[int, str]], *, caller: Caller = NOBODY
    ) -> list[VeilError | None]:
        """Remove the messages of these keys and ids that nobody holds, all in one transaction, recorded as purged; refusals as
        answers: MessageMissing, MessageNotVisible. Raises QueueMissing."""

    # ---- the journal

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None:
        """The plan that was made and not finished, else a new one over the oldest rows; None where there are none."""

    async def outbox_rows(self, plan: ExportPlan, *, after: int = 0, limit: int = 1000) -> list[OutboxRow]:
        """Rows of the plan by rising number, those after a number."""

    async def finish_export(self, plan: ExportPlan) -> None:
        """The rows of the plan are safe elsewhere: drop them and the plan together. A plan that is over is passed over."""

    async def outbox_size(self) -> OutboxSize:
        """How much waits to be exported."""

    # ---- move tasks

    async def start_move(self, task: MoveTask, *, caller: Caller = NOBODY) -> MoveTask:
        """Record a running task, with `to_move` counted now; raises MoveTaskRunning while the source has an active one."""

    async def step_move(self, task_id: str, count: int, found: ScanStep | None = None) -> MoveTask:
        """Move up to `count` visible messages, oldest first, each to its destination as a new message (new id and seq, receive
        count zero, no dead-letter source), and count them in the same transaction. A task with nothing left to move
        becomes COMPLETED, one that was cancelled CANCELLED, one whose destination does not exist FAILED with
        DESTINATION_MISSING, one that meets a message of unknown source FAILED with SOURCE_UNKNOWN. A task with a `scan` is
        given the messages instead: they are redriven as `redrive` does, and its scan goes on in the same transaction."""

    async def cancel_move(self, task_id: str) -> MoveTask:
        """Ask a running task to stop; raises MoveTaskMissing, MoveTaskNotRunning."""

    async def list_moves(self, source: QueueKey, limit: int) -> list[MoveTask]:
        """The tasks of a source, newest first."""

    async def active_moves(self) -> list[MoveTask]:
        """Every task that is not at its end; what a restarted server goes on with."""


# ---- lists of queues that a store has in memory


class QueuesByKey(dict[QueueKey, T]):
    """What a store keeps of each queue, by its key. The queues of one account are found without a look at the others."""

    _ordered: list[QueueKey] | None = None  # sorted when it is first asked for, and kept so from then on

    def __setitem__(self, key: QueueKey, value: T) -> None:
        if self._ordered is not None and key not in self:
            insort(self._ordered, key)
        super().__setitem__(key, value)

    def __delitem__(self, key: QueueKey) -> None:
        super().__delitem__(key)
        if self._ordered is not None:
            del self._ordered[bisect_left(self._ordered, key)]

    def clear(self) -> None:
        """Forget all of them."""
        super().clear()
        self._ordered = None

    def of_account(self, region: str, account: str, *, prefix: str = "", after: str = "") -> Iterator[T]:
        """By rising name, those whose names begin so and come after a name."""
        if self._ordered is None:
            self._ordered = sorted(self)
        ordered = self._ordered
        at = bisect_left(ordered, (region, account, max(prefix, after)))
        while (
            at < len(ordered) and ordered[at][:2] == (region, account) and ordered[at].name.startswith(prefix)
        ):
            if ordered[at].name != after:
                yield self[ordered[at]]
            at += 1


async def peek_one(store: Store, queue: Queue, seq: int) -> StoredMessage | None:
    """The message with that key, in whatever state, if it is in the queue. Raises QueueMissing."""
    found = await store.peek(queue, after_seq=seq - 1, up_to_seq=seq, limit=1)
    return found[0] if found else None


def sources_of(queues: Iterable[Queue], target: QueueKey, limit: int) -> list[Queue]:
    """The queues whose redrive policy names the target, in the order given."""
    redriving = ((queue, queue.settings.redrive) for queue in queues)
    found = (each for each, redrive in redriving if redrive is not None and redrive.dead_letters == target)
    return list(islice(found, limit))


class OwnLeaseTime:
    """The part of the contract that a store keeps by the lease time of its own process."""

    lease_time: LeaseTime

    def trouble_at(self, now_ms: int) -> Trouble | None:
        return self.lease_time.trouble_at(now_ms)

    def begin_serving(self) -> None:
        self.lease_time.start()

    def end_serving(self) -> None:
        self.lease_time.stop()
