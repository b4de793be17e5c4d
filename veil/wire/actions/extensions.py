"""Veil's own actions: holds, looking without receiving, pauses, redriving what was chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from veil.core import limits
from veil.core.attempt import NO_OUTCOME
from veil.core.errors import AccessDenied, VeilError
from veil.core.lease import HOLD_MAX, HoldKey, State
from veil.core.message import Sent, StoredMessage
from veil.core.queue import Chosen, ContentChange, Queue, QueueKey
from veil.core.sequence import SEQ_MAX
from veil.core.text import whole_number
from veil.service import receive as receiving
from veil.service.dead_letters import LetterFilter
from veil.service.history import QueueDepth, queue_depths
from veil.service.messages import search
from veil.service.moves import start_move, task_handle
from veil.service.queues import set_paused
from veil.service.time_slices import TimeSlice
from veil.wire import shapes
from veil.wire.actions.messages import (
    ReceivedForm,
    attribute_values,
    checked_entries,
    in_batch,
    in_columns,
    read_attributes,
    system_attributes,
)
from veil.wire.actions.move_tasks import check_rate
from veil.wire.actions.queues import read_page
from veil.wire.call import Call, read_page_token, write_page_token
from veil.wire.large import LARGE_BYTES, MESSAGE_BYTES, answer_bytes, in_thread
from veil.wire.request_errors import ParameterRefused, check_range, required

# In the order of shapes.QueueDescription's last fields.
_EVENTS: Final = ("sent", "received", "deleted", "lapsed", "dead_lettered")

# ---- owners only


async def own_queue(call: Call, url: str) -> Queue:
    """The caller's queue behind the URL; raises AccessDenied for another's."""
    queue = await call.queue(url)
    if call.account != queue.key.account:
        raise AccessDenied(call.action, call.url(queue))
    return queue


# ---- holds

_EVERYTHING: Final = ReceivedForm(
    shapes.ReceiveMessageInput(MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"])
)
_COLUMNS_BYTES: Final = 128  # what a message of nothing weighs in columns: an eighth of one by itself
# A hold without a visibility would hold nothing.
_GIVEN_RANGE: Final = "Must be between {low} and {high}."


async def open_stream(call: Call, given: shapes.OpenStreamInput) -> None:
    """OpenStream: the owner from now on; whoever was it before is refused."""
    queue = await own_queue(call, given.QueueUrl)
    await receiving.open_stream(
        call.service, queue, required("Stream", given.Stream), required("Owner", given.Owner)
    )


async def receive_hold(call: Call, given: shapes.ReceiveHoldInput) -> shapes.ReceiveHoldOutput:
    """ReceiveHold: the same messages for the same name, with all their attributes."""
    queue = await own_queue(call, given.QueueUrl)
    batch, part = required("Batch", given.Batch), required("Part", given.Part)
    key = HoldKey(required("Stream", given.Stream), batch, part)
    count = required("MaxNumberOfMessages", given.MaxNumberOfMessages)
    check_range("MaxNumberOfMessages", count, 1, HOLD_MAX, _GIVEN_RANGE)
    visibility_s = queue.settings.visibility_s if given.VisibilityTimeout is None else given.VisibilityTimeout
    check_range("VisibilityTimeout", visibility_s, 1, limits.VISIBILITY_MAX_S, _GIVEN_RANGE)
    content = await receiving.receive_hold(
        call.service, queue, key, count=count, visibility_s=visibility_s, caller=call.caller
    )
    each_bytes = _COLUMNS_BYTES if given.InColumns else MESSAGE_BYTES
    call.answer_bytes = answer_bytes(content.messages, each_bytes)

    def shown() -> list[shapes.ReceivedMessage] | shapes.MessageColumns:
        if given.InColumns:
            return in_columns(content.messages, queue.settings.fifo)
        return _EVERYTHING.messages(call.service, queue, content.messages)

    messages = await in_thread(shown) if call.answer_bytes > LARGE_BYTES else shown()
    return shapes.ReceiveHoldOutput(messages, content.lost)


async def extend_holds(call: Call, given: shapes.ExtendHoldsInput) -> shapes.HoldTallyOutput:
    """ExtendHolds: more time for all that the stream holds."""
    queue = await own_queue(call, given.QueueUrl)
    stream, owner = required("Stream", given.Stream), required("Owner", given.Owner)
    visibility_s = required("VisibilityTimeout", given.VisibilityTimeout)
    check_range("VisibilityTimeout", visibility_s, 1, limits.VISIBILITY_MAX_S, _GIVEN_RANGE)
    tally = await receiving.extend_holds(call.service, queue, stream, owner, visibility_s, caller=call.caller)
    return shapes.HoldTallyOutput(*tally)


async def delete_holds(call: Call, given: shapes.DeleteHoldsInput) -> shapes.HoldTallyOutput:
    """DeleteHolds: acknowledge every batch up to one."""
    queue = await own_queue(call, given.QueueUrl)
    stream, owner = required("Stream", given.Stream), required("Owner", given.Owner)
    up_to_batch = required("UpToBatch", given.UpToBatch)
    tally = await receiving.delete_holds(call.service, queue, stream, owner, up_to_batch, caller=call.caller)
    return shapes.HoldTallyOutput(*tally)


# ---- queues


async def pause_queue(call: Call, given: shapes.OnQueue) -> None:
    """PauseQueue: a receive gets nothing until it is resumed."""
    await set_paused(call.service, await own_queue(call, given.QueueUrl), True, caller=call.caller)


async def resume_queue(call: Call, given: shapes.OnQueue) -> None:
    await set_paused(call.service, await own_queue(call, given.QueueUrl), False, caller=call.caller)


async def describe_queues(call: Call, given: shapes.ListQueuesInput) -> shapes.DescribeQueuesOutput:
    """DescribeQueues: how each of the caller's own queues stands, a page at a time."""
    size, after = read_page(given.MaxResults, given.NextToken)
    prefix = given.QueueNamePrefix or ""
    queues = await call.service.store.list_queues(
        call.region, call.owner(), prefix=prefix, after=after, limit=size + 1
    )
    page = queues[:size]
    depths = await queue_depths(call.service, page)
    found = [_described(call, queue, depths[queue.id]) for queue in page if queue.id in depths]
    token = write_page_token(page[-1].name) if len(queues) > size else None
    return shapes.DescribeQueuesOutput(found or None, token)


