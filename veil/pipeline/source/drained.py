"""What a block of `drain` has taken, as text for the reader: enough to find the rows on any executor."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from veil.pipeline.queues.queue_place import QueuePlace
from veil.pipeline.source.held_stream import HeldPart
from veil.pipeline.source.sealed_stream import SealedPart
from veil.pipeline.source.stream import Part


class HeldShare(msgspec.Struct, frozen=True, tag="held"):
    """A part that is received under its name."""

    place: QueuePlace
    queue: str
    stream: str
    batch: int
    part: int
    rows: int
    window_s: int
    received_ms: int


class SealedShare(msgspec.Struct, frozen=True, tag="sealed"):
    """A part that lies in a file."""

    epoch_uri: str
    segment: str
    part: int


class Drained(msgspec.Struct, frozen=True):
    """All shares of one block."""

    shares: list[HeldShare | SealedShare]

    @classmethod
    def of(cls, parts: list[Part]) -> Drained:
        """The parts of a stream, written down."""
        return cls([_share(part) for part in parts])

    def parts(self) -> Iterator[Part]:
        """The same parts again."""
        for share in self.shares:
            kind = HeldPart if isinstance(share, HeldShare) else SealedPart
            yield kind(**{name: getattr(share, name) for name in share.__struct_fields__})


def _share(part: Part) -> HeldShare | SealedShare:
    kind = HeldShare if isinstance(part, HeldPart) else SealedShare
    return kind(**{name: getattr(part, name) for name in kind.__struct_fields__})
