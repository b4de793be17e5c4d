"""Carry a whole store over to another one: messages with their ids, counts, deadlines and leases, so that receipts stay valid.

Row by row in the columns that every durable store has, in pieces. How far it has come is written to the target together with each
piece, so a copy that was cut short goes on where it stopped; until it is finished nobody can open the target. Neither store
may be in use meanwhile, and the source is left as it is: start one of the two afterwards, never both.

Deliberately left behind: counts (they are counted again), the journal's outbox (its numbers belong to one journal), and what
only concerns the place itself: clocks, nodes, duties.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from veil.core.errors import StoreError

CopiedRow = tuple[Any, ...]


class Table(NamedTuple):
    """One table of the common form."""

    name: str
    keys: int  # the first columns, by which a row is known
    columns: tuple[str, ...]
    instants: tuple[str, ...] = ()  # columns of engine time, which another clock tells differently

    def index_of(self, column: str) -> int:
        """Where a column stands in a row."""
        return self.columns.index(column)


QUEUE = Table(
    "queue", 1,
    (
        "id", "region", "account", "name", "settings", "tags", "scope", "created_wall_ms", "modified_wall_ms",
        "purged_at_ms", "deleted_at_ms", "deleted_by",
    ),
    ("purged_at_ms", "deleted_at_ms"),
)  # fmt: skip
MESSAGE = Table(
    "message", 2,
    (
        "queue_id", "seq", "state", "wake_at_ms", "due_at_ms", "received_at_ms", "delivery", "holder", "receive_count",
        "first_received_wall_ms", "sent_wall_ms", "message_id", "group_name", "deduplication_id", "dead_letter_source",
        "trace_header", "sender", "message_type", "body_bytes", "attributes", "body_md5", "body", "priority",
    ),
    ("due_at_ms", "received_at_ms"),  # and wake_at_ms, which follows from the first
)  # fmt: skip
# `claims` is [[seq, delivery, due_at_ms], …], `sent` is [[message id, seq, duplicate], …]; each store packs them its own way.
ATTEMPT = Table("attempt", 2, ("queue_id", "attempt_id", "until_ms", "claims"), ("until_ms",))
REPEATABLE_SEND = Table("repeatable_send", 2, ("queue_id", "retry_key", "until_ms", "sent"), ("until_ms",))

TABLES = (
    QUEUE,
    Table("queue_rest", 3, ("region", "account", "name", "deleted_at_ms"), ("deleted_at_ms",)),
    MESSAGE,
    Table("lane", 2, ("queue_id", "group_name", "turn", "is_open", "members", "in_flight")),
    Table("deduplication", 3, ("queue_id", "scope", "dedup_id", "until_ms", "seq", "message_id"), ("until_ms",)),
    REPEATABLE_SEND,
    ATTEMPT,
    Table("stream", 2, ("queue_id", "name", "owner", "closed", "used_at_ms"), ("used_at_ms",)),
    Table("hold", 4, ("queue_id", "stream", "batch", "part", "lost", "members")),
    Table(
        "move_task", 1,
        (
            "number", "id", "source", "destination", "rate_per_s", "status", "moved", "to_move", "started_wall_ms",
            "failure", "caller", "scan",
        ),
    ),
)  # fmt: skip


def shifted(table: Table, rows: list[CopiedRow], shift_ms: int) -> list[CopiedRow]:
    """The rows as a clock tells them that is so much ahead; lengths of time stay what they are."""
    if shift_ms == 0 or not (table.instants or table is ATTEMPT):
        return rows
    indexes = [table.index_of(column) for column in table.instants]
    told = []
    for row in rows:
        cells = list(row)
        if table is MESSAGE:
            wake, due = table.index_of("wake_at_ms"), table.index_of("due_at_ms")
            # It wakes when its lease or its delay ends, or when its retention does, which its order key tells: that stays.
            if cells[wake] is not None and cells[due] is not None:
                ends_ms = cells[due] + shift_ms
                cells[wake] = ends_ms if cells[wake] == cells[due] else min(cells[wake], ends_ms)
        if table is ATTEMPT:
            claims = table.index_of("claims")
            cells[claims] = [
                [seq, delivery, None if due_ms is None else due_ms + shift_ms]
                for seq, delivery, due_ms in cells[claims]
            ]
        for index in indexes:
            if cells[index] is not None:
                cells[index] += shift_ms
        told.append(tuple(cells))
    return told


Progress = Callable[[int, int], None]  # rows copied, rows expected


class StoreFacts(NamedTuple):
    """What belongs to a store as a whole and goes with a copy."""

    store_id: str
    receipt_key: bytes
    now_ms: int  # engine time there
    last_seq: int  # no order key above it was given out
    last_queue_id: int  # no id above it was given out, also to queues that are gone
    last_move: int
    rows: int  # about so many, of all tables
    waiting_events: int  # recorded and not yet exported


class CopyMark(msgspec.Struct, frozen=True):
    """How far a copy has come, as the target remembers it."""

    store_id: str  # of the source
    shift_ms: int
    table: str | None = None  # the last one that was touched
    key: list[Any] | None = None  # its last row, by the source's own order
    rows: int = 0  # of all tables so far


class Piece(NamedTuple):
    """Some rows of a table, and the key of the last of them."""

    rows: list[CopiedRow]
    key: list[Any]


PIECE_ROWS: Final = 2_000


class Source(ABC):
    """A store at rest that is read."""

    schema = ""
    placeholder = "?"

    @abstractmethod
    def facts(self) -> StoreFacts:
        """What goes with the copy as a whole."""

    @abstractmethod
    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[CopiedRow]:
        """The rows of a query."""

    def one(self, query: str, arguments: Sequence[Any] = ()) -> int:
        """The number that a query asks for."""
        [[number]] = self.rows(query, arguments)
        return int(number)

    def stored_as(self, table: Table) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """The keys and columns of the table in this store, and a condition for its rows."""
        return table.columns[: table.keys], table.columns, "true"

    @abstractmethod
    def unpacked(self, table: Table, rows: list[CopiedRow]) -> list[CopiedRow]:
        """Rows as they are stored, in the common form."""

    def pieces(self, table: Table, after: list[Any] | None) -> Iterator[Piece]:
        """The rows of a table in an order of the source's own, those after a key."""
        keys, columns, condition = self.stored_as(table)
        order, marks = ", ".join(keys), ", ".join([self.placeholder] * len(keys))
        while True:
            # The names are those of this package; the values are bound.
            found = self.rows(
                f"SELECT {', '.join(columns)} FROM {self.schema}{table.name}"  # noqa: S608
                f" WHERE {condition} {'' if after is None else f'AND ({order}) > ({marks})'}"
                f" ORDER BY {order} LIMIT {PIECE_ROWS}",
                after or (),
            )
            if not found:
                return
            after = [found[-1][columns.index(key)] for key in keys]
            yield Piece(self.unpacked(table, found), after)


