"""What each operation comes to: facts about messages and an instant go in, effects come out (`core.effect`).

Every store asks here and nowhere else: it loads the facts, and writes the effects. Whether a receipt counts is judged in
`core.lease`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

from msgspec import structs

from veil.core import effect, errors, limits
from veil.core.attempt import ReportedOutcome
from veil.core.clock import DOUBT_MIN_MS, LeaseTime, Trouble
from veil.core.lease import (
    HOLD_BYTES_MAX,
    WAITING,
    Deletion,
    Extension,
    Member,
    MemberState,
    MessageFacts,
    Rotated,
    State,
    is_open,
    judge_deletion,
    judge_extension,
    judge_member,
    judge_rotation,
    lease_end_ms,
)
from veil.core.limits import SECOND_MS
from veil.core.message import (
    SOURCE_QUEUE,
    HeldMessage,
    LeaseState,
    NewContent,
    NewMessage,
    Sent,
    StoredMessage,
)
from veil.core.message_rules import changed_content
from veil.core.queue import (
    DESTINATION_MISSING,
    SOURCE_UNKNOWN,
    Chosen,
    MoveTask,
    Queue,
    QueueKey,
    QueueSettings,
    ScanStep,
    parse_arn,
)
from veil.core.receipt import DELIVERY_BITS, DELIVERY_MASK, Receipt, delivery_of
from veil.core.sequence import expires_at_ms

FindQueue = Callable[[QueueKey], Queue | None]
_PAGE_MAX, _COUNTED_PAGE_MAX = 100, 16  # messages with their bodies that are read at once
# Spent messages that one transaction moves, and as many bytes as one receive may have: a whole backlog may be spent, after a
# consumer that failed all of it, and others must be let in before the rest.
SPENT_AT_ONCE = 100
AttemptClaim = tuple[int, int, int | None]  # seq, delivery and deadline of a message that an attempt gave
_SOURCE_CHARS_MAX = 500  # of what a consumer writes; a sender may write a megabyte
# Plain numbers, since these are written with every message.
_VISIBLE, _DELAYED, _IN_FLIGHT = int(State.VISIBLE), int(State.DELAYED), int(State.IN_FLIGHT)


# ---- send


def enqueue(new: NewMessage, seq: int, settings: QueueSettings, now_ms: int) -> effect.Enqueued:
    """A new message of a queue: visible, unless its own delay or the queue's holds it back."""
    body = new.body
    body_bytes = len(body) if body.isascii() else len(body.encode())
    delay_s = settings.delay_s if new.delay_s is None else new.delay_s
    if delay_s:
        return effect.Enqueued(new, seq, _DELAYED, now_ms + delay_s * SECOND_MS, body_bytes)
    return effect.Enqueued(new, seq, _VISIBLE, None, body_bytes)


def deduplication_key(scope: str, new: NewMessage) -> tuple[str, str]:
    """What a message of a FIFO queue is known by: within the queue, or within its group, as the queue's scope was when it
    was created."""
    return (new.group or "") if scope == "messageGroup" else "", new.deduplication_id or ""


# ---- receive