def _described(call: Call, queue: Queue, depth: QueueDepth) -> shapes.QueueDescription:
    settings, clock, tallies = queue.settings, call.service.clock, call.service.tallies
    oldest_ms = depth.oldest_sent_ms
    return shapes.QueueDescription(
        queue.name,
        call.url(queue),
        settings.paused,
        *depth.counts,
        depth.waiting,
        None if oldest_ms is None else oldest_ms + clock.wall_ms() - clock.now_ms(),
        settings.visibility_s,
        None if settings.redrive is None else settings.redrive.dead_letters.name,
        *(tallies.of(event, queue.id) for event in _EVENTS),
    )


# ---- the life of a message

_ATTEMPTS_MAX = 100  # of a stay, the latest: each may have a traceback


async def describe_message(call: Call, given: shapes.DescribeMessageInput) -> shapes.DescribeMessageOutput:
    """DescribeMessage: where a message of the caller's account stayed, and what came of its attempts, also when it is gone."""
    account = call.owner()
    message_id = required("MessageId", given.MessageId)
    lives, clock = call.service.lives, call.service.clock
    life = None if lives is None else await lives.described(message_id, account, clock.now_ms())
    if life is None:
        return shapes.DescribeMessageOutput()
    to_wall_ms = clock.wall_ms() - clock.now_ms()
    described = []
    for stay in life.stays:
        attempts = [
            shapes.AttemptDescription(
                lease.delivery,
                lease.outcome.value,
                lease.received_at_ms + to_wall_ms,
                None if (ended_at_ms := lease.attempt_ended_at_ms) is None else ended_at_ms + to_wall_ms,
                lease.deadline_ms + to_wall_ms,
                len(lease.renewals),
                lease.holder,
                (reported := lease.reported or NO_OUTCOME).error_type,
                reported.error_text,
                reported.traceback,
            )
            for lease in stay.leases[-_ATTEMPTS_MAX:]
        ]
        until_ms = None if stay.until_ms is None else stay.until_ms + to_wall_ms
        place = (stay.queue.name, stay.came, stay.since_ms + to_wall_ms, stay.went)
        described.append(shapes.StayDescription(*place, until_ms, attempts))
    return shapes.DescribeMessageOutput(described)


