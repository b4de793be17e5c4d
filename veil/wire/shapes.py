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
# Whatever comes in and is no body or attribute's value: names, ids, receipts, settings. The bounds keep texts of megabytes and
# lists of a hundred thousand names out of every check and every error text; what AWS allows is far below.
Text = Annotated[str, Meta(max_length=131_072)]
Names = Annotated[list[Text], Meta(max_length=10_000)]


class Shape(Struct, omit_defaults=True, gc=False):
    """A structure of the API; `gc=False` because none can be part of a cycle."""


class OnQueue(Shape):
    """The input of an action on a queue. DeleteQueue, PurgeQueue, ListQueueTags, PauseQueue and ResumeQueue need nothing else."""

    QueueUrl: Text = ""


# ---- parts


class QueueMention(Struct, rename="pascal"):
    """Of any request, only what names its queue."""

    queue_url: str = ""
    queue_name: str = ""


class AttributeValue(Shape):
    """The value of a message attribute, in both directions."""

    DataType: Text = ""
    StringValue: str | None = None
    BinaryValue: bytes | None = None
    StringListValues: list[str] | None = None
    BinaryListValues: list[bytes] | None = None


AttributeValues = dict[Text, AttributeValue]


class SentContent(Shape):
    MessageBody: str = ""
    DelaySeconds: Int | None = None
    MessageAttributes: AttributeValues | None = None
    MessageSystemAttributes: AttributeValues | None = None
    MessageDeduplicationId: Text | None = None
    MessageGroupId: Text | None = None


class SendEntry(SentContent):
    Id: Text = ""


class ReceiptEntry(Shape):
    Id: Text = ""
    ReceiptHandle: Text = ""


class VisibilityEntry(ReceiptEntry):
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


class LeaseHolder(Shape):
    """Who received a message that is in flight, Veil's own; instants are milliseconds since 1970."""

    KeyId: str
    Address: str
    UserAgent: str
    ReceivedAt: int
    Renewals: int
    Outcome: str | None = None  # of an attempt that is over: the message waits for its retry


class PeekedMessage(Shape):
    MessageId: str
    SequenceNumber: str
    MD5OfBody: str
    Body: str
    State: str
    Attributes: dict[str, str]
    VisibleAt: int | None = None
    MessageAttributes: AttributeValues | None = None
    Holder: LeaseHolder | None = None


# ---- messages


class SendMessageInput(SentContent):
    QueueUrl: Text = ""


class SendMessageOutput(Shape):
    MessageId: str
    MD5OfMessageBody: str
    MD5OfMessageAttributes: str | None = None
    MD5OfMessageSystemAttributes: str | None = None
    SequenceNumber: str | None = None


class ReceiveMessageInput(OnQueue):
    AttributeNames: Names | None = None
    MessageSystemAttributeNames: Names | None = None
    MessageAttributeNames: Names | None = None
    MaxNumberOfMessages: Int | None = None
    VisibilityTimeout: Int | None = None
    WaitTimeSeconds: Int | None = None
    ReceiveRequestAttemptId: Text | None = None


class ReceiveMessageOutput(Shape):
    Messages: list[ReceivedMessage] | None = None


class DeleteMessageInput(OnQueue):
    ReceiptHandle: Text = ""


class ChangeMessageVisibilityInput(DeleteMessageInput):
    VisibilityTimeout: Int | None = None


class PeekMessagesInput(OnQueue):
    MaxResults: Int | None = None
    NextToken: Text | None = None
    SentAfter: Long | None = None
    SentBefore: Long | None = None
    After: Text | None = None
    UpTo: Text | None = None
    State: Text | None = None


class PeekMessagesOutput(Shape):
    Messages: list[PeekedMessage] | None = None
    NextToken: str | None = None


# ---- batches


class SendMessageBatchInput(OnQueue):
    Entries: list[SendEntry] | None = None


class SendMessageBatchOutput(Shape):
    Successful: list[SentEntry] | None = None
    Failed: list[FailedEntry] | None = None


class DeleteMessageBatchInput(OnQueue):
    Entries: list[ReceiptEntry] | None = None


class ChangeMessageVisibilityBatchInput(OnQueue):
    Entries: list[VisibilityEntry] | None = None


class BatchOutput(Shape):
    Successful: list[DoneEntry] | None = None
    Failed: list[FailedEntry] | None = None


# ---- holds and chosen redrives: Veil's own


class OpenStreamInput(OnQueue):
    Stream: Text = ""
    Owner: Text = ""


class ReceiveHoldInput(OnQueue):
    Stream: Text = ""
    Batch: Long | None = None
    Part: Long | None = None
    MaxNumberOfMessages: Int | None = None
    VisibilityTimeout: Int | None = None
    InColumns: bool = False


class MessageColumns(Shape):
    """Messages by column. Of the system attributes those that any of them has; `MessageAttributes` where any has some."""

    MessageId: list[str]
    Body: list[str]
    Attributes: dict[str, list[str | None]]
    MessageAttributes: list[AttributeValues | None] | None = None


class ReceiveHoldOutput(Shape):
    Messages: list[ReceivedMessage] | MessageColumns
    Lost: int


