"""Move a message that was received too often to the dead letters, within the receive that found it."""

from __future__ import annotations

from dataclasses import replace

from veil.core.lease import is_spent
from veil.stores.memory import recording
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Row, Shelf
from veil.stores.recorder import DEAD_LETTERED


def destination(op: Operation, shelf: Shelf, row: Row) -> Shelf | None:
    """Where the message must go instead of being delivered, if it must."""
    redrive = shelf.queue.settings.redrive
    if redrive is None or not is_spent(row.message.receive_count, redrive):
        return None
    target = op.shelves.of_key(redrive.dead_letters)
    if target is None or target is shelf or target.fifo != shelf.fifo:
        return None
    return target


def move(op: Operation, row: Row, source: Shelf, target: Shelf) -> None:
    """Take the message out of its queue and put it into the target."""
    source.remove(row)
    message = replace(row.message, dead_letter_source=source.queue.key.arn)
    if target.fifo:
        message.seq = op.next_seq()
        message.deduplication_id = message.message_id
    target.put(Row(message), op.shelves.next_turn)
    op.count("dead_lettered", source)
    recording.event(
        op,
        DEAD_LETTERED,
        source,
        row.message,
        delivery=message.delivery,
        other_queue=target.queue.key,
        other_seq=message.seq if target.fifo else None,
    )
