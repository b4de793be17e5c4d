"""Files of this machine, written so that each appears whole and survives a power loss."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from veil.journal.place_entry import Entry, ForWriting

_DRAFT: Final = ".tmp"


class LocalFiles:
    """Files below a directory of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def uri(self) -> str:
        return str(self._root)

    def sub(self, folder: str) -> LocalFiles:
        return LocalFiles(self._root / folder)

    def spark_path(self, name: str) -> str:
        # With its scheme, since a cluster may have another default; not percent-encoded, since Hadoop takes a path as it is.
        return f"file://{self._root / name}"

    def entries(self, folder: str, *, recursive: bool) -> list[Entry]:
        found: list[Entry] = []
        self._gather(folder, recursive, found)
        return found

    def _gather(self, folder: str, recursive: bool, found: list[Entry]) -> None:
        try:
            listing = list(os.scandir(self._root / folder))
        except FileNotFoundError:
            return  # not there, or removed while we looked
        for each in listing:
            name = f"{folder}/{each.name}" if folder else each.name
            if each.is_dir():
                found.append(Entry(name, 0, True))
                if recursive:
                    self._gather(name, recursive, found)
            else:
                with suppress(FileNotFoundError):
                    found.append(Entry(name, each.stat().st_size, False))

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()  # pyarrow is not needed, nor loaded, for this

    @contextmanager
    def writing(self, name: str) -> Iterator[ForWriting]:
        path = self._root / name
        make_folder(path.parent)
        # A name of its own for each writer: one that was killed leaves its half behind, and two never share one.
        draft = path.with_name(f"_{path.name}.{secrets.token_hex(4)}{_DRAFT}")
        try:
            with draft.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)

    def remove_drafts(self) -> None:
        for pattern in (f"_*{_DRAFT}", f"*/_*{_DRAFT}"):
            for draft in self._root.glob(pattern):
                draft.unlink(missing_ok=True)

    def open_input(self, name: str) -> Any:
        import pyarrow as pa

        return pa.OSFile(str(self._root / name), "rb")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably: a file in a folder that a power cut takes away is lost with it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
