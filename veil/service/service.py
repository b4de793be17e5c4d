"""The operations' common ground: a store, a clock, the rules, and what runs beside the requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from veil.core import limits
from veil.core.clock import Clock, Trouble
from veil.core.effect import HolderSign
from veil.core.errors import QueueMissing, VeilError
from veil.core.lease import is_open
from veil.core.message import Caller, StoredMessage
from veil.core.queue import Queue
from veil.journal.attempts import JournalLookup
from veil.service.activity import Activity, Tallies
from veil.service.attempts import SHARE_EVERY_MS, HeardCallers, JudgedLapse, LiveAttempts, read_heard
from veil.service.background import MoveRunners, Ticker
from veil.service.history import QueueHistory
from veil.service.time_slices import TimeSlices
from veil.service.waiting import WaitingReceives
from veil.stores.store import Store
from veil.stores.store import peek_one as peek_one

if TYPE_CHECKING:
    from veil.stores.sqlite.history_file import HistoryFile

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """Where operators may depart from SQS (0 turns a rest off), and what the journal calls a message."""

    rest_after_delete_ms: int = limits.REST_AFTER_DELETE_MS
    rest_after_purge_ms: int = limits.REST_AFTER_PURGE_MS
    # Where the type of a message stands, for the journal: the first of these attributes that is a text.
    type_attributes: tuple[str, ...] = ("MessageType", "message_type", "Type", "type")
    # Whether callers are told that leases have a grace after the server's own trouble.
    lease_grace: bool = False
    # Whether what holders tell of their errors is kept, beyond the class.
    error_texts: bool = True


# Of peeks: each may gather 16 MiB, which nobody counts until it is an answer.
LOOKS_AT_ONCE: Final = 4
# Looked at in a queue with messages in flight, to learn who holds them.
_PAGE_RESTORED: Final = 500
_PAGES_RESTORED: Final = 10


class ReceiveRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    count: int
    visibility_s: int | None  # None: the queue's own
    wait_s: int
    attempt_id: str | None
    caller: Caller


class Owner(Protocol):
    """The process that has the store, where ours is one of several that serve its clients.

    The receivers of all processes wait there, in one line. It notes what becomes of messages, and what it notes our operations
    do not.
    """

    async def long_poll(self, queue: Queue, wanted: ReceiveRequest) -> list[StoredMessage]:
        """See `service.receive`."""

    async def delivering(self, seq: int) -> None:
        """Return once the owner knows that the receive whose first message this is gets its answer: if we die from now on, it is
        not given back."""

    async def queue_depths(self, queues: Sequence[Queue], *, with_oldest: bool) -> Mapping[int, Any]:
        """See `service.history`."""


class Service:
    """A store that is open and ticking. The operations are functions on it, by subject."""

    def __init__(self, store: Store, clock: Clock, rules: ServiceRules | None = None) -> None:
        self.store = store
        self.clock = clock
        self.rules = rules or ServiceRules()
        self.tallies = Tallies()
        self.activity: Activity | None = None  # where somebody may look: see `watch`
        self.lives: JournalLookup | None = None  # where there is a journal: what it tells of single messages
        self.waiting = WaitingReceives(clock)
        self.owner: Owner | None = None  # of the store, where that is another process
        self.ticker = Ticker(store, clock)
        self.time_slices = TimeSlices()
        self.moves = MoveRunners(store, clock, self.time_slices, self.rules.type_attributes)
        self.looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._background: set[asyncio.Task[Any]] = set()
        self._restoring: asyncio.Task[None] | None = None
        # By other nodes; None: nobody has asked them yet.
        self._heard_elsewhere: list[HeardCallers] | None = None
        self._share_heard_ms = 0
        self._started = self._stopped = False
        # What the store reports (StoreEvents) goes straight to those whom it concerns.
        self.messages_available = self.waiting.messages_available
        self.due_sooner = self.ticker.look
        store.events = self

    def watch(self, history_file: HistoryFile | None = None, *, has_history: bool = True) -> Activity:
        """Take note of callers, holders and rates, from the start on; costs the hot path a little, so it is asked for. With a
        file what is known of rates and depths outlives a restart; without a history nothing is."""
        if self.activity is None:
            history = QueueHistory(self, history_file) if has_history else None
            self.activity = Activity(
                self.clock,
                self.tallies,
                history,
                self._judge_lapses,
                self.store.trouble_at,
                is_shared=self.store.is_shared,
            )
            if self._started:
                self.in_background(self.activity.start())
        return self.activity

    async def start(self, *, serves: bool = True) -> None:
        """Open the store, let deadlines run, and go on with the move tasks that were under way. Where requests are taken only
        later, whoever takes them tells the store so: until then no lease lapses."""
        await self.store.open()
        self._started = True
        if serves:
            self.store.begin_serving()
        self.ticker.start()
        if self.activity is not None:
            await self.activity.start()
        await self.moves.resume()
        self._restoring = self.in_background(self._restore_holders())

    async def stop(self) -> None:
        """Answer every long poll with nothing, leave move tasks to the next start, and close the store.

        Stopping again does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        if self._restoring is not None:
            self._restoring.cancel()  # a journal may be long, or out of reach
        self.waiting.close()
        if self.activity is not None:
            await self.activity.stop()
        await self.moves.stop()
        await self.ticker.stop()
        self.store.end_serving()
        # Claims that nobody waits for any more give their messages back first; doing so can add work, hence
        # the loop.
        while self._background:
            await asyncio.wait(self._background)
        if self.store.is_shared and self.activity is not None:
            await self._share_heard(self.activity.attempts, is_over=True)
        await self.store.close()

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the work to its end, also when nobody waits for it: `stop` does."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("work in the background failed: %s", error, exc_info=error)

    # ---- who held what when the server was stopped

    async def _restore_holders(self) -> None:
        """Learn from the journal who holds the messages that are in flight; a bounded number of them in each queue."""
        if self.activity is None or self.lives is None or not self.lives.is_kept:
            return
        for queue in await self.store.all_queues():
            with suppress(QueueMissing):  # deleted meanwhile
                await self._restore_holders_of(queue, self.activity, self.lives)

    async def _restore_holders_of(self, queue: Queue, activity: Activity, lives: JournalLookup) -> None:
        left = (await self.store.counts(queue)).in_flight
        held: dict[int, StoredMessage] = {}
        after = 0
        for _ in range(_PAGES_RESTORED if left else 0):
            page = await self.store.peek(queue, after_seq=after, limit=_PAGE_RESTORED, bytes_max=1 << 20)
            held |= {each.seq: each for each in page if is_open(each, self.clock.now_ms())}
            if not page or len(held) >= left:
                break
            after = page[-1].seq
        if held:
            for event in await lives.events(held.keys()):
                activity.attempts.restore(queue, held.get(event.seq), event)

    # ---- what becomes known of lapses, once a second

    def _judge_lapses(self) -> None:
        if self.activity is None:
            return
        attempts, now_ms = self.activity.attempts, self.clock.now_ms()
        if self.store.is_shared and now_ms >= self._share_heard_ms:
            self._share_heard_ms = now_ms + SHARE_EVERY_MS
            self.in_background(self._share_heard(attempts))
        judged: dict[int, list[JudgedLapse]] = {}
        for each in attempts.judge(self._heard_elsewhere if self.store.is_shared else ()):
            judged.setdefault(each.lapse.queue.id, []).append(each)
        for own in judged.values():
            self.in_background(self._note_holders(attempts, own))

    async def _share_heard(self, attempts: LiveAttempts, *, is_over: bool = False) -> None:
        """Tell the other nodes whom this one has heard, and learn whom they have."""
        try:
            self._heard_elsewhere = read_heard(await self.store.share_heard(attempts.heard(is_over=is_over)))
        except VeilError as error:  # what was told before is known still, and how old it is
            _log.debug("other nodes were not told who was heard here: %s", error)

    async def _note_holders(self, attempts: LiveAttempts, judged: Sequence[JudgedLapse]) -> None:
        """Tell the journal, except of leases that were extended, or ended, past us."""
        queue, now_ms = judged[0].lapse.queue, self.clock.now_ms()
        lapsed: list[HolderSign] = []
        try:
            for each in judged:
                sign = each.sign
                found = await peek_one(self.store, queue, sign.seq)
                if found is not None and is_open(found, now_ms) and found.delivery == sign.delivery:
                    attempts.was_no_lapse(each)
                    continue
                lapsed.append(sign)
                if found is not None or not self.store.is_shared:
                    attempts.settle_lapse(each)
                else:  # the journal knows who deleted it
                    attempts.was_no_lapse(each)
            await self.store.note_holders(queue, lapsed)
        except VeilError as error:  # the queue is gone, or the store is: neither is this lapse's business
            _log.debug("signs of life of holders in %s were not recorded: %s", queue.name, error)

    def troubled(self, trouble: Trouble) -> None:
        """The store could not take renewals."""
        if self.activity is not None and self.activity.history is not None:
            self.activity.history.troubled(trouble)

    def counted(self, event: str, queue_id: int, count: int) -> None:
        """The store has seen something happen."""
        self.tallies[event, queue_id] += count