class ReceiveBudget:
    """How much one receive may still take, and from which receive count on a message is spent instead of taken."""

    __slots__ = ("bytes_left", "count", "receives_max", "spent_bytes_left", "spent_left")

    def __init__(self, count: int, bytes_left: int | None, receives_max: int | None) -> None:
        self.count, self.bytes_left, self.receives_max = count, bytes_left, receives_max
        self.spent_left, self.spent_bytes_left = SPENT_AT_ONCE, limits.RECEIVE_BYTES_MAX

    @property
    def page_max(self) -> int:
        """How many messages to read at once: where bytes count, fewer are read in vain."""
        return _PAGE_MAX if self.bytes_left is None else _COUNTED_PAGE_MAX

    def is_left(self) -> bool:
        """Whether one more fits."""
        return self.count > 0 and (self.bytes_left is None or self.bytes_left > 0) and not self.is_cut

    @property
    def is_cut(self) -> bool:
        """Whether so many spent messages were met that the receive ends with them: there may be others to take behind them."""
        return self.spent_left <= 0 or self.spent_bytes_left <= 0

    def choose(self, candidates: Iterable[StoredMessage]) -> tuple[list[StoredMessage], list[StoredMessage]]:
        """Of messages in the order of the queue: those that are taken, and the spent ones that were met before the last."""
        taken: list[StoredMessage] = []
        spent: list[StoredMessage] = []
        if not self.is_left():
            return taken, spent
        spent_at, count, bytes_left = self.receives_max, self.count, self.bytes_left
        for message in candidates:
            if spent_at is not None and message.receive_count >= spent_at:
                spent.append(message)
                self.spent_left -= 1
                self.spent_bytes_left -= message.body_bytes
                if self.is_cut:
                    break
                continue
            taken.append(message)
            count -= 1
            if bytes_left is not None:
                bytes_left -= message.body_bytes
                if bytes_left <= 0:
                    break
            if not count:
                break
        self.count, self.bytes_left = count, bytes_left
        return taken, spent


def in_flight_left(in_flight: int) -> int:
    """How many more messages of a queue may be in flight."""
    return limits.IN_FLIGHT_MAX - in_flight


def receive_budget(
    queue: Queue, in_flight: int, count: int, dead_letters: Queue | None, *, hold: bool = False
) -> ReceiveBudget:
    """What a receive of so many may take: nothing of a paused queue. A standard queue at its limit refuses (InFlightLimit); a
    FIFO queue, and a receive for a hold, get less, or nothing."""
    if queue.settings.paused:
        return ReceiveBudget(0, None, None)
    left = in_flight_left(in_flight)
    if left <= 0 and not hold and not queue.settings.fifo:
        raise errors.InFlightLimit(limits.IN_FLIGHT_MAX)
    bytes_max = HOLD_BYTES_MAX if hold else receive_bytes_max(count)
    spent_at = None if dead_letters is None else receives_max(queue, dead_letters)
    return ReceiveBudget(count if count < left else left, bytes_max, spent_at)


def receive_bytes_max(count: int) -> int | None:
    """Where the bodies of a receive of so many are counted, the bytes at which no more are taken: ten messages cannot be too
    large, a thousand can."""
    return limits.RECEIVE_BYTES_MAX if count > limits.RECEIVE_MAX else None


def receives_max(queue: Queue, dead_letters: Queue | None) -> int | None:
    """The receive count at which a message is spent: one more receive would exceed the redrive policy. None where there is
    nowhere to go, so that it is delivered as usual."""
    redrive = queue.settings.redrive
    return None if redrive is None or dead_letters is None else redrive.receives_max


def dead_letters_of(queue: Queue, find: FindQueue) -> Queue | None:
    """Where the queue's spent messages go: nowhere without a policy, and while its target is missing, of the other type, or
    the queue itself."""
    redrive = queue.settings.redrive
    if redrive is None:
        return None
    target = find(redrive.dead_letters)
    if target is None or target.id == queue.id or target.settings.fifo != queue.settings.fifo:
        return None
    return target


def dead_letter(message: StoredMessage, target: Queue, new_seq: int) -> effect.DeadLettered:
    """A spent message leaves. On FIFO queues its own id keeps equal deduplication ids from swallowing one another."""
    deduplication_id = message.message_id if target.settings.fifo else message.deduplication_id
    return effect.DeadLettered(message, message.delivery, None, target, new_seq, deduplication_id)


def open_leases(
    messages: Iterable[StoredMessage], visibility_s: int, now_ms: int, wall_ms: int
) -> list[effect.Opened]:
    """A receive takes the messages: each another delivery, with a lease of its own unless the visibility is nought."""
    deadline_ms = now_ms + visibility_s * SECOND_MS
    opened: list[effect.Opened] = []
    before: tuple[int, int, int | None] | None = None
    for message in messages:
        delivery, count, first_ms = message.delivery, message.receive_count, message.first_received_wall_ms
        # Most have not been received before: what becomes of them is the same state.
        if before != (delivery, count, first_ms):
            before = (delivery, count, first_ms)
            lease = LeaseState(
                _IN_FLIGHT if visibility_s else _VISIBLE,
                deadline_ms if visibility_s else None,
                now_ms,
                delivery + 1,
                delivery + 1 if visibility_s else 0,
                count + 1,
                wall_ms if first_ms is None else first_ms,
            )
        opened.append(effect.Opened(message, delivery + 1, deadline_ms, lease))
    return opened


