"""A real server for test suites: the pytest fixture `veil_server`, and `VeilServer` for everybody else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veil.testing.process import VeilServer

__all__ = ["VeilServer"]


def __getattr__(name: str) -> Any:
    # On first use: pytest imports this package in every run, with or without the fixture.
    if name == "VeilServer":
        from veil.testing.process import VeilServer

        return VeilServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
