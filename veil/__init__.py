"""Veil: a durable message queue built around the visibility timeout."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veil.consumer.app import Consumer
    from veil.consumer.lease import Lease
    from veil.consumer.message import Message
    from veil.consumer.outcome import (
        Backoff,
        DeadLetter,
        Delete,
        Discard,
        Fatal,
        LetExpire,
        Outcome,
        Release,
        RetryAfter,
    )
    from veil.consumer.renewal.adaptive import Adaptive
    from veil.consumer.renewal.buffered import Buffered
    from veil.consumer.renewal.heartbeat import Heartbeat
    from veil.consumer.renewal.no_renewal import NoRenewal
    from veil.consumer.retry import Drop, Reject, Retry, RetryNow, Stop
    from veil.consumer.runner import ConsumerFailed
    from veil.consumer.settings import SettingsError

# Where each name lives. Imported on first use, so that `import veil` costs nothing to those who want another part.
_HOMES = {
    "Consumer": "veil.consumer.app",
    "ConsumerFailed": "veil.consumer.runner",
    "SettingsError": "veil.consumer.settings",
    "Lease": "veil.consumer.lease",
    "Message": "veil.consumer.message",
    "Adaptive": "veil.consumer.renewal.adaptive",
    "Buffered": "veil.consumer.renewal.buffered",
    "Heartbeat": "veil.consumer.renewal.heartbeat",
    "NoRenewal": "veil.consumer.renewal.no_renewal",
    **dict.fromkeys(("Retry", "RetryNow", "Reject", "Drop", "Stop"), "veil.consumer.retry"),
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
        "veil.consumer.outcome",
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
    "Discard",
    "Drop",
    "Fatal",
    "Heartbeat",
    "Lease",
    "LetExpire",
    "Message",
    "NoRenewal",
    "Outcome",
    "Reject",
    "Release",
    "Retry",
    "RetryAfter",
    "RetryNow",
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