def repeat_attempt(
    claims: Sequence[AttemptClaim],
    messages: Mapping[int, StoredMessage],
    settings: QueueSettings,
    visibility_s: int,
    now_ms: int,
    trouble: Trouble | None = None,
) -> list[effect.Extended] | None:
    """What an attempt gave, its leases begun again; None unless all of it is still as it was given, or as a trouble of Veil's
    own left it."""
    if not visibility_s:
        return None  # there is no lease to begin again
    repeated = []
    for seq, delivery, due_at_ms in claims:
        message = messages.get(seq)
        # The bare delivery: a receipt that was rotated since is another one.
        if message is None or message.holder != delivery or not is_open(message, now_ms):
            return None
        moved = (due_at_ms or 0, message.due_at_ms or 0)
        if message.due_at_ms != due_at_ms and (
            trouble is None or not trouble.may_have_moved(*moved, settings.visibility_s, now_ms)
        ):
            return None
        # Never in the same instant: by its beginning it is told from the lease that an earlier answer was about.
        begins_ms = max(now_ms, (message.received_at_ms or 0) + 1)
        until_ms = begins_ms + visibility_s * SECOND_MS
        lease = _lease_until(until_ms, message, delivery, begins_ms)
        repeated.append(effect.Extended(message, delivery, until_ms, lease))
    return repeated


# ---- what a receipt can do
#
# A call may have many receipts, and two of them may be about one message: each finds what the one before it left.

HeldMessages = dict[int, HeldMessage]  # those of a call that its queue has, by seq


def take_in(messages: HeldMessages, change: object) -> None:
    """What an effect makes of its message, for the next receipt of the same call."""
    if isinstance(change, effect.LeaseChange):
        message = messages[change.message.seq]
        messages[message.seq] = message._replace(**change.lease._asdict())
    elif isinstance(change, effect.Deleted):
        del messages[change.message.seq]


def decide_deletions(
    messages: HeldMessages,
    receipts: Sequence[Receipt],
    now_ms: int,
    *,
    fifo: bool,
    strict: bool,
    reported: Mapping[int, ReportedOutcome],
) -> tuple[list[effect.Deleted | effect.DeleteRefused], list[Deletion | errors.VeilError]]:
    """Delete by each receipt: what happens, and what each is answered."""
    effects: list[effect.Deleted | effect.DeleteRefused] = []
    answers: list[Deletion | errors.VeilError] = []
    for receipt in receipts:
        message, told = messages.get(receipt.seq), reported.get(receipt.seq)
        decided = decide_deletion(message, receipt, now_ms, fifo=fifo, strict=strict, reported=told)
        take_in(messages, decided)
        effects.append(decided)
        if isinstance(decided, effect.Deleted):
            answers.append(Deletion.DELETED)
        else:
            answers.append(decided.error or decided.deletion)
    return effects, answers


def decide_extensions(
    messages: HeldMessages,
    extensions: Sequence[Extension],
    now_ms: int,
    *,
    fifo: bool,
    more_follow: bool = False,
) -> tuple[list[effect.LeaseChange | effect.ExtensionRefused], list[errors.VeilError | None]]:
    """Change the visibility by each receipt: what happens, and what each is answered. `more_follow`: other calls decide on the
    same messages afterwards, and must find what has become of them."""
    effects: list[effect.LeaseChange | effect.ExtensionRefused] = []
    answers: list[errors.VeilError | None] = []
    # Nearly always each is of another message, and what one makes of its message is asked by none after it.
    is_repeated = more_follow or len({receipt.seq for receipt, _, _ in extensions}) < len(extensions)
    for receipt, visibility_s, reported in extensions:
        message = messages.get(receipt.seq)
        decided = decide_extension(message, receipt, visibility_s, now_ms, fifo=fifo, reported=reported)
        if decided is None or isinstance(decided, errors.VeilError):
            answers.append(decided)
            continue
        if is_repeated:
            take_in(messages, decided)
        effects.append(decided)
        answers.append(decided.error if isinstance(decided, effect.ExtensionRefused) else None)
    return effects, answers


