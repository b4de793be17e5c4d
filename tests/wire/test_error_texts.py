"""The words of each error, as SQS has them, in both protocols."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire.kit import Refused, Wire

INVALID = ("com.amazon.coral.service#InvalidParameterValueException", "InvalidParameterValue", 400)
MISSING = ("com.amazon.coral.service#MissingRequiredParameterException", "MissingParameter", 400)
NAME = ("com.amazonaws.sqs#InvalidAttributeName", "InvalidAttributeName", 400)
VALUE = ("com.amazonaws.sqs#InvalidAttributeValue", "InvalidAttributeValue", 400)


async def refused(wire: Wire, action: str, **given: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await wire.call(action, **given)
    return caught.value


def _is(error: Refused, kind: tuple[str, str, int], message: str) -> None:
    assert (error.kind, error.code, error.status) == kind
    assert error.message == message


async def test_a_missing_queue_is_worded_by_protocol(wire: Wire) -> None:
    error = await refused(wire, "PurgeQueue", QueueUrl="http://x/000000000000/none")
    _is(
        error,
        ("com.amazonaws.sqs#QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400),
        "The specified queue does not exist.",
    )
    with pytest.raises(Refused) as caught:
        await wire.query("PurgeQueue", {"QueueUrl": "http://x/000000000000/none"})
    assert caught.value.code == "AWS.SimpleQueueService.NonExistentQueue"
    assert caught.value.message == "The specified queue does not exist for this wsdl version."


STANDARD = [
    ("SendMessage", {}, MISSING, "The request must contain the parameter MessageBody."),
    ("SendMessage", {"MessageBody": ""}, MISSING, "The request must contain the parameter MessageBody."),
    ("DeleteMessage", {}, MISSING, "The request must contain the parameter ReceiptHandle."),
    (
        "ChangeMessageVisibility",
        {"ReceiptHandle": "x"},
        MISSING,
        "The request must contain the parameter VisibilityTimeout.",
    ),
    ("SetQueueAttributes", {}, MISSING, "The request must contain the parameter Attributes."),
    ("TagQueue", {}, MISSING, "The request must contain the parameter Tags."),
    ("UntagQueue", {}, MISSING, "The request must contain the parameter TagKeys."),
    ("AddPermission", {}, MISSING, "The request must contain the parameter Label."),
    (
        "SendMessage",
        {"MessageBody": "\x01"},
        ("com.amazonaws.sqs#InvalidMessageContents", "InvalidMessageContents", 400),
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
        "#xE000 to #xFFFD | #x10000 to #x10FFFF.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x" * 1025},
        INVALID,
        "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "DelaySeconds": 901},
        INVALID,
        "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "DelaySeconds": -1},
        INVALID,
        "Value -1 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "MessageDeduplicationId": "d"},
        INVALID,
        "Value d for parameter MessageDeduplicationId is invalid. Reason: The request includes a parameter "
        "that is not valid for this queue type.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "MessageGroupId": "a b"},
        INVALID,
        "Value a b for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include "
        "alphanumeric and punctuation characters. 1 to 128 in length.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "MessageAttributes": {"X": {"DataType": "String", "StringValue": ""}}},
        INVALID,
        "Message (user) attribute 'X' must contain a non-empty value of type 'String'.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "MessageAttributes": {"X": {"DataType": "Binary", "StringValue": "a"}}},
        INVALID,
        "Message (user) attribute 'X' must contain a non-empty value of type 'Binary'.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "MessageAttributes": {"X": {"DataType": "String", "StringListValues": ["a"]}}},
        ("com.amazonaws.sqs#UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400),
        "Message attribute list values in SendMessage operation are not supported.",
    ),
    (
        "ReceiveMessage",
        {"MaxNumberOfMessages": 11},
        INVALID,
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
    ),
    (
        "ReceiveMessage",
        {"MaxNumberOfMessages": 0},
        INVALID,
        "Value 0 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
    ),
    (
        "ReceiveMessage",
        {"WaitTimeSeconds": 21},
        INVALID,
        "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.",
    ),
    (
        "ReceiveMessage",
        {"VisibilityTimeout": 43201},
        INVALID,
        "Value 43201 for parameter VisibilityTimeout is invalid. Reason: Must be >= 0 and <= 43200, if provided.",
    ),
    (
        "DeleteMessage",
        {"ReceiptHandle": "nonsense"},
        ("com.amazonaws.sqs#ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404),
        'The input receipt handle "nonsense" is not a valid receipt handle.',
    ),
    (
        "SendMessageBatch",
        {"Entries": []},
        ("com.amazonaws.sqs#EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400),
        "There should be at least one SendMessageBatchRequestEntry in the request.",
    ),
    (
        "DeleteMessageBatch",
        {},
        ("com.amazonaws.sqs#EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400),
        "There should be at least one DeleteMessageBatchRequestEntry in the request.",
    ),
    (
        "ChangeMessageVisibilityBatch",
        {},
        ("com.amazonaws.sqs#EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400),
        "There should be at least one ChangeMessageVisibilityBatchRequestEntry in the request.",
    ),
    (
        "SendMessageBatch",
        {"Entries": [{"Id": str(i), "MessageBody": "x"} for i in range(11)]},
        (
            "com.amazonaws.sqs#TooManyEntriesInBatchRequest",
            "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
            400,
        ),
        "Maximum number of entries per request are 10. You have sent 11.",
    ),
    (
        "SendMessageBatch",
        {"Entries": [{"Id": f"id_{i}", "MessageBody": "x"} for i in (1, 2, 3, 2, 1)]},
        (
            "com.amazonaws.sqs#BatchEntryIdsNotDistinct",
            "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
            400,
        ),
        "Id id_2 repeated.",
    ),
    (
        "DeleteMessageBatch",
        {"Entries": [{"Id": "no blank", "ReceiptHandle": "x"}]},
        ("com.amazonaws.sqs#InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400),
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long.",
    ),
    (
        "DeleteMessageBatch",
        {"Entries": [{"Id": "two\nlines", "ReceiptHandle": "x"}, {"Id": "b", "ReceiptHandle": "x"}]},
        ("com.amazonaws.sqs#InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400),
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long.",
    ),
    (
        "SendMessageBatch",
        {"Entries": [{"Id": str(i), "MessageBody": "x" * 524_289} for i in range(2)]},
        ("com.amazonaws.sqs#BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400),
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048578 bytes.",
    ),
    ("GetQueueAttributes", {"AttributeNames": ["X"]}, NAME, "Unknown Attribute X."),
    ("SetQueueAttributes", {"Attributes": {"X": "1"}}, NAME, "Unknown Attribute X."),
    ("SetQueueAttributes", {"Attributes": {"QueueArn": "1"}}, NAME, "Unknown Attribute QueueArn."),
    (
        "SetQueueAttributes",
        {"Attributes": {"DeduplicationScope": "queue"}},
        NAME,
        "You can specify the DeduplicationScope only when FifoQueue is set to true.",
    ),
    (
        "SetQueueAttributes",
        {"Attributes": {"FifoThroughputLimit": "perQueue"}},
        NAME,
        "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
    ),
    ("SetQueueAttributes", {"Attributes": {"FifoQueue": "true"}}, NAME, "Unknown Attribute FifoQueue."),
    ("SetQueueAttributes", {"Attributes": {"FifoQueue": "false"}}, NAME, "Unknown Attribute FifoQueue."),
    ("TagQueue", {"Tags": {}}, MISSING, "The request must contain the parameter Tags."),
    ("UntagQueue", {"TagKeys": []}, MISSING, "The request must contain the parameter TagKeys."),
    ("UntagQueue", {"TagKeys": ["a", ""]}, INVALID, "tag key '': expected 1 to 128 characters"),
    ("UntagQueue", {"TagKeys": ["k" * 129]}, INVALID, f"tag key '{'k' * 129}': expected 1 to 128 characters"),
    (
        "SetQueueAttributes",
        {"Attributes": {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}},
        NAME,
        "You can use one type of server-side encryption (SSE) at one time. "
        "You can either enable KMS SSE or SQS SSE.",
    ),
    (
        "SetQueueAttributes",
        {"Attributes": {"VisibilityTimeout": "43201"}},
        VALUE,
        "Invalid value for the parameter VisibilityTimeout. Reason: Must be between 0 and 43200.",
    ),
    (
        "SetQueueAttributes",
        {"Attributes": {"DelaySeconds": "1.5"}},
        VALUE,
        "Invalid value for the parameter DelaySeconds. Reason: Must be an integer.",
    ),
    (
        "AddPermission",
        {"Label": "l", "AWSAccountIds": ["1"], "Actions": ["*"]},
        INVALID,
        "Value [1] for parameter PrincipalId is invalid. Reason: Unable to verify.",
    ),
    (
        "AddPermission",
        {"Label": "l", "AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"] * 8},
        ("com.amazonaws.sqs#OverLimit", "OverLimit", 403),
        "8 Actions were found, maximum allowed is 7.",
    ),
    (
        "RemovePermission",
        {"Label": "none"},
        INVALID,
        "Value none for parameter Label is invalid. Reason: can't find label.",
    ),
    (
        "ListDeadLetterSourceQueues",
        {"MaxResults": 1001},
        INVALID,
        "Value 1001 for parameter MaxResults is invalid. Reason: Must be between 1 and 1000, if provided.",
    ),
]


@pytest.mark.parametrize(("action", "given", "kind", "message"), STANDARD)
async def test_on_a_standard_queue(
    wire: Wire, action: str, given: dict[str, Any], kind: tuple[str, str, int], message: str
) -> None:
    url = await wire.queue("q", MaximumMessageSize="1024")
    _is(await refused(wire, action, QueueUrl=url, **given), kind, message)


FIFO = [
    ("SendMessage", {"MessageBody": "x"}, MISSING, "The request must contain the parameter MessageGroupId."),
    (
        "SendMessageBatch",
        {"Entries": [{"Id": "a", "MessageBody": "x"}]},
        INVALID,
        "The request must contain the parameter MessageGroupId.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "MessageGroupId": "g"},
        INVALID,
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d", "DelaySeconds": 2},
        INVALID,
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not "
        "valid for this queue type.",
    ),
    (
        "SendMessage",
        {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "é"},
        INVALID,
        "Value é for parameter MessageDeduplicationId is invalid. Reason: MessageDeduplicationId can only "
        "include alphanumeric and punctuation characters. 1 to 128 in length.",
    ),
    (
        "SetQueueAttributes",
        {"Attributes": {"FifoQueue": "false"}},
        VALUE,
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
    ),
]


@pytest.mark.parametrize(("action", "given", "kind", "message"), FIFO)
async def test_on_a_fifo_queue(
    wire: Wire, action: str, given: dict[str, Any], kind: tuple[str, str, int], message: str
) -> None:
    url = await wire.queue("q.fifo")
    _is(await refused(wire, action, QueueUrl=url, **given), kind, message)


async def test_creating_over_an_existing_queue_names_the_attribute_that_differs(wire: Wire) -> None:
    await wire.queue("q", VisibilityTimeout="5")
    _is(
        await refused(wire, "CreateQueue", QueueName="q", Attributes={"VisibilityTimeout": "6"}),
        ("com.amazonaws.sqs#QueueNameExists", "QueueAlreadyExists", 400),
        "A queue already exists with the same name and a different value for attribute VisibilityTimeout",
    )


async def test_a_name_rests_for_sixty_seconds_after_its_queue_was_deleted(wire: Wire) -> None:
    await wire.call("DeleteQueue", QueueUrl=await wire.queue("q"))
    _is(
        await refused(wire, "CreateQueue", QueueName="q"),
        ("com.amazonaws.sqs#QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently", 400),
        "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
    )


async def test_a_second_purge_within_sixty_seconds_is_refused(wire: Wire) -> None:
    url = await wire.queue("q")
    await wire.call("PurgeQueue", QueueUrl=url)
    _is(
        await refused(wire, "PurgeQueue", QueueUrl=url),
        ("com.amazonaws.sqs#PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403),
        "Only one PurgeQueue operation on q is allowed every 60 seconds.",
    )


@pytest.mark.parametrize("name", ["a b", "a.b", "x" * 81, "q.fifo", "é"])
async def test_a_bad_queue_name_is_refused(wire: Wire, name: str) -> None:
    _is(
        await refused(wire, "CreateQueue", QueueName=name),
        INVALID,
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
    )


async def test_a_fifo_queue_needs_its_suffix(wire: Wire) -> None:
    error = await refused(wire, "CreateQueue", QueueName="q", Attributes={"FifoQueue": "true"})
    assert (error.code, error.status) == ("InvalidParameterValue", 400)
    assert "must end with .fifo suffix" in error.message


async def test_a_label_can_be_used_once(wire: Wire) -> None:
    url = await wire.queue("q")
    given = {"QueueUrl": url, "Label": "l", "AWSAccountIds": ["123456789012"], "Actions": ["SendMessage"]}
    await wire.call("AddPermission", **given)
    _is(
        await refused(wire, "AddPermission", **given),
        INVALID,
        "Value l for parameter Label is invalid. Reason: Already exists.",
    )


async def test_a_url_without_a_path_is_a_queue_that_is_not_there(wire: Wire) -> None:
    missing = ("com.amazonaws.sqs#QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400)
    for url in ("http://whatever", "https://sqs.us-east-1.amazonaws.com", "http://whatever?x=1"):
        _is(await refused(wire, "PurgeQueue", QueueUrl=url), missing, "The specified queue does not exist.")
        with pytest.raises(Refused) as caught:
            await wire.query("PurgeQueue", {"QueueUrl": url})
        assert (caught.value.status, caught.value.code) == (400, missing[1])


async def test_the_queue_type_is_worded_alike_in_the_query_protocol(wire: Wire) -> None:
    for name, value, code in (
        ("q", "true", "InvalidAttributeName"),
        ("q", "false", "InvalidAttributeName"),
        ("q.fifo", "false", "InvalidAttributeValue"),
    ):
        url = await wire.queue(name)
        with pytest.raises(Refused) as caught:
            await wire.query(
                "SetQueueAttributes",
                {"QueueUrl": url, "Attribute.1.Name": "FifoQueue", "Attribute.1.Value": value},
            )
        assert (caught.value.status, caught.value.code) == (400, code)


async def test_tags_are_checked_alike_in_the_query_protocol(wire: Wire) -> None:
    url = await wire.queue("q")
    for action, parameters, code in (
        ("TagQueue", {}, "MissingParameter"),
        ("UntagQueue", {}, "MissingParameter"),
        ("UntagQueue", {"TagKey.1": ""}, "InvalidParameterValue"),
        ("UntagQueue", {"TagKey.1": "k" * 129}, "InvalidParameterValue"),
    ):
        with pytest.raises(Refused) as caught:
            await wire.query(action, {"QueueUrl": url} | parameters)
        assert caught.value.code == code


async def test_a_url_without_a_name_is_an_invalid_address(wire: Wire) -> None:
    _is(
        await refused(wire, "PurgeQueue", QueueUrl="http://localhost:9324/"),
        ("com.amazonaws.sqs#InvalidAddress", "InvalidAddress", 404),
        "The address http://localhost:9324/ is not valid for this endpoint.",
    )


async def test_an_action_without_its_queue_url_is_on_a_queue_that_is_not_there(wire: Wire) -> None:
    _is(
        await refused(wire, "SendMessage", MessageBody="x"),
        ("com.amazonaws.sqs#QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400),
        "The specified queue does not exist.",
    )
    with pytest.raises(Refused) as caught:
        await wire.query("SendMessage", {"MessageBody": "x"})
    assert caught.value.code == "AWS.SimpleQueueService.NonExistentQueue"


async def test_a_queue_without_a_name_is_an_invalid_parameter(wire: Wire) -> None:
    text = "Value for parameter QueueName is invalid. Reason: Must specify a queue name."
    _is(await refused(wire, "GetQueueUrl"), INVALID, text)
    _is(await refused(wire, "CreateQueue"), INVALID, text)
