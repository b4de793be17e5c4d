"""What every process of the server does at its start, and the codes by which one ends."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from typing import Final

EXIT_STOPPED: Final = 0
EXIT_STORE_FAILED: Final = 70

_M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h
_LARGE_BLOCK_BYTES: Final = 128 << 10  # where glibc itself begins


def begin_process() -> None:
    """Before anything else: keep what is written to ourselves, and give large blocks back to the system when they are freed.

    glibc raises its threshold for blocks that it maps by themselves to 32 MB with those that it sees. Answers that are read
    slowly then lie between rows that were freed, which doubles the memory of the process beyond what is counted.
    """
    os.umask(0o077)
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def settle_down() -> None:
    """Once everything is made that stays: the collector need not walk it again and again."""
    gc.freeze()
    # Requests make few cycles; looking for them every 700 allocations costs several per cent of a busy core.
    gc.set_threshold(20_000, 20, 100)
