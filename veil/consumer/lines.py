"""Which message is next: in arrival order on a standard queue, group by group on a FIFO queue. Pure, no waiting."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Protocol

from veil.consumer.message import Message
from veil.consumer.prefetch import RECEIVE_MAX

# A group that failed so long ago is somebody else's by now, or mended.
_FAILING_S: Final = 900.0
_FAILING_MAX: Final = 1_000


class Line(Protocol):
    """Messages that wait for a slot."""

    def __len__(self) -> int:
        """How many wait."""

    def slots_needed(self, in_hand: int) -> int:
        """How many slots everything takes that waits or, as `in_hand` counts, is at work."""

    def receive_max(self) -> int:
        """How many messages one receive should ask for at most."""

    def add(self, message: Message) -> None:
        """Let one more wait."""

    def take(self) -> Message | None:
        """The one to begin next; None when nobody may."""

    def take_with(self, first: Message, count: int, fits: Callable[[Message], bool]) -> list[Message]:
        """Up to so many more that may be handled together with the one just taken, in order."""

    def halt(self, message: Message) -> list[Message]:
        """It failed: those that must not be begun after it, in order. They wait no longer."""

    def settled(self, message: Message, gone: bool) -> bool:
        """What was taken has come to its end, out of the queue or not; whether that let somebody go on."""

    def drain(self) -> list[Message]:
        """Everything that waits, in order, taken out of the line."""


class StandardLine:
    """First come, first served; nobody stands in anybody's way."""

    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def slots_needed(self, in_hand: int) -> int:
        return len(self._waiting) + in_hand

    def receive_max(self) -> int:
        return RECEIVE_MAX

    def add(self, message: Message) -> None:
        self._waiting.append(message)

    def take(self) -> Message | None:
        return self._waiting.popleft() if self._waiting else None

    def take_with(self, first: Message, count: int, fits: Callable[[Message], bool]) -> list[Message]:
        taken: list[Message] = []
        passed: list[Message] = []
        while self._waiting and len(taken) < count:
            message = self._waiting.popleft()
            (taken if fits(message) else passed).append(message)
        self._waiting.extendleft(reversed(passed))
        return taken

    def halt(self, message: Message) -> list[Message]:
        return []

    def settled(self, message: Message, gone: bool) -> bool:
        return False

    def drain(self) -> list[Message]:
        rest = list(self._waiting)
        self._waiting.clear()
        return rest


class GroupLine:
    """Groups side by side, in turn; the members of each one after the other, the next only when the last is settled.

    A group takes one slot, however many of its members wait: nobody else could receive them anyway.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failed_at_s: OrderedDict[str, float] = OrderedDict()  # groups that were halted, the latest last
        self._waiting: dict[str, deque[Message]] = {}
        self._busy: set[str] = set()  # a member is at work or being settled
        self._turns: deque[str] = deque()  # groups whose first member may be taken
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def slots_needed(self, in_hand: int) -> int:
        return len(self._busy) + len(self._turns)

    def receive_max(self) -> int:
        """Ten, but one at a time while a group is failing.

        Whoever receives the member that failed gets those behind it in the same answer, and can only give them back: each
        time counts as a receive, and with the failing one they would all end among the dead letters, never having been
        handled. Alone, it counts alone.
        """
        now_s = self._monotonic()
        while self._failed_at_s:
            group, failed_at_s = next(iter(self._failed_at_s.items()))
            if now_s - failed_at_s < _FAILING_S and len(self._failed_at_s) <= _FAILING_MAX:
                return 1
            del self._failed_at_s[group]
        return RECEIVE_MAX

    def add(self, message: Message) -> None:
        group = message.group or ""
        members = self._waiting.get(group)
        if members is None:
            members = self._waiting[group] = deque()
            if group not in self._busy:
                self._turns.append(group)
        members.append(message)
        self._count += 1

    def take(self) -> Message | None:
        if not self._turns:
            return None
        group = self._turns.popleft()
        members = self._waiting[group]
        message = members.popleft()
        if not members:
            del self._waiting[group]
        self._busy.add(group)
        self._count -= 1
        return message

    def take_with(self, first: Message, count: int, fits: Callable[[Message], bool]) -> list[Message]:
        # Of its own group, and only the leading ones: skipping one would put the next before it.
        group = first.group or ""
        members = self._waiting.get(group)
        taken: list[Message] = []
        while members and len(taken) < count and fits(members[0]):
            taken.append(members.popleft())
        if members is not None and not members:
            del self._waiting[group]
        self._count -= len(taken)
        return taken

    def halt(self, message: Message) -> list[Message]:
        # The group stays busy until `settled`: what is received of it meanwhile must not overtake what is given back.
        group = message.group or ""
        self._failed_at_s[group] = self._monotonic()
        self._failed_at_s.move_to_end(group)
        rest = list(self._waiting.pop(group, ()))
        self._count -= len(rest)
        return rest

    def settled(self, message: Message, gone: bool) -> bool:
        group = message.group or ""
        if gone:
            self._failed_at_s.pop(group, None)
        self._busy.discard(group)
        if group in self._waiting:
            self._turns.append(group)
        return True

    def drain(self) -> list[Message]:
        rest = [message for members in self._waiting.values() for message in members]
        self._waiting.clear()
        self._turns.clear()
        self._count = 0
        return rest
