"""Files of a remote file system, through pyarrow; it is connected to when it is first used.

An object store shows an object only when its upload is complete, so there a file is put together here and uploaded under
its own name. Elsewhere (HDFS) it is written under another name and renamed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

from veil.journal.place_entry import Entry, ForWriting

_SPARK_NAMES: Final = {"s3": "s3a"}
SCHEMES: Final = frozenset({"s3", "s3a", "hdfs", "viewfs", "gs", "abfs", "abfss"})
_OBJECT_STORES: Final = frozenset({"s3", "gs", "abfs", "abfss"})
_IN_MEMORY_BYTES_MAX: Final = 16 * 2**20
_DRAFT: Final = ".tmp"
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
