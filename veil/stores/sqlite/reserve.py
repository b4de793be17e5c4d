"""Room kept back for a full disk: a file that is given up so that receives and deletes can go on.

A receive has to write too (the lease), and a delete needs room in the WAL before it frees any in the database. So when the
disk is full the reserve is released and sends are refused; they are accepted again once the reserve could be taken back.
"""

from __future__ import annotations

import os
from pathlib import Path

RESERVE_BYTES = 16 << 20
RETRY_MS = 1_000


class Reserve:
    """The reserve file of one data directory."""

    def __init__(self, directory: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = directory / "reserve"
        self._size_bytes = size_bytes
        self._retry_at_ms = 0
        self.is_released = False

    def take(self) -> bool:
        """Claim the room; False when the disk does not have it."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(fd).st_size < self._size_bytes:
                    os.posix_fallocate(fd, 0, self._size_bytes)
            finally:
                os.close(fd)
        except OSError:
            self._path.unlink(missing_ok=True)
            self.is_released = True
            return False
        self.is_released = False
        return True

    def release(self, now_ms: int) -> None:
        """Give the room up: the disk is full."""
        self._path.unlink(missing_ok=True)
        self.is_released = True
        self._retry_at_ms = now_ms + RETRY_MS

    def has_room(self, now_ms: int) -> bool:
        """Whether sends may be accepted; tries to take the reserve back, at most once a second."""
        if not self.is_released:
            return True
        if now_ms < self._retry_at_ms:
            return False
        self._retry_at_ms = now_ms + RETRY_MS
        return self.take()
