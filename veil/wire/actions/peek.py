"""Veil's own action: look at messages in any state without receiving them."""

from __future__ import annotations

from veil.core.lease import State
from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.service.messages import PEEK_BYTES_MAX, peek
from veil.wire.actions.own_queue import own_queue
from veil.wire.call import Call
from veil.wire.large import answer_bytes
from veil.wire.page_tokens import read_page_token, write_page_token
from veil.wire.received import attribute_values, system_attributes
from veil.wire.request_errors import ParameterRefused, check_range
from veil.wire.sequence_numbers import read_sequence_number
from veil.wire.shapes import PeekedMessage, PeekMessagesInput, PeekMessagesOutput

PEEK_MAX = 1_000
_INSTANT_MAX = (1 << 62) - 1
_STATES = {State.VISIBLE: "visible", State.DELAYED: "delayed", State.IN_FLIGHT: "in_flight"}


async def peek_messages(call: Call, given: PeekMessagesInput) -> PeekMessagesOutput:
    """PeekMessages: oldest first, a page at a time; for the owner only."""
    queue = await own_queue(call, given.QueueUrl)
    size = 10 if given.MaxResults is None else given.MaxResults
    check_range("MaxResults", size, 1, PEEK_MAX, f"Must be between 1 and {PEEK_MAX}, if provided.")
    for parameter, instant_ms in (("SentAfter", given.SentAfter), ("SentBefore", given.SentBefore)):
        if instant_ms is not None:
            expected = "Must be milliseconds since 1970-01-01 UTC, if provided."
            check_range(parameter, instant_ms, 0, _INSTANT_MAX, expected)
    messages = await peek(
        call.service,
        queue,
        after_seq=_begin(given),
        up_to_seq=read_sequence_number("UpTo", given.UpTo) if given.UpTo else None,
        sent_after_ms=given.SentAfter,
        sent_before_ms=given.SentBefore,
        limit=size + 1,
    )
    page = messages[:size]
    call.answer_bytes = answer_bytes(page)
    # A page ends early when it has become large; the next one may then turn out to be empty.
    is_cut = len(messages) > size or sum(message.body_bytes for message in page) >= PEEK_BYTES_MAX
    token = write_page_token(str(page[-1].seq)) if is_cut else None
    clock = call.service.clock
    # Deadlines run on engine time; people read the wall clock.
    wall_offset_ms = clock.wall_ms() - clock.now_ms()
    return PeekMessagesOutput([_peeked(queue, message, wall_offset_ms) for message in page] or None, token)


def _begin(given: PeekMessagesInput) -> int:
    """The message after which the page begins; a token is further on than what the first page began with."""
    if given.NextToken:
        return _seq(given.NextToken)
    return read_sequence_number("After", given.After) if given.After else 0


def _seq(token: str) -> int:
    try:
        return read_sequence_number("NextToken", read_page_token(token))
    except ParameterRefused:
        raise ParameterRefused("NextToken", token, "Invalid or expired next token.") from None


def _peeked(queue: Queue, message: StoredMessage, wall_offset_ms: int) -> PeekedMessage:
    state = State(message.state)
    return PeekedMessage(
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
    )
