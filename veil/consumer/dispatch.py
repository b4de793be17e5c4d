"""Which message is handled next, and how many at a time: in arrival order, or group by group on a FIFO queue."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

from veil.client.api import BATCH_MAX, ApiError
from veil.consumer.message import Message
from veil.consumer.outcomes import LetExpire, Outcome
from veil.consumer.processing import Interrupted, MessageProcessor
from veil.consumer.receiver import HandlingTime

_log = logging.getLogger(__name__)


# ---- order

# A group that failed so long ago is held by another consumer by now, or works again.
_FAILING_S: Final = 900.0
_FAILING_MAX: Final = 1_000


class WaitingMessages:
    """Messages that wait for a slot. First come, first served: none waits for another one."""

    def __init__(self) -> None:
        self._all: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._all)

    def slots_needed(self, in_hand: int) -> int:
        """How many slots everything takes that waits or, as `in_hand` counts, is at work."""
        return len(self._all) + in_hand

    @property
    def ready(self) -> int:
        """How many could be taken now, one after the other, before any of them is settled."""
        return len(self._all)

    def receive_max(self, bulk_max: int) -> int:
        """How many messages one receive should ask for at most, of so many that it may."""
        return bulk_max

    def add(self, message: Message) -> None:
        """Let one more wait."""
        self._all.append(message)

    def take(self) -> Message | None:
        """The message to begin next; None when none may begin."""
        return self._all.popleft() if self._all else None

    def take_with(self, first: Message, count: int, fits: Callable[[Message], bool]) -> list[Message]:
        """Up to so many more that may be handled together with the one just taken, in order."""
        taken: list[Message] = []
        passed: list[Message] = []
        while self._all and len(taken) < count:
            message = self._all.popleft()
            (taken if fits(message) else passed).append(message)
        self._all.extendleft(reversed(passed))
        return taken

    def halt(self, message: Message) -> list[Message]:
        """It failed: those that must not be begun after it, in order. They wait no longer."""
        return []

    def settled(self, message: Message, gone: bool) -> bool:
        """What was taken has its outcome, out of the queue (`gone`) or not; whether another message may begin now."""
        return False

    def drain(self) -> list[Message]:
        """Everything that waits, in order, taken out of it."""
        rest = list(self._all)
        self._all.clear()
        return rest


class FifoWaiting(WaitingMessages):
    """Groups side by side, in turn; the members of each one after the other, the next only when the last is settled.

    A group takes one slot, however many of its members wait: no other consumer could receive them anyway.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._failed_at_s: OrderedDict[str, float] = OrderedDict()  # groups that were halted, the latest last
        self._waiting: dict[str, deque[Message]] = {}
        self._busy: set[str] = set()  # a member is at work or being settled
        self._turns: deque[str] = deque()  # groups whose first member may be taken
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def ready(self) -> int:
        return len(self._turns)

    def slots_needed(self, in_hand: int) -> int:
        return len(self._busy) + len(self._turns)

    def receive_max(self, bulk_max: int) -> int:
        """Ten, but one at a time while a group is failing.

        A receive of ten that brings the failing member brings those behind it too, and they can only be given back. Each time
        counts as a receive, so they would all end among the dead letters without having been handled.
        """
        now_s = self._monotonic()
        while self._failed_at_s:
            group, failed_at_s = next(iter(self._failed_at_s.items()))
            if now_s - failed_at_s < _FAILING_S and len(self._failed_at_s) <= _FAILING_MAX:
                return 1
            del self._failed_at_s[group]
        return BATCH_MAX

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


# ---- dispatching

# A handler that took no longer has not waited for anything: the task can be used again, and the event loop is not kept for long.
_QUICK_S: Final = 0.000_05


def _is_now(context: contextvars.Context) -> bool:
    """Whether the context variables are still as they were."""
    try:
        return contextvars.copy_context() == context
    except Exception:  # values that cannot be compared
        return False


