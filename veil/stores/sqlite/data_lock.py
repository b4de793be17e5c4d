"""One server at a time: the lock on a data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from veil.core.errors import StoreBusy


class DataLock:
    """Held from `acquire` to `release`, or until the process dies, however it dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock; raises StoreBusy, naming the process that has it."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StoreBusy(
                f"the data in {self._path.parent} is in use by another Veil server (process {holder})"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Let go; harmless when not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
