"""All that the store has: a shelf for each queue, and what is not of one queue alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from veil.core.errors import QueueMissing
from veil.core.message import Caller, Sent
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, QueueKey
from veil.core.sequence import SequenceSource, expires_at_ms
from veil.stores.memory.hold_members import Stream
from veil.stores.memory.shelf import Shelf


@dataclass(slots=True)
class Shelves:
    """The shelves by the queue's id, and what stands beside them."""

    by_id: dict[int, Shelf] = field(default_factory=dict)
    deleted_at_ms: dict[QueueKey, int] = field(default_factory=dict)
    # What was answered, and until when that is remembered, by queue and retry key.
    sends: dict[tuple[int, bytes | None], tuple[int, list[Sent]]] = field(default_factory=dict)
    streams: dict[tuple[int, str], Stream] = field(default_factory=dict)  # by queue and name
    moves: dict[str, MoveTask] = field(default_factory=dict)
    move_callers: dict[str, Caller] = field(default_factory=dict)
    sequence: SequenceSource = field(default_factory=SequenceSource)
    queue_id_last: int = 0
    turn_last: int = 0

    def of(self, queue: Queue) -> Shelf:
        """The queue's shelf; raises QueueMissing where it has none."""
        # By id: a queue that was created again is another queue. The caller's settings may be old.
        if queue.id not in self.by_id:
            raise QueueMissing(queue.name)
        return self.by_id[queue.id]

    def of_key(self, key: QueueKey) -> Shelf | None:
        """The shelf of the queue that has the key now."""
        return next((shelf for shelf in self.by_id.values() if shelf.queue.key == key), None)

    def queues(self) -> list[Queue]:
        """Every queue, oldest first."""
        return [shelf.queue for _, shelf in sorted(self.by_id.items())]

    def next_turn(self) -> int:
        """A turn behind all that were given."""
        self.turn_last += 1
        return self.turn_last

    def receivable(self) -> set[tuple[int, int]]:
        """What may be received now, in every queue: its queue and seq."""
        return {
            (shelf.queue.id, row.message.seq) for shelf in self.by_id.values() for row in shelf.receivable()
        }

    def next_due_ms(self) -> int | None:
        """The next lapse, end of a delay, or expiry."""
        due: list[int] = []
        for shelf in self.by_id.values():
            retention_s = shelf.queue.settings.retention_s
            for row in shelf.rows.values():
                due.append(expires_at_ms(row.message.seq, retention_s))
                if row.message.due_at_ms is not None:
                    due.append(row.message.due_at_ms)
        return min(due, default=None)
