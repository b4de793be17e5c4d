"""What was received and not yet acknowledged, kept durably: one segment a micro-batch.

A segment is a folder `EPOCH/NUMBER-RUN` with the rows in Arrow files, one for each partition, and a last file, `sealed`,
with the receipts: only a segment that has it counts. So a batch that is tried again, or comes again after a restart, reads
the same rows, and the receipts survive the driver. The epoch is new with every checkpoint: a query never meets the segments
of another one. The run is new with every start: whatever an older run that is not quite dead still writes, it never
mixes with what this one wrote, and Spark's own log decides whose segment is the batch, since the offset names it. Each
seal names the segment before it, so that the whole line can be told from the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from veil.journal.place import Place
from veil.pipeline.source.stream import StreamTaken

if TYPE_CHECKING:
    import pyarrow as pa

_SEALED: Final = "sealed"
_OWNER: Final = "_owner"
_NAME: Final = re.compile(r"(\d{12})-[0-9a-f]+")


class Seal(msgspec.Struct, frozen=True):
    """The last file of a segment."""

    number: int
    before: str  # the name of the segment before it, empty for the first
    parts: int
    message_ids: list[str]
    receipts: list[str]


class SealedSegments:
    """The segments of one epoch, as one run works with them."""

    def __init__(self, place: Place, epoch: str, run: str) -> None:
        self._place = place.sub(epoch)
        self._run = run

    @property
    def uri(self) -> str:
        """Where the segments are, for whoever reads them."""
        return self._place.uri

    def take_over(self) -> None:
        """Be the one who writes here from now on: whoever did before finds out."""
        self._place.write(_OWNER, self._run.encode())

    def check_owner(self) -> None:
        """Raise StreamTaken if somebody else took over."""
        try:
            found = self._place.read(_OWNER).decode()
        except FileNotFoundError:
            found = "nobody"
        if found != self._run:
            raise StreamTaken(
                f"the segments in {self.uri} were taken over by another run ({found}): two queries must not share a checkpoint"
            )

    def seal(self, parts: Sequence[pa.RecordBatch], seal: Seal) -> str:
        """Write the rows, then what makes them count; returns the name."""
        name = f"{seal.number:012d}-{self._run}"
        for at, part in enumerate(parts):
            self._place.write(part_name(name, at), _to_bytes(part))
        self._place.write(f"{name}/{_SEALED}", msgspec.msgpack.encode(seal))
        return name

    def find(self, name: str) -> Seal | None:
        """The seal of a segment; None while it has none."""
        try:
            return msgspec.msgpack.decode(self._place.read(f"{name}/{_SEALED}"), type=Seal)
        except FileNotFoundError:
            return None

    def numbers(self) -> dict[str, int]:
        """Every segment that is there by name, sealed or not, with its number."""
        names = [entry.name for entry in self._place.entries() if entry.is_folder]
        return {name: int(parts[1]) for name in names if (parts := _NAME.fullmatch(name))}

    def remove(self, name: str) -> None:
        """Take a segment away, its seal included."""
        self._place.remove_folder(name)


def part_name(segment: str, part: int) -> str:
    """The file of one part, relative to its epoch."""
    return f"{segment}/part-{part:05d}.arrow"


def read_part(epoch_uri: str, segment: str, part: int) -> list[pa.RecordBatch]:
    """The rows of one part; on an executor."""
    import pyarrow as pa

    name = part_name(segment, part)
    try:
        data = Place.at(epoch_uri).read(name)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"segment file {name} is not in {epoch_uri}: the option segments must name a place that driver and executors share"
        ) from None
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


def _to_bytes(part: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, part.schema, options=options) as writer:
        writer.write_batch(part)
    data: bytes = sink.getvalue().to_pybytes()
    return data
