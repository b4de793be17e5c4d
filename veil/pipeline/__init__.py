"""The data pipeline on Spark: from the journal to the life of each message, and from that to the timeouts queues should have;
and queues as sources and sinks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veil.pipeline.source.drain import drain
    from veil.pipeline.spark.workers import register

# Where each name lives; imported on first use, so that an executor loads no more than its task needs.
_HOMES = {"drain": "veil.pipeline.source.drain", "register": "veil.pipeline.spark.workers"}

__all__ = ["drain", "register"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
