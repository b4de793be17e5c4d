"""Send, receive, delete, change visibility: one message at a time, and the receive of several."""

from __future__ import annotations

from veil.core import limits
from veil.core.errors import VeilError
from veil.core.message_rules import attributes_md5
from veil.core.sequence import sequence_text
from veil.service.messages import delete, extend_lease, send
from veil.service.receive import give_back, receive
from veil.wire.call import Call
from veil.wire.drafts import read_draft, system_md5
from veil.wire.large import answer_bytes
from veil.wire.received import ReceivedForm
from veil.wire.request_errors import ParameterMissing, check_range
from veil.wire.shapes import (
    ChangeMessageVisibilityInput,
    DeleteMessageInput,
    ReceiveMessageInput,
    ReceiveMessageOutput,
    SendMessageInput,
    SendMessageOutput,
)

VISIBILITY_RANGE = f"Must be >= 0 and <= {limits.VISIBILITY_MAX_S}, if provided."


async def send_message(call: Call, given: SendMessageInput) -> SendMessageOutput:
    """SendMessage."""
    queue = await call.queue(given.QueueUrl)
    draft = read_draft(given, call.request.headers.get("x-amzn-trace-id"))
    (sent,) = await send(
        call.service, queue, (draft,), sender=call.sender, retry_key=call.retry_key(), caller=call.caller
    )
    if isinstance(sent, VeilError):
        raise sent
    return SendMessageOutput(
        sent.message_id,
        sent.body_md5,
        attributes_md5(draft.attributes) if draft.attributes else None,
        system_md5(given) if given.MessageSystemAttributes else None,
        sequence_text(sent.seq) if queue.settings.fifo else None,
    )


async def receive_message(call: Call, given: ReceiveMessageInput) -> ReceiveMessageOutput:
    """ReceiveMessage; the answer knows how to give the messages back if it cannot be delivered."""
    queue = await call.queue(given.QueueUrl)
    count = given.MaxNumberOfMessages
    if count is None:
        count = 1
    else:
        check_range(
            "MaxNumberOfMessages",
            count,
            1,
            call.bulk_max,
            f"Must be between 1 and {call.bulk_max}, if provided.",
        )
    if given.WaitTimeSeconds is not None:
        check_range(
            "WaitTimeSeconds",
            given.WaitTimeSeconds,
            0,
            limits.WAIT_MAX_S,
            f"Must be >= 0 and <= {limits.WAIT_MAX_S}, if provided.",
        )
    if given.VisibilityTimeout is not None:
        check_range(
            "VisibilityTimeout", given.VisibilityTimeout, 0, limits.VISIBILITY_MAX_S, VISIBILITY_RANGE
        )
    form = ReceivedForm(given)
    service, caller = call.service, call.caller
    messages = await receive(
        service,
        queue,
        count=count,
        visibility_s=given.VisibilityTimeout,
        # A queue may have been made to wait longer than SQS's clients expect.
        wait_s=min(queue.settings.wait_s, limits.WAIT_MAX_S)
        if given.WaitTimeSeconds is None
        else given.WaitTimeSeconds,
        attempt_id=given.ReceiveRequestAttemptId,
        caller=caller,
    )
    # From here to the socket nothing may wait but the encoding of a large answer, which is ready to be cancelled: otherwise a
    # cancelled request would keep its messages hidden.
    if not messages:
        return ReceiveMessageOutput()
    call.answer_bytes = answer_bytes(messages)
    call.undelivered = lambda: give_back(service, queue, messages, caller=caller)
    return ReceiveMessageOutput([form.message(service, queue, message) for message in messages])


async def delete_message(call: Call, given: DeleteMessageInput) -> None:
    """DeleteMessage."""
    queue = await call.queue(given.QueueUrl)
    if not given.ReceiptHandle:
        raise ParameterMissing("ReceiptHandle")
    (refusal,) = await delete(call.service, queue, (given.ReceiptHandle,), caller=call.caller)
    if refusal is not None:
        raise refusal


async def change_message_visibility(call: Call, given: ChangeMessageVisibilityInput) -> None:
    """ChangeMessageVisibility."""
    queue = await call.queue(given.QueueUrl)
    if not given.ReceiptHandle:
        raise ParameterMissing("ReceiptHandle")
    visibility_s = given.VisibilityTimeout
    if visibility_s is None:
        raise ParameterMissing("VisibilityTimeout")
    check_range("VisibilityTimeout", visibility_s, 0, limits.VISIBILITY_MAX_S, VISIBILITY_RANGE)
    (refusal,) = await extend_lease(
        call.service, queue, ((given.ReceiptHandle, visibility_s),), caller=call.caller
    )
    if refusal is not None:
        raise refusal
