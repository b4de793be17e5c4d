"""The inputs and outputs of SQS's actions, field for field as AWS names them.

Both protocols decode into these and encode out of them. Nothing is required here: an absent parameter has its own error
(`MissingParameter`), which the action raises, and a default is left out of the answer, as AWS leaves absent things out.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

# AWS's `integer`. The bound keeps numbers of a million digits out of every comparison and every error text.
Int = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Shape(Struct, omit_defaults=True, gc=False):
    """A structure of the API; `gc=False` because none can be part of a cycle."""


# ---- parts


class AttributeValue(Shape):
    """The value of a message attribute, in both directions."""

    DataType: str = ""
    StringValue: str | None = None
    BinaryValue: bytes | None = None
    StringListValues: list[str] | None = None
    BinaryListValues: list[bytes] | None = None


AttributeValues = dict[str, AttributeValue]


class SendEntry(Shape):
    Id: str = ""
    MessageBody: str = ""
    DelaySeconds: Int | None = None
    MessageAttributes: AttributeValues | None = None
    MessageSystemAttributes: AttributeValues | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class ReceiptEntry(Shape):
    Id: str = ""
    ReceiptHandle: str = ""


class VisibilityEntry(Shape):
    Id: str = ""
    ReceiptHandle: str = ""
    VisibilityTimeout: Int | None = None


class SentEntry(Shape):
    Id: str
    MessageId: str
    MD5OfMessageBody: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    SequenceNumber: str | None = None


class DoneEntry(Shape):
    Id: str


class FailedEntry(Shape):
    Id: str
    SenderFault: bool
    Code: str
    Message: str


class ReceivedMessage(Shape):
    MessageId: str
    ReceiptHandle: str
    MD5OfBody: str
    Body: str
    Attributes: dict[str, str] | None = None
    MD5OfMessageAttributes: str | None = None
    MessageAttributes: AttributeValues | None = None


class MoveTaskEntry(Shape):
    Status: str
    SourceArn: str
    ApproximateNumberOfMessagesMoved: int
    ApproximateNumberOfMessagesToMove: int
    StartedTimestamp: int
    TaskHandle: str | None = None
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None
    FailureReason: str | None = None


class PeekedMessage(Shape):
    MessageId: str
    SequenceNumber: str
    MD5OfBody: str
    Body: str
    State: str
    Attributes: dict[str, str]
    VisibleAt: int | None = None
    MessageAttributes: AttributeValues | None = None


# ---- messages


class SendMessageInput(Shape):
    QueueUrl: str = ""
    MessageBody: str = ""
    DelaySeconds: Int | None = None
    MessageAttributes: AttributeValues | None = None
    MessageSystemAttributes: AttributeValues | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessageOutput(Shape):
    MessageId: str
    MD5OfMessageBody: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    SequenceNumber: str | None = None


class ReceiveMessageInput(Shape):
    QueueUrl: str = ""
    AttributeNames: list[str] | None = None
    MessageSystemAttributeNames: list[str] | None = None
    MessageAttributeNames: list[str] | None = None
    MaxNumberOfMessages: Int | None = None
    VisibilityTimeout: Int | None = None
    WaitTimeSeconds: Int | None = None
    ReceiveRequestAttemptId: str | None = None


class ReceiveMessageOutput(Shape):
    Messages: list[ReceivedMessage] | None = None


class DeleteMessageInput(Shape):
    QueueUrl: str = ""
    ReceiptHandle: str = ""


class ChangeMessageVisibilityInput(Shape):
    QueueUrl: str = ""
    ReceiptHandle: str = ""
    VisibilityTimeout: Int | None = None


class PeekMessagesInput(Shape):
    QueueUrl: str = ""
    MaxResults: Int | None = None
    NextToken: str | None = None
    SentAfter: Long | None = None
    SentBefore: Long | None = None
    After: str | None = None
    UpTo: str | None = None


class PeekMessagesOutput(Shape):
    Messages: list[PeekedMessage] | None = None
    NextToken: str | None = None


# ---- batches


class SendMessageBatchInput(Shape):
    QueueUrl: str = ""
    Entries: list[SendEntry] | None = None


class SendMessageBatchOutput(Shape):
    Successful: list[SentEntry] | None = None
    Failed: list[FailedEntry] | None = None


class DeleteMessageBatchInput(Shape):
    QueueUrl: str = ""
    Entries: list[ReceiptEntry] | None = None


class ChangeMessageVisibilityBatchInput(Shape):
    QueueUrl: str = ""
    Entries: list[VisibilityEntry] | None = None


class BatchOutput(Shape):
    Successful: list[DoneEntry] | None = None
    Failed: list[FailedEntry] | None = None


# ---- holds and chosen redrives: Veil's own


class OpenStreamInput(Shape):
    QueueUrl: str = ""
    Stream: str = ""
    Owner: str = ""


class ReceiveHoldInput(Shape):
    QueueUrl: str = ""
    Stream: str = ""
    Batch: Long | None = None
    Part: Long | None = None
    MaxNumberOfMessages: Int | None = None
    VisibilityTimeout: Int | None = None


class ReceiveHoldOutput(Shape):
    Messages: list[ReceivedMessage]
    Lost: int


class ExtendHoldsInput(Shape):
    QueueUrl: str = ""
    Stream: str = ""
    Owner: str = ""
    VisibilityTimeout: Int | None = None


class DeleteHoldsInput(Shape):
    QueueUrl: str = ""
    Stream: str = ""
    Owner: str = ""
    UpToBatch: Long | None = None


class HoldTallyOutput(Shape):
    Messages: int
    Lost: int


class RedriveEntry(Shape):
    Id: str = ""
    MessageId: str = ""
    SequenceNumber: str = ""
    DestinationQueueUrl: str | None = None
    MessageBody: str | None = None
    MessageAttributes: AttributeValues | None = None


class RedriveMessagesInput(Shape):
    QueueUrl: str = ""
    Entries: list[RedriveEntry] | None = None
    MarkRedriven: bool = False


class RedrivenEntry(Shape):
    Id: str
    NewMessageId: str
    NewSequenceNumber: str


class RedriveMessagesOutput(Shape):
    Successful: list[RedrivenEntry] | None = None
    Failed: list[FailedEntry] | None = None


# ---- queues


class QueueInput(Shape):
    """DeleteQueue, PurgeQueue and ListQueueTags need nothing else."""

    QueueUrl: str = ""


class QueueUrlOutput(Shape):
    QueueUrl: str


class CreateQueueInput(Shape):
    QueueName: str = ""
    Attributes: dict[str, str] | None = None
    # Lower case in AWS's model. Some clients write it upper case all the same.
    tags: dict[str, str] | None = None
    Tags: dict[str, str] | None = None


class GetQueueUrlInput(Shape):
    QueueName: str = ""
    QueueOwnerAWSAccountId: str | None = None


class GetQueueAttributesInput(Shape):
    QueueUrl: str = ""
    AttributeNames: list[str] | None = None


class AttributesOutput(Shape):
    Attributes: dict[str, str] | None = None


class SetQueueAttributesInput(Shape):
    QueueUrl: str = ""
    Attributes: dict[str, str] | None = None


class ListQueuesInput(Shape):
    QueueNamePrefix: str | None = None
    NextToken: str | None = None
    MaxResults: Int | None = None


class ListQueuesOutput(Shape):
    QueueUrls: list[str] | None = None
    NextToken: str | None = None


class ListDeadLetterSourceQueuesInput(Shape):
    QueueUrl: str = ""
    NextToken: str | None = None
    MaxResults: Int | None = None


class ListDeadLetterSourceQueuesOutput(Shape):
    """`queueUrls` (lower case in AWS's model) is required there, so it is written even when empty."""

    queue_urls: list[str] = field(name="queueUrls")
    NextToken: str | None = None


# ---- tags and permissions


class TagQueueInput(Shape):
    QueueUrl: str = ""
    Tags: dict[str, str] | None = None


class UntagQueueInput(Shape):
    QueueUrl: str = ""
    TagKeys: list[str] | None = None


class TagsOutput(Shape):
    Tags: dict[str, str] | None = None


class AddPermissionInput(Shape):
    QueueUrl: str = ""
    Label: str = ""
    AWSAccountIds: list[str] | None = None
    Actions: list[str] | None = None


class RemovePermissionInput(Shape):
    QueueUrl: str = ""
    Label: str = ""


# ---- move tasks


class StartMessageMoveTaskInput(Shape):
    SourceArn: str = ""
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: Int | None = None


class StartMessageMoveTaskOutput(Shape):
    TaskHandle: str


class CancelMessageMoveTaskInput(Shape):
    TaskHandle: str = ""


class CancelMessageMoveTaskOutput(Shape):
    ApproximateNumberOfMessagesMoved: int


class ListMessageMoveTasksInput(Shape):
    SourceArn: str = ""
    MaxResults: Int | None = None


class ListMessageMoveTasksOutput(Shape):
    Results: list[MoveTaskEntry] | None = None
