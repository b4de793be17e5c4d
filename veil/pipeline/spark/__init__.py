"""Spark itself: its session, its Java, the Python of its workers, and what `spark-submit` takes."""

from __future__ import annotations

import gc

_frozen = False


def freeze_imports() -> None:
    """Take what this worker has imported out of garbage collection, once: for the end of a task, when all it needs is loaded.

    Spark collects after every task, through all modules that were ever imported: 30 ms of CPU, more than a small task takes.
    """
    global _frozen
    if not _frozen:
        gc.freeze()
        _frozen = True
