"""Gives messages to their handlers: as many at a time as there are slots, in the order that the line gives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from veil.consumer.lines import Line
from veil.consumer.message import Message
from veil.consumer.outcome import LetExpire, Outcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interrupted(Outcome):
    """Its handler was ended in the middle because the consumer stops: make it visible at once, for another one."""


class Desk(Protocol):
    """Where a message is worked on and then settled."""

    def together(self, message: Message) -> tuple[int, Callable[[Message], bool]]:
        """How many messages its handler takes at a time, and which fit into one call with it."""

    async def work(self, messages: Sequence[Message]) -> list[Outcome | None]:
        """What is to become of each; None: nothing, its lease is lost. Raises nothing but cancellation."""

    async def settle(
        self,
        messages: Sequence[Message],
        outcomes: Sequence[Outcome | None],
        halt: Callable[[], list[Message]],
    ) -> bool:
        """Carry the outcomes out; whether all are out of the queue. `halt` gives what must not be begun after a failure, to be
        given back in order."""


class Dispatch:
    """The slots. A slot is free again when its handler has ended; its group, when what became of it is settled."""

    def __init__(self, line: Line, slots: int, desk: Desk, *, on_room: Callable[[], None]) -> None:
        self._line, self._slots, self._desk, self._on_room = line, slots, desk, on_room
        self._running: dict[asyncio.Task[None], list[Message]] = {}
        self._in_hand = 0  # messages whose handlers are at work
        self._settling: set[asyncio.Task[None]] = set()
        self._closed = False
        self._late: list[Message] = []  # received when nothing was begun any more

    @property
    def waiting(self) -> int:
        """Messages received and not begun."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Handlers at work."""
        return len(self._running)

    @property
    def held(self) -> int:
        """Messages received and not handled yet."""
        return len(self._line) + self._in_hand

    @property
    def settling(self) -> int:
        """Messages whose handlers have ended and whose outcome is not carried out yet."""
        return len(self._settling)

    @property
    def slots_taken(self) -> int:
        """Of the slots, and of what is received ahead of them, how many are taken."""
        return self._line.slots_needed(self._in_hand)

    def messages(self) -> list[Message]:
        """The messages whose handlers are at work."""
        return [message for messages in self._running.values() for message in messages]

    def offer(self, messages: Sequence[Message]) -> None:
        """Take messages in, and begin as many as there are slots for."""
        if self._closed:
            self._late.extend(messages)
            return
        for message in messages:
            self._line.add(message)
        self._begin()

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True

    def not_begun(self) -> list[Message]:
        """Everything that waits or came late, in order, handed over to whoever gives it back."""
        late, self._late = self._late, []
        return self._line.drain() + late

    async def drained(self) -> None:
        """Return when every handler has ended and every outcome is carried out."""
        while pending := self._running.keys() | self._settling:
            await asyncio.wait(pending)

    def interrupt(self) -> None:
        """End the handlers that are still at work; their messages are settled as interrupted."""
        # Soon, not now: a task that is cancelled before its first step never takes it, and its message would be nobody's.
        for task in self._running:
            asyncio.get_running_loop().call_soon(task.cancel)

    def _begin(self) -> None:
        while not self._closed and len(self._running) < self._slots:
            first = self._line.take()
            if first is None:
                return
            messages = [first]
            most, fits = self._desk.together(first)
            if most > 1:
                messages += self._line.take_with(first, most - 1, fits)
            task = asyncio.get_running_loop().create_task(self._run(messages))
            self._running[task] = messages
            self._in_hand += len(messages)

    async def _run(self, messages: list[Message]) -> None:
        task = asyncio.current_task()
        assert task is not None
        outcomes: Sequence[Outcome | None]
        try:
            outcomes = await self._desk.work(messages)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            task.uncancel()  # the stop ends the handler, not what has to become of its message
            outcomes = [Interrupted()] * len(messages)
        except Exception:
            logger.exception("handling failed in an unforeseen way", extra={"facts": messages[0].facts})
            outcomes = [LetExpire()] * len(messages)
        finally:
            del self._running[task]
            self._in_hand -= len(messages)
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
            self._begin()
            self._on_room()
        gone = False
        try:
            gone = await self._desk.settle(messages, outcomes, lambda: self._line.halt(messages[0]))
        except Exception:
            logger.exception("settling failed in an unforeseen way", extra={"facts": messages[0].facts})
        finally:
            if self._line.settled(messages[0], gone):
                self._begin()
                self._on_room()
