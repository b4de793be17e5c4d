"""Lists as PostgreSQL writes arrays: a hundred rows are one argument for each of their columns.

The driver would look at every element to find out what it is, which takes longer than the statement. Every query says
itself what its arrays hold, so text will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def array(values: Sequence[Any]) -> str:
    """The literal of an array of whole numbers, of texts or of bytes, each with or without gaps."""
    for value in values:
        if value is not None:
            return _writer_for(value)(values)
    return "{" + ",".join(["NULL"] * len(values)) + "}"


def _numbers(values: Sequence[int | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def _texts(values: Sequence[str | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if '"' in value:
        value = value.replace('"', '\\"')
    return f'"{value}"'


def _blobs(values: Sequence[bytes | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]) + "}"


def _truths(values: Sequence[bool | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


_WRITERS: dict[type, Callable[[Sequence[Any]], str]] = {
    int: _numbers,
    str: _texts,
    bytes: _blobs,
    bool: _truths,
}


def _writer_for(value: object) -> Callable[[Sequence[Any]], str]:
    found = _WRITERS.get(type(value))
    if found is None:
        if not isinstance(value, int):
            raise TypeError(f"{value!r}: expected a number, a text or bytes")
        found = _numbers  # the member of an enum
    return found