class ExtendHoldsInput(OpenStreamInput):
    VisibilityTimeout: Int | None = None


class DeleteHoldsInput(OpenStreamInput):
    UpToBatch: Long | None = None


class HoldTallyOutput(Shape):
    Messages: int
    Lost: int


class RedriveEntry(Shape):
    Id: Text = ""
    MessageId: Text = ""
    SequenceNumber: Text = ""
    DestinationQueueUrl: Text | None = None
    MessageBody: str | None = None
    MessageAttributes: AttributeValues | None = None


class RedriveMessagesInput(OnQueue):
    Entries: list[RedriveEntry] | None = None
    MarkRedriven: bool = False


class StartRedriveInput(OnQueue):
    DestinationQueueUrl: Text | None = None
    MaxNumberOfMessagesPerSecond: Int | None = None
    ContainedText: Text = ""
    SourceQueueName: Text = ""
    MessageType: Text = ""
    ErrorType: Text = ""
    RedrivenBefore: bool | None = None


class RedrivenEntry(Shape):
    Id: str
    NewMessageId: str
    NewSequenceNumber: str


class RedriveMessagesOutput(Shape):
    Successful: list[RedrivenEntry] | None = None
    Failed: list[FailedEntry] | None = None


# ---- queues


class QueueUrlOutput(Shape):
    QueueUrl: str


class CreateQueueInput(Shape):
    QueueName: Text = ""
    Attributes: dict[Text, Text] | None = None
    # Lower case in AWS's model. Some clients write it upper case all the same.
    tags: dict[Text, Text] | None = None
    Tags: dict[Text, Text] | None = None


class GetQueueUrlInput(Shape):
    QueueName: Text = ""
    QueueOwnerAWSAccountId: Text | None = None


class GetQueueAttributesInput(OnQueue):
    AttributeNames: Names | None = None


class AttributesOutput(Shape):
    Attributes: dict[str, str] | None = None


class SetQueueAttributesInput(OnQueue):
    Attributes: dict[Text, Text] | None = None


class ListQueuesInput(Shape):
    QueueNamePrefix: Text | None = None
    NextToken: Text | None = None
    MaxResults: Int | None = None


class ListQueuesOutput(Shape):
    QueueUrls: list[str] | None = None
    NextToken: str | None = None


class ListDeadLetterSourceQueuesInput(OnQueue):
    NextToken: Text | None = None
    MaxResults: Int | None = None


class ListDeadLetterSourceQueuesOutput(Shape):
    # Lower case in AWS's model, and required there, so it is written even when it is empty.
    queue_urls: list[str] = field(name="queueUrls")
    NextToken: str | None = None


class QueueDescription(Shape):
    """A queue as it stands, Veil's own; instants are milliseconds since 1970, the last five are counts since the start."""

    QueueName: str
    QueueUrl: str
    Paused: bool
    Visible: int
    InFlight: int
    Delayed: int
    WaitingForRetry: int
    OldestSentAt: int | None
    VisibilityTimeout: int
    DeadLetterQueueName: str | None
    Sent: int
    Received: int
    Deleted: int
    Lapsed: int
    DeadLettered: int


class DescribeQueuesOutput(Shape):
    Queues: list[QueueDescription] | None = None
    NextToken: str | None = None


class DescribeMessageInput(Shape):
    MessageId: Text = ""


class AttemptDescription(Shape):
    """One attempt, Veil's own; instants are milliseconds since 1970."""

    Attempt: int
    Outcome: str
    ReceivedAt: int
    EndedAt: int | None
    Deadline: int
    Renewals: int
    Holder: str
    ErrorType: str | None
    ErrorText: str | None
    Traceback: str | None


class StayDescription(Shape):
    """A message's time in one queue, Veil's own."""

    QueueName: str
    Came: str
    Since: int
    Went: str | None
    Until: int | None
    Attempts: list[AttemptDescription]


class DescribeMessageOutput(Shape):
    """Without `Stays`, the journal does not know the message."""

    Stays: list[StayDescription] | None = None


# ---- tags and permissions


class TagQueueInput(OnQueue):
    Tags: dict[Text, Text] | None = None


class UntagQueueInput(OnQueue):
    TagKeys: Names | None = None


class TagsOutput(Shape):
    Tags: dict[str, str] | None = None


class AddPermissionInput(OnQueue):
    Label: Text = ""
    AWSAccountIds: Names | None = None
    Actions: Names | None = None


class RemovePermissionInput(OnQueue):
    Label: Text = ""


# ---- move tasks


class StartMessageMoveTaskInput(Shape):
    SourceArn: Text = ""
    DestinationArn: Text | None = None
    MaxNumberOfMessagesPerSecond: Int | None = None


class StartMessageMoveTaskOutput(Shape):
    TaskHandle: str


class CancelMessageMoveTaskInput(Shape):
    TaskHandle: Text = ""


class CancelMessageMoveTaskOutput(Shape):
    ApproximateNumberOfMessagesMoved: int


class ListMessageMoveTasksInput(Shape):
    SourceArn: Text = ""
    MaxResults: Int | None = None


class ListMessageMoveTasksOutput(Shape):
    Results: list[MoveTaskEntry] | None = None
