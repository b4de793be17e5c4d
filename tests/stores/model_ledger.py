"""What must hold of any store, told from its answers alone: no reference is asked.

* While a window is open nobody else receives, deletes or extends the message.
* Every message that was sent is in exactly one queue until it is deleted, purged or past its retention; nothing comes
  back after that, and nothing was never sent.
* FIFO: whoever gets a message of a group also got everything of the group before it.
* The counts are what a look at the messages gives.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from veil.core.lease import State
from veil.core.message import StoredMessage
from veil.core.queue import QueueCounts
from veil.core.sequence import instant_of


class Broken(AssertionError):
    """A promise was broken."""


class Window(NamedTuple):
    queue: str
    holder: int
    until_ms: int


class Ledger:
    """Follows every message by its body, which the driver makes unique."""

    def __init__(self) -> None:
        self._alive: dict[str, int] = {}  # body: engine time from which its retention counts, as last seen
        self._windows: dict[str, Window] = {}

    def sent(self, body: str, seq: int) -> None:
        self._alive[body] = instant_of(seq)

    def received(self, queue: str, message: StoredMessage, now_ms: int, *, attempt: bool) -> None:
        body = message.body
        if body not in self._alive:
            raise Broken(f"{body} was received after its end")
        window = self._open_window(body, now_ms)
        if window is not None and not (attempt and window.holder == message.delivery):
            raise Broken(f"{body} was received while {window} was open")
        if message.state == State.IN_FLIGHT:
            self._windows[body] = Window(queue, message.delivery, message.due_at_ms or 0)
        else:
            self._windows.pop(body, None)

    def acted(self, body: str, delivery: int, now_ms: int) -> None:
        """A receipt had an effect."""
        window = self._open_window(body, now_ms)
        if window is not None and window.holder != delivery:
            raise Broken(f"delivery {delivery} of {body} acted while {window} was open")

    def extended(self, queue: str, body: str, delivery: int, visibility_s: int, now_ms: int) -> None:
        self.acted(body, delivery, now_ms)
        if visibility_s:
            self._windows[body] = Window(queue, delivery, now_ms + visibility_s * 1000)
        else:
            self._windows.pop(body, None)

    def seen_held(self, queue: str, body: str, delivery: int, until_ms: int, now_ms: int) -> None:
        """The message is in flight after something that may have extended that delivery's lease."""
        window = self._open_window(body, now_ms)
        if window is None or window.holder == delivery:
            self._windows[body] = Window(queue, delivery, until_ms)

    def holder(self, body: str, now_ms: int) -> int | None:
        """The delivery that holds the message, where a window is open."""
        window = self._open_window(body, now_ms)
        return None if window is None else window.holder

    def undone(self, body: str, delivery: int, now_ms: int) -> None:
        window = self._open_window(body, now_ms)
        if window is not None and window.holder == delivery:
            del self._windows[body]

    def ended(self, body: str) -> None:
        """Deleted or purged."""
        self._alive.pop(body, None)
        self._windows.pop(body, None)

    def seen(self, queues: dict[str, list[StoredMessage]], now_ms: int, retention_min_s: int) -> None:
        """Every message of every queue, at one instant."""
        present = Counter(message.body for messages in queues.values() for message in messages)
        twice = [body for body, count in present.items() if count > 1]
        if twice:
            raise Broken(f"in more than one place: {twice}")
        ghosts = present.keys() - self._alive.keys()
        if ghosts:
            raise Broken(f"there after their end: {sorted(ghosts)}")
        for body in self._alive.keys() - present.keys():
            if now_ms < self._alive[body] + retention_min_s * 1000:
                raise Broken(f"{body} is lost")
            self.ended(body)
        for messages in queues.values():
            for message in messages:
                self._alive[message.body] = instant_of(message.seq)
                window = self._open_window(message.body, now_ms)
                if window is not None and message.state != State.IN_FLIGHT:
                    raise Broken(f"{message.body} is not in flight though {window} is open")

    def _open_window(self, body: str, now_ms: int) -> Window | None:
        window = self._windows.get(body)
        return window if window is not None and window.until_ms > now_ms else None


def check_counts(queue: str, counts: QueueCounts, messages: list[StoredMessage]) -> None:
    states = Counter(message.state for message in messages)
    seen = QueueCounts(states[State.VISIBLE], states[State.IN_FLIGHT], states[State.DELAYED])
    if counts != seen:
        raise Broken(f"{queue} counts {counts} and holds {seen}")


def check_group_order(taken: list[StoredMessage], present: list[StoredMessage]) -> None:
    """After a receive on a FIFO queue: what it took, and all there is."""
    taken_seqs = {message.seq for message in taken}
    last = {message.group: message.seq for message in sorted(taken, key=lambda message: message.seq)}
    for group in last:
        order = [message.seq for message in taken if message.group == group]
        if order != sorted(order):
            raise Broken(f"group {group} came out of order")
    for message in present:
        if message.seq < last.get(message.group, 0) and message.seq not in taken_seqs:
            raise Broken(f"{message.body} was overtaken in group {message.group}")
