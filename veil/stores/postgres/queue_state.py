"""What a node remembers of the queues, and what one transaction knows of those that it works on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from veil.core.queue import Queue, QueueCounts, QueueKey
from veil.core.sequence import expires_at_ms
from veil.stores.codec import decode_settings, decode_tags

NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A living queue as it stood at the epoch that the node knows."""

    queue: Queue
    scope: str
    has_lanes: bool
    purged_at_ms: int | None

    @property
    def is_sequential(self) -> bool:
        """Whether its operations follow one another: where groups take turns, what one does depends on the last."""
        return self.has_lanes or self.queue.settings.fifo


class KnownQueues:
    """The queues as of an epoch; it only ever goes forward."""

    def __init__(self) -> None:
        self.epoch = -1
        self.by_id: dict[int, KnownQueue] = {}
        self.by_key: dict[QueueKey, KnownQueue] = {}

    def learn(self, rows: Iterable[Any]) -> None:
        """Take in what `changed_queues` or `living_queues` said."""
        rows = list(rows)
        epoch = rows[0][0]
        if epoch <= self.epoch:
            return
        for _, queue_id, region, account, name, settings, tags, scope, *facts in rows:
            if queue_id is None:
                continue  # nothing has changed but the epoch
            created, modified, purged_at_ms, has_lanes, deleted_at_ms = facts
            self._forget(queue_id)
            if deleted_at_ms is None:
                key = QueueKey(region, account, name)
                queue = Queue(queue_id, key, decode_settings(settings), decode_tags(tags), created, modified)
                known = KnownQueue(queue, scope, has_lanes, purged_at_ms)
                self.by_id[queue_id] = self.by_key[key] = known
        self.epoch = epoch

    def all(self) -> list[Queue]:
        """Every living queue, oldest first."""
        return [known.queue for _, known in sorted(self.by_id.items())]

    def learn_anew(self, rows: Iterable[Any]) -> None:
        """Take in `living_queues` in place of everything known."""
        self.epoch = -1
        self.by_id.clear()
        self.by_key.clear()
        self.learn(rows)

    def _forget(self, queue_id: int) -> None:
        known = self.by_id.pop(queue_id, None)
        if known is not None and self.by_key.get(known.queue.key) is known:
            del self.by_key[known.queue.key]


@dataclass(slots=True, eq=False)
class QueueState:
    """A queue within one transaction, which holds its lock: nobody edits it meanwhile."""

    queue: Queue
    scope: str
    has_lanes: bool
    purged_at_ms: int | None
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    generation: int = 0  # of the counts
    changes: int = 0  # in the generation
    last_seq: int = 0  # FIFO: the highest order key given out
    next_wake_ms: int = NEVER  # when the first hidden message becomes due
    next_expiry_ms: int = NEVER  # not later than the first visible message passes its retention
    looked_ahead: bool = False  # the next wake is known also where it is later than now
    came_back: bool = False  # messages became visible in another place than at the end
    # What is still to be told to the lanes, one after the other: by group, how many more messages, and how many more of
    # them in flight.
    lane_changes: list[dict[str, list[int]]] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.queue.id

    @property
    def fifo(self) -> bool:
        return self.queue.settings.fifo

    @property
    def counts(self) -> QueueCounts:
        return QueueCounts(self.visible, self.in_flight, self.delayed)

    @property
    def retention_ms(self) -> int:
        return self.queue.settings.retention_s * 1000

    @property
    def next_due_ms(self) -> int:
        return min(self.next_wake_ms, self.next_expiry_ms)

    def looked_at(self, row: Any, *, ahead: bool) -> None:
        """Take in a row of `look_at_queues`, which looked `ahead` or just for what is due."""
        self.looked_ahead = ahead
        _, self.visible, self.in_flight, self.delayed, self.last_seq, wake_ms, oldest, *others = row
        _, self.generation, self.changes = others
        self.looks_ahead(wake_ms, oldest)

    def looks_ahead(self, wake_ms: int | None, oldest: int | None) -> None:
        """Take in when the first hidden message wakes, and the oldest message of all."""
        self.next_wake_ms = NEVER if wake_ms is None else wake_ms
        self.next_expiry_ms = NEVER
        if oldest is not None:
            self.visible_from(oldest)

    def hidden_until(self, wake_at_ms: int) -> None:
        """A message was hidden that wakes at that instant."""
        self.next_wake_ms = min(self.next_wake_ms, wake_at_ms)

    def visible_from(self, seq: int) -> None:
        """A message became visible: its retention counts for the next expiry."""
        self.next_expiry_ms = min(self.next_expiry_ms, expires_at_ms(seq, self.queue.settings.retention_s))