def decide_rotations(
    messages: HeldMessages, extensions: Sequence[Extension], now_ms: int
) -> tuple[list[effect.LeaseChange | effect.ExtensionRefused], list[Rotated | errors.VeilError]]:
    """Change visibility and receipt by each receipt: what happens, and what each is answered."""
    effects: list[effect.LeaseChange | effect.ExtensionRefused] = []
    answers: list[Rotated | errors.VeilError] = []
    for receipt, visibility_s, _ in extensions:
        decided = decide_rotation(messages.get(receipt.seq), receipt, visibility_s, now_ms)
        take_in(messages, decided)
        effects.append(decided)
        if isinstance(decided, effect.ExtensionRefused):
            answers.append(decided.error)
        else:
            answers.append(Rotated(rotated_receipt(receipt), decided.lease.due_at_ms or now_ms))
    return effects, answers


def decide_undos(
    messages: HeldMessages, receipts: Sequence[Receipt], opened_ms: Sequence[int | None] | None, now_ms: int
) -> list[effect.Undone]:
    """Undo each receive whose answer never left."""
    effects: list[effect.Undone] = []
    for receipt, at_ms in zip(receipts, opened_ms or repeat(None), strict=False):
        undone = decide_undo(messages.get(receipt.seq), receipt, now_ms, at_ms)
        if undone is not None:
            take_in(messages, undone)
            effects.append(undone)
    return effects


def decide_deletion(
    message: MessageFacts | None,
    receipt: Receipt,
    now_ms: int,
    *,
    fifo: bool,
    strict: bool = False,
    reported: ReportedOutcome | None = None,
) -> effect.Deleted | effect.DeleteRefused:
    """Delete by a receipt, or do not."""
    try:
        verdict = judge_deletion(message, receipt, now_ms, fifo=fifo, strict=strict)
    except errors.ReceiptExpired as refusal:
        return effect.DeleteRefused(message, receipt.seq, receipt.delivery, Deletion.STALE, refusal, reported)
    if verdict is Deletion.DELETED and message is not None:
        return effect.Deleted(message, receipt.delivery, _own_deadline(message, receipt.delivery), reported)
    return effect.DeleteRefused(message, receipt.seq, receipt.delivery, verdict, None, reported)


def decide_extension(
    message: MessageFacts | None,
    receipt: Receipt,
    visibility_s: int,
    now_ms: int,
    *,
    fifo: bool,
    reported: ReportedOutcome | None = None,
) -> (
    effect.Extended
    | effect.GivenBack
    | effect.Released
    | effect.ExtensionRefused
    | errors.VisibilityTooLong
    | None
):
    """Change the visibility by a receipt; None where that changes nothing, and the error where the length is what is wrong."""
    try:
        deadline_ms = judge_extension(message, receipt, visibility_s, now_ms, fifo=fifo)
    except errors.VisibilityTooLong as too_long:
        return too_long
    except (errors.MessageGone, errors.ReceiptExpired) as refusal:
        return effect.ExtensionRefused(message, receipt.seq, receipt.delivery, refusal, reported)
    assert message is not None  # the rule refuses where there is no message
    if deadline_ms is not None:
        lease = _lease_until(deadline_ms, message, receipt.holder)
        return _told_apart(message, receipt.delivery, deadline_ms, lease, now_ms, reported)
    if message.state == State.VISIBLE:
        return None
    own_ms = _own_deadline(message, receipt.delivery)
    return effect.Released(message, receipt.delivery, own_ms, _visible(message), reported)


