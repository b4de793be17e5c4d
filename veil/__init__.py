"""Veil: a durable message queue built around the visibility timeout."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veil.client.queue import Outgoing, Queue, SendFailed
    from veil.consumer.app import Consumer
    from veil.consumer.handlers.signature import Depends
    from veil.consumer.lease import Lease
    from veil.consumer.message import Message
    from veil.consumer.outcomes import (
        Backoff,
        DeadLetter,
        Delete,
        Discard,
        Drop,
        Fatal,
        LetExpire,
        Outcome,
        Reject,
        Release,
        Retry,
        RetryAfter,
        RetryNow,
        Stop,
    )
    from veil.consumer.renewal.policies import Adaptive, Buffered, Heartbeat, NoRenewal
    from veil.consumer.runner import ConsumerFailed
    from veil.consumer.settings import SettingsError

# Where each name lives. Imported on first use, so that `import veil` costs nothing to those who want another part.
_HOMES = {
    "Consumer": "veil.consumer.app",
    **dict.fromkeys(("Outgoing", "Queue", "SendFailed"), "veil.client.queue"),
    "Depends": "veil.consumer.handlers.signature",
    "ConsumerFailed": "veil.consumer.runner",
    "SettingsError": "veil.consumer.settings",
    "Lease": "veil.consumer.lease",
    "Message": "veil.consumer.message",
    "Adaptive": "veil.consumer.renewal.policies",
    "Buffered": "veil.consumer.renewal.policies",
    "Heartbeat": "veil.consumer.renewal.policies",
    "NoRenewal": "veil.consumer.renewal.policies",
    **dict.fromkeys(("Retry", "RetryNow", "Reject", "Drop", "Stop"), "veil.consumer.outcomes"),
    **dict.fromkeys(
        (
            "Outcome",
            "Delete",
            "LetExpire",
            "Release",
            "RetryAfter",
            "Backoff",
            "DeadLetter",
            "Discard",
            "Fatal",
        ),
        "veil.consumer.outcomes",
    ),
}

__all__ = [
    "Adaptive",
    "Backoff",
    "Buffered",
    "Consumer",
    "ConsumerFailed",
    "DeadLetter",
    "Delete",
    "Depends",
    "Discard",
    "Drop",
    "Fatal",
    "Heartbeat",
    "Lease",
    "LetExpire",
    "Message",
    "NoRenewal",
    "Outcome",
    "Outgoing",
    "Queue",
    "Reject",
    "Release",
    "Retry",
    "RetryAfter",
    "RetryNow",
    "SendFailed",
    "SettingsError",
    "Stop",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
