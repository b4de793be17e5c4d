"""How SQS words each error: one table from Veil's error classes to AWS's types, codes, statuses and texts.

Clients decide by these: the class of the exception by the JSON type, `Error.Code` by the query code, retries by the status;
users and test suites compare the texts. What is wrong with a request itself carries its words (`request_errors`). A test walks
the whole family of errors, so that none is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from veil.core import errors as e
from veil.core import policy
from veil.wire.attributes import ATTRIBUTE_OF_SETTING
from veil.wire.request_errors import (
    ACCESS_DENIED,
    INVALID_VALUE,
    MISSING,
    UNAVAILABLE,
    Code,
    RequestRefused,
    common_code,
    shown,
    sqs_code,
)


class Situation(NamedTuple):
    """Where an error happened, as far as its wording depends on it."""

    action: str = ""
    query: bool = False  # the Query protocol, whose texts are older
    entry: bool = False  # one entry of a batch, not the whole request


class Refusal(NamedTuple):
    code: Code
    message: str


def _veil(name: str) -> Code:
    """For what SQS has no word for."""
    return Code(f"Veil.{name}", f"Veil.{name}")


_ATTRIBUTE_NAME: Final = sqs_code("InvalidAttributeName", "InvalidAttributeName")
_ATTRIBUTE_VALUE: Final = sqs_code("InvalidAttributeValue", "InvalidAttributeValue")
_NOT_FOUND: Final = sqs_code("ResourceNotFoundException", "ResourceNotFoundException", 404)
_RECEIPT_INVALID: Final = sqs_code("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404)
_OVER_LIMIT: Final = sqs_code("OverLimit", "OverLimit", 403)

_TEXT_CHARS_MAX: Final = 4_096  # some repeat the values that they refuse

INTERNAL_FAILURE: Final = Refusal(
    common_code("InternalFailure", "InternalFailure", 500),
    "The request processing has failed because of an unknown error, exception or failure.",
)


def _value(parameter: str, value: object, reason: str) -> str:
    return f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"


# ---- those whose words depend on more than their facts

_Wording = Callable[[Any, Situation], Refusal]


def _queue_missing(error: e.QueueMissing, situation: Situation) -> Refusal:
    code = sqs_code("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
    where = " for this wsdl version" if situation.query else ""
    return Refusal(code, f"The specified queue does not exist{where}.")


def _queue_exists(error: e.QueueExists, situation: Situation) -> Refusal:
    text = "A queue already exists with the same name and a different value for attribute "
    code = sqs_code("QueueNameExists", "QueueAlreadyExists")
    return Refusal(code, text + ATTRIBUTE_OF_SETTING.get(error.setting, error.setting))


def _setting_refused(error: e.SettingRefused, situation: Situation) -> Refusal:
    name = ATTRIBUTE_OF_SETTING.get(error.setting, error.setting)
    reason = error.expected[:1].upper() + error.expected[1:].rstrip(".") + "."
    if name in ("Policy", "RedrivePolicy", "RedriveAllowPolicy"):
        return Refusal(INVALID_VALUE, _value(name, error.value, reason))
    return Refusal(_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}. Reason: {reason}")


def _setting_not_for_type(error: e.SettingNotForQueueType, situation: Situation) -> Refusal:
    name = ATTRIBUTE_OF_SETTING.get(error.setting, error.setting)
    if name in ("DeduplicationScope", "FifoThroughputLimit"):
        return Refusal(_ATTRIBUTE_NAME, f"You can specify the {name} only when FifoQueue is set to true.")
    return Refusal(_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


def _message_gone(error: e.MessageGone, situation: Situation) -> Refusal:
    reason = "Message does not exist or is not available for visibility timeout change"
    # Of an entry AWS says it by another code, which clients that settle in batches look for.
    if situation.entry:
        return Refusal(_RECEIPT_INVALID, reason)
    return Refusal(INVALID_VALUE, _value("ReceiptHandle", error.receipt, f"{reason}."))


def _body_too_long(error: e.BodyTooLong, situation: Situation) -> Refusal:
    verb = "cannot be validated" if situation.entry else "are invalid"
    reason = f"Message must be shorter than {error.max_bytes} bytes."
    return Refusal(INVALID_VALUE, f"One or more parameters {verb}. Reason: {reason}")


def _group_missing(error: e.GroupMissing, situation: Situation) -> Refusal:
    # AWS has two codes for the same text: the batch cannot say which parameter of which entry is missing.
    code = INVALID_VALUE if situation.action == "SendMessageBatch" else MISSING
    return Refusal(code, "The request must contain the parameter MessageGroupId.")


def _not_for_type(error: e.NotForQueueType, situation: Situation) -> Refusal:
    # AWS's grammar differs between the two; tests compare it.
    includes = "include parameter" if error.queue_type == "FIFO" else "includes a parameter"
    reason = f"The request {includes} that is not valid for this queue type."
    return Refusal(INVALID_VALUE, _value(error.parameter, error.value, reason))


def _destination_refused(error: e.DestinationRefused, situation: Situation) -> Refusal:
    return _not_for_type(e.NotForQueueType("DestinationQueueUrl", error.name, error.queue_type), situation)


def _batch_empty(error: e.BatchEmpty, situation: Situation) -> Refusal:
    text = f"There should be at least one {situation.action}RequestEntry in the request."
    return Refusal(sqs_code("EmptyBatchRequest"), text)


def _account_refused(error: policy.AccountRefused, situation: Situation) -> Refusal:
    return Refusal(
        INVALID_VALUE, _value("PrincipalId", f"[{', '.join(error.accounts)}]", "Unable to verify.")
    )


# ---- the table: the words, or the code and a text in which the error's facts are filled in (none: the error's own)

_ACTION_NAME: Final = "Value SQS:{action} for parameter ActionName is invalid. Reason: "

# fmt: off
WORDS: Final[dict[type[e.VeilError], _Wording | tuple[Code, str | None]]] = {
    # queues
    e.QueueMissing: _queue_missing,
    e.QueueExists: _queue_exists,
    e.QueueDeletedRecently: (sqs_code("QueueDeletedRecently"),
        "You must wait 60 seconds after deleting a queue before you can create another with the same name."),
    e.PurgeInProgress: (sqs_code("PurgeQueueInProgress", status=403),
        "Only one PurgeQueue operation on {name} is allowed every 60 seconds."),
    e.NameRefused: (INVALID_VALUE, "{expected}"),
    e.SettingUnknown: (_ATTRIBUTE_NAME, "Unknown Attribute {setting}."),
    e.SettingNotForQueueType: _setting_not_for_type,
    e.SettingRefused: _setting_refused,
    e.EncryptionTwice: (_ATTRIBUTE_NAME,
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."),
    e.TagsRefused: (INVALID_VALUE, None),
    # receipts and leases
    e.ReceiptInvalid: (_RECEIPT_INVALID, 'The input receipt handle "{receipt}" is not a valid receipt handle.'),
    e.ReceiptExpired: (INVALID_VALUE, _value("ReceiptHandle", "{receipt}", "The receipt handle has expired.")),
    e.MessageGone: _message_gone,
    e.VisibilityTooLong: (INVALID_VALUE, _value("VisibilityTimeout", "{visibility_s}",
        "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]")),
    # messages
    e.MessageRefused: (INVALID_VALUE, None),
    e.BodyMissing: (MISSING, "The request must contain the parameter MessageBody."),
    e.BodyTooLong: _body_too_long,
    e.CharactersRefused: (sqs_code("InvalidMessageContents", "InvalidMessageContents"),
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
        "#xE000 to #xFFFD | #x10000 to #x10FFFF."),
    e.GroupMissing: _group_missing,
    e.DeduplicationMissing: (INVALID_VALUE,
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"),
    e.NotForQueueType: _not_for_type,
    e.IdentifierRefused: (INVALID_VALUE, _value("{parameter}", "{value}",
        "{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.")),
    # batches
    e.BatchRefused: (INVALID_VALUE, None),
    e.BatchEmpty: _batch_empty,
    e.BatchTooMany: (sqs_code("TooManyEntriesInBatchRequest"),
        "Maximum number of entries per request are {count_max}. You have sent {count}."),
    e.BatchIdRefused: (sqs_code("InvalidBatchEntryId"), "A batch entry id can only contain alphanumeric characters, "
        "hyphens and underscores. It can be at most 80 letters long."),
    e.BatchIdRepeated: (sqs_code("BatchEntryIdsNotDistinct"), "Id {entry_id} repeated."),
    e.BatchTooLong: (sqs_code("BatchRequestTooLong"),
        "Batch requests cannot be longer than {max_bytes} bytes. You have sent {size_bytes} bytes."),
    e.InFlightLimit: (_OVER_LIMIT, "Too many messages in flight, at most {count_max} are allowed."),
    # move tasks
    e.MoveTaskRefused: (INVALID_VALUE, None),
    e.ResourceMissing: (_NOT_FOUND, "The resource that you specified for the {parameter} parameter doesn't exist."),
    e.ArnRefused: (INVALID_VALUE, "You must use this format to specify the {parameter}: "
        "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"),
    e.NotDeadLetters: (INVALID_VALUE, "Source queue must be configured as a Dead Letter Queue."),
    e.MoveToItself: (INVALID_VALUE, "Source queue and destination queue must be different queues."),
    e.MoveTaskRunning: (INVALID_VALUE,
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time."),
    e.MoveTaskMissing: (_NOT_FOUND, "Task does not exist."),
    e.MoveTaskHandleInvalid: (INVALID_VALUE, "Value for parameter TaskHandle is invalid."),
    e.MoveTaskNotRunning: (INVALID_VALUE, "Only active tasks can be cancelled."),
    # holds
    e.HoldRefused: (INVALID_VALUE, None),
    e.HoldNameRefused: (INVALID_VALUE, _value("{parameter}", "{value}", "Must be {expected}.")),
    e.HoldClosed: (_veil("HoldClosed"), _value("Batch", "{batch}",
        "Every batch of stream {stream} up to {closed} was acknowledged; must be greater.")),
    e.StreamTaken: (_veil("StreamTaken"), _value("Owner", "{owner}",
        "Stream {stream} has another owner; must be whoever opened it last.")),
    # chosen redrives
    e.RedriveRefused: (INVALID_VALUE, None),
    e.MessageMissing: (_veil("MessageMissing"), _value("MessageId", "{message_id}",
        "The queue has no such message with SequenceNumber {seq}, or not any more.")),
    e.MessageNotVisible: (_veil("MessageNotVisible"), _value("MessageId", "{message_id}",
        "The message is {state}; must be visible to be moved.")),
    e.SourceUnknown: (_veil("SourceUnknown"), _value("MessageId", "{message_id}",
        "The message was not dead-lettered from any queue; must have a DestinationQueueUrl.")),
    e.DestinationRefused: _destination_refused,
    # access and policies
    e.AccessDenied: (ACCESS_DENIED, "Access to the resource {resource} is denied."),
    e.PolicyRefused: (INVALID_VALUE, None),
    policy.PolicyMalformed: (_ATTRIBUTE_VALUE, "Invalid value for the parameter Policy. Reason: {reason}."),
    policy.LabelRefused: (INVALID_VALUE, _value("Label", "{label}",
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.")),
    policy.LabelTaken: (INVALID_VALUE, _value("Label", "{label}", "Already exists.")),
    policy.LabelMissing: (INVALID_VALUE, _value("Label", "{label}", "can't find label.")),
    policy.AccountRefused: _account_refused,
    policy.ActionsMissing: (MISSING, "The request must contain the parameter Actions."),
    policy.ActionsTooMany: (_OVER_LIMIT, "{count} Actions were found, maximum allowed is {count_max}."),
    policy.PolicyActionUnknown: (INVALID_VALUE,
        f"{_ACTION_NAME}Must be * or one of {', '.join(sorted(policy.GRANTABLE_ACTIONS))}."),
    policy.ActionOwnerOnly: (INVALID_VALUE,
        f"{_ACTION_NAME}Only the queue owner is allowed to invoke this action."),
    # stores: the outcome is unknown, and SDKs retry a 503
    e.StoreError: (UNAVAILABLE, "The service is unavailable at the moment. Please try again."),
    e.StoreFull: (UNAVAILABLE, "The server has no room for more messages at the moment."),
}
# fmt: on


def worded(error: e.VeilError, situation: Situation) -> Refusal:
    """The error in SQS's words, of which there may be so many."""
    code, message = _words_of(error, situation)
    return Refusal(code, message[:_TEXT_CHARS_MAX])


def _words_of(error: e.VeilError, situation: Situation) -> Refusal:
    """A class that is not in the table itself speaks by its nearest ancestor there."""
    if isinstance(error, RequestRefused):
        return Refusal(error.code, str(error))
    for family in type(error).__mro__:
        words = WORDS.get(family)
        if isinstance(words, tuple):
            code, text = words
            if text is None:
                return Refusal(code, str(error))
            return Refusal(code, shown(error, text) if isinstance(error, e.Described) else text)
        if words is not None:
            return words(error, situation)
    return INTERNAL_FAILURE
