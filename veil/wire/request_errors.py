"""What can be wrong with a request before it means anything to a queue.

    RequestRefused
    ├── RequestUnreadable     not the JSON or the form that the action takes
    ├── ActionUnknown         no action of that name
    ├── ActionNotHere         not an action of the address it was sent to
    ├── ActionMissing         no action at all
    ├── ChangeByGet           a change that any web page could have asked for
    ├── AnswersTooLarge       no memory for the answer now
    ├── ParameterMissing · ParameterRefused
    ├── AddressRefused        a queue URL that names no queue
    └── Unsupported           SQS has it in its model and does not do it either

`sqs_codes.py` words them together with the family of `core.errors`.
"""

from __future__ import annotations

from typing import ClassVar

from veil.core.errors import VeilError

# A value is repeated in its error's text, but not megabytes of it.
_SHOWN_MAX = 1_024


class RequestRefused(VeilError):
    """The request cannot be carried out as written; the members say why."""


class RequestUnreadable(RequestRefused):
    """The body is malformed, or a value is of the wrong type."""


class ActionUnknown(RequestRefused):
    """There is no such action."""

    def __init__(self, action: str) -> None:
        super().__init__(f"there is no action {action[:_SHOWN_MAX]}")
        self.action = action[:_SHOWN_MAX]


class ActionNotHere(RequestRefused):
    """The action exists, but not at the address of a queue."""

    def __init__(self, action: str) -> None:
        super().__init__(f"the action {action} is not one of a queue")
        self.action = action


class ActionMissing(RequestRefused):
    """The request names no action."""

    def __init__(self) -> None:
        super().__init__("the request names no action")


class ChangeByGet(RequestRefused):
    """An unsigned GET asks for a change: the one kind of request that a browser sends for any page without a word of it."""

    def __init__(self, action: str) -> None:
        super().__init__(
            f"{action} by an unsigned GET is refused, because any web page could make a browser send it. "
            "Use POST, or sign the request in its Authorization header."
        )


class AnswersTooLarge(RequestRefused):
    """The server holds as many answers as it may that clients have not read yet."""

    def __init__(self) -> None:
        super().__init__("The server holds too many unread answers at the moment. Please try again.")


class ParameterMissing(RequestRefused):
    """A required parameter is absent or empty."""

    def __init__(self, parameter: str) -> None:
        super().__init__(f"the parameter {parameter} is missing")
        self.parameter = parameter


class ParameterRefused(RequestRefused):
    """A parameter has a value that it cannot have."""

    def __init__(self, parameter: str, value: object, reason: str) -> None:
        shown = str(value)[:_SHOWN_MAX]
        super().__init__(f"{parameter}={shown}: {reason}")
        self.parameter, self.value, self.reason = parameter, shown, reason


class AddressRefused(RequestRefused):
    """The queue URL names no queue."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address[:_SHOWN_MAX]} is not the URL of a queue")
        self.address = address[:_SHOWN_MAX]


class Unsupported(RequestRefused):
    """A part of the model that no SQS serves; the text says which."""


class EncryptionTwice(RequestRefused):
    """Both kinds of server-side encryption were asked for."""

    def __init__(self) -> None:
        super().__init__("only one type of server-side encryption can be used at one time")


def check_range(parameter: str, value: int, low: int, high: int, reason: str) -> None:
    """Raise ParameterRefused with the reason unless the value lies between the two, both included."""
    if not low <= value <= high:
        raise ParameterRefused(parameter, value, reason)


# ---- signatures
#
#     SignatureRefused
#     ├── SignatureMissing      nothing was signed: the caller is anonymous
#     ├── SignatureMalformed    what should be a signature cannot be read
#     ├── KeyUnknown            readable, but nobody holds that key
#     └── SignatureMismatch     readable, but not the signature of this request
#         ├── ScopeRefused      for another service, day or purpose
#         ├── HeaderUnsigned    a header that matters is not covered
#         ├── SignatureExpired  too old
#         └── SignatureTooEarly dated in the future
#
# Each class carries its codes: they are wire facts, alike for every service, and have no meaning in the core.


class SignatureRefused(VeilError):
    """The request is not authenticated; the members say why."""

    code_json: ClassVar[str] = "InvalidSignatureException"
    code_query: ClassVar[str] = "SignatureDoesNotMatch"
    status: ClassVar[int] = 403


class SignatureMissing(SignatureRefused):
    """The request carries no signature at all."""

    code_json = "MissingAuthenticationTokenException"
    code_query = "MissingAuthenticationToken"

    def __init__(self) -> None:
        super().__init__("Request is missing Authentication Token")


class SignatureMalformed(SignatureRefused):
    """A part of the signature is absent or unreadable."""

    code_json = "IncompleteSignatureException"
    code_query = "IncompleteSignature"
    status = 400


class KeyUnknown(SignatureRefused):
    """No such access key."""

    code_json = "UnrecognizedClientException"
    code_query = "InvalidClientTokenId"

    def __init__(self) -> None:
        super().__init__("The security token included in the request is invalid.")


class SignatureMismatch(SignatureRefused):
    """The signature does not belong to this request."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(
            reason
            or "The request signature we calculated does not match the signature you provided. Check your AWS"
            " Secret Access Key and signing method. Consult the service documentation for details."
        )


class ScopeRefused(SignatureMismatch):
    """The credential is scoped to another service, day, region form or purpose."""


class HeaderUnsigned(SignatureMismatch):
    """A header that decides what the request means is not covered by the signature."""


class SignatureExpired(SignatureMismatch):
    """The signature is older than the clocks, or the presigned link, allow."""


class SignatureTooEarly(SignatureMismatch):
    """The signature is dated further ahead than the clocks allow."""