class CopyTarget(Protocol):
    """A store in the making."""

    def mark(self) -> CopyMark | None:
        """How far an unfinished copy has come; None where there is nothing yet. Raises StoreError for a target with data."""

    def begin(self, mark: CopyMark) -> None:
        """Make the tables, empty and closed to others."""

    def now_ms(self, source: StoreFacts) -> int:
        """Engine time as the target will tell it."""

    def write(self, table: Table, rows: list[CopiedRow], mark: CopyMark) -> None:
        """Add the rows and the mark, together."""

    def finish(self, facts: StoreFacts) -> None:
        """Count, take over what belongs to the store as a whole, and open the target to others; all of it together."""


class Copied(NamedTuple):
    """What a copy came to."""

    rows: int
    resumed: bool
    events_left: int


def copy_store(
    source: Source, target: CopyTarget, progress: Progress | None = None, *, without_events: bool = False
) -> Copied:
    """Copy everything, or go on with it; raises StoreError in words where that cannot be done."""
    facts = source.facts()
    if facts.waiting_events and not without_events:
        raise StoreError(
            f"{facts.waiting_events:,} transactions wait in the source to be exported to its journal, and a copy leaves them"
            " behind: export them first, or leave them with --without-events"
        )
    mark = target.mark()
    resumed = mark is not None
    if mark is None:
        mark = CopyMark(facts.store_id, target.now_ms(facts) - facts.now_ms)
        target.begin(mark)
    elif mark.store_id != facts.store_id:
        raise StoreError(
            f"the target holds the unfinished copy of another store ({mark.store_id}, this one is {facts.store_id})"
        )
    names = [table.name for table in TABLES]
    begin_at = names.index(mark.table) if mark.table is not None else 0
    for table in TABLES[begin_at:]:
        after = mark.key if table.name == mark.table else None
        for piece in source.pieces(table, after):
            rows = mark.rows + len(piece.rows)
            mark = CopyMark(mark.store_id, mark.shift_ms, table.name, piece.key, rows)
            target.write(table, shifted(table, piece.rows, mark.shift_ms), mark)
            if progress is not None:
                progress(rows, max(rows, facts.rows))
    target.finish(facts)
    return Copied(mark.rows, resumed, facts.waiting_events)


encode_mark: Final = msgspec.msgpack.Encoder().encode
decode_mark: Final = msgspec.msgpack.Decoder(CopyMark).decode
