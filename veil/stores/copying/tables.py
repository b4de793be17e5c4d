"""What a copy of a store carries, table by table, in the columns that every durable store has.

Deliberately left behind: counts (they are counted anew), the journal's outbox (its numbers belong to one journal), and what
only concerns the place itself: clocks, nodes, duties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CopiedRow = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the common form."""

    name: str
    columns: tuple[str, ...]
    instants: tuple[str, ...] = ()  # columns of engine time, which another clock tells differently

    def index_of(self, column: str) -> int:
        """Where a column stands in a row."""
        return self.columns.index(column)


MESSAGE = Table(
    "message",
    (
        "seq", "queue_id", "state", "wake_at_ms", "due_at_ms", "received_at_ms", "delivery", "holder", "receive_count",
        "first_received_wall_ms", "sent_wall_ms", "message_id", "group_name", "deduplication_id", "dead_letter_source",
        "trace_header", "sender", "message_type", "body_bytes", "attributes", "body_md5", "body", "priority",
    ),
    ("due_at_ms", "received_at_ms"),  # and wake_at_ms, which follows from the first
)  # fmt: skip
# `claims` is [[seq, delivery, due_at_ms], …], `sent` is [[message id, seq, duplicate], …]; each store packs them its own way.
ATTEMPT = Table("attempt", ("queue_id", "attempt_id", "until_ms", "claims"), ("until_ms",))
REPEATABLE_SEND = Table("repeatable_send", ("queue_id", "retry_key", "until_ms", "sent"), ("until_ms",))

TABLES = (
    Table(
        "queue",
        (
            "id", "region", "account", "name", "settings", "tags", "scope", "created_wall_ms", "modified_wall_ms",
            "purged_at_ms", "deleted_at_ms", "deleted_by",
        ),
        ("purged_at_ms", "deleted_at_ms"),
    ),
    Table("queue_rest", ("region", "account", "name", "deleted_at_ms"), ("deleted_at_ms",)),
    MESSAGE,
    Table("lane", ("queue_id", "group_name", "turn", "is_open", "members", "in_flight")),
    Table("deduplication", ("queue_id", "scope", "dedup_id", "until_ms", "seq", "message_id"), ("until_ms",)),
    REPEATABLE_SEND,
    ATTEMPT,
    Table("stream", ("queue_id", "name", "owner", "closed", "used_at_ms"), ("used_at_ms",)),
    Table("hold", ("queue_id", "stream", "batch", "part", "lost", "members")),
    Table(
        "move_task",
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
