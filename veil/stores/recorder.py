"""Collects what happened to messages in the open transaction, until it is packed into one row of the outbox."""

from __future__ import annotations

from typing import Final

from veil.core.event import NOBODY, Kind, pack
from veil.core.lease import WAITING
from veil.core.message import Caller
from veil.core.queue import QueueKey
from veil.core.receipt import Receipt

# Plain numbers: an event is written for every change, and the members of an enum take longer to pack.
SENT: Final = int(Kind.SENT)
RECEIVED: Final = int(Kind.RECEIVED)
EXTENDED: Final = int(Kind.EXTENDED)
RELEASED: Final = int(Kind.RELEASED)
UNDONE: Final = int(Kind.UNDONE)
DELETED: Final = int(Kind.DELETED)
DELETE_REFUSED: Final = int(Kind.DELETE_REFUSED)
EXTENSION_REFUSED: Final = int(Kind.EXTENSION_REFUSED)
DEAD_LETTERED: Final = int(Kind.DEAD_LETTERED)
REDRIVEN: Final = int(Kind.REDRIVEN)
EXPIRED: Final = int(Kind.EXPIRED)
PURGED: Final = int(Kind.PURGED)
DELAYED: Final = int(Kind.DELAYED)


def of_rotation(
    receipt: Receipt, old_deadline_ms: int | None, deadline_ms: int | None, now_ms: int
) -> tuple[int, int | None]:
    """Which event a rotation is, and the deadline that is told with it; without a new deadline the message is visible."""
    if receipt.delivery == WAITING:
        return DELAYED, now_ms if deadline_ms is None else deadline_ms
    return (RELEASED, old_deadline_ms) if deadline_ms is None else (EXTENDED, deadline_ms)


class Recorder:
    """The events of one transaction, as plain tuples in the order of `core.event.Event`.

    Where it must be quick the event is appended to `events` by hand, with the places of queue and caller in it; else
    `note` does both.
    """

    __slots__ = ("_callers", "_last_caller", "_last_places", "_last_queue", "_queues", "events")

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self._queues: dict[QueueKey, int] = {}
        self._callers: dict[Caller, int] = {}
        self._last_queue: QueueKey | None = None
        self._last_caller: Caller | None = None
        self._last_places = (0, 0)

    def places(self, key: QueueKey, caller: Caller) -> tuple[int, int]:
        """The places of queue and caller in the packed row."""
        # Mostly the very same objects as the last time: to look at seven texts takes longer than to write the event.
        if key is self._last_queue and caller is self._last_caller:
            return self._last_places
        self._last_queue, self._last_caller = key, caller
        self._last_places = (
            self._queues.setdefault(key, len(self._queues)),
            self._callers.setdefault(caller, len(self._callers)),
        )
        return self._last_places

    def note(
        self,
        kind: int,
        at_ms: int,
        key: QueueKey,
        seq: int,
        message_id: str | None,
        *,
        delivery: int = 0,
        deadline_ms: int | None = None,
        receive_count: int | None = None,
        body_bytes: int | None = None,
        message_type: str | None = None,
        caller: Caller = NOBODY,
        other_queue: QueueKey | None = None,
        other_seq: int | None = None,
    ) -> None:
        """Record one event."""
        place, who = self.places(key, caller)
        there = None if other_queue is None else self.places(other_queue, caller)[0]
        facts = (message_id, delivery, deadline_ms, receive_count, body_bytes, message_type)
        self.events.append((kind, at_ms, place, seq, *facts, who, there, other_seq))

    def packed(self) -> bytes:
        """What was recorded, as a row of the outbox."""
        return pack(self._queues, self._callers, self.events)

    def clear(self) -> None:
        """Begin the next transaction, or forget one that was undone."""
        self.events = []
        self._queues.clear()
        self._callers.clear()
        self._last_queue = self._last_caller = None