class Dispatch:
    """The slots. A slot is free again when its handler has ended; its group, when what became of it is settled."""

    def __init__(
        self,
        waiting: WaitingMessages,
        slots: int,
        processor: MessageProcessor,
        handling: HandlingTime,
        *,
        on_free_slot: Callable[[], None],
    ) -> None:
        self._waiting, self._slots, self._processor = waiting, slots, processor
        self._handling, self._on_free_slot = handling, on_free_slot
        self._running: dict[asyncio.Task[None], list[Message]] = {}
        # In which every message is handled, whatever others left in theirs.
        self._context = contextvars.copy_context()
        self._starting = False  # a task is about to take a message
        self.in_hand = 0  # messages whose handlers are at work
        self._settling = 0
        self._settles: set[asyncio.Task[None]] = set()  # those under way that take more than a delete
        self._all_settled: asyncio.Future[None] | None = None  # set while `drained` waits
        self._closed = False
        self._late: list[Message] = []  # received when nothing was begun any more

    @property
    def waiting(self) -> int:
        """Messages received and not begun."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Handlers at work."""
        return len(self._running)

    @property
    def settling(self) -> int:
        """Messages whose handlers have ended and whose outcome is not carried out yet."""
        return self._settling

    @property
    def slots_taken(self) -> int:
        """Of the slots, and of what is received ahead of them, how many are taken."""
        return self._waiting.slots_needed(self.in_hand)

    def messages(self) -> list[Message]:
        """The messages whose handlers are at work."""
        return [message for messages in self._running.values() for message in messages]

    def offer(self, messages: Sequence[Message]) -> None:
        """Take messages in, and begin as many as there are slots for."""
        if self._closed:
            self._late.extend(messages)
            return
        for message in messages:
            self._waiting.add(message)
        self._begin()

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True

    def not_begun(self) -> list[Message]:
        """Everything that waits or came late, in order, for the caller to give back."""
        late, self._late = self._late, []
        return self._waiting.drain() + late

    async def drained(self) -> None:
        """Return when every handler has ended and every outcome is carried out."""
        while self._running or self._settling:
            if self._running:
                await asyncio.wait(self._running)
            else:
                self._all_settled = asyncio.get_running_loop().create_future()
                await self._all_settled

    def interrupt(self) -> None:
        """End the handlers that are still at work; their messages are settled as interrupted."""
        for task in self._running:
            task.cancel()

    def _begin(self) -> None:
        """Start a task if a message may begin. Once it has taken one, it starts the next task itself."""
        if (
            not self._starting
            and not self._closed
            and self._waiting.ready
            and len(self._running) < self._slots
        ):
            self._starting = True
            asyncio.get_running_loop().create_task(self._work(), context=self._context.copy())

    def _next(self) -> list[Message]:
        """What is begun next, one message or as many as its handler takes; nothing when nothing may be."""
        first = None if self._closed else self._waiting.take()
        if first is None:
            return []
        most = self._processor.batch_max(first)
        if most == 1:
            return [first]
        return [
            first,
            *self._waiting.take_with(first, most - 1, functools.partial(self._processor.fits, first)),
        ]

    async def _work(self) -> None:
        """Handle what is next, and go on while handlers are quick and leave the task's context as it was."""
        self._starting = False
        task = asyncio.current_task()
        assert task is not None
        try:
            while messages := self._next():
                self._running[task] = messages
                self.in_hand += len(messages)
                self._begin()
                outcomes: Sequence[Outcome | None]
                try:
                    outcomes = await self._processor.work(messages)
                except asyncio.CancelledError:
                    task.uncancel()  # the handler was ended; its message still needs its outcome
                    outcomes = [Interrupted() if self._closed else LetExpire()] * len(messages)
                    if not self._closed:
                        _log.warning("the handler's task was cancelled", extra=messages[0].extra())
                except (Exception, GeneratorExit) as error:
                    if isinstance(error, GeneratorExit) and not _is_current(task):
                        raise  # not the handler's own: this task is being thrown away
                    _log.exception("handling failed in an unforeseen way", extra=messages[0].extra())
                    outcomes = [LetExpire()] * len(messages)
                finally:
                    del self._running[task]
                    self.in_hand -= len(messages)
                    self._on_free_slot()
                self._settling += 1
                if len(messages) > 1 or not self._processor.settle_at_once(
                    messages[0], outcomes[0], self._settled
                ):
                    # In a task of its own: a handler may have left a cancellation of this one behind.
                    settle = asyncio.get_running_loop().create_task(self._settle(messages, outcomes))
                    self._settles.add(settle)
                    settle.add_done_callback(self._settles.discard)
                    return
                if self._handling.last_s > _QUICK_S or task.cancelling() or not _is_now(self._context):
                    return
        finally:
            self._begin()

    async def _settle(self, messages: list[Message], outcomes: Sequence[Outcome | None]) -> None:
        first, gone = messages[0], False
        try:
            gone = await self._processor.settle(messages, outcomes, lambda: self._waiting.halt(first))
        except Exception:
            _log.exception("settling failed in an unforeseen way", extra=first.extra())
            self._processor.let_expire([*messages, *self._waiting.halt(first)])
        finally:
            if self._waiting.settled(first, gone):
                self._begin()
                self._on_free_slot()
            self._settled(None)

    def _settled(self, _error: ApiError | None) -> None:
        """What became of a message is carried out, or cannot be."""
        self._settling -= 1
        self._on_free_slot()  # nothing is received while too many deletes wait
        if not self._settling and self._all_settled is not None and not self._all_settled.done():
            self._all_settled.set_result(None)


def _is_current(task: asyncio.Task[None]) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs any more
        return False
