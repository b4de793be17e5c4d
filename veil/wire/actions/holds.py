"""Veil's own actions on holds: receive under a name; extend and delete by stream."""

from __future__ import annotations

from typing import Final

from veil.core import limits
from veil.core.hold import HOLD_MAX, HoldKey, HoldTally
from veil.core.queue import Queue
from veil.service import holds
from veil.wire.actions.own_queue import own_queue
from veil.wire.call import Call
from veil.wire.large import answer_bytes
from veil.wire.received import ReceivedForm
from veil.wire.request_errors import ParameterMissing, check_range
from veil.wire.shapes import (
    DeleteHoldsInput,
    ExtendHoldsInput,
    HoldTallyOutput,
    OpenStreamInput,
    ReceiveHoldInput,
    ReceiveHoldOutput,
    ReceiveMessageInput,
)

_EVERYTHING: Final = ReceivedForm(
    ReceiveMessageInput(MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"])
)
# A hold without a window would hold nothing.
_WINDOW: Final = f"Must be between 1 and {limits.VISIBILITY_MAX_S}."


async def open_stream(call: Call, given: OpenStreamInput) -> None:
    """OpenStream: the owner from now on; whoever was it before is refused."""
    queue = await own_queue(call, given.QueueUrl)
    await holds.open_stream(call.service, queue, _text("Stream", given.Stream), _text("Owner", given.Owner))


async def receive_hold(call: Call, given: ReceiveHoldInput) -> ReceiveHoldOutput:
    """ReceiveHold: the same messages for the same name, with all their attributes."""
    queue = await own_queue(call, given.QueueUrl)
    batch, part = _number("Batch", given.Batch), _number("Part", given.Part)
    key = HoldKey(_text("Stream", given.Stream), batch, part)
    count = _number("MaxNumberOfMessages", given.MaxNumberOfMessages)
    check_range("MaxNumberOfMessages", count, 1, HOLD_MAX, f"Must be between 1 and {HOLD_MAX}.")
    content = await holds.receive_hold(
        call.service,
        queue,
        key,
        count=count,
        visibility_s=_window(given.VisibilityTimeout, queue),
        caller=call.caller,
    )
    call.answer_bytes = answer_bytes(content.messages)
    messages = [_EVERYTHING.message(call.service, queue, message) for message in content.messages]
    return ReceiveHoldOutput(messages, content.lost)


async def extend_holds(call: Call, given: ExtendHoldsInput) -> HoldTallyOutput:
    """ExtendHolds: more time for all that the stream holds."""
    queue = await own_queue(call, given.QueueUrl)
    stream, owner = _text("Stream", given.Stream), _text("Owner", given.Owner)
    window_s = _number("VisibilityTimeout", given.VisibilityTimeout)
    check_range("VisibilityTimeout", window_s, 1, limits.VISIBILITY_MAX_S, _WINDOW)
    return _counted(
        await holds.extend_holds(call.service, queue, stream, owner, window_s, caller=call.caller)
    )


async def delete_holds(call: Call, given: DeleteHoldsInput) -> HoldTallyOutput:
    """DeleteHolds: acknowledge every batch up to one."""
    queue = await own_queue(call, given.QueueUrl)
    stream, owner = _text("Stream", given.Stream), _text("Owner", given.Owner)
    up_to_batch = _number("UpToBatch", given.UpToBatch)
    return _counted(
        await holds.delete_holds(call.service, queue, stream, owner, up_to_batch, caller=call.caller)
    )


def _window(given_s: int | None, queue: Queue) -> int:
    window_s = queue.settings.visibility_s if given_s is None else given_s
    check_range("VisibilityTimeout", window_s, 1, limits.VISIBILITY_MAX_S, _WINDOW)
    return window_s


def _text(parameter: str, value: str) -> str:
    if not value:
        raise ParameterMissing(parameter)
    return value


def _number(parameter: str, value: int | None) -> int:
    if value is None:
        raise ParameterMissing(parameter)
    return value


def _counted(tally: HoldTally) -> HoldTallyOutput:
    return HoldTallyOutput(tally.messages, tally.lost)
