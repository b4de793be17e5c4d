"""Veil's own action: look at messages in any state without receiving them."""

from __future__ import annotations

from veil.core.errors import AccessDenied
from veil.core.lease import State
from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.service.peek import peek
from veil.wire.call import Call
from veil.wire.page_tokens import read_page_token, write_page_token
from veil.wire.received import attribute_values, system_attributes
from veil.wire.request_errors import ParameterRefused, check_range
from veil.wire.shapes import PeekedMessage, PeekMessagesInput, PeekMessagesOutput

PEEK_MAX = 100
_STATES = {State.VISIBLE: "visible", State.DELAYED: "delayed", State.IN_FLIGHT: "in_flight"}


async def peek_messages(call: Call, given: PeekMessagesInput) -> PeekMessagesOutput:
    """PeekMessages: oldest first, a page at a time; for the owner only, since no policy can speak of it."""
    queue = await call.queue(given.QueueUrl)
    if call.account != queue.key.account:
        raise AccessDenied(call.action, call.url(queue))
    size = 10 if given.MaxResults is None else given.MaxResults
    check_range("MaxResults", size, 1, PEEK_MAX, f"Must be between 1 and {PEEK_MAX}, if provided.")
    messages = await peek(
        call.service, queue, after_seq=_seq(given.NextToken) if given.NextToken else 0, limit=size + 1
    )
    token = write_page_token(str(messages[size - 1].seq)) if len(messages) > size else None
    clock = call.service.clock
    # Deadlines run on engine time; people read the wall clock.
    wall_offset_ms = clock.wall_ms() - clock.now_ms()
    return PeekMessagesOutput(
        [_peeked(queue, message, wall_offset_ms) for message in messages[:size]] or None, token
    )


def _seq(token: str) -> int:
    text = read_page_token(token)
    if not text.isdigit() or len(text) > 20:
        raise ParameterRefused("NextToken", token, "Invalid or expired next token.")
    return int(text)


def _peeked(queue: Queue, message: StoredMessage, wall_offset_ms: int) -> PeekedMessage:
    state = State(message.state)
    return PeekedMessage(
        message.message_id,
        message.body_md5,
        message.body,
        _STATES[state],
        system_attributes(message, queue.settings.fifo),
        message.due_at_ms + wall_offset_ms
        if state is not State.VISIBLE and message.due_at_ms is not None
        else None,
        attribute_values(message.attributes) if message.attributes else None,
    )
