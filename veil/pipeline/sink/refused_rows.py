"""Rows that cannot be sent: the first fails the write, or all of them are written to the error path, one JSON object a line.

The file of a partition has a name that a repeated task gives again: it replaces the file, nothing is there twice.
"""

from __future__ import annotations

import base64
import json
from contextlib import ExitStack
from typing import Any

from veil.journal.place import ForWriting, Place
from veil.pipeline.sink.refusal import RowRefused
from veil.pipeline.sink.row import Row


class RefusedRows:
    """Of one partition of one write; the file appears whole, when the block has ended well."""

    def __init__(self, error_path: str | None, name: str, partition: int, key_name: str | None) -> None:
        self._place = None if error_path is None else Place.at(error_path)
        self._name, self._partition, self._key_name = name, partition, key_name
        self._stack = ExitStack()
        self._file: ForWriting | None = None
        self.count = 0

    def __enter__(self) -> RefusedRows:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._file is None and kind is None and self._place is not None:
            # An earlier try of this task may have refused what was taken now.
            self._place.remove(self._name)
        self._stack.__exit__(kind, error, trace)

    def add(self, row: Row, reason: str) -> None:
        """Write the row down with the reason; raises RowRefused where there is no error path."""
        if self._place is None:
            key = None if self._key_name is None else (self._key_name, row.key)
            raise RowRefused(row.queue, self._partition, row.ordinal, key, reason)
        if self._file is None:
            self._file = self._stack.enter_context(self._place.writing(self._name))
        self._file.write(_line(row, self._partition, reason))
        self.count += 1


def _line(row: Row, partition: int, reason: str) -> bytes:
    draft = row.draft
    told = {
        "reason": reason,
        "queue": row.queue,
        "partition": partition,
        "row": row.ordinal,
        "key": None if row.key is None else str(row.key),
        "body": draft.body,
        "attributes": {name: _attribute(*value) for name, value in (draft.attributes or {}).items()},
        "group": draft.group,
        "deduplication_id": draft.deduplication_id,
        "delay_s": draft.delay_s,
        "trace_header": draft.trace_header,
    }
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _attribute(data_type: str, value: str | bytes) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"data_type": data_type, "binary_value": base64.b64encode(value).decode()}
    return {"data_type": data_type, "string_value": value}
