"""Where a journal or tables lie: a directory or an object store, and the mark that says whose journal it is.

Names are relative, with `/` between folders. What is written appears whole or not at all, so that a reader that lists the
directory at any instant finds only finished files; names that begin with `_` or `.` are left to those who write.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from veil.core.errors import VeilError
from veil.journal.schema import VERSION

SCHEMES: Final = frozenset({"s3", "s3a", "hdfs", "viewfs", "gs", "abfs", "abfss"})
EXPECTED: Final = (
    f"a path, file:///PATH, or {', '.join(f'{scheme}://' for scheme in sorted(SCHEMES))} with a place in it"
)
_DRAFT: Final = ".tmp"


class Entry(NamedTuple):
    """One file or folder of a place."""

    name: str  # relative to the place that was asked
    size: int  # 0 for a folder
    is_folder: bool


class Storage(ABC):
    """One directory; it need not exist until something is written."""

    is_local = False  # on this machine's own file systems

    @staticmethod
    def at(where: str | os.PathLike[str]) -> Storage:
        """The place of a path or URI; touches nothing yet. Raises ValueError with what was expected."""
        text = os.fspath(where).strip()
        if not text or "\0" in text:
            raise ValueError(EXPECTED)
        scheme, separator, _ = text.partition("://")
        if not separator:
            try:
                return LocalStorage(Path(text).expanduser().absolute())
            except RuntimeError:  # nobody of that name, or no home at all
                raise ValueError("a path with a known home directory in place of ~") from None
        parts = urlsplit(text)
        if scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
                raise ValueError(EXPECTED)
            return LocalStorage(Path(unquote(parts.path)))
        if scheme not in SCHEMES or not parts.netloc:
            raise ValueError(EXPECTED)
        if parts.password is not None:
            # It would show in logs and in `veil config show`.
            raise ValueError("a URI without a secret: credentials come from the environment")
        scheme = "s3" if scheme == "s3a" else scheme
        return RemoteStorage(scheme, parts.netloc, parts.path.strip("/"), parts.query)

    @property
    @abstractmethod
    def uri(self) -> str:
        """The place as people name it."""

    @abstractmethod
    def sub(self, folder: str) -> Storage:
        """A folder in this place, as a place of its own."""

    @abstractmethod
    def spark_path(self, name: str = "") -> str:
        """What Spark takes for a file or folder of this place, or for the place itself."""

    @abstractmethod
    def entries(self, folder: str = "", *, recursive: bool = False) -> list[Entry]:
        """The files and folders of a folder by name (relative to this place); [] where it does not exist."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The whole content of a file; raises FileNotFoundError."""

    def write(self, name: str, data: bytes) -> None:
        """Put a file there, replacing one of that name; when this has returned it survives a power loss."""
        with self.writing(name) as file:
            file.write(data)

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """The same for a stream: the file appears at the end of the block, and not at all if an exception leaves it."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Is there a file or folder of that name?"""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Take a file away; one that is not there is fine."""

    @abstractmethod
    def remove_folder(self, folder: str) -> None:
        """Take a folder away with everything in it; one that is not there is fine."""

    @abstractmethod
    def remove_drafts(self) -> None:
        """Take away what killed writers left half-written; only for a place that has no other writer now."""

    @abstractmethod
    def open_input(self, name: str) -> Any:
        """The file as a seekable file of pyarrow, for `ParquetFile`; raises FileNotFoundError."""


def _inside(name: str) -> str:
    # A name comes from our own code or from a listing; one that leads outside is a mistake that must not delete there.
    tidy = name.strip("/")
    if not tidy or name.startswith("/") or any(part in ("", ".", "..") for part in tidy.split("/")):
        raise ValueError(f"name={name!r}: expected a relative name without . or ..")
    return tidy


# ---- on this machine


@dataclass(frozen=True)
class LocalStorage(Storage):
    """A directory of this machine."""

    _root: Path
    is_local = True

    @property
    def uri(self) -> str:
        return str(self._root)

    def _path(self, name: str) -> Path:
        return self._root / _inside(name)

    def sub(self, folder: str) -> LocalStorage:
        return LocalStorage(self._path(folder))

    def spark_path(self, name: str = "") -> str:
        # With its scheme, since a cluster may have another default; not percent-encoded, since Hadoop takes a path as it is.
        return f"file://{self._path(name) if name else self._root}"

    def entries(self, folder: str = "", *, recursive: bool = False) -> list[Entry]:
        found: list[Entry] = []
        self._gather(_inside(folder) if folder else "", recursive, found)
        return sorted(found)

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
        return self._path(name).read_bytes()  # pyarrow is not needed, nor loaded, for this

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        path = self._path(name)
        make_folder(path.parent)
        # A name of its own for each writer: one that was killed leaves its half behind, and two never share one.
        draft = path.with_name(f"_{path.name}.{secrets.token_hex(4)}{_DRAFT}")
        try:
            with draft.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException as problem:
            draft.unlink(missing_ok=True)
            if isinstance(problem, OSError):  # a full disk does not say which
                problem.filename = problem.filename or str(path)
            raise
        sync_folder(path.parent)

    def exists(self, name: str) -> bool:
        return self._path(name).exists()

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._path(folder))

    def remove_drafts(self) -> None:
        for pattern in (f"_*{_DRAFT}", f"*/_*{_DRAFT}"):
            for draft in self._root.glob(pattern):
                draft.unlink(missing_ok=True)

    def open_input(self, name: str) -> Any:
        import pyarrow as pa

        return pa.OSFile(str(self._path(name)), "rb")


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


# ---- elsewhere
#
# An object store shows an object only when its upload is complete, so there a file is put together here and uploaded under
# its own name. Elsewhere (HDFS) it is written under another name and renamed.

_OBJECT_STORES: Final = frozenset({"s3", "gs", "abfs", "abfss"})
_IN_MEMORY_BYTES_MAX: Final = 16 * 2**20
_COPIED_BYTES: Final = 2**20


@dataclass(frozen=True)
class RemoteStorage(Storage):
    """A directory of a bucket, container or cluster."""

    _scheme: str
    _host: str
    _root: str
    _query: str

    @property
    def uri(self) -> str:
        return f"{self._scheme}://{self._host}/{self._root}".rstrip("/")

    def sub(self, folder: str) -> RemoteStorage:
        return RemoteStorage(self._scheme, self._host, _joined(self._root, _inside(folder)), self._query)

    def spark_path(self, name: str = "") -> str:
        scheme = "s3a" if self._scheme == "s3" else self._scheme
        return f"{scheme}://{self._host}/{_joined(self._root, _inside(name) if name else '')}"

    @cached_property
    def _connected(self) -> tuple[Any, str]:
        """The file system, and the path of this directory in it."""
        from pyarrow import fs

        if self._scheme == "s3" and not self._query:
            return _s3(self._host), _joined(self._host, self._root)
        query = f"?{self._query}" if self._query else ""
        system, path = fs.FileSystem.from_uri(self.uri + query)
        return system, path.rstrip("/")

    def _path(self, name: str) -> str:
        return _joined(self._connected[1], _inside(name))

    def entries(self, folder: str = "", *, recursive: bool = False) -> list[Entry]:
        from pyarrow import fs

        system, root = self._connected
        path = self._path(folder) if folder else root
        selector = fs.FileSelector(path, recursive=recursive, allow_not_found=True)
        prefix = len(root) + 1
        found: dict[str, Entry] = {}
        for info in system.get_file_info(selector):
            name = info.path[prefix:].rstrip("/")
            is_folder = info.type == fs.FileType.Directory
            if name:
                found[name] = Entry(name, 0 if is_folder else info.size or 0, is_folder)
        return sorted(found.values())

    def read(self, name: str) -> bytes:
        with self.open_input(name) as file:
            content: bytes = file.read()
            return content

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        # Put together here first: a stream to an object store that is given up half-way is completed by its destructor.
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES_MAX) as draft:
            yield draft
            draft.seek(0)
            if self._scheme in _OBJECT_STORES:
                self._upload(draft, self._path(name))
            else:
                self._upload_and_rename(draft, self._path(name))

    def _upload(self, draft: Any, path: str) -> None:
        with self._connected[0].open_output_stream(path) as stream:
            shutil.copyfileobj(draft, stream, _COPIED_BYTES)

    def _upload_and_rename(self, draft: Any, path: str) -> None:
        system = self._connected[0]
        folder, _, last = path.rpartition("/")
        temporary = f"{folder}/_{last}.{secrets.token_hex(4)}{_DRAFT}"
        system.create_dir(folder, recursive=True)
        try:
            self._upload(draft, temporary)
            with suppress(FileNotFoundError, OSError):  # a rename does not replace here
                system.delete_file(path)
            system.move(temporary, path)
        except BaseException:
            with suppress(OSError):
                system.delete_file(temporary)
            raise

    def exists(self, name: str) -> bool:
        from pyarrow import fs

        return bool(self._connected[0].get_file_info(self._path(name)).type != fs.FileType.NotFound)

    def remove(self, name: str) -> None:
        if self.exists(name):
            with suppress(FileNotFoundError):
                self._connected[0].delete_file(self._path(name))

    def remove_folder(self, folder: str) -> None:
        if self.exists(folder):
            with suppress(FileNotFoundError):
                self._connected[0].delete_dir(self._path(folder))

    def remove_drafts(self) -> None:
        if self._scheme in _OBJECT_STORES:
            return  # an upload that was cut short leaves nothing that could be seen
        for entry in self.entries(recursive=True):
            last = entry.name.rpartition("/")[2]
            if last.startswith("_") and last.endswith(_DRAFT):
                self.remove(entry.name)

    def open_input(self, name: str) -> Any:
        return self._connected[0].open_input_file(self._path(name))


def _joined(folder: str, name: str) -> str:
    return "/".join(part for part in (folder, name) if part)


def _s3(bucket: str) -> Any:
    from pyarrow import fs

    options: dict[str, Any] = {}
    # As every AWS tool names them; pyarrow itself asks only for the credentials.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        region = region or "us-east-1"
    return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket), **options)


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
