"""What the exporter and its helper process say to each other: frames of a kind, a length and a body.

Rows are most of it, and go through as they are: the server only moves bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import BinaryIO, Final

import msgspec

ROW: Final = b"r"  # 8 bytes of number, then the packed events
END: Final = b"e"  # no more rows
SEGMENT: Final = b"s"  # the ExportPlan of the segment whose rows follow
SWEEP: Final = b"w"  # the days before this one are to be removed
DONE: Final = b"d"  # a command was carried out: Written, or the days that were removed
FAILED: Final = b"f"  # why a command was not carried out; the next one may be

HEAD: Final = struct.Struct(">cI")
NUMBER: Final = struct.Struct(">Q")


class Written(msgspec.Struct):
    """What a segment came to."""

    name: str
    events: int
    size: int
    unreadable: list[str]  # rows that were passed over, with the reason


def frame(kind: bytes, body: object = None) -> bytes:
    """One message as bytes."""
    content = b"" if body is None else msgspec.msgpack.encode(body)
    return HEAD.pack(kind, len(content)) + content


def row_frames(rows: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Rows as bytes, in pieces to be written one after the other."""
    pieces: list[bytes] = []
    for number, packed in rows:
        pieces += (HEAD.pack(ROW, NUMBER.size + len(packed)), NUMBER.pack(number), packed)
    return pieces


def read_frame(stream: BinaryIO) -> tuple[bytes, bytes]:
    """The next kind and body from a blocking stream; raises EOFError at its end."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        raise EOFError
    kind, length = HEAD.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return kind, body
