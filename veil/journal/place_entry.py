"""What a place shows of its content, and what it gives to write to."""

from __future__ import annotations

from typing import NamedTuple, Protocol


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
