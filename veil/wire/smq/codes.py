"""How SMQ words each error: one table from Veil's error classes to SMQ's codes and statuses.

A test walks the whole family of errors, so that none is missing here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from veil.core import errors as e
from veil.wire.request_errors import AnswersTooLarge, RequestRefused, SignatureRefused
from veil.wire.smq import refusals as r

# What clients call the settings of a queue.
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
    r.NameTooLong: _says("QueueNameLengthError"),
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
    r.NothingToReceive: _GONE,
    e.VisibilityTooLong: _INVALID,
    r.ReceiptHandleMissing: _says("MissingReceiptHandle"),
    r.VisibilityMissing: _says("MissingVisibilityTimeout"),
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
    r.SmqRefused: _INVALID,
    r.XmlMalformed: _says("MalformedXML"),
    r.BodyDigestWrong: _says("InvalidDegist"),  # their spelling
    r.UrlUnknown: _says("InvalidRequestURL"),
    r.NoTopics: _says("TopicNotExist", 404),
    r.QueryRefused: _says("InvalidQueryString"),
    # ---- access
    e.AccessDenied: _says(
        "AccessDenied", 403, lambda error: f"You have no right to {error.action} on this queue."
    ),
    r.ReceiveFromWebPage: _says("AccessDenied", 403),
    SignatureRefused: _says("AccessDenied", 403),
    r.AuthorizationMissing: _says("MissingAuthorizationHeader"),
    r.AuthorizationUnreadable: _says("InvalidAuthorizationHeader"),
    r.DateMissing: _says("MissingDateHeader"),
    r.DateUnreadable: _says("InvalidDateHeader"),
    r.SmqKeyUnknown: _says("InvalidAccessKeyId", 403),
    r.SmqSignatureWrong: _says("SignatureDoesNotMatch", 403),
    r.SmqTimeExpired: _says("TimeExpired", 408),
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
