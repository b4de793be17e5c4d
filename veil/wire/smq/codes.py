"""What can be wrong with a request to SMQ before it means anything to a queue, and how SMQ words each error.

    SmqRefused
    ├── XmlMalformed · BodyDigestWrong
    ├── UrlUnknown · NoTopics · ReceiveFromWebPage
    ├── ArgumentRefused · QueryRefused · ReceiptHandleMissing · VisibilityMissing · NameTooLong
    ├── NothingToReceive                 an empty receive is an error to SMQ
    └── SmqSignatureRefused
        ├── AuthorizationMissing · AuthorizationUnreadable · DateMissing · DateUnreadable
        └── SmqKeyUnknown · SmqSignatureWrong · SmqTimeExpired

One table leads from these and the family of `core.errors` to SMQ's codes and statuses. A test walks both families, so that
none is missing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from veil.core import errors as e
from veil.core.errors import VeilError
from veil.wire.request_errors import AnswersTooLarge, RequestRefused, SignatureRefused

_SHOWN_MAX = 256


class SmqRefused(VeilError):
    """The request cannot be carried out as written; the members say why."""


class XmlMalformed(SmqRefused):
    """The body is not the XML that the operation takes."""


class BodyDigestWrong(SmqRefused):
    """The body is not the one that Content-MD5 tells of."""


class UrlUnknown(SmqRefused):
    """Nothing is served under that method and path."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"There is nothing to {method} at {path[:_SHOWN_MAX]}.")


class NoTopics(SmqRefused):
    """Topics are not served here."""

    def __init__(self) -> None:
        super().__init__("Veil serves queues: there are no topics.")


class ReceiveFromWebPage(SmqRefused):
    """A receive hides messages, and nothing shows that no web page had a browser ask for it."""

    def __init__(self) -> None:
        super().__init__(
            "A receive without an Authorization or x-mns-version header is refused, because any web page could make a "
            "browser send it."
        )


class ArgumentRefused(SmqRefused):
    """An element, header or parameter has a value that it cannot have."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"The value {str(value)[:_SHOWN_MAX]!r} of {name} is invalid: expected {expected}.")
        self.name = name


class QueryRefused(SmqRefused):
    """The query string cannot be read."""


class ReceiptHandleMissing(SmqRefused):
    """No ReceiptHandle was given."""

    def __init__(self) -> None:
        super().__init__("ReceiptHandle is required.")


class VisibilityMissing(SmqRefused):
    """No VisibilityTimeout was given."""

    def __init__(self) -> None:
        super().__init__("VisibilityTimeout is required.")


class NameTooLong(SmqRefused):
    """The name of the queue is empty or too long."""

    def __init__(self, name: str, chars_max: int) -> None:
        super().__init__(f"The queue name has {len(name)} characters: expected 1 to {chars_max}.")


class NothingToReceive(SmqRefused):
    """The queue has no message to give."""

    def __init__(self) -> None:
        super().__init__("Message not exist.")


class SmqSignatureRefused(SmqRefused):
    """The request is not authenticated; the members say why."""


class AuthorizationMissing(SmqSignatureRefused):
    """There are keys, and nothing was signed."""

    def __init__(self) -> None:
        super().__init__("Authorization header is required.")


class AuthorizationUnreadable(SmqSignatureRefused):
    """The header is not of SMQ's form."""

    def __init__(self) -> None:
        super().__init__("Authorization header must be of the form 'MNS AccessKeyId:Signature'.")


class DateMissing(SmqSignatureRefused):
    """Nothing dates the request."""

    def __init__(self) -> None:
        super().__init__("Date header (or x-mns-date) is required.")


class DateUnreadable(SmqSignatureRefused):
    """The date is no HTTP date."""

    def __init__(self) -> None:
        super().__init__("Date header must be of the form 'Thu, 01 Jan 2026 00:00:00 GMT'.")


class SmqKeyUnknown(SmqSignatureRefused):
    """No such access key."""

    def __init__(self) -> None:
        super().__init__("The AccessKeyId you provided does not exist.")


class SmqSignatureWrong(SmqSignatureRefused):
    """The signature does not belong to this request."""

    def __init__(self) -> None:
        super().__init__(
            "The request signature we calculated does not match the signature you provided. "
            "Check your key and signing method."
        )


class SmqTimeExpired(SmqSignatureRefused):
    """The request is dated too far from now."""

    def __init__(self) -> None:
        super().__init__("The http request you sent is expired: its date is more than 15 minutes off.")


# What clients call the settings of a queue.
# ---- the table