def _told_apart(
    message: MessageFacts,
    delivery: int,
    deadline_ms: int,
    lease: LeaseState,
    now_ms: int,
    reported: ReportedOutcome | None,
) -> effect.Extended | effect.GivenBack:
    """A new deadline as what it means: whoever says that the attempt is over, or asks for less time than it had left, gives
    the message back."""
    is_over = reported is not None and reported.outcome is not None
    if is_over or (is_open(message, now_ms) and deadline_ms < (message.due_at_ms or 0)):
        return effect.GivenBack(message, delivery, deadline_ms, lease, reported)
    return effect.Extended(message, delivery, deadline_ms, lease)


def decide_rotation(
    message: MessageFacts | None, receipt: Receipt, visibility_s: int, now_ms: int
) -> effect.Extended | effect.GivenBack | effect.Released | effect.DelayChanged | effect.ExtensionRefused:
    """Give the lease, or the delay, of a receipt to its successor (`rotated_receipt`), or do not."""
    try:
        deadline_ms = judge_rotation(message, receipt, visibility_s, now_ms)
    except errors.MessageGone as refusal:
        return effect.ExtensionRefused(message, receipt.seq, receipt.delivery, refusal)
    assert message is not None  # the rule refuses where there is no message
    if receipt.delivery == WAITING:
        waiting = _visible(message)
        if deadline_ms is not None:
            holder = rotated_receipt(receipt).holder
            waiting = waiting._replace(state=_DELAYED, due_at_ms=deadline_ms, holder=holder)
        return effect.DelayChanged(message, WAITING, deadline_ms or now_ms, waiting)
    if deadline_ms is None:
        return effect.Released(message, receipt.delivery, message.due_at_ms, _visible(message))
    lease = _lease_until(deadline_ms, message, rotated_receipt(receipt).holder, now_ms)
    return _told_apart(message, receipt.delivery, deadline_ms, lease, now_ms, None)


def rotated_receipt(receipt: Receipt) -> Receipt:
    """The receipt that follows one in a rotation."""
    return Receipt(receipt.queue_id, receipt.seq, receipt.holder + (1 << DELIVERY_BITS))


def decide_undo(
    message: MessageFacts | None, receipt: Receipt, now_ms: int, opened_ms: int | None = None
) -> effect.Undone | None:
    """Undo a receive whose answer never left; None where the receipt does not hold the lease any more, or the same attempt was
    repeated since, and answered: then the lease, though it has the same receipt, began again after `opened_ms`."""
    if message is None or not is_open(message, now_ms) or message.holder != receipt.holder:
        return None
    if opened_ms is not None and message.received_at_ms != opened_ms:
        return None
    lease, count = _visible(message), message.receive_count - 1
    lease = lease._replace(
        receive_count=count, first_received_wall_ms=lease.first_received_wall_ms if count else None
    )
    return effect.Undone(message, receipt.delivery, message.due_at_ms, lease)


def _own_deadline(message: MessageFacts, delivery: int) -> int | None:
    """When the delivery's own lease lapses, if that is the one that is open."""
    is_own = message.state == State.IN_FLIGHT and delivery_of(message.holder) == delivery
    return message.due_at_ms if is_own else None


def _lease_until(
    deadline_ms: int | None, message: MessageFacts, holder: int, received_at_ms: int | None = None
) -> LeaseState:
    """A new deadline, or none: then it is visible. The lease begins again where an instant of its receive is given."""
    return LeaseState(
        _VISIBLE if deadline_ms is None else _IN_FLIGHT,
        deadline_ms,
        message.received_at_ms if received_at_ms is None else received_at_ms,
        message.delivery,
        holder,
        message.receive_count,
        message.first_received_wall_ms,
    )


def _visible(message: MessageFacts) -> LeaseState:
    return _lease_until(None, message, 0)


# ---- what happens by itself


