"""What each error of SQS means for a consumer, in either spelling."""

from __future__ import annotations

import json

import pytest

from veil.client.answers import error_in, messages_in, results_in
from veil.client.api import Failure, classify
from veil.client.connection import HttpAnswer

VALUE = "Value x for parameter {} is invalid. Reason: {}"
BEYOND = VALUE.format(
    "VisibilityTimeout", "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"
)
NOT_AVAILABLE = VALUE.format(
    "ReceiptHandle", "Message does not exist or is not available for visibility timeout change."
)
EXPIRED = VALUE.format("ReceiptHandle", "The receipt handle has expired.")


@pytest.mark.parametrize(
    ("code", "message", "failure"),
    [
        ("InvalidParameterValue", BEYOND, Failure.CAPPED),
        ("InvalidParameterValueException", BEYOND, Failure.CAPPED),
        ("InvalidParameterValue", NOT_AVAILABLE, Failure.LOST),
        ("com.amazon.coral.service#InvalidParameterValueException", EXPIRED, Failure.LOST),
        ("InvalidParameterValue", VALUE.format("MaxNumberOfMessages", "Must be between 1 and 10, if provided."), Failure.REFUSED),
        ("ReceiptHandleIsInvalid", "", Failure.LOST),
        ("com.amazonaws.sqs#MessageNotInflight", "", Failure.LOST),
        ("AWS.SimpleQueueService.MessageNotInflight", "", Failure.LOST),
        ("com.amazonaws.sqs#QueueDoesNotExist", "", Failure.FATAL),
        ("AWS.SimpleQueueService.NonExistentQueue", "", Failure.FATAL),
        ("AccessDenied", "", Failure.FATAL),
        ("AccessDeniedException", "", Failure.FATAL),
        ("InvalidClientTokenId", "", Failure.FATAL),
        ("UnrecognizedClientException", "", Failure.FATAL),
        ("SignatureDoesNotMatch", "The request signature we calculated does not match", Failure.FATAL),
        ("InvalidSignatureException", "The request signature we calculated does not match", Failure.FATAL),
        ("SignatureDoesNotMatch", "Signature expired: 20250101T000000Z is now earlier than", Failure.UNREACHABLE),
        ("InvalidSignatureException", "Signature not yet current: 2025", Failure.UNREACHABLE),
        ("ExpiredTokenException", "", Failure.FATAL),
        ("KmsDisabled", "", Failure.FATAL),
        ("KMS.AccessDeniedException", "", Failure.FATAL),
        ("KmsThrottled", "", Failure.THROTTLED),
        ("KMS.ThrottlingException", "", Failure.THROTTLED),
        ("RequestThrottled", "", Failure.THROTTLED),
        ("ThrottlingException", "", Failure.THROTTLED),
        ("TooManyRequestsException", "", Failure.THROTTLED),
        ("OverLimit", "", Failure.THROTTLED),
        ("InternalFailure", "", Failure.UNREACHABLE),
        ("ServiceUnavailable", "", Failure.UNREACHABLE),
        ("AWS.SimpleQueueService.BatchRequestTooLong", "", Failure.REFUSED),
        ("SomethingNew", "", Failure.REFUSED),
    ],
)  # fmt: skip
def test_a_code_and_its_words_say_what_to_do(code: str, message: str, failure: Failure) -> None:
    assert classify(400, code, message) is failure


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (429, Failure.THROTTLED),
        (500, Failure.UNREACHABLE),
        (503, Failure.UNREACHABLE),
        (400, Failure.UNREACHABLE),
    ],
)
def test_without_a_code_only_the_status_speaks(status: int, failure: Failure) -> None:
    assert classify(status, "", "") is failure


def test_an_unknown_code_with_a_server_status_is_worth_another_try() -> None:
    assert classify(500, "SomethingNew", "") is Failure.UNREACHABLE


def answer(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> HttpAnswer:
    return HttpAnswer(status, list(headers), body)


def test_the_header_helps_when_the_type_says_nothing() -> None:
    header = (b"X-Amzn-Query-Error", b"AWS.SimpleQueueService.NonExistentQueue;Sender")
    for body in (b'{"__type":"com.amazonaws.sqs#NewName"}', b"{}", b""):
        assert error_in(answer(400, body, header)).failure is Failure.FATAL
    error = error_in(answer(400, b'{"__type":"a#QueueDoesNotExist","message":"no"}', header))
    assert (error.code, error.message) == ("QueueDoesNotExist", "no")


def test_a_redirect_is_named_and_not_followed() -> None:
    error = error_in(answer(307, b"", (b"Location", b"https://elsewhere/")))
    assert error.failure is Failure.UNREACHABLE
    assert "https://elsewhere/" in error.message
    assert "not followed" in error.message


def test_every_entry_of_a_batch_has_its_own_outcome() -> None:
    body = (
        b'{"Successful":[{"Id":"0"}],"Failed":['
        b'{"Id":"1","SenderFault":true,"Code":"ReceiptHandleIsInvalid","Message":"bad"},'
        b'{"Id":"2","SenderFault":false,"Code":"Whatever"}]}'
    )
    done, lost, unknown, passed_over = results_in(answer(200, body), 4)
    assert done is None
    assert lost is not None
    assert (lost.failure, lost.message) == (Failure.LOST, "bad")
    assert unknown is not None
    assert unknown.failure is Failure.UNREACHABLE
    assert passed_over is not None
    assert passed_over.failure is Failure.UNREACHABLE


def test_an_entry_that_is_said_to_have_both_succeeded_and_failed_has_failed() -> None:
    body = b'{"Successful":[{"Id":"0"}],"Failed":[{"Id":"0","Code":"InternalError","SenderFault":false}]}'
    assert results_in(answer(200, body), 1)[0] is not None


def received(*messages: tuple[str, str | None, str | None]) -> HttpAnswer:
    found = []
    for name, digest, group in messages:
        each: dict[str, object] = {"MessageId": name, "ReceiptHandle": f"r-{name}", "Body": "body"}
        if digest is not None:
            each["MD5OfBody"] = digest
        if group is not None:
            each["Attributes"] = {"MessageGroupId": group}
        found.append(each)
    return answer(200, json.dumps({"Messages": found}).encode())


BODY_MD5 = "841a2d689ad86bd1611447453c22c6fc"


def test_a_damaged_message_is_left_in_the_queue_and_the_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = messages_in(received(("a", BODY_MD5, None), ("b", "0" * 32, None), ("c", None, None)), 7.0)
    assert [(message.message_id, message.began_at_s) for message in found] == [("a", 7.0), ("c", 7.0)]
    assert "message b" in caplog.text


def test_nothing_of_a_group_overtakes_its_damaged_message() -> None:
    found = messages_in(
        received(("a", BODY_MD5, "g1"), ("b", "0" * 32, "g1"), ("c", BODY_MD5, "g1"), ("d", BODY_MD5, "g2")),
        0.0,
    )
    assert [message.message_id for message in found] == ["a", "d"]