ELEMENT_OF_SETTING: Final = {
    "visibility_s": "VisibilityTimeout",
    "message_bytes_max": "MaximumMessageSize",
    "retention_s": "MessageRetentionPeriod",
    "delay_s": "DelaySeconds",
    "wait_s": "PollingWaitSeconds",
    "logging": "LoggingEnabled",
}


class Refusal(NamedTuple):
    """An error in the words of SMQ."""

    code: str
    status: int
    message: str


INTERNAL: Final = Refusal("InternalError", 500, "Internal error.")

_Wording = Callable[[Any], Refusal]


def _says(code: str, status: int = 400, text: Callable[[Any], str] = str) -> _Wording:
    return lambda error: Refusal(code, status, text(error))


def _message_not_exist(error: object) -> str:
    return "Message not exist."


_INVALID: Final = _says("InvalidArgument")
_GONE: Final = _says("MessageNotExist", 404, _message_not_exist)


def _exists(error: e.QueueExists) -> str:
    element = ELEMENT_OF_SETTING.get(error.setting, error.setting)
    return f"The queue you want to create already exists with another {element}."


def _setting(error: e.SettingRefused) -> str:
    element = ELEMENT_OF_SETTING.get(error.setting, error.setting)
    return f"The value {error.value} of {element} is invalid: {error.expected}."


_TABLE: Final[dict[type[e.VeilError], _Wording]] = {
    # ---- queues
    e.QueueMissing: _says("QueueNotExist", 404, lambda error: "The queue name you provided is not exist."),
    e.QueueExists: _says("QueueAlreadyExist", 409, _exists),
    e.QueueDeletedRecently: _says("QueueDeletedRecently"),
    e.PurgeInProgress: _INVALID,
    e.NameRefused: _says("InvalidQueueName"),
    NameTooLong: _says("QueueNameLengthError"),
    e.SettingUnknown: _INVALID,
    e.SettingNotForQueueType: _INVALID,
    e.SettingRefused: _says("InvalidArgument", 400, _setting),
    e.TagsRefused: _INVALID,
    # ---- receipts
    e.ReceiptInvalid: _says(
        "ReceiptHandleError", 400, lambda error: "The receipt handle you provided is not valid."
    ),
    e.ReceiptExpired: _GONE,
    e.MessageGone: _GONE,
    NothingToReceive: _GONE,
    e.VisibilityTooLong: _INVALID,
    ReceiptHandleMissing: _says("MissingReceiptHandle"),
    VisibilityMissing: _says("MissingVisibilityTimeout"),
    # ---- messages
    e.MessageRefused: _INVALID,
    e.BatchRefused: _INVALID,
    e.InFlightLimit: _says("QpsLimitExceeded"),
    # ---- what this protocol has no operation for, and could only meet in a policy's name
    e.MoveTaskRefused: _INVALID,
    e.HoldRefused: _INVALID,
    e.RedriveRefused: _INVALID,
    e.PolicyRefused: _INVALID,
    RequestRefused: _INVALID,
    AnswersTooLarge: _says("InternalServerError", 503),
    # ---- the request
    SmqRefused: _INVALID,
    XmlMalformed: _says("MalformedXML"),
    BodyDigestWrong: _says("InvalidDegist"),  # their spelling
    UrlUnknown: _says("InvalidRequestURL"),
    NoTopics: _says("TopicNotExist", 404),
    QueryRefused: _says("InvalidQueryString"),
    # ---- access
    e.AccessDenied: _says(
        "AccessDenied", 403, lambda error: f"You have no right to {error.action} on this queue."
    ),
    ReceiveFromWebPage: _says("AccessDenied", 403),
    SignatureRefused: _says("AccessDenied", 403),
    AuthorizationMissing: _says("MissingAuthorizationHeader"),
    AuthorizationUnreadable: _says("InvalidAuthorizationHeader"),
    DateMissing: _says("MissingDateHeader"),
    DateUnreadable: _says("InvalidDateHeader"),
    SmqKeyUnknown: _says("InvalidAccessKeyId", 403),
    SmqSignatureWrong: _says("SignatureDoesNotMatch", 403),
    SmqTimeExpired: _says("TimeExpired", 408),
    # ---- stores: the outcome is unknown, the client may retry
    e.StoreError: _says("InternalServerError", 503, lambda error: "The store is not available."),
    e.StoreFull: _says("InternalServerError", 503, lambda error: "The store is full."),
}


def worded(error: e.VeilError) -> Refusal:
    """The error as SMQ words it."""
    for kind in type(error).__mro__:
        wording = _TABLE.get(kind)
        if wording is not None:
            return wording(error)
    return INTERNAL