# ---- peek

PEEK_MAX = 1_000
PEEK_BYTES_MAX: Final = 16 << 20  # of bodies, for one look
_INSTANT_MAX = (1 << 62) - 1
_STATES = {state: state.name.lower() for state in State}


async def peek_messages(call: Call, given: shapes.PeekMessagesInput) -> shapes.PeekMessagesOutput:
    """PeekMessages: oldest first, a page at a time; for the owner only."""
    queue = await own_queue(call, given.QueueUrl)
    size = 10 if given.MaxResults is None else given.MaxResults
    check_range("MaxResults", size, 1, PEEK_MAX)
    for parameter, instant_ms in (("SentAfter", given.SentAfter), ("SentBefore", given.SentBefore)):
        if instant_ms is not None:
            expected = "Must be milliseconds since 1970-01-01 UTC, if provided."
            check_range(parameter, instant_ms, 0, _INSTANT_MAX, expected)
    up_to_seq = _order_key("UpTo", given.UpTo) if given.UpTo else None
    if given.State is not None:
        fits = _in_state(given)
        looked = await search(
            call.service,
            queue,
            fits,
            TimeSlice(call.service.time_slices),
            after_seq=_begin(given),
            up_to_seq=up_to_seq,
            limit=size,
        )
        page, behind = looked.messages, looked.behind
    else:
        async with call.service.looks:
            messages = await call.service.store.peek(
                queue,
                after_seq=_begin(given),
                up_to_seq=up_to_seq,
                sent_after_ms=given.SentAfter,
                sent_before_ms=given.SentBefore,
                limit=size + 1,
                bytes_max=PEEK_BYTES_MAX,
            )
        page = messages[:size]
        # A page ends early when it has become large; the next one may then turn out to be empty.
        is_cut = len(messages) > size or sum(message.body_bytes for message in page) >= PEEK_BYTES_MAX
        behind = page[-1].seq if is_cut else None
    call.answer_bytes = answer_bytes(page)
    token = None if behind is None else write_page_token(str(behind))
    return shapes.PeekMessagesOutput([_peeked(call, queue, message) for message in page] or None, token)


def _in_state(given: shapes.PeekMessagesInput) -> Callable[[StoredMessage], bool]:
    """Whether a message is in the state that is asked for, and was sent within the two instants."""
    states = {word: state for state, word in _STATES.items()}
    if given.State not in states:
        raise ParameterRefused(
            "State", given.State or "", f"Must be one of {', '.join(states)}, if provided."
        )
    wanted = states[given.State]
    first_ms = 0 if given.SentAfter is None else given.SentAfter
    last_ms = _INSTANT_MAX if given.SentBefore is None else given.SentBefore
    return lambda message: message.state == wanted and first_ms <= message.sent_wall_ms <= last_ms


def _begin(given: shapes.PeekMessagesInput) -> int:
    """The message after which the page begins; a token is further on than what the first page began with."""
    if given.NextToken:
        return _seq(given.NextToken)
    return _order_key("After", given.After) if given.After else 0


def _order_key(parameter: str, text: str) -> int:
    """The key; raises ParameterRefused for a text that cannot be one."""
    seq = whole_number(text, 20)
    if seq is not None and seq <= SEQ_MAX:
        return seq
    raise ParameterRefused(
        parameter, text, f"Must be a whole number between 0 and {SEQ_MAX}, in decimal digits."
    )


def _seq(token: str) -> int:
    try:
        return _order_key("NextToken", read_page_token(token))
    except ParameterRefused:
        raise ParameterRefused("NextToken", token, "Invalid or expired next token.") from None


