"""What can be wrong with a request before it means anything to a queue.

    RequestRefused
    ├── RequestUnreadable     not the JSON or the form that the action takes
    ├── ActionUnknown         no action of that name
    ├── ActionNotHere         not an action of the address it was sent to
    ├── ActionMissing         no action at all
    ├── ChangeByGet           a change that any web page could have asked for
    ├── ParameterMissing · ParameterRefused
    ├── AddressRefused        a queue URL that names no queue
    └── Unsupported           SQS has it in its model and does not do it either

`sqs_codes.py` words them together with the family of `core.errors`.
"""

from __future__ import annotations

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
