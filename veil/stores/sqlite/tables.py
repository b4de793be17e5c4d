"""The store's rows and what is kept of them in memory: the common ground of all operations.

In memory is only what has a size bounded by the number of queues: settings, counts, and for each queue a lower bound of
the instant at which something next becomes due. Everything else is read from the database when it is needed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import apsw

from veil.core.clock import Clock
from veil.core.errors import QueueMissing
from veil.core.message import StoredMessage
from veil.core.priority import PRIORITY_DEFAULT
from veil.core.queue import Queue, QueueCounts, QueueKey
from veil.core.sequence import SequenceSource, expires_at_ms
from veil.stores.codec import decode_attributes, decode_settings, decode_tags
from veil.stores.named_queries import NamedQueries
from veil.stores.recorder import Recorder
from veil.stores.sqlite.lease_facts import LeaseFacts

Q: Final = NamedQueries("veil.stores.sqlite", "queries.sql")
_NEVER: Final = 1 << 62
_WRITE_MARK: Final = Q.write_mark


@dataclass(slots=True)
class QueueState:
    """One queue in memory."""

    queue: Queue
    scope: str
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    has_lanes: bool = False
    purged_at_ms: int | None = None
    ranked: bool = False  # a message of another priority than the ordinary one was sent here, at some time
    next_wake_ms: int = _NEVER  # not later than the first hidden message becomes due
    next_expiry_ms: int = _NEVER  # not later than the first visible message passes its retention
    next_due_ms: int = _NEVER  # the earlier of the two; kept, because every operation asks for it

    @property
    def counts(self) -> QueueCounts:
        return QueueCounts(self.visible, self.in_flight, self.delayed)


class Tables:
    """The open database together with the state in memory that belongs to it."""

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock
        self.cursor = connection.cursor()
        self.execute: Callable[..., Any] = self.cursor.execute
        self.notice: Callable[[str, int, int], None] = lambda event, queue_id, count: None
        self.sequence = SequenceSource()
        self.journal: Recorder | None = None  # None: nothing is recorded
        self.lease_facts = LeaseFacts()
        self.outbox_last = self.outbox_bytes = 0  # see outbox.py
        self._also_load: list[Callable[[], None]] = []
        self._also_commit: list[Callable[[], None]] = []
        self.states: dict[int, QueueState] = {}
        self.by_key: dict[QueueKey, QueueState] = {}
        self._dirty: set[int] = set()
        self._due: list[
            tuple[int, int]
        ] = []  # a heap of (instant, queue id); entries may be out of date, never missing
        # What the open transaction, and the last one, will have to announce: how often, by event and queue.
        self._pending: Counter[tuple[str, int]] = Counter()
        self._committed: Counter[tuple[str, int]] = Counter()

    # ---- state in memory

    def when_loaded(self, also: Callable[[], None]) -> None:
        """Have something else read again whenever the state is."""
        self._also_load.append(also)

    def when_committing(self, also: Callable[[], None]) -> None:
        """Have something else written with every transaction."""
        self._also_commit.append(also)

    def load(self) -> None:
        """Read the state of every queue; called at the start and after a rollback."""
        self.states.clear()
        self.by_key.clear()
        self._dirty.clear()
        self._due.clear()
        self._pending.clear()
        self._committed.clear()
        for row in self.execute(Q.load_queues).fetchall():
            queue = Queue(
                row[0],
                QueueKey(row[1], row[2], row[3]),
                decode_settings(row[4]),
                decode_tags(row[5]),
                row[7],
                row[8],
            )
            state = QueueState(queue, row[6], row[10], row[11], row[12], bool(row[13]), row[9])
            state.ranked = bool(row[14])
            self.keep(state)
        for state in self.states.values():
            self.look_ahead(state)
        for also in self._also_load:
            also()

    def keep(self, state: QueueState) -> None:
        self.states[state.queue.id] = state
        self.by_key[state.queue.key] = state

    def drop(self, state: QueueState) -> None:
        del self.states[state.queue.id]
        del self.by_key[state.queue.key]
        self._dirty.discard(state.queue.id)

    def queues(self) -> list[Queue]:
        """Every living queue."""
        return [state.queue for state in self.states.values()]

    def state_of(self, queue: Queue) -> QueueState:
        """The state of a living queue; raises QueueMissing for one that was deleted since."""
        state = self.states.get(queue.id)
        if state is None:
            raise QueueMissing(queue.key.name)
        return state

    def touch(self, state: QueueState) -> None:
        """The counts changed: write them with the commit."""
        self._dirty.add(state.queue.id)

    def rank(self, state: QueueState, priority: int) -> None:
        """A message of that priority arrived."""
        if priority != PRIORITY_DEFAULT and not state.ranked:
            state.ranked = True
            self.execute(Q.mark_ranked, (state.queue.id,))

    def look_ahead(self, state: QueueState) -> None:
        """Find out exactly when the queue next has something due."""
        # Read to the end, with `get`: after a rollback no transaction follows to end a statement, and a checkpoint could not
        # be made while one is open.
        wake_ms = self.execute(Q.next_wake, (state.queue.id,)).get
        oldest = self.execute(Q.oldest_visible, (state.queue.id,)).get if state.visible else None
        state.next_wake_ms = wake_ms if wake_ms is not None else _NEVER
        state.next_expiry_ms = (
            expires_at_ms(oldest, state.queue.settings.retention_s) if oldest is not None else _NEVER
        )
        state.next_due_ms = min(state.next_wake_ms, state.next_expiry_ms)
        if state.next_due_ms < _NEVER:
            heapq.heappush(self._due, (state.next_due_ms, state.queue.id))

    def hidden_until(self, state: QueueState, wake_at_ms: int) -> None:
        """A message was hidden that wakes at that instant."""
        if wake_at_ms < state.next_wake_ms:
            state.next_wake_ms = wake_at_ms
            self._note_due(state, wake_at_ms)

    def sent_visible(self, state: QueueState, seq: int) -> None:
        """A new message is visible; it expires after all the others, so it only counts where there are none."""
        if state.next_expiry_ms == _NEVER:
            self.visible_from(state, seq)

    def visible_from(self, state: QueueState, seq: int) -> None:
        """A message became visible: its retention counts for the next expiry."""
        expiry_ms = expires_at_ms(seq, state.queue.settings.retention_s)
        if expiry_ms < state.next_expiry_ms:
            state.next_expiry_ms = expiry_ms
            self._note_due(state, expiry_ms)

    def _note_due(self, state: QueueState, instant_ms: int) -> None:
        if instant_ms < state.next_due_ms:
            state.next_due_ms = instant_ms
            heapq.heappush(self._due, (instant_ms, state.queue.id))

    def next_due_ms(self) -> int | None:
        """The earliest instant at which any queue has something due."""
        while self._due:
            instant_ms, queue_id = self._due[0]
            state = self.states.get(queue_id)
            if state is not None and instant_ms >= state.next_due_ms:
                return state.next_due_ms if instant_ms == state.next_due_ms else self._requeue(state)
            heapq.heappop(self._due)
        return None

    def _requeue(self, state: QueueState) -> int:
        heapq.heapreplace(self._due, (state.next_due_ms, state.queue.id))
        return state.next_due_ms

    def due_states(self, now_ms: int) -> list[QueueState]:
        """The queues that have something due by then."""
        due = []
        while self._due and self._due[0][0] <= now_ms:
            _, queue_id = heapq.heappop(self._due)
            state = self.states.get(queue_id)
            if state is not None and state not in due:
                due.append(state)
        return due

    # ---- what the owner is told

    def available(self, state: QueueState, count: int = 1) -> None:
        """Messages became receivable: announce it once that is durable."""
        self._pending["available", state.queue.id] += count

    def counted(self, event: str, state: QueueState, count: int = 1) -> None:
        """Messages changed in a way that only the store sees: announce it once that is durable."""
        self._pending[event, state.queue.id] += count

    def noticed(self, event: str, state: QueueState) -> None:
        """Something was refused or passed over, which changes nothing: announce it at once."""
        self.notice(event, state.queue.id, 1)

    # ---- the ends of a transaction

    def before_commit(self) -> None:
        """Write what is kept per transaction: the counts that changed, what others keep, the clock's mark."""
        for queue_id in self._dirty:
            state = self.states[queue_id]
            self.execute(Q.write_count, (state.visible, state.in_flight, state.delayed, queue_id))
        self._dirty.clear()
        for also in self._also_commit:
            also()
        self.write_mark()
        self._committed.update(self._pending)
        self._pending.clear()

    def write_mark(self) -> None:
        """Keep the clock, the order key and what is said of the outbox."""
        mark = (*self.clock.mark(), self.sequence.last, self.outbox_last, self.outbox_bytes)
        self.execute(_WRITE_MARK, mark)

    def take_announcements(self) -> Counter[tuple[str, int]]:
        """What was committed since the last call and is to be told once it is durable."""
        taken, self._committed = self._committed, Counter()
        return taken


def to_message(row: Any) -> StoredMessage:
    """A row of any of the message queries."""
    message = StoredMessage(*row)
    if row[4] is not None:
        message.attributes = decode_attributes(row[4])
    return message
