"""Log lines that say which message they are about, a handler's own too.

The facts go into the record's `extra`, each under its name and together under `facts`, so that any formatter that
writes fields finds them.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final

from veil.consumer.message import Message

# Set around a handler. What it starts, threads and tasks, inherits it.
CURRENT: Final[ContextVar[Message | None]] = ContextVar("veil_handled_message", default=None)


def current_message() -> Message | None:
    """The message being handled here, if any."""
    return CURRENT.get()


class MessageFacts(logging.Filter):
    """Adds message id, queue and receive count to whatever is logged while a message is handled; drops nothing.

    Put it on a logging handler: `logging.getLogger().handlers[0].addFilter(MessageFacts())`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = CURRENT.get()
        if message is not None and not hasattr(record, "facts"):
            record.facts = message.facts
            for name, value in message.facts.items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True
