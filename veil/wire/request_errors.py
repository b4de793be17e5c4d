"""What can be wrong with a request to SQS before it means anything to a queue: malformed, unsigned, or signed by nobody we know.

    RequestRefused
    ├── RequestUnreadable · ActionUnknown · ActionMissing · ChangeByGet · AnswersTooLarge
    ├── ParameterMissing · ParameterRefused · AddressRefused · Unsupported
    └── SignatureRefused
        └── SignatureMalformed · KeyUnknown · SignatureMismatch

These are facts of the wire and have no meaning in the core, so each carries its codes and speaks in the words of SQS.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple, TypeVar

from veil.core.errors import Described

# A value is repeated in its error's text, but not megabytes of it.
SHOWN_CHARS_MAX: Final = 1_024


class Code(NamedTuple):
    """The three names of an error: JSON type, query code, HTTP status."""

    json_type: str
    query_code: str
    status: int = 400

    @property
    def fault(self) -> str:
        return "Sender" if self.status < 500 else "Receiver"


def sqs_code(name: str, query_code: str | None = None, status: int = 400) -> Code:
    """A code of SQS itself."""
    return Code(f"com.amazonaws.sqs#{name}", query_code or f"AWS.SimpleQueueService.{name}", status)


def common_code(name: str, query_code: str, status: int = 400) -> Code:
    """A code that every service of AWS has."""
    return Code(f"com.amazon.coral.service#{name}", query_code, status)


INVALID_VALUE: Final = common_code("InvalidParameterValueException", "InvalidParameterValue")
MISSING: Final = common_code("MissingRequiredParameterException", "MissingParameter")
ACCESS_DENIED: Final = common_code("AccessDeniedException", "AccessDenied", 403)
UNAVAILABLE: Final = common_code("ServiceUnavailableException", "ServiceUnavailable", 503)


def shown(error: Described, text: str) -> str:
    """The text with the facts of an error in it, each cut where it is very long."""
    return text.format_map({name: str(getattr(error, name))[:SHOWN_CHARS_MAX] for name in error.facts})


class RequestRefused(Described):
    """The request cannot be carried out as written; the members say why."""

    code: ClassVar[Code] = INVALID_VALUE

    def __str__(self) -> str:
        return shown(self, self.text)


class RequestUnreadable(RequestRefused, text="{reason}"):
    """The body is malformed, or a value is of the wrong type."""

    code = common_code("SerializationException", "MalformedInput")
    reason: str


class ActionUnknown(RequestRefused, text="The action {action} is not valid for this endpoint."):
    """There is no such action, or not at the address of a queue."""

    code = common_code("UnknownOperationException", "InvalidAction")
    action: str


class ActionMissing(RequestRefused, text="No action was given."):
    code = common_code("UnknownOperationException", "InvalidAction", 404)


class ChangeByGet(
    RequestRefused,
    text="{action} by an unsigned GET is refused, because any web page could make a browser send it. "
    "Use POST, or sign the request in its Authorization header.",
):
    """A change by the one kind of request that a browser sends for any page without a word of it."""

    code = ACCESS_DENIED
    action: str


class AnswersTooLarge(
    RequestRefused, text="The server holds too many unread answers at the moment. Please try again."
):
    code = UNAVAILABLE


class ParameterMissing(RequestRefused, text="The request must contain the parameter {parameter}."):
    code = MISSING
    parameter: str


class ParameterRefused(
    RequestRefused, text="Value {value} for parameter {parameter} is invalid. Reason: {reason}"
):
    parameter: str
    value: object
    reason: str


class AddressRefused(RequestRefused, text="The address {address} is not valid for this endpoint."):
    """The queue URL names no queue."""

    code = sqs_code("InvalidAddress", "InvalidAddress", 404)
    address: str


class Unsupported(RequestRefused, text="{reason}"):
    """A part of the model that no SQS serves."""

    code = sqs_code("UnsupportedOperation")
    reason: str


BETWEEN: Final = "Must be between {low} and {high}, if provided."
FROM_TO: Final = "Must be >= {low} and <= {high}, if provided."


def check_range(parameter: str, value: int, low: int, high: int, reason: str = BETWEEN) -> None:
    """Raise ParameterRefused with the reason unless the value lies between the two, both included."""
    if not low <= value <= high:
        raise out_of_range(parameter, value, low, high, reason)


def out_of_range(parameter: str, value: int, low: int, high: int, reason: str = BETWEEN) -> ParameterRefused:
    return ParameterRefused(parameter, value, reason.format(low=low, high=high))


_V = TypeVar("_V")


def required(parameter: str, value: _V | None) -> _V:
    """The value; raises ParameterMissing for none, and for an empty text, list or map."""
    if not value and value != 0:
        raise ParameterMissing(parameter)
    assert value is not None
    return value


# ---- signatures


class SignatureRefused(RequestRefused):
    """The request is not authenticated; the members say why."""

    code = common_code("InvalidSignatureException", "SignatureDoesNotMatch", 403)


class SignatureMalformed(SignatureRefused, text="{reason}"):
    """A part of the signature is absent or unreadable."""

    code = common_code("IncompleteSignatureException", "IncompleteSignature")
    reason: str


class KeyUnknown(SignatureRefused, text="The security token included in the request is invalid."):
    code = common_code("UnrecognizedClientException", "InvalidClientTokenId", 403)


class SignatureMismatch(SignatureRefused, text="{reason}"):
    """The signature does not belong to this request: it is another's, of another time or scope, or covers too little."""

    reason: str = (
        "The request signature we calculated does not match the signature you provided. Check your AWS "
        "Secret Access Key and signing method. Consult the service documentation for details."
    )
