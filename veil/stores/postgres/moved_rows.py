"""Messages on their way out of the dead letters, collected to be moved by one statement."""

from __future__ import annotations

from typing import Any

from veil.core.lease import State
from veil.core.message import Caller, Sent
from veil.core.sequence import expires_at_ms
from veil.stores.codec import encode_attributes
from veil.stores.postgres import lanes, queues
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Row, Transaction
from veil.stores.recorder import REDRIVEN, SENT
from veil.stores.store import NewContent

# Which message, and its place, id and state where it goes; then what it carries from there on, if that is something else.
_COLUMNS = (
    *("seqs", "targets", "new_seqs", "ids", "deduplications", "states", "wakes", "dues"),
    *("changed", "attributes", "digests", "bodies", "sizes", "types"),
)


class MovedRows:
    """What goes where, and becomes what; a message is in exactly one queue at every instant, since one statement takes it
    out of the one and puts it into the other."""

    def __init__(self, tx: Transaction, source: QueueState, caller: Caller, numbers: list[int]) -> None:
        self._tx, self._source, self._caller, self._numbers = tx, source, caller, numbers
        self._rows: list[tuple[Any, ...]] = []

    @property
    def count(self) -> int:
        """How many were added."""
        return len(self._rows)

    async def add(
        self, row: Row, target: QueueState, message_id: str, content: NewContent | None = None
    ) -> Sent:
        """A (visible) message goes to the target as a new one, with other content where that is given."""
        tx, source, settings = self._tx, self._source, target.queue.settings
        seq = tx.seq(target, self._numbers[self.count])
        state, due_at_ms, wake_at_ms = State.VISIBLE, None, None
        if settings.delay_s:
            state, due_at_ms = State.DELAYED, tx.now_ms + settings.delay_s * 1000
            wake_at_ms = min(due_at_ms, expires_at_ms(seq, settings.retention_s))
        deduplication_id = message_id if settings.fifo else None
        told: tuple[Any, ...] = (False, None, None, None, None, None)
        size, message_type = row[18], row[17]
        if content is not None:
            size, message_type = content.body_bytes, content.message_type
            attributes = encode_attributes(content.attributes)
            told = (True, attributes, content.body_md5, content.body, size, message_type)
        place = (row[0], target.id, seq, message_id, deduplication_id, int(state), wake_at_ms, due_at_ms)
        self._rows.append((*place, *told))
        tx.count(source, visible=-1)
        if wake_at_ms is None:
            tx.count(target, visible=1)
            target.visible_from(seq)
            tx.available(target)
        else:
            tx.count(target, delayed=1)
            target.hidden_until(wake_at_ms)
        if row[8] is not None:
            if not target.has_lanes:
                await queues.give_lanes(tx, target)
            lanes.change(source, row[8], members=-1)
            lanes.change(target, row[8], members=1)
        self._record(row, target, seq, message_id, due_at_ms, size, message_type)
        return Sent(message_id, seq)

    def _record(
        self,
        row: Row,
        target: QueueState,
        seq: int,
        message_id: str,
        due_at_ms: int | None,
        size: int,
        message_type: str | None,
    ) -> None:
        journal, now_ms, here, there = self._tx.journal, self._tx.now_ms, self._source, target.queue.key
        if journal is None:
            return
        before: Any = {"receive_count": row[11], "body_bytes": row[18], "message_type": row[17]}
        after: Any = {"receive_count": 0, "body_bytes": size, "message_type": message_type}
        gone, come = (
            (REDRIVEN, now_ms, here.queue.key, row[0], row[1]),
            (SENT, now_ms, there, seq, message_id),
        )
        journal.note(*gone, caller=self._caller, other_queue=there, other_seq=seq, **before)
        journal.note(*come, caller=self._caller, deadline_ms=due_at_ms, other_seq=row[0], **after)

    def write(self) -> None:
        """Have them all moved."""
        if self._rows:
            columns = zip(_COLUMNS, zip(*self._rows, strict=True), strict=True)
            named = {name: list(column) for name, column in columns}
            self._tx.later(
                Q.redrive_messages, {**named, "queue": self._source.id, "wall_ms": self._tx.wall_ms}
            )
