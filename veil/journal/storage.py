"""Where a journal or tables lie: a directory or an object store, and the mark that says whose journal it is."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from veil.core.errors import VeilError
from veil.journal.files import SCHEMES, Entry, ForWriting, LocalFiles, RemoteFiles
from veil.journal.schema import VERSION

# ---- a directory on any file system
#
# Names are relative, with `/` between folders. What is written appears whole or not at all, so that a reader that lists
# the directory at any instant finds only finished files; names that begin with `_` or `.` are left to those who write.

__all__ = ["Entry", "ForWriting", "Storage"]

EXPECTED = (
    f"a path, file:///PATH, or {', '.join(f'{scheme}://' for scheme in sorted(SCHEMES))} with a place in it"
)


class Storage:
    """One directory; it need not exist until something is written."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @classmethod
    def at(cls, where: str | os.PathLike[str]) -> Storage:
        """The place of a path or URI; touches nothing yet. Raises ValueError with what was expected."""
        text = os.fspath(where).strip()
        if not text or "\0" in text:
            raise ValueError(EXPECTED)
        scheme, separator, _ = text.partition("://")
        if not separator:
            return cls(LocalFiles(Path(text).expanduser().absolute()))
        parts = urlsplit(text)
        if scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
                raise ValueError(EXPECTED)
            return cls(LocalFiles(Path(unquote(parts.path))))
        if scheme not in SCHEMES or not parts.netloc:
            raise ValueError(EXPECTED)
        if parts.password is not None:
            # It would show in logs and in `veil config show`.
            raise ValueError("a URI without a secret: credentials come from the environment")
        return cls(RemoteFiles(scheme, parts.netloc, parts.path.strip("/"), parts.query))

    @property
    def uri(self) -> str:
        """The place as people name it."""
        return self._files.uri

    @property
    def is_local(self) -> bool:
        """Is it on this machine's own file systems?"""
        return isinstance(self._files, LocalFiles)

    def __repr__(self) -> str:
        return f"Storage.at({self.uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and other.uri == self.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    def sub(self, folder: str) -> Storage:
        """A folder in this place, as a place of its own."""
        return Storage(self._files.sub(_inside(folder)))

    def spark_path(self, name: str = "") -> str:
        """What Spark takes for a file or folder of this place, or for the place itself."""
        return self._files.spark_path(_inside(name) if name else "")

    def entries(self, folder: str = "", *, recursive: bool = False) -> list[Entry]:
        """The files and folders of a folder by name (relative to this place); [] where it does not exist."""
        found = self._files.entries(_inside(folder) if folder else "", recursive=recursive)
        return sorted(found)

    def read(self, name: str) -> bytes:
        """The whole content of a file; raises FileNotFoundError."""
        return self._files.read(_inside(name))

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, replacing one of that name; when this has returned it survives a power loss."""
        with self.writing(name) as file:
            file.write(data)

    def writing(self, name: str) -> AbstractContextManager[ForWriting]:
        """The same for a stream: the file appears at the end of the block, and not at all if an exception leaves it."""
        return self._files.writing(_inside(name))

    def exists(self, name: str) -> bool:
        """Is there a file or folder of that name?"""
        return self._files.exists(_inside(name))

    def remove(self, name: str) -> None:
        """Take a file away; one that is not there is fine."""
        self._files.remove(_inside(name))

    def remove_folder(self, folder: str) -> None:
        """Take a folder away with everything in it; one that is not there is fine."""
        self._files.remove_folder(_inside(folder))

    def remove_drafts(self) -> None:
        """Take away what killed writers left half-written; only for a place that has no other writer now."""
        self._files.remove_drafts()

    def open_input(self, name: str) -> Any:
        """The file as a seekable file of pyarrow, for `ParquetFile`; raises FileNotFoundError."""
        return self._files.open_input(_inside(name))


class Files(Protocol):
    """What a kind of file system must offer below one directory; names are checked already."""

    @property
    def uri(self) -> str: ...
    def sub(self, folder: str) -> Files: ...
    def spark_path(self, name: str) -> str: ...
    def entries(self, folder: str, *, recursive: bool) -> list[Entry]: ...
    def read(self, name: str) -> bytes: ...
    def writing(self, name: str) -> AbstractContextManager[ForWriting]: ...
    def exists(self, name: str) -> bool: ...
    def remove(self, name: str) -> None: ...
    def remove_folder(self, folder: str) -> None: ...
    def remove_drafts(self) -> None: ...
    def open_input(self, name: str) -> Any: ...


def _inside(name: str) -> str:
    # A name comes from our own code or from a listing; one that leads outside is a mistake that must not delete there.
    tidy = name.strip("/")
    if not tidy or name.startswith("/") or any(part in ("", ".", "..") for part in tidy.split("/")):
        raise ValueError(f"name={name!r}: expected a relative name without . or ..")
    return tidy


# ---- the place of one store's journal

MARK: Final = "_journal.json"
OF_CONSUMERS: Final = "sqs-"  # so begins the store's id where consumers write the journal themselves


class LocationRefused(VeilError):
    """The location holds something that is not this store's journal."""


class Location:
    """A place that holds, or will hold, the journal of one store."""

    def __init__(self, where: str, store_id: str) -> None:
        self.place = Storage.at(where)
        self._store_id = store_id
        self._claimed = False

    def check(self) -> bool:
        """Is it marked as ours? False: not marked at all. Raises LocationRefused if it is another store's, or newer."""
        mark = read_mark(self.place)
        if mark is None:
            return False
        store_id, version = mark
        if store_id != self._store_id:
            # Messages are known by their order keys, which two stores would give out twice.
            raise LocationRefused(
                f"{self.place.uri} holds the journal of another store: name another location"
            )
        if version > VERSION:
            raise LocationRefused(
                f"{self.place.uri} holds a journal of version {version}, newer than {VERSION}: upgrade Veil"
            )
        return True

    def claim(self) -> None:
        """Mark it as ours; raises LocationRefused if it cannot be. Drafts of writers that were killed are removed."""
        if self._claimed:
            return
        if not self.check():
            content = json.dumps({"store_id": self._store_id, "version": VERSION})
            self.place.write(MARK, content.encode())
        self.place.remove_drafts()
        self._claimed = True

    def sweep(self, before_day: str) -> list[str]:
        """Remove the days before this one and say which; nothing where the location is not marked as ours."""
        if not self.check():
            return []
        over = [
            entry.name
            for entry in self.place.entries()
            if entry.is_folder and "day=" <= entry.name < f"day={before_day}"
        ]
        for folder in over:
            self.place.remove_folder(folder)
        return [folder.removeprefix("day=") for folder in over]


def read_mark(place: Storage) -> tuple[str, int] | None:
    """Whose journal a place holds and of which version; None where it holds none."""
    if not place.exists(MARK):
        return None
    try:
        mark = json.loads(place.read(MARK))
        return str(mark["store_id"]), int(mark["version"])
    except (ValueError, TypeError, KeyError):
        raise LocationRefused(f"{place.uri}/{MARK} cannot be read: expected store_id and version") from None
