"""Builders of outbox rows, an outbox of a real store, and a sink that writes in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from veil.core.event import ExportPlan, Kind, OutboxRow, pack
from veil.core.message import Caller
from veil.core.queue import QueueKey
from veil.journal import frames
from veil.journal.segment_writer import write_segment
from veil.journal.segments import list_segments
from veil.journal.storage import Location, Storage

ORDERS = QueueKey("eu-central-1", "000000000000", "orders")
DEAD = QueueKey("eu-central-1", "000000000000", "orders-dead")
SHOP = Caller("111111111111", "AKIDSHOP", "boto3/1.44", "10.0.0.7")
NOON_MS = 1_790_000_000_000
# A machine that stands still for half a second is a trouble of the server's, and so an event, unless leases have no grace.
NO_TROUBLES = "--no-lease-grace"


class APlan(NamedTuple):
    journal_id: str = "abc"
    first: int = 1
    last: int = 1
    day: str = "2026-09-21"


def an_event(kind: Kind = Kind.SENT, at_ms: int = NOON_MS, **fields: Any) -> tuple[Any, ...]:
    """The tuple of an event, as long as it must be."""
    from veil.core.event import Event

    values = {"queue": 0, "seq": at_ms << 20, "message_id": f"id-{at_ms}"} | fields
    return tuple(Event(kind=int(kind), at_ms=at_ms, **values))


def a_row(*events: tuple[Any, ...]) -> bytes:
    return pack([ORDERS, DEAD], [Caller(), SHOP], list(events))


class DirectSink:
    """Writes segments in this process."""

    def __init__(self, where: str, store_id: str = "s") -> None:
        self._location = Location(where, store_id)

    async def write(self, plan: ExportPlan, rows: AsyncIterator[Sequence[OutboxRow]]) -> frames.Written:
        self._location.claim()
        pairs = [(row.number, row.packed) async for some in rows for row in some]
        return write_segment(self._location.place, plan, pairs)

    async def sweep(self, before_day: str) -> list[str]:
        return self._location.sweep(before_day)

    def hurry(self) -> None: ...

    async def close(self) -> None: ...

    async def kill(self) -> None: ...


def events_of(place: Storage) -> list[dict[str, Any]]:
    """Every event of every segment, in the order of names."""
    from pyarrow import parquet as pq

    events: list[dict[str, Any]] = []
    for segment in list_segments(place):
        with place.open_input(segment.name) as file:
            events += pq.ParquetFile(file, page_checksum_verification=True).read().to_pylist()
    return events


def flip_bit_in_a_page(place: Storage, name: str) -> None:
    """Damage the content of a segment: the last byte of its message ids."""
    from pyarrow import parquet as pq

    with place.open_input(name) as file:
        metadata = pq.ParquetFile(file).metadata
        at = metadata.schema.names.index("message_id")
        column = metadata.row_group(0).column(at)
    content = bytearray(place.read(name))
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 8
    place.write(name, bytes(content))
