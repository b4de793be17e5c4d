"""Spark itself: its session, its Java, the Python of its workers, and what `spark-submit` takes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_frozen = False


def freeze_imports() -> None:
    """Take what this worker has imported out of garbage collection, once: for the end of a task, when all it needs is loaded.

    Spark collects after every task, through all modules that were ever imported: 30 ms of CPU, more than a small task takes.
    """
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    """The target's attribute is this value during the block, and as it was after."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)
