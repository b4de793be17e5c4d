"""How SMQ words each error: what is wrong with a request to it is raised in its words, and one table has those of the core's.

A test walks the family of `core.errors`, so that none is missing here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from veil.core import errors as e
from veil.wire.request_errors import AnswersTooLarge, RequestRefused, SignatureRefused, shown

_SHOWN_MAX = 256


class SmqRefusal(NamedTuple):
    code: str
    status: int
    message: str


INTERNAL: Final = SmqRefusal("InternalError", 500, "Internal error.")


class SmqRefused(e.VeilError):
    """The request cannot be carried out as written."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.refusal = SmqRefusal(code, status, message)


class XmlMalformed(SmqRefused):
    """The body is not the XML that the operation takes."""

    def __init__(self, reason: str) -> None:
        super().__init__("MalformedXML", reason)


class ArgumentRefused(SmqRefused):
    """An element, header or parameter has a value that it cannot have."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        shown_value = repr(str(value)[:_SHOWN_MAX])
        super().__init__(
            "InvalidArgument", f"The value {shown_value} of {name} is invalid: expected {expected}."
        )


class NothingToReceive(SmqRefused):
    """The queue has no message to give, which is an error to SMQ."""

    def __init__(self) -> None:
        super().__init__("MessageNotExist", "Message not exist.", 404)


# What clients call the settings of a queue.
ELEMENT_OF_SETTING: Final = {
    "visibility_s": "VisibilityTimeout",
    "message_bytes_max": "MaximumMessageSize",
    "retention_s": "MessageRetentionPeriod",
    "delay_s": "DelaySeconds",
    "wait_s": "PollingWaitSeconds",
    "logging": "LoggingEnabled",
}
_GONE: Final = ("MessageNotExist", 404, "Message not exist.")

# Code, status, and the text (none: the error's own), in which the error's facts are filled in.
_WORDS: Final[dict[type[e.VeilError], tuple[str, int, str | None]]] = {
    e.QueueMissing: ("QueueNotExist", 404, "The queue name you provided is not exist."),
    e.QueueExists: (
        "QueueAlreadyExist",
        409,
        "The queue you want to create already exists with another {setting}.",
    ),
    e.QueueDeletedRecently: ("QueueDeletedRecently", 400, None),
    e.NameRefused: ("InvalidQueueName", 400, None),
    e.SettingRefused: ("InvalidArgument", 400, "The value {value} of {setting} is invalid: {expected}."),
    e.ReceiptInvalid: ("ReceiptHandleError", 400, "The receipt handle you provided is not valid."),
    e.ReceiptExpired: _GONE,
    e.MessageGone: _GONE,
    e.InFlightLimit: ("QpsLimitExceeded", 400, None),
    e.AccessDenied: ("AccessDenied", 403, "You have no right to {action} on this queue."),
    SignatureRefused: ("AccessDenied", 403, None),
    AnswersTooLarge: ("InternalServerError", 503, None),
    RequestRefused: ("InvalidArgument", 400, None),
    e.Described: ("InvalidArgument", 400, None),
    # The outcome is unknown, the client may retry.
    e.StoreFull: ("InternalServerError", 503, "The store is full."),
    e.StoreError: ("InternalServerError", 503, "The store is not available."),
}


def worded(error: e.VeilError) -> SmqRefusal:
    if isinstance(error, SmqRefused):
        return error.refusal
    for kind in type(error).__mro__:
        if kind in _WORDS:
            code, status, text = _WORDS[kind]
            if text is None:
                return SmqRefusal(code, status, str(error))
            if not isinstance(error, e.Described):
                return SmqRefusal(code, status, text)
            setting = getattr(error, "setting", "")
            text = text.replace("{setting}", ELEMENT_OF_SETTING.get(setting, setting))
            return SmqRefusal(code, status, shown(error, text))
    return INTERNAL
