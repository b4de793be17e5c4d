"""Move messages that were received too often to the dead letters, within the receive that found them."""

from __future__ import annotations

from veil.stores.postgres import lanes, queues
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Row, Transaction
from veil.stores.recorder import DEAD_LETTERED


def destination(tx: Transaction, state: QueueState) -> QueueState | None:
    """Where the queue's spent messages go: None without a policy, and while its target is missing or of the other type."""
    redrive = state.queue.settings.redrive
    if redrive is None:
        return None
    target = tx.by_key.get(redrive.dead_letters)
    if target is None or target is state or target.fifo != state.fifo:
        return None
    return target


async def move(tx: Transaction, state: QueueState, target: QueueState, rows: list[Row]) -> None:
    """Take the (visible) messages of the rows out of their queue and into the target: each is one row, changed in place,
    so there is no instant at which it is in both or in neither."""
    if not target.has_lanes and any(row[8] is not None for row in rows):
        await queues.give_lanes(tx, target)
    seqs = [int(row[0]) for row in rows]
    # A place can only be taken there if the clock was set back; then the transaction fails, and the next one gives new ones.
    new_seqs = seqs
    if target.fifo or tx.redone:
        new_seqs = [tx.seq(target, number) for number in await tx.numbers(len(rows))]
    tx.later(
        Q.to_dead_letters,
        {
            "queue": state.id,
            "target": target.id,
            "source": state.queue.key.arn,
            "fifo": state.fifo,
            "seqs": seqs,
            "new_seqs": new_seqs,
        },
    )
    tx.count(state, visible=-len(rows))
    tx.count(target, visible=len(rows))
    for row, new_seq in zip(rows, new_seqs, strict=True):
        target.visible_from(new_seq)
        lanes.change(state, row[8], members=-1)
        lanes.change(target, row[8], members=1)
        if tx.journal is not None:
            tx.journal.note(
                DEAD_LETTERED,
                tx.now_ms,
                state.queue.key,
                row[0],
                row[1],
                delivery=row[13],
                receive_count=row[11],
                body_bytes=row[18],
                message_type=row[17],
                other_queue=target.queue.key,
                other_seq=None if new_seq == row[0] else new_seq,
            )
    tx.counted("dead_lettered", state, len(rows))
    tx.available(target, len(rows))
