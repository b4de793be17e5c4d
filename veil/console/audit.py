"""Who changed what, when and from where: written before the change is made, and again with how it ended.

Two lines of JSON for each change, in an append-only file that is synced to disk. The first says what was asked; where it
cannot be written the change is not made. The second, with the same id, says what came of it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from veil.console.web import Refused
from veil.core.clock import Clock
from veil.words import iso

ASKED: Final = "asked"  # and no word of how it ended: under way, or the server stopped in between
DONE: Final = "done"
FAILED: Final = "failed"
REFUSED: Final = "refused"
_TEXT_MAX: Final = 2_000
_READ_BYTES: Final = 256 * 1024
_MEMORY_BYTES_MAX: Final = 4 << 20


class AuditUnavailable(Refused, status=503):
    """The audit log cannot be written, so nothing is changed."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change that somebody asked for."""

    id: str
    at: str  # ISO 8601, UTC, by the wall clock
    who: str
    role: str
    address: str
    account: str
    action: str
    target: str
    differences: list[list[str]] = []  # name, before, after
    commands: list[str] = []
    outcome: str = ASKED
    detail: str = ""


class AuditEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the change of that id ended."""

    id: str
    outcome: str
    detail: str


class AuditPage(NamedTuple):
    """Some entries, the newest first, and where the older ones begin; None: there are none."""

    entries: list[AuditEntry]
    older: int | None


class Audit:
    """The audit log of one server; in memory where the server keeps everything there."""

    def __init__(self, file: Path | None, clock: Clock) -> None:
        self._place: AuditFile | _Memory = _Memory() if file is None else AuditFile(file)
        self._clock = clock
        self._writing = asyncio.Lock()

    async def asked(
        self,
        *,
        target: str,
        differences: Sequence[Sequence[str]] = (),
        commands: Sequence[str] = (),
        detail: str = "",
        **fields: str,
    ) -> str:
        """Record that somebody asks for a change, and give the id under which its end is recorded; `fields` are the other ones
        of an entry."""
        entry = AuditEntry(
            id=secrets.token_hex(8),
            at=iso(self._clock.wall_ms()),
            target=_cut(target),
            differences=[list(map(_cut, difference)) for difference in differences],
            commands=list(map(_cut, commands)),
            detail=_cut(detail),
            **fields,
        )
        await self._write(entry)
        return entry.id

    async def ended(self, entry_id: str, outcome: str, detail: str = "") -> None:
        await self._write(AuditEnd(entry_id, outcome, _cut(detail)))

    async def page(
        self, account: str, *, before: int | None = None, limit: int = 50, search: str = ""
    ) -> AuditPage:
        """Entries of the account in which the text occurs, newest first; looks at a bounded piece of the log."""
        async with self._writing:
            return await asyncio.to_thread(self._page, account, before, limit, search.lower())

    async def _write(self, line: AuditEntry | AuditEnd) -> None:
        async with self._writing:
            try:
                await asyncio.to_thread(self._place.append, as_line(line))
            except OSError as problem:
                raise AuditUnavailable(
                    f"The audit log cannot be written ({problem.strerror}), so nothing was changed."
                ) from None

    def _page(self, account: str, before: int | None, limit: int, search: str) -> AuditPage:
        size = self._place.size()
        end = size if before is None else min(before, size)
        start = max(0, end - _READ_BYTES)
        lines = self._lines(start, end)
        # The ends of the last changes of the page may stand behind it.
        behind = self._lines(end, min(size, end + _READ_BYTES // 4))
        outcomes = {each.id: each for _, line in [*lines, *behind] if (each := _read(line, AuditEnd))}
        entries: list[AuditEntry] = []
        for at, line in reversed(lines):
            entry = _read(line, AuditEntry)
            if entry is None or entry.account != account:
                continue
            if search and search not in line.decode("utf-8", "replace").lower():
                continue
            if found := outcomes.get(entry.id):
                entry = msgspec.structs.replace(entry, outcome=found.outcome, detail=found.detail)
            entries.append(entry)
            if len(entries) == limit:
                return AuditPage(entries, at or None)
        return AuditPage(entries, (lines[0][0] or None) if lines else None)

    def _lines(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """Whole lines between two places of the log, each with where it begins."""
        data = self._place.read(start, end)
        lines: list[tuple[int, bytes]] = []
        at = start
        for place, line in enumerate(data.split(b"\n")):
            # What stands before the first line break is the end of a line that began earlier.
            if line and (place or start == 0):
                lines.append((at, line))
            at += len(line) + 1
        return lines


def as_line(entry: AuditEntry | AuditEnd) -> bytes:
    return msgspec.json.encode(entry) + b"\n"


class AuditFile:
    """The log on disk. Several processes may append to it: the server, and an autopilot beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, line: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_mode & 0o077:
                os.fchmod(descriptor, 0o600)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last one was cut short by a crash
            if os.write(descriptor, line) != len(line):
                raise OSError(0, "not all of the line was written", str(self._path))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, start: int, end: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        except FileNotFoundError:
            return b""


class _Memory:
    def __init__(self) -> None:
        self._data = bytearray()

    def append(self, line: bytes) -> None:
        self._data += line
        if len(self._data) > _MEMORY_BYTES_MAX:
            del self._data[: self._data.index(b"\n", _MEMORY_BYTES_MAX // 2) + 1]

    def size(self) -> int:
        return len(self._data)

    def read(self, start: int, end: int) -> bytes:
        return bytes(self._data[start:end])


T = TypeVar("T")


def _read(line: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # a line of the other kind, one that was cut short, or of another version


def _cut(text: str) -> str:
    # Half of a surrogate pair cannot be written.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
