"""The shape of the journal: one row an event in Parquet segments, and what the exporter takes them from.

The schema has a version, written into every segment. A new version may only add columns that can be null, so a reader
of the newest version reads every older segment (what is missing is null) and refuses a newer one by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from veil.core.event import ExportPlan, OutboxRow, OutboxSize

VERSION: Final = 3
VERSION_KEY: Final = "veil.journal.version"  # in a segment's metadata
JOURNAL_KEY: Final = "veil.journal.id"  # which store's life the segment tells
FIRST_KEY: Final = "veil.journal.first"  # the outbox rows it holds
LAST_KEY: Final = "veil.journal.last"
POSITION_BITS: Final = 20  # of a position: the place in an outbox row


class Column(NamedTuple):
    """One column: `kind` is one of text, int, long, instant (microseconds, UTC)."""

    name: str
    kind: str
    nullable: bool
    since: int
    meaning: str


COLUMNS: Final = (
    Column("position", "long", False, 1, "outbox row << 20 | place in it: unique in a journal, in the order of the events"),
    Column("at", "instant", False, 1, "engine time of the change"),
    Column("kind", "text", False, 1, "sent, received, extended, … : core.event.Kind in lower case"),
    Column("region", "text", False, 1, "of the queue"),
    Column("account", "text", False, 1, "of the queue"),
    Column("queue", "text", False, 1, "name of the queue"),
    Column("seq", "long", False, 1, "the message's order key: which message; seq >> 20 is the engine millisecond of its send"),
    Column("message_id", "text", True, 1, "null for a refused receipt of a message that is gone"),
    Column("delivery", "int", False, 1, "number of the lease within the message, rising; 0 where no lease is concerned"),
    Column("deadline", "instant", True, 1, "of the lease; of the delay, for sent and delayed; when a trouble began"),
    Column("receive_count", "int", True, 1, "after the change"),
    Column("body_bytes", "int", True, 1, "size of the body in UTF-8"),
    Column("message_type", "text", True, 1, "value of the type attribute, if the message has one"),
    Column("other_queue", "text", True, 1, "where it went: dead letters, or a redrive's destination"),
    Column("other_seq", "long", True, 1, "its key there; for sent by a redrive, the key it had in the dead letters"),
    Column("caller_key", "text", True, 1, "access key id of who asked; null for nobody known and for the store itself"),
    Column("caller_address", "text", True, 1, "address of who asked"),
    Column("user_agent", "text", True, 1, "how the asking client names itself"),
    Column("outcome", "text", True, 2, "what its holder said of the attempt: failed, given_back; or the kind of a trouble"),
    Column("error_type", "text", True, 2, "the class of the error that ended the attempt, as its holder said"),
    Column("error_text", "text", True, 2, "what that error says, masked and cut by who said it"),
    Column("traceback", "text", True, 2, "where it was raised, from the user's own code on"),
    Column("rule", "int", True, 2, "the rule that attempts can be judged by: core.attempt.RULE; null before version 2"),
    Column("worked_ms", "int", True, 3, "how long the handler worked, as its holder said, where the message waited for a slot"),
)  # fmt: skip


def segment_name(day: str, journal_id: str, first: int, last: int) -> str:
    """The name under which the events of these outbox rows are exported, always the same."""
    return f"day={day}/{journal_id}-{first:016d}-{last:016d}.parquet"


class Outbox(Protocol):
    """What the exporter asks of a store. A plan is durable before it is returned; finishing it drops rows and plan together."""

    async def plan_export(self, *, rows_max: int, bytes_max: int) -> ExportPlan | None: ...
    async def outbox_rows(
        self, plan: ExportPlan, *, after: int = 0, limit: int = 1000
    ) -> Sequence[OutboxRow]: ...
    async def finish_export(self, plan: ExportPlan) -> None: ...
    async def outbox_size(self) -> OutboxSize: ...
    async def has_duty(self, duty: str) -> bool: ...
