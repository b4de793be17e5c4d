"""What can go wrong between a message and its handler.

HandlerRefused      the function cannot be a handler; said when it is decorated
HandlingError
├── PayloadRefused  the body is not what the handler asks for: no retry will mend it
├── LeaseLost       the message is, or may be, somebody else's: whatever came of it is not kept
├── ItemFailed      a batch handler named this message as failed
└── AnswerRefused   a handler or a middleware returned what nobody can act upon
"""

from __future__ import annotations


class HandlerRefused(TypeError):
    """The function cannot be a handler."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"handler {name}: {problem}")
        self.name, self.problem = name, problem


class HandlingError(Exception):
    """The root of what is raised while a message is handled, other than by the handler itself."""


class PayloadRefused(HandlingError):
    """The message is poison: what the handler asks for cannot be made of it."""


class LeaseLost(HandlingError):
    """The handler was cancelled because its lease was lost."""


class ItemFailed(HandlingError):
    """A batch handler named this message as failed."""


class AnswerRefused(HandlingError):
    """A handler or a middleware returned what nobody can act upon."""
