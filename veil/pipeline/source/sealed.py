"""What was received and not yet acknowledged, kept durably: one segment a micro-batch.

A segment is a folder `EPOCH/NUMBER` with the rows in Arrow files, one for each partition, and a last file, `sealed`, with
the receipts: only a segment that has it counts. So a batch that is tried again, or comes again after a restart, reads the
same rows, and the receipts survive the driver. The epoch is new with every checkpoint: a query never meets the segments
of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from veil.journal.place import Place

if TYPE_CHECKING:
    import pyarrow as pa

_SEALED: Final = "sealed"
_OWNER: Final = "_owner"


class Seal(msgspec.Struct, frozen=True):
    """The last file of a segment."""

    number: int
    parts: int
    message_ids: list[str]
    receipts: list[str]


class StreamTaken(RuntimeError):
    """Another query works on the same checkpoint since."""


class SealedSegments:
    """The segments of one epoch."""

    def __init__(self, place: Place, epoch: str, owner: str) -> None:
        self._place = place.sub(epoch)
        self._owner = owner

    def take_over(self) -> None:
        """Be the one who writes here from now on: whoever did before finds out at its next seal."""
        self._place.write(_OWNER, self._owner.encode())

    def check_owner(self) -> None:
        """Raise StreamTaken if somebody else took over."""
        try:
            found = self._place.read(_OWNER).decode()
        except FileNotFoundError:
            found = "nobody"
        if found != self._owner:
            raise StreamTaken(
                f"the segments in {self._place.uri} were taken over by another run ({found}): two queries must not share a "
                "checkpoint"
            )

    def seal(self, number: int, parts: Sequence[pa.RecordBatch], seal: Seal) -> None:
        """Write the rows, then what makes them count."""
        self.check_owner()
        for at, part in enumerate(parts):
            self._place.write(part_name(number, at), _to_bytes(part))
        self._place.write(f"{_folder(number)}/{_SEALED}", msgspec.msgpack.encode(seal))

    def find(self, number: int) -> Seal | None:
        """The seal of a segment; None while it has none."""
        try:
            return msgspec.msgpack.decode(self._place.read(f"{_folder(number)}/{_SEALED}"), type=Seal)
        except FileNotFoundError:
            return None

    def all(self) -> list[Seal]:
        """Every segment that counts, by number; folders without a seal are left by a run that died, and are removed."""
        found = []
        for entry in self._place.entries():
            if entry.is_folder and entry.name.rsplit("/", 1)[-1].isdigit():
                number = int(entry.name.rsplit("/", 1)[-1])
                seal = self.find(number)
                if seal is None:
                    self.remove(number)
                else:
                    found.append(seal)
        return sorted(found, key=lambda seal: seal.number)

    def remove(self, number: int) -> None:
        """Take a segment away, its seal included."""
        self._place.remove_folder(_folder(number))

    def uri(self) -> str:
        """Where the parts are, for whoever reads them."""
        return self._place.uri


def part_name(number: int, part: int) -> str:
    """The file of one part, relative to its epoch."""
    return f"{_folder(number)}/part-{part:05d}.arrow"


def read_part(epoch_uri: str, number: int, part: int) -> list[pa.RecordBatch]:
    """The rows of one part; on an executor."""
    import pyarrow as pa

    name = part_name(number, part)
    try:
        data = Place.at(epoch_uri).read(name)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"segment file {name} is not in {epoch_uri}: the option segments must name a place that driver and executors share"
        ) from None
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


def _folder(number: int) -> str:
    return f"{number:012d}"


def _to_bytes(part: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, part.schema, options=options) as writer:
        writer.write_batch(part)
    data: bytes = sink.getvalue().to_pybytes()
    return data
