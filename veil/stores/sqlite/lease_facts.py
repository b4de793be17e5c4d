"""What the journal tells of a lease, kept in memory from its receive to its delete.

A delete has to record which message it ended. To read that from the row first would make it half as dear again, and nearly
every delete follows a receive or an extension that has just seen it all. So those leave it here, and a delete that finds
nothing (after a restart, or where there were too many) reads the row instead.
"""

from __future__ import annotations

# Message id, delivery, deadline, receive count, size and type: as they follow one another in an event.
Facts = tuple[str, int, int | None, int, int, str | None]

FACTS_MAX = 16_384


class LeaseFacts:
    """The facts of leases that are open, or were lately: only a delete by the holder of an open lease may use them."""

    __slots__ = ("_facts",)

    def __init__(self) -> None:
        self._facts: dict[int, Facts] = {}

    def keep(self, seq: int, facts: Facts) -> None:
        """A lease was opened, or has a new deadline."""
        if len(self._facts) >= FACTS_MAX:
            self._facts.clear()  # cheaper than to look for the oldest, and they are only a shortcut
        self._facts[seq] = facts

    def take(self, seq: int, delivery: int) -> Facts | None:
        """The facts of that delivery's lease, once."""
        facts = self._facts.pop(seq, None)
        return facts if facts is not None and facts[1] == delivery else None

    def clear(self) -> None:
        """Forget everything: a transaction was undone, and with it perhaps a lease."""
        self._facts.clear()