def decide_due(
    message: MessageFacts,
    settings: QueueSettings,
    now_ms: int,
    trouble: Trouble | None = None,
    lease_time: LeaseTime | None = None,
) -> effect.Expired | effect.Lapsed | effect.Graced | effect.Postponed | None:
    """What has come to a message by now: its retention is over, or its lease or delay is. A trouble of Veil's own excuses
    the holders of leases: none is late that could not be in time."""
    expiry_ms = expires_at_ms(message.seq, settings.retention_s)
    due_at_ms = message.due_at_ms
    if expiry_ms <= now_ms:
        # A lease that would have outlasted its message ended with it; another one had lapsed before, though nobody looked.
        if message.state == State.IN_FLIGHT and due_at_ms is not None and due_at_ms >= expiry_ms:
            return effect.Expired(message, delivery_of(message.holder), due_at_ms)
        return effect.Expired(message, 0, None)
    if due_at_ms is None:
        return None
    if due_at_ms <= now_ms:
        if message.state == State.IN_FLIGHT:
            until_ms = graced_deadline_ms(due_at_ms, message.received_at_ms or 0, settings, trouble)
            if until_ms > now_ms:
                delivery = delivery_of(message.holder)
                lease = _lease_until(until_ms, message, message.holder)
                return effect.Graced(message, delivery, until_ms, lease)
            if lease_time is not None and lease_time.is_in_doubt(due_at_ms, now_ms):
                return effect.Postponed(message, min(now_ms + DOUBT_MIN_MS, expiry_ms))
        return effect.Lapsed(message, delivery_of(message.holder), due_at_ms, _visible(message))
    return effect.Postponed(message, min(due_at_ms, expiry_ms))


def graced_deadline_ms(
    deadline_ms: int, received_at_ms: int, settings: QueueSettings, trouble: Trouble | None
) -> int:
    """When a lease lapses that is due then, or was, with the grace that a trouble of Veil's own has given it."""
    if trouble is None:
        return deadline_ms
    graced_ms = trouble.deadline_ms(deadline_ms, received_at_ms, settings.visibility_s)
    return min(graced_ms, max(deadline_ms, lease_end_ms(received_at_ms)))


def excused(message: HeldMessage, now_ms: int, lease_time: LeaseTime) -> HeldMessage:
    """The message as a request finds it: a lease that ran out while the request may have waited for us is open still."""
    due_at_ms = message.due_at_ms or 0
    if (
        message.state != State.IN_FLIGHT
        or due_at_ms > now_ms
        or not lease_time.is_in_doubt(due_at_ms, now_ms)
    ):
        return message
    return message._replace(due_at_ms=now_ms + 1)


def purge(message: MessageFacts) -> effect.Purged:
    """A message goes with the content of its queue, and so does its lease."""
    if message.state == State.IN_FLIGHT:
        return effect.Purged(message, delivery_of(message.holder), message.due_at_ms)
    return effect.Purged(message, 0, None)


def decide_discards(
    chosen: Sequence[tuple[int, str]], messages: dict[int, StoredMessage]
) -> tuple[list[effect.Discarded], list[errors.VeilError | None]]:
    """Chosen messages go for good, each unless it is missing or somebody holds it: what happens, and what each is answered."""
    effects: list[effect.Discarded] = []
    answers: list[errors.VeilError | None] = []
    for seq, message_id in chosen:
        message = messages.get(seq)
        if message is None or message.message_id != message_id:
            answers.append(errors.MessageMissing(message_id, seq))
        elif message.state == State.IN_FLIGHT:
            answers.append(errors.MessageNotVisible(message_id, State.IN_FLIGHT.label))
        else:
            effects.append(effect.Discarded(messages.pop(seq), 0, None))
            answers.append(None)
    return effects, answers


# ---- holds


class HoldDecision(NamedTuple):
    """What a hold comes to: what happens to its members, which of them have an open lease now, and which are its members
    still. The others are struck."""

    effects: list[effect.Extended | effect.ExtensionRefused]
    open: list[Member]
    left: list[Member]


