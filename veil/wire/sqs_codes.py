"""How SQS words each error: one table from Veil's error classes to AWS's types, codes, statuses and texts.

Clients decide by these: the class of the exception by the JSON type, `Error.Code` by the query code, retries by the status;
users and test suites compare the texts. A test walks the whole family of errors, so that none is missing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from veil.core import errors as e
from veil.core import policy
from veil.wire import request_errors as r
from veil.wire.attributes import ATTRIBUTE_OF_SETTING
from veil.wire.request_errors import SignatureRefused


class Code(NamedTuple):
    """The three names of an error: JSON type, query code, HTTP status."""

    json_type: str
    query_code: str
    status: int

    @property
    def fault(self) -> str:
        """Whose mistake it is."""
        return "Sender" if self.status < 500 else "Receiver"


class Situation(NamedTuple):
    """Where an error happened, as far as its wording depends on it."""

    action: str = ""
    query: bool = False  # the Query protocol, whose texts are older
    entry: bool = False  # one entry of a batch, not the whole request


class Refusal(NamedTuple):
    """An error in the words of SQS."""

    code: Code
    message: str


def _sqs(name: str, query_code: str | None = None, status: int = 400) -> Code:
    return Code(f"com.amazonaws.sqs#{name}", query_code or f"AWS.SimpleQueueService.{name}", status)


def _coral(name: str, query_code: str, status: int = 400) -> Code:
    return Code(f"com.amazon.coral.service#{name}", query_code, status)


def _veil(name: str) -> Code:
    """For what SQS has no word for."""
    return Code(f"Veil.{name}", f"Veil.{name}", 400)


_INVALID_VALUE: Final = _coral("InvalidParameterValueException", "InvalidParameterValue")
_MISSING: Final = _coral("MissingRequiredParameterException", "MissingParameter")
_ATTRIBUTE_NAME: Final = _sqs("InvalidAttributeName", "InvalidAttributeName")
_ATTRIBUTE_VALUE: Final = _sqs("InvalidAttributeValue", "InvalidAttributeValue")
_NOT_FOUND: Final = _sqs("ResourceNotFoundException", "ResourceNotFoundException", 404)
_RECEIPT_INVALID: Final = _sqs("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404)
_OVER_LIMIT: Final = _sqs("OverLimit", "OverLimit", 403)
_UNAVAILABLE: Final = _coral("ServiceUnavailableException", "ServiceUnavailable", 503)
_INVALID_ACTION: Final = _coral("UnknownOperationException", "InvalidAction")

INTERNAL_FAILURE: Final = Refusal(
    _coral("InternalFailure", "InternalFailure", 500),
    "The request processing has failed because of an unknown error, exception or failure.",
)

_Wording = Callable[[Any, Situation], Refusal]


def _says(code: Code, text: str | Callable[[Any], str]) -> _Wording:
    if isinstance(text, str):
        refusal = Refusal(code, text)
        return lambda error, situation: refusal
    return lambda error, situation: Refusal(code, text(error))


def _value(parameter: str, value: object, reason: str) -> str:
    return f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"


def _queue_missing(error: e.QueueMissing, situation: Situation) -> Refusal:
    code = _sqs("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
    where = " for this wsdl version" if situation.query else ""
    return Refusal(code, f"The specified queue does not exist{where}.")


def _setting_refused(error: e.SettingRefused, situation: Situation) -> Refusal:
    name = ATTRIBUTE_OF_SETTING.get(error.setting, error.setting)
    reason = error.expected[:1].upper() + error.expected[1:].rstrip(".") + "."
    if name in ("Policy", "RedrivePolicy", "RedriveAllowPolicy"):
        return Refusal(_INVALID_VALUE, _value(name, error.value, reason))
    return Refusal(_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}. Reason: {reason}")


def _setting_not_for_type(error: e.SettingNotForQueueType, situation: Situation) -> Refusal:
    name = ATTRIBUTE_OF_SETTING.get(error.setting, error.setting)
    if name in ("DeduplicationScope", "FifoThroughputLimit"):
        text = f"You can specify the {name} only when FifoQueue is set to true."
    else:
        text = f"Unknown Attribute {name}."
    return Refusal(_ATTRIBUTE_NAME, text)


def _message_gone(error: e.MessageGone, situation: Situation) -> Refusal:
    reason = "Message does not exist or is not available for visibility timeout change"
    # Of an entry AWS says it by another code, which clients that settle in batches look for.
    if situation.entry:
        return Refusal(_RECEIPT_INVALID, reason)
    return Refusal(_INVALID_VALUE, _value("ReceiptHandle", error.text, f"{reason}."))


def _body_too_long(error: e.BodyTooLong, situation: Situation) -> Refusal:
    verb = "cannot be validated" if situation.entry else "are invalid"
    return Refusal(
        _INVALID_VALUE,
        f"One or more parameters {verb}. Reason: Message must be shorter than {error.max_bytes} bytes.",
    )


def _group_missing(error: e.GroupMissing, situation: Situation) -> Refusal:
    # AWS has two codes for the same text: the batch cannot say which parameter of which entry is missing.
    code = _INVALID_VALUE if situation.action == "SendMessageBatch" else _MISSING
    return Refusal(code, "The request must contain the parameter MessageGroupId.")


def _not_for_type(error: e.NotForQueueType, situation: Situation) -> Refusal:
    # AWS's grammar differs between the two; tests compare it.
    includes = "include parameter" if error.fifo else "includes a parameter"
    reason = f"The request {includes} that is not valid for this queue type."
    return Refusal(_INVALID_VALUE, _value(error.parameter, error.value, reason))


def _destination_refused(error: e.DestinationRefused, situation: Situation) -> Refusal:
    return _not_for_type(e.NotForQueueType("DestinationQueueUrl", error.name, error.fifo), situation)


def _batch_empty(error: e.BatchEmpty, situation: Situation) -> Refusal:
    return Refusal(
        _sqs("EmptyBatchRequest"),
        f"There should be at least one {situation.action}RequestEntry in the request.",
    )


def _signature_refused(error: SignatureRefused, situation: Situation) -> Refusal:
    return Refusal(_coral(error.code_json, error.code_query, error.status), str(error))


_TABLE: Final[dict[type[e.VeilError], _Wording]] = {
    # ---- queues
    e.QueueMissing: _queue_missing,
    e.QueueExists: _says(
        _sqs("QueueNameExists", "QueueAlreadyExists"),
        lambda error: (
            "A queue already exists with the same name and a different value for attribute "
            + ATTRIBUTE_OF_SETTING.get(error.setting, error.setting)
        ),
    ),
    e.QueueDeletedRecently: _says(
        _sqs("QueueDeletedRecently"),
        "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
    ),
    e.PurgeInProgress: _says(
        _sqs("PurgeQueueInProgress", status=403),
        lambda error: f"Only one PurgeQueue operation on {error.name} is allowed every 60 seconds.",
    ),
    e.NameRefused: _says(_INVALID_VALUE, lambda error: error.expected),
    e.SettingUnknown: _says(_ATTRIBUTE_NAME, lambda error: f"Unknown Attribute {error.setting}."),
    e.SettingNotForQueueType: _setting_not_for_type,
    e.SettingRefused: _setting_refused,
    e.TagsRefused: _says(_INVALID_VALUE, lambda error: error.reason),
    r.EncryptionTwice: _says(
        _ATTRIBUTE_NAME,
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    ),
    # ---- receipts and leases
    e.ReceiptInvalid: _says(
        _RECEIPT_INVALID,
        lambda error: f'The input receipt handle "{error.text[:1024]}" is not a valid receipt handle.',
    ),
    e.ReceiptExpired: _says(
        _INVALID_VALUE,
        lambda error: _value("ReceiptHandle", error.text, "The receipt handle has expired."),
    ),
    e.MessageGone: _message_gone,
    e.VisibilityTooLong: _says(
        _INVALID_VALUE,
        lambda error: _value(
            "VisibilityTimeout",
            error.visibility_s,
            "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]",
        ),
    ),
    # ---- messages
    e.MessageRefused: _says(_INVALID_VALUE, str),
    e.BodyMissing: _says(_MISSING, "The request must contain the parameter MessageBody."),
    e.BodyTooLong: _body_too_long,
    e.CharactersRefused: _says(
        _sqs("InvalidMessageContents", "InvalidMessageContents"),
        "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
        "#xE000 to #xFFFD | #x10000 to #x10FFFF.",
    ),
    e.AttributeRefused: _says(_INVALID_VALUE, lambda error: error.reason),
    e.GroupMissing: _group_missing,
    e.DeduplicationMissing: _says(
        _INVALID_VALUE,
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
    ),
    e.NotForQueueType: _not_for_type,
    e.IdentifierRefused: _says(
        _INVALID_VALUE,
        lambda error: _value(
            error.parameter,
            error.value[:1024],
            f"{error.parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        ),
    ),
    e.PriorityRefused: _says(_INVALID_VALUE, str),
    # ---- batches
    e.BatchRefused: _says(_INVALID_VALUE, str),
    e.BatchEmpty: _batch_empty,
    e.BatchTooMany: _says(
        _sqs("TooManyEntriesInBatchRequest"),
        lambda error: (
            f"Maximum number of entries per request are {error.count_max}. You have sent {error.count}."
        ),
    ),
    e.BatchIdRefused: _says(
        _sqs("InvalidBatchEntryId"),
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long.",
    ),
    e.BatchIdRepeated: _says(
        _sqs("BatchEntryIdsNotDistinct"), lambda error: f"Id {error.entry_id} repeated."
    ),
    e.BatchTooLong: _says(
        _sqs("BatchRequestTooLong"),
        lambda error: (
            f"Batch requests cannot be longer than {error.max_bytes} bytes."
            f" You have sent {error.size_bytes} bytes."
        ),
    ),
    e.InFlightLimit: _says(
        _OVER_LIMIT, lambda error: f"Too many messages in flight, at most {error.count_max} are allowed."
    ),
    # ---- move tasks
    e.MoveTaskRefused: _says(_INVALID_VALUE, str),
    e.ResourceMissing: _says(
        _NOT_FOUND,
        lambda error: f"The resource that you specified for the {error.parameter} parameter doesn't exist.",
    ),
    e.ArnRefused: _says(
        _INVALID_VALUE,
        lambda error: (
            f"You must use this format to specify the {error.parameter}: "
            "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        ),
    ),
    e.NotDeadLetters: _says(_INVALID_VALUE, "Source queue must be configured as a Dead Letter Queue."),
    e.MoveToItself: _says(_INVALID_VALUE, "Source queue and destination queue must be different queues."),
    e.MoveTaskRunning: _says(
        _INVALID_VALUE,
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
    ),
    e.MoveTaskMissing: _says(_NOT_FOUND, "Task does not exist."),
    e.MoveTaskHandleInvalid: _says(_INVALID_VALUE, "Value for parameter TaskHandle is invalid."),
    e.MoveTaskNotRunning: _says(_INVALID_VALUE, "Only active tasks can be cancelled."),
    # ---- holds
    e.HoldRefused: _says(_INVALID_VALUE, str),
    e.HoldNameRefused: _says(
        _INVALID_VALUE,
        lambda error: _value(error.parameter, str(error.value)[:1024], f"Must be {error.expected}."),
    ),
    e.HoldClosed: _says(
        _veil("HoldClosed"),
        lambda error: _value(
            "Batch",
            error.batch,
            f"Every batch of stream {error.stream} up to {error.closed} was acknowledged; must be greater.",
        ),
    ),
    e.StreamTaken: _says(
        _veil("StreamTaken"),
        lambda error: _value(
            "Owner", error.owner, f"Stream {error.stream} has another owner; must be whoever opened it last."
        ),
    ),
    # ---- chosen redrives
    e.RedriveRefused: _says(_INVALID_VALUE, str),
    e.MessageMissing: _says(
        _veil("MessageMissing"),
        lambda error: _value(
            "MessageId",
            error.message_id[:1024],
            f"The queue has no such message with SequenceNumber {error.seq}, or not any more.",
        ),
    ),
    e.MessageNotVisible: _says(
        _veil("MessageNotVisible"),
        lambda error: _value(
            "MessageId", error.message_id, f"The message is {error.state}; must be visible to be moved."
        ),
    ),
    e.SourceUnknown: _says(
        _veil("SourceUnknown"),
        lambda error: _value(
            "MessageId",
            error.message_id,
            "The message was not dead-lettered from any queue; must have a DestinationQueueUrl.",
        ),
    ),
    e.DestinationRefused: _destination_refused,
    # ---- access
    e.AccessDenied: _says(
        _coral("AccessDeniedException", "AccessDenied", 403),
        lambda error: f"Access to the resource {error.resource[:1024]} is denied.",
    ),
    SignatureRefused: _signature_refused,
    # ---- policies
    e.PolicyRefused: _says(_INVALID_VALUE, str),
    policy.PolicyMalformed: _says(
        _ATTRIBUTE_VALUE, lambda error: f"Invalid value for the parameter Policy. Reason: {error.reason}."
    ),
    policy.LabelRefused: _says(
        _INVALID_VALUE,
        lambda error: _value(
            "Label",
            error.label[:1024],
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.",
        ),
    ),
    policy.LabelTaken: _says(_INVALID_VALUE, lambda error: _value("Label", error.label, "Already exists.")),
    policy.LabelMissing: _says(
        _INVALID_VALUE, lambda error: _value("Label", error.label, "can't find label.")
    ),
    policy.AccountRefused: _says(
        _INVALID_VALUE,
        lambda error: _value("PrincipalId", f"[{', '.join(error.accounts)}]", "Unable to verify."),
    ),
    policy.ActionsMissing: _says(_MISSING, "The request must contain the parameter Actions."),
    policy.ActionsTooMany: _says(
        _OVER_LIMIT,
        lambda error: f"{error.count} Actions were found, maximum allowed is {error.count_max}.",
    ),
    policy.ActionUnknown: _says(
        _INVALID_VALUE,
        lambda error: f"Value SQS:{error.action} for parameter ActionName is invalid. Reason: {_grantable()}",
    ),
    policy.ActionOwnerOnly: _says(
        _INVALID_VALUE,
        lambda error: (
            f"Value SQS:{error.action} for parameter ActionName is invalid. Reason: "
            f"Only the queue owner is allowed to invoke this action."
        ),
    ),
    # ---- stores: the outcome is unknown, and SDKs retry a 503
    e.StoreError: _says(_UNAVAILABLE, "The service is unavailable at the moment. Please try again."),
    e.StoreFull: _says(_UNAVAILABLE, "The server has no room for more messages at the moment."),
    # ---- requests
    r.RequestRefused: _says(_INVALID_VALUE, str),
    r.RequestUnreadable: _says(_coral("SerializationException", "MalformedInput"), str),
    r.ActionUnknown: _says(
        _INVALID_ACTION, lambda error: f"The action {error.action} is not valid for this endpoint."
    ),
    r.ActionNotHere: _says(
        _INVALID_ACTION, lambda error: f"The action {error.action} is not valid for this endpoint."
    ),
    r.ActionMissing: _says(_coral("UnknownOperationException", "InvalidAction", 404), "No action was given."),
    r.AnswersTooLarge: _says(_UNAVAILABLE, str),
    r.ChangeByGet: _says(_coral("AccessDeniedException", "AccessDenied", 403), str),
    r.ParameterMissing: _says(
        _MISSING, lambda error: f"The request must contain the parameter {error.parameter}."
    ),
    r.ParameterRefused: _says(
        _INVALID_VALUE, lambda error: _value(error.parameter, error.value, error.reason)
    ),
    r.AddressRefused: _says(
        _sqs("InvalidAddress", "InvalidAddress", 404),
        lambda error: f"The address {error.address} is not valid for this endpoint.",
    ),
    r.Unsupported: _says(_sqs("UnsupportedOperation"), str),
}


def _grantable() -> str:
    return f"Must be * or one of {', '.join(sorted(policy.GRANTABLE_ACTIONS))}."


def worded(error: e.VeilError, situation: Situation) -> Refusal:
    """The error in SQS's words; a class that is not in the table itself speaks by its nearest ancestor there."""
    for family in type(error).__mro__:
        wording = _TABLE.get(family)
        if wording is not None:
            return wording(error, situation)
    return INTERNAL_FAILURE


def is_worded(family: type[e.VeilError]) -> bool:
    """Whether the table has that very class, or a wording that serves all of its kind."""
    if issubclass(family, SignatureRefused | e.StoreError):
        return True
    return family in _TABLE