def _peeked(call: Call, queue: Queue, message: StoredMessage) -> shapes.PeekedMessage:
    # Deadlines run on engine time; people read the wall clock.
    clock, activity = call.service.clock, call.service.activity
    wall_offset_ms = clock.wall_ms() - clock.now_ms()
    state = State(message.state)
    holder = None
    if state is State.IN_FLIGHT and activity is not None:
        known = activity.attempts.holder(queue.id, message)
        if known is not None:
            who, received_ms = known.caller, known.received_at_ms + wall_offset_ms
            holder = shapes.LeaseHolder(
                who.key_id, who.peer, who.user_agent, received_ms, known.renewals, known.outcome
            )
    return shapes.PeekedMessage(
        message.message_id,
        str(message.seq),
        message.body_md5,
        message.body,
        _STATES[state],
        system_attributes(message, queue.settings.fifo),
        message.due_at_ms + wall_offset_ms
        if state is not State.VISIBLE and message.due_at_ms is not None
        else None,
        attribute_values(message.attributes) if message.attributes else None,
        holder,
    )


# ---- redrive


async def start_redrive(call: Call, given: shapes.StartRedriveInput) -> shapes.StartMessageMoveTaskOutput:
    """StartRedrive: a move task that moves only what matches.

    Not a parameter of StartMessageMoveTask: another service would pass over a filter that it does not know, and move all.
    """
    queue = await own_queue(call, given.QueueUrl)
    check_rate(given.MaxNumberOfMessagesPerSecond)
    to = given.DestinationQueueUrl
    letters = LetterFilter(
        text=given.ContainedText,
        source=given.SourceQueueName,
        type=given.MessageType,
        error=given.ErrorType,
        redriven={None: "", True: "yes", False: "no"}[given.RedrivenBefore],
    )
    task = await start_move(
        call.service,
        queue.key.arn,
        _destination(call, to).arn if to else None,
        given.MaxNumberOfMessagesPerSecond,
        account=call.owner(),
        letters=letters,
        caller=call.caller,
    )
    return shapes.StartMessageMoveTaskOutput(task_handle(task))


REDRIVE_MAX: Final = 1_000


async def redrive_messages(call: Call, given: shapes.RedriveMessagesInput) -> shapes.RedriveMessagesOutput:
    """RedriveMessages: up to a thousand in one transaction, a wrong entry fails alone."""
    queue = await own_queue(call, given.QueueUrl)
    entries = checked_entries(given.Entries, REDRIVE_MAX)

    async def do(chosen: list[Chosen]) -> list[Sent | VeilError]:
        return await call.service.store.redrive(queue, chosen, caller=call.caller) if chosen else []

    def show(entry: shapes.RedriveEntry, chosen: Chosen, moved: Sent) -> shapes.RedrivenEntry:
        return shapes.RedrivenEntry(entry.Id, moved.message_id, str(moved.seq))

    answered = await in_batch(
        call, entries, lambda entry: _chosen(call, entry, is_marked=given.MarkRedriven), do, show
    )
    return shapes.RedriveMessagesOutput(*answered)


def _chosen(call: Call, entry: shapes.RedriveEntry, *, is_marked: bool) -> Chosen:
    message_id = required("MessageId", entry.MessageId)
    seq = _order_key("SequenceNumber", required("SequenceNumber", entry.SequenceNumber))
    destination = _destination(call, entry.DestinationQueueUrl) if entry.DestinationQueueUrl else None
    attributes = None if entry.MessageAttributes is None else read_attributes(entry.MessageAttributes)
    change = None
    if is_marked or entry.MessageBody is not None or attributes is not None:
        types = call.service.rules.type_attributes
        change = ContentChange(entry.MessageBody, attributes, types, is_marked)
    return Chosen(seq, message_id, destination, change)


def _destination(call: Call, url: str) -> QueueKey:
    key = call.urls.key(url, call.region, call.owner())
    if key.account != call.account:
        raise AccessDenied(call.action, key.arn)
    return key
