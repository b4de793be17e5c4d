"""Receives on a FIFO queue that may be repeated: the same attempt gives the same messages, their windows restarted."""

from __future__ import annotations

from dataclasses import replace

from veil.core.limits import ATTEMPT_MS, SECOND_MS
from veil.core.message import StoredMessage
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Attempt, Row, Shelf


def repeat(op: Operation, shelf: Shelf, attempt_id: str, visibility_s: int) -> list[StoredMessage]:
    """What the attempt gave, its windows restarted; nothing if it must be an ordinary receive."""
    attempt = shelf.attempts.get(attempt_id)
    if attempt is None or op.now_ms >= attempt.until_ms or visibility_s == 0:
        return []
    rows = [shelf.rows.get(seq) for seq, _, _ in attempt.given]
    held = [
        row
        for row, (_, delivery, deadline_ms) in zip(rows, attempt.given, strict=True)
        if row is not None and (row.holder, row.rotation, row.message.due_at_ms) == (delivery, 0, deadline_ms)
    ]
    if len(held) < len(rows):
        return []
    for row in held:
        row.message.received_at_ms = op.now_ms
        row.hide(row.holder, op.now_ms + visibility_s * SECOND_MS)
    remember(op, shelf, attempt_id, held)
    return [replace(row.message) for row in held]


def remember(op: Operation, shelf: Shelf, attempt_id: str, rows: list[Row]) -> None:
    """The attempt gave these, just now."""
    given = [(row.message.seq, row.message.delivery, row.message.due_at_ms) for row in rows]
    shelf.attempts[attempt_id] = Attempt(op.now_ms + ATTEMPT_MS, given)
