"""What every process of the server does at its start: memory, logging, its clock, and the codes by which one ends.

Log lines go to stderr, for people or for machines; never a body, never a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from veil.core.clock import ClockMark, Timer, resumed_engine_ms
from veil.words import iso, visible

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


# ---- logging


def configure_logging(level: str, log_format: str) -> None:
    """Send everything that is logged under `veil`, and warnings of others, to stderr in that format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("veil").setLevel(level.upper())
    # It tells of every connection that broke; stores/postgres/nodes.py tells of all of them once.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


class _Lines(logging.Formatter):
    def __init__(self, pid: int | None = None) -> None:
        super().__init__()
        self._pid = pid


class TextLines(_Lines):
    """Time, level, part, the process if it is given, and text; a stack trace follows, indented: what an error says may come from
    a message, and must not begin a line of the log, nor speak to the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = visible(record.getMessage())
        message_id = getattr(record, "facts", {}).get("message_id")
        if message_id is not None and message_id not in text:
            text = f"{text}; message {message_id}"
        part = record.name if self._pid is None else f"{record.name}[{self._pid}]"
        line = f"{iso(record.created * 1000)} {record.levelname.lower():<8} {part}: {text}"
        if not record.exc_info:
            return line
        trace = (f"  {visible(each)}" for each in self.formatException(record.exc_info).split("\n"))
        return "\n".join((line, *trace))


class JsonLines(_Lines):
    """One object a line; a stack trace is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "at": iso(record.created * 1000),
            "level": record.levelname.lower(),
            "part": record.name,
            "text": record.getMessage(),
        }
        if self._pid is not None:
            fields["pid"] = self._pid
        fields |= getattr(record, "facts", {})
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


# ---- the clock: engine time on CLOCK_BOOTTIME, timers on the event loop

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# CLOCK_BOOTTIME counts suspend, so a laptop that slept does not stretch windows; where it is missing (macOS), the monotonic
# clock is the nearest thing.
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _boot_ms() -> int:
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"  # never equal to a real one; two "unknown" boots are told apart by boot_ms running backwards


class SystemClock:
    """Engine time starts as the wall clock's and from then on knows only elapsed time: wall-clock steps do not reach it."""

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - _boot_ms()
        self._boot_id = _boot_id()

    def now_ms(self) -> int:
        return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000 + self._offset_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        # One millisecond on top: the loop may fire a hair early, and a timer that fires before its instant fires twice.
        delay_s = max(0, due_ms - self.now_ms() + 1) / 1000
        return asyncio.get_running_loop().call_later(delay_s, call)

    def mark(self) -> ClockMark:
        boot_ms = time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000
        return ClockMark(boot_ms + self._offset_ms, time.time_ns() // 1_000_000, boot_ms, self._boot_id)

    def resume(self, saved: ClockMark) -> None:
        present = self.mark()
        self._offset_ms = resumed_engine_ms(saved, present) - present.boot_ms
