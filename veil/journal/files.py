"""Files on a local disk, and in an object store through Arrow, behind the same few operations."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

# ---- what a place shows and takes


class Entry(NamedTuple):
    """One file or folder of a place."""

    name: str  # relative to the place that was asked
    size: int  # 0 for a folder
    is_folder: bool


class ForWriting(Protocol):
    """As much of a binary file as writers of Parquet need."""

    @property
    def closed(self) -> bool: ...
    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...
    def tell(self) -> int: ...


# ---- files of this machine

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


# ---- files of a remote file system
#
# An object store shows an object only when its upload is complete, so there a file is put together here and uploaded under
# its own name. Elsewhere (HDFS) it is written under another name and renamed.

_SPARK_NAMES: Final = {"s3": "s3a"}
SCHEMES: Final = frozenset({"s3", "s3a", "hdfs", "viewfs", "gs", "abfs", "abfss"})
_OBJECT_STORES: Final = frozenset({"s3", "gs", "abfs", "abfss"})
_IN_MEMORY_BYTES_MAX: Final = 16 * 2**20
_COPIED_BYTES: Final = 2**20


class RemoteFiles:
    """Files below a directory of a bucket, container or cluster."""

    def __init__(self, scheme: str, host: str, root: str, query: str = "") -> None:
        self._scheme = "s3" if scheme == "s3a" else scheme
        self._host, self._root, self._query = host, root, query

    @property
    def uri(self) -> str:
        return f"{self._scheme}://{self._host}/{self._root}".rstrip("/")

    def sub(self, folder: str) -> RemoteFiles:
        return RemoteFiles(self._scheme, self._host, _joined(self._root, folder), self._query)

    def spark_path(self, name: str) -> str:
        scheme = _SPARK_NAMES.get(self._scheme, self._scheme)
        return f"{scheme}://{self._host}/{_joined(self._root, name)}"

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
        return _joined(self._connected[1], name)

    def entries(self, folder: str, *, recursive: bool) -> list[Entry]:
        from pyarrow import fs

        system, root = self._connected
        selector = fs.FileSelector(_joined(root, folder), recursive=recursive, allow_not_found=True)
        prefix = len(root) + 1
        found: dict[str, Entry] = {}
        for info in system.get_file_info(selector):
            name = info.path[prefix:].rstrip("/")
            is_folder = info.type == fs.FileType.Directory
            if name:
                found[name] = Entry(name, 0 if is_folder else info.size or 0, is_folder)
        return list(found.values())

    def read(self, name: str) -> bytes:
        with self.open_input(name) as file:
            content: bytes = file.read()
            return content

    @contextmanager
    def writing(self, name: str) -> Iterator[ForWriting]:
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
        for entry in self.entries("", recursive=True):
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
