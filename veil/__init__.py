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

# What each module has to offer. Imported on first use, so that `import veil` costs nothing to those who want another part.
_NAMES = {
    "veil.client.queue": "Outgoing Queue SendFailed",
    "veil.consumer.app": "Consumer",
    "veil.consumer.handlers.signature": "Depends",
    "veil.consumer.lease": "Lease",
    "veil.consumer.message": "Message",
    "veil.consumer.outcomes": "Backoff DeadLetter Delete Discard Drop Fatal LetExpire Outcome Reject Release Retry RetryAfter "
    "RetryNow Stop",
    "veil.consumer.renewal.policies": "Adaptive Buffered Heartbeat NoRenewal",
    "veil.consumer.runner": "ConsumerFailed",
    "veil.consumer.settings": "SettingsError",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

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
