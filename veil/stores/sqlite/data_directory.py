"""The directory of a store: one server at a time in it, nobody else's to read, and room kept back for a full disk."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veil.core.errors import StoreBusy

_log = logging.getLogger(__name__)

DATABASE = "veil.db"
RESERVE_BYTES = 16 << 20
# Without the reserve, what the database must have free within for a send: what is left is for receives and deletes.
WITHIN_BYTES_MIN = 4 << 20
_OPENING_BYTES = 4 << 20  # more than a WAL's first pages and its index take
RETRY_MS = 1_000
DISK_FULL = "no room left on the device; messages are not accepted until there is"


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
        # Written over the last one's, since a full disk may not give a block back that was given up.
        os.ftruncate(fd, os.pwrite(fd, f"{os.getpid()}\n".encode(), 0))
        self._fd = fd

    def release(self) -> None:
        """Let go; harmless when not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep every server out of the directory meanwhile; raises StoreBusy where one is running."""
    lock = DataLock(directory)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Reserve:
    """The reserve file of one data directory: given up so that receives and deletes can go on when the disk is full.

    A receive has to write too (the lease), and a delete needs room in the WAL before it frees any in the database. So when
    the disk is full the reserve is released and sends are refused; they are accepted again once the reserve could be taken
    back, or where messages were deleted: the database's file never shrinks, so on a disk that it fills alone there is room only
    within it.
    """

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

    def release_if_needed(self, now_ms: int) -> None:
        """Give the room up where the disk has too little of it even to open the database."""
        disk = os.statvfs(self._path.parent)
        if disk.f_bavail * disk.f_frsize < _OPENING_BYTES:
            self.release(now_ms)

    def release(self, now_ms: int) -> None:
        """Give the room up: the disk is full."""
        self._path.unlink(missing_ok=True)
        self.is_released = True
        self._retry_at_ms = now_ms + RETRY_MS

    def retake(self, now_ms: int) -> None:
        """Try to take the room back, at most once a second."""
        if self.is_released and now_ms >= self._retry_at_ms:
            self._retry_at_ms = now_ms + RETRY_MS
            self.take()


def sync_path(path: Path) -> None:
    """Put a file on disk, or the names in a directory: those of the database and its WAL must survive a power cut too."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_private(path: Path) -> None:
    """See to it that nobody but its owner can read the file or list the folder, if it is there."""
    try:
        mode = path.stat().st_mode
        if not mode & 0o077:
            return
        path.chmod(mode & 0o700)
    except FileNotFoundError:
        return
    except OSError as problem:
        _log.warning(
            "%s can be read by other users of this machine, and stays so: %s", path, problem.strerror
        )
    else:
        _log.warning("%s could be read by other users of this machine; now only its owner can", path)
