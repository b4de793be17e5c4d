"""A queue of the memory store and everything in it, with the scans that say what may be received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from veil.core.fairness import noisy_groups
from veil.core.lease import Held, State
from veil.core.message import StoredMessage
from veil.core.queue import DeduplicationScope, Queue
from veil.core.receipt import Receipt


@dataclass(slots=True)
class Row:
    """A message where it lies, and the delivery that holds it (0: nobody does)."""

    message: StoredMessage
    holder: int = 0
    rotation: int = 0  # how often the holder's receipt was replaced

    def held(self) -> Held:
        message = self.message
        return Held(
            State(message.state),
            message.delivery,
            self.holder,
            message.received_at_ms or 0,
            message.due_at_ms or 0,
            self.rotation,
        )

    def hide(self, holder: int, deadline_ms: int, rotation: int = 0) -> None:
        self.message.state, self.message.due_at_ms = State.IN_FLIGHT, deadline_ms
        self.holder, self.rotation = holder, rotation

    def delay_until(self, instant_ms: int, now_ms: int) -> None:
        if instant_ms > now_ms:
            self.message.state, self.message.due_at_ms = State.DELAYED, instant_ms
        else:
            self.show()

    def show(self) -> None:
        self.message.state, self.message.due_at_ms = State.VISIBLE, None
        self.holder = self.rotation = 0


@dataclass(slots=True)
class FirstSend:
    """The message that later ones with its deduplication id are duplicates of."""

    message_id: str
    seq: int
    until_ms: int


@dataclass(slots=True)
class Attempt:
    """What an attempt gave: seq, delivery and deadline of each message, in the order of the answer."""

    until_ms: int
    given: list[tuple[int, int, int | None]]


@dataclass(slots=True)
class Shelf:
    """A queue and everything in it."""

    queue: Queue
    scope: DeduplicationScope  # as it was at creation: later edits of the setting change nothing
    rows: dict[int, Row] = field(default_factory=dict)
    turns: dict[str | None, int] = field(default_factory=dict)
    first_sends: dict[tuple[str | None, str], FirstSend] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    purged_at_ms: int | None = None

    @property
    def fifo(self) -> bool:
        return self.queue.settings.fifo

    def in_order(self) -> list[Row]:
        return [row for _, row in sorted(self.rows.items())]

    def of_state(self, state: State) -> list[Row]:
        return [row for row in self.in_order() if row.message.state == state]

    def find(self, receipt: Receipt) -> Row | None:
        return self.rows.get(receipt.seq) if receipt.queue_id == self.queue.id else None

    def put(self, row: Row, turn: Callable[[], int]) -> None:
        self.rows[row.message.seq] = row
        if self.fifo and row.message.group not in self.turns:
            self.turns[row.message.group] = turn()

    def remove(self, row: Row) -> None:
        del self.rows[row.message.seq]
        group = row.message.group
        if not any(other.message.group == group for other in self.rows.values()):
            self.turns.pop(group, None)

    def receivable(self) -> list[Row]:
        """The messages that may be taken now, in the order in which a receive would."""
        return self._receivable_by_turn() if self.fifo else self._receivable_fairly()

    def _receivable_by_turn(self) -> list[Row]:
        groups: dict[str | None, list[Row]] = {
            group: [] for group in sorted(self.turns, key=self.turns.__getitem__)
        }
        blocked: set[str | None] = set()
        for row in self.in_order():
            group = row.message.group
            if row.message.state != State.VISIBLE:
                blocked.add(group)
            if group not in blocked:
                groups[group].append(row)
        return [row for run in groups.values() for row in run]

    def _receivable_fairly(self) -> list[Row]:
        in_flight = self.of_state(State.IN_FLIGHT)
        by_group = Counter(row.message.group for row in in_flight if row.message.group is not None)
        noisy = noisy_groups(by_group, len(in_flight))
        visible = sorted(
            self.of_state(State.VISIBLE), key=lambda row: (row.message.priority, row.message.seq)
        )
        quiet = [row for row in visible if row.message.group not in noisy]
        return quiet + [row for group in noisy for row in visible if row.message.group == group]
