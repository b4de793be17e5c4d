"""For test suites: a real server (`veil_server`, `VeilServer`), and a queue in-process for handlers (`ConsumerHarness`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veil.testing.harness import ConsumerHarness, NotSettled
    from veil.testing.process import VeilServer

__all__ = ["ConsumerHarness", "NotSettled", "VeilServer"]

_HOMES = {
    "ConsumerHarness": "veil.testing.harness",
    "NotSettled": "veil.testing.harness",
    "VeilServer": "veil.testing.process",
}


def __getattr__(name: str) -> Any:
    # On first use: pytest imports this package in every run, with or without the fixture.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