def keep_hold(
    queue: Queue,
    members: Sequence[Member],
    messages: Mapping[int, MessageFacts],
    group_seqs: Mapping[str, Sequence[int]],
    visibility_s: int,
    now_ms: int,
    *,
    again: bool,
) -> HoldDecision:
    """Give every member a new deadline, take back what lapsed where that is allowed, and strike what is lost.

    `messages` has those members that the queue still has, by seq. `again`: as if received now; else an extension, which does
    not pass twelve hours after the receive. Nothing is taken back from behind a message of its FIFO group that the hold does
    not keep: `group_seqs` has the seqs of all messages of those groups, in whatever state.
    """
    decision = HoldDecision([], [], [])
    kept: set[int] = set()
    for member in members:
        message = messages.get(member.seq)
        status = judge_member(message, member.delivery, now_ms)
        is_passed = (
            message is not None
            and status is MemberState.LAPSED
            and queue.settings.fifo
            and any(seq < member.seq and seq not in kept for seq in group_seqs.get(message.group or "", ()))
        )
        if message is None or status is MemberState.LOST or is_passed:
            gone = errors.MessageGone(Receipt(queue.id, *member).text)
            decision.effects.append(effect.ExtensionRefused(message, member.seq, member.delivery, gone))
            continue
        decision.left.append(member)
        deadline_ms = now_ms + visibility_s * SECOND_MS
        if not again:
            deadline_ms = min(deadline_ms, lease_end_ms(message.received_at_ms or 0))
        if deadline_ms > now_ms:  # else its twelve hours are over
            # Read again, the hold's receipts are the first ones once more; extended, they stay what they are.
            is_kept = status is MemberState.OPEN and not again
            holder = message.holder if is_kept else member.delivery
            received_at_ms = now_ms if again else None
            lease = _lease_until(deadline_ms, message, holder, received_at_ms)
            decision.effects.append(effect.Extended(message, member.delivery, deadline_ms, lease))
            decision.open.append(member)
            kept.add(member.seq)
    return decision


def delete_member(
    member: Member, message: MessageFacts | None, queue: Queue, now_ms: int
) -> effect.Deleted | effect.DeleteRefused:
    """Delete a member of a hold. A hold goes by its leases, whatever receipt has come to belong to one."""
    rotations = 0 if message is None else message.holder & ~DELIVERY_MASK
    receipt = Receipt(queue.id, member.seq, member.delivery | rotations)
    return decide_deletion(message, receipt, now_ms, fifo=queue.settings.fifo)


# ---- redrives


def origin_of(message: StoredMessage) -> QueueKey | None:
    """Where the server has dead-lettered a message from."""
    if message.dead_letter_source is None:
        return None
    try:
        return parse_arn(message.dead_letter_source)
    except errors.ArnRefused:
        return None


def home_of(message: StoredMessage, letters: QueueKey) -> QueueKey | None:
    """Where a message of these dead letters came from: the server dead-lettered it, or a consumer says so that gave it up.

    The sender of a message may write anything there. It leads to no other account, to no queue of the other type, and not back
    to the dead letters, from where a move task would move it for ever.
    """
    written = (message.attributes or {}).get(SOURCE_QUEUE)
    if message.dead_letter_source is not None or written is None or not isinstance(written.value, str):
        return origin_of(message)
    text = written.value[:_SOURCE_CHARS_MAX]
    try:
        home = parse_arn(text)
    except errors.ArnRefused:
        home = letters._replace(name=text.rstrip("/").rsplit("/", 1)[-1])  # a name, or a URL
    is_fifo = home.name.endswith(".fifo")
    if not home.name or home.account != letters.account or is_fifo != letters.name.endswith(".fifo"):
        return None
    return None if home == letters else home


def step_move(
    task: MoveTask, messages: Sequence[StoredMessage], count: int, find: FindQueue, make: Redrive
) -> tuple[list[effect.Redriven], MoveTask]:
    """A step of a running task, of at most `count` messages: those that go, and the task as it stands then.

    `messages` are the oldest visible ones of its source; that there are fewer than might be moved completes the task.
    """
    moves: list[effect.Redriven] = []
    failure = None
    for message in messages:
        key = task.destination or home_of(message, task.source)
        target = None if key is None else find(key)
        if target is None:
            failure = SOURCE_UNKNOWN if key is None else DESTINATION_MISSING
            break
        moves.append(make(message, target, None))
    task = replace(task, moved=task.moved + len(moves))
    if failure is not None:
        return moves, replace(task, status="FAILED", failure=failure)
    return moves, replace(task, status="COMPLETED") if len(messages) < count else task


