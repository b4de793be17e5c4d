"""What an operation is handed: the instant at which all of it happens, the shelves, and where to tell what it does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from veil.stores.memory.shelf import Shelf
from veil.stores.memory.shelves import Shelves
from veil.stores.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation under way."""

    shelves: Shelves
    now_ms: int
    wall_ms: int
    recorder: Recorder | None  # None: there is no journal
    happened: Counter[tuple[str, int]] = field(default_factory=Counter)  # by event and queue, for the owner

    def count(self, event: str, shelf: Shelf) -> None:
        """Have the owner told, when the operation is over, that this happened in the queue."""
        self.happened[event, shelf.queue.id] += 1

    def next_seq(self) -> int:
        """The place of a message that is new now."""
        return self.shelves.sequence.next(self.now_ms)