def step_scan(task: MoveTask, step: ScanStep, answers: Sequence[object]) -> MoveTask:
    """A running task of which the step's messages were redriven; `answers` are VeilErrors where one was refused."""
    assert task.scan is not None
    refusals = [str(answer) for answer in answers if isinstance(answer, errors.VeilError)]
    scan = task.scan._replace(
        after_seq=step.after_seq,
        looked=task.scan.looked + step.looked,
        refused=task.scan.refused + len(refusals),
        refusal=refusals[-1] if refusals else task.scan.refusal,
    )
    status = "COMPLETED" if step.is_last else task.status
    return replace(task, scan=scan, moved=task.moved + len(answers) - len(refusals), status=status)


def cancel_move(task: MoveTask) -> MoveTask:
    """Ask a running task to stop; raises MoveTaskNotRunning."""
    if task.status != "RUNNING":
        raise errors.MoveTaskNotRunning(task.status)
    return replace(task, status="CANCELLING")


# `redrive` at an instant, with a new key.
Redrive = Callable[[StoredMessage, Queue, NewContent | None], effect.Redriven]


def decide_redrives(
    source: Queue,
    chosen: Sequence[Chosen],
    messages: dict[int, StoredMessage],
    find: FindQueue,
    make: Redrive,
) -> tuple[list[effect.Redriven], list[Sent | errors.VeilError]]:
    """Redrive chosen messages, each on its own: what happens, and what each is answered. `messages` has those of them that the
    source has, by seq."""
    effects: list[effect.Redriven] = []
    answers: list[Sent | errors.VeilError] = []
    for one in chosen:
        decided = _decide_redrive(source, one, messages.get(one.seq), find, make)
        if isinstance(decided, effect.Redriven):
            del messages[one.seq]  # chosen twice, it is gone the second time
            effects.append(decided)
            answers.append(Sent(decided.moved.message_id, decided.moved.seq))
        else:
            answers.append(decided)
    return effects, answers


def _decide_redrive(
    source: Queue, chosen: Chosen, message: StoredMessage | None, find: FindQueue, make: Redrive
) -> effect.Redriven | errors.VeilError:
    if message is None or message.message_id != chosen.message_id:
        return errors.MessageMissing(chosen.message_id, chosen.seq)
    if message.state != State.VISIBLE:
        return errors.MessageNotVisible(chosen.message_id, State(message.state).label)
    key = chosen.destination or home_of(message, source.key)
    if key is None:
        return errors.SourceUnknown(chosen.message_id)
    target = find(key)
    if target is None:
        return errors.QueueMissing(key.name)
    if target.settings.fifo != source.settings.fifo:
        return errors.DestinationRefused(key.name, source.settings.queue_type)
    if chosen.change is None:
        return make(message, target, None)
    try:
        content = changed_content(chosen.change, message, target.settings)
    except errors.MessageRefused as refusal:
        return refusal
    return make(message, target, content)


def redrive(
    message: StoredMessage,
    target: Queue,
    new_seq: int,
    new_id: str,
    now_ms: int,
    wall_ms: int,
    content: NewContent | None = None,
) -> effect.Redriven:
    """A visible message leaves the dead letters and arrives as a new one, with the delay of its new queue. It is never taken
    for a duplicate: on a FIFO queue its new id is its deduplication id too."""
    settings = target.settings
    due_at_ms = now_ms + settings.delay_s * SECOND_MS if settings.delay_s else None
    moved = structs.replace(
        message,
        seq=new_seq,
        message_id=new_id,
        deduplication_id=new_id if settings.fifo else None,
        sent_wall_ms=wall_ms,
        dead_letter_source=None,
    )
    moved.set_lease(LeaseState(_VISIBLE if due_at_ms is None else _DELAYED, due_at_ms, None, 0, 0, 0, None))
    if content is not None:
        moved = structs.replace(moved, **content._asdict())
    return effect.Redriven(message, 0, None, moved, target, content)
