"""One run of a consumer, from its start to its stop: joins the parts, and knows what each needs of the others."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from veil.client.api import ApiError, RawMessage
from veil.client.client import SqsClient, with_retries
from veil.client.endpoint import region_in
from veil.consumer.acknowledging import Deletes, Releases
from veil.consumer.dispatch import Dispatch, FifoWaiting, WaitingMessages
from veil.consumer.handlers.table import HandlerTable
from veil.consumer.lease import Lease
from veil.consumer.message import Message
from veil.consumer.metrics import ConsumerMetrics, RenewalWatch
from veil.consumer.outcomes import Outcome, Release
from veil.consumer.processing import MessageProcessor
from veil.consumer.receiver import (
    AHEAD_MAX,
    BACKOFF,
    HandlingTime,
    QueueFacts,
    Receiver,
    prefetch_for,
    to_ask_for,
)
from veil.consumer.renewal.keeper import Keeper, KeeperEvents, steady_s
from veil.consumer.renewal.policies import RenewalPolicy
from veil.consumer.settings import ConsumerSettings, SettingsError
from veil.core.errors import VeilError
from veil.core.queue import QueueKey

if TYPE_CHECKING:
    from veil.consumer.attempts_journal import AttemptsJournal

_log = logging.getLogger(__name__)


T = TypeVar("T")

# How long interrupted handlers may take to end, and what is under way to be answered.
_LAST_S: Final = 3.0
_HELD_MAX: Final = 10_000  # of SQS's 120,000 in flight, what one consumer may hold
_READ_AGAIN_S: Final = 60.0
# So many deletes waiting for an answer mean that the service does not keep up: more messages would only make it worse.
_PENDING_ACKS_MAX: Final = 1_000


class ConsumerFailed(Exception):
    """The consumer cannot go on; the text says why in one line."""


class Runner:
    """Starts, runs and stops once. `ended` is done when everything is given back and closed."""

    def __init__(
        self,
        settings: ConsumerSettings,
        table: HandlerTable,
        dependencies: Dependencies,
        metrics: ConsumerMetrics,
    ) -> None:
        self._settings, self._table, self._metrics = settings, table, metrics
        self._dependencies = dependencies
        self._handling = HandlingTime()
        self._batch = max((handler.batch or 1 for handler in table.handlers), default=1)
        self._receive_target = min(_HELD_MAX, settings.concurrency * self._batch)
        self._stop_asked, self._hurried = asyncio.Event(), asyncio.Event()
        self._receives_ended = asyncio.Event()
        self._error: BaseException | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._api: SqsClient | None = None
        self._keeper: Keeper | None = None
        self._waiting = WaitingMessages()
        self._reading: asyncio.Task[None] | None = None
        self._journal: AttemptsJournal | None = None
        self.facts: QueueFacts
        self.receiver: Receiver
        self.dispatch: Dispatch
        self.deletes: Deletes
        self._releases: Releases
        self._processor: MessageProcessor
        self.is_receiving = False

    @property
    def problem(self) -> str | None:
        """Why no messages are received now; None when all is well."""
        if not self.is_receiving:
            return "stopping" if self.is_stopping() else "starting"
        return "the queue does not answer" if self.receiver.pausing else None

    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop_asked.is_set()

    def is_handling(self, message: Message | None) -> bool:
        """Whether a handler of this run is at work on the message."""
        return self._reading is not None and message in self.dispatch.messages()

    def ask_to_stop(self, error: BaseException | None = None) -> None:
        """Begin to stop, with the reason where it was not asked for."""
        if error is not None and self._error is None:
            self._error = error
        self._stop_asked.set()

    def hurry(self) -> None:
        """Stop without waiting for handlers."""
        self._stop_asked.set()
        self._hurried.set()

    async def run(self, started: Callable[[], None]) -> None:
        """Consume until asked to stop; raises ConsumerFailed when it was not by choice."""
        try:
            if not await self._started_unless_stopped():
                return
            started()
            await self._stop_asked.wait()
            self.is_receiving = False
            await self._stop()
        finally:
            await self._close()
        if self._error is not None:
            raise self._error

    # ---- the start

    async def _started_unless_stopped(self) -> bool:
        start = asyncio.ensure_future(self._start())
        try:
            await until_first(start, self._stop_asked.wait())
            if not start.done():
                start.cancel()
                await asyncio.wait([start])
            if start.cancelled():
                return False
            start.result()
            return True
        except ApiError as error:
            raise ConsumerFailed(f"queue {self._settings.queue}: {error}") from error
        finally:
            start.cancel()

    async def _start(self) -> None:
        settings, dependencies = self._settings, self._dependencies
        if not self._table.handlers:
            raise ConsumerFailed(
                f"queue {settings.queue}: the consumer has no handler; add one with @app.handler"
            )
        api = self._api = dependencies.make_api()
        url = await self._once_it_is_up(lambda: api.queue_url(settings.queue))
        visibility_s = settings.visibility_s or settings.renewal.receive_visibility_s
        facts = self.facts = QueueFacts(api, url, visibility_s=visibility_s, monotonic=dependencies.monotonic)
        await self._once_it_is_up(facts.read)
        if facts.fifo:
            self._receive_target = settings.concurrency  # counted in groups
        if facts.visibility_s < 1:
            expected = (
                "1 s to 12 h, the queue's or the consumer's own: with 0 a message is everybody's at once"
            )
            raise SettingsError("visibility", facts.visibility_s, expected)
        settings.renewal.check(facts.visibility_s)
        watch = RenewalWatch(settings.name, self._metrics)
        try:
            keeper = self._keeper = dependencies.make_keeper(settings.renewal, watch)
            await _to_its_end(keeper.start())
        except RuntimeError as problem:  # of a helper process
            raise ConsumerFailed(f"queue {settings.queue}: {problem}") from problem
        if settings.journal is not None:
            await _to_its_end(asyncio.to_thread(self._open_journal, settings.journal))
        self._join(api, keeper)
        self._reading = asyncio.get_running_loop().create_task(self._read_again())
        _log.info(
            "consuming %s with %d slots, windows of %d s, renewal %r",
            url,
            settings.concurrency,
            facts.visibility_s,
            settings.renewal,
        )
        self.is_receiving = True
        self.receiver.pump()

    def _open_journal(self, where: str | os.PathLike[str]) -> None:
        from veil.consumer.attempts_journal import AttemptsJournal

        url = self.facts.url
        region = self._settings.region or region_in(url) or os.environ.get("AWS_REGION") or "us-east-1"
        queue = QueueKey(region, url.rstrip("/").split("/")[-2], self._settings.name)
        try:
            journal = AttemptsJournal(where, queue, wall=self._dependencies.wall)
            journal.start()
        except (ValueError, OSError, VeilError) as problem:
            raise SettingsError("journal", where, f"a place that can be written ({problem})") from None
        self._journal = journal

    def _join(self, api: SqsClient, keeper: Keeper) -> None:
        settings, dependencies, facts = self._settings, self._dependencies, self.facts
        sleep, random = dependencies.sleep, dependencies.random

        def on_fatal(error: ApiError) -> None:
            if not self.is_stopping():  # else it stops by choice, whatever the last calls come to
                self.ask_to_stop(ConsumerFailed(f"queue {settings.queue}: {error}"))

        self.deletes = Deletes(api, facts.url, keeper, on_fatal=on_fatal, sleep=sleep, random=random)
        releases = self._releases = Releases(api, facts.url, fifo=facts.fifo, sleep=sleep, random=random)
        processor = self._processor = MessageProcessor(
            api=api,
            facts=facts,
            table=self._table,
            keeper=keeper,
            deletes=self.deletes,
            releases=releases,
            wall=dependencies.wall,
            random=random,
            on_fatal=self._stopped_receiving,
            on_given_back=lambda message: self._record_end(message, Release()),
        )
        self.receiver = Receiver(
            api,
            facts,
            free_slots=self._free_slots,
            deliver=self._deliver,
            on_fatal=on_fatal,
            calls_max=min(RECEIVES_MAX, math.ceil((self._receive_target + AHEAD_MAX) / 10)),
            sleep=sleep,
            random=random,
        )
        self._waiting = FifoWaiting(dependencies.monotonic) if facts.fifo else WaitingMessages()
        self.dispatch = Dispatch(
            self._waiting,
            settings.concurrency,
            processor,
            self._handling,
            on_free_slot=self.receiver.pump_soon,
        )
        handling = self._table.settings
        handling.has_dead_letters = facts.dead_letters_url is not None
        handling.monotonic, handling.random = dependencies.monotonic, random.random
        handling.observer, handling.error_texts = self.handled, settings.error_texts
        if self._table.has_sync:
            handling.executor = self._executor = ThreadPoolExecutor(settings.concurrency, "veil-handler")
        self._metrics.watch(
            settings.name,
            in_flight=lambda: self.dispatch.in_hand,
            waiting=lambda: self.dispatch.waiting,
        )

    async def _stopped_receiving(self, reason: str) -> None:
        """Ask to stop; done when nothing is received any more."""
        self.ask_to_stop(ConsumerFailed(f"queue {self._settings.queue}: {reason}"))
        await self._receives_ended.wait()

    async def _once_it_is_up(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, however long the service takes to come up: consumers and servers start in any order."""

        def failed(error: ApiError, pause_s: float) -> None:
            _log.warning("queue %s: %s; next try in %.1f s", self._settings.queue, error, pause_s)

        sleep, random = self._dependencies.sleep, self._dependencies.random
        return await with_retries(ask, BACKOFF, failed=failed, sleep=sleep, random=random)

    # ---- while it runs

    def _free_slots(self, asked: int) -> int:
        if self.deletes.pending > _PENDING_ACKS_MAX:
            return 0
        prefetch = self._settings.prefetch
        if prefetch is None:
            prefetch = prefetch_for(self._receive_target, self._handling.usual_s)
        assert self._api is not None
        taken, call_max = self.dispatch.slots_taken, self._waiting.receive_max(self._api.bulk_max)
        room = to_ask_for(
            slots=self._receive_target, taken=taken, asked=asked, prefetch=prefetch, call_max=call_max
        )
        if self.facts.fifo:
            room *= self._batch  # one group may fill a whole batch
        return min(room, call_max)

    def _deliver(self, raws: Sequence[RawMessage], visibility_s: int) -> None:
        """Leases begin here, not with a slot: a message must not lapse while it waits."""
        assert self._keeper is not None
        monotonic, url, name = self._dependencies.monotonic, self.facts.url, self._settings.name
        type_attribute = self._settings.message_type_attribute
        messages = []
        if raws:
            self.deletes.grace_s = raws[0].grace_s
        for raw in raws:
            lease = Lease(
                queue_url=url,
                message_id=raw.message_id,
                receipt=raw.receipt,
                token=raw.receive_count,
                received_at_s=raw.began_at_s,
                visibility_s=visibility_s,
                monotonic=monotonic,
                grace_s=raw.grace_s,
            )
            message = Message(raw, queue=name, lease=lease, type_attribute=type_attribute)
            handler = self._table.pick(message)
            if handler is not None:
                lease.kind = handler.name
            messages.append(message)
        self._keeper.hold(*(message.lease for message in messages))
        if self._journal is not None:
            for message in messages:
                self._journal.received(message)
        self.dispatch.offer(messages)

    def handled(self, message: Message, handler: str, outcome: Outcome | None, seconds: float) -> None:
        """A handler has ended."""
        self._handling.took(seconds / self._batch)
        self._metrics.handled(message, handler, outcome, seconds)
        self._record_end(message, outcome)

    def _record_end(self, message: Message, outcome: Outcome | None) -> None:
        if self._journal is not None:
            self._journal.ended(message, outcome)

    async def _read_again(self) -> None:
        while True:
            await self._dependencies.sleep(_READ_AGAIN_S)
            await self.facts.refresh()
            self._table.settings.has_dead_letters = self.facts.dead_letters_url is not None

    # ---- the end

    async def _stop(self) -> None:
        """Stop in this order; returns when nothing is held any more.

        1. Begin nothing, ask for nothing; a receive that waits is cancelled. Only now may anything be given back: a receive of
           our own that still waited would take it again.
        2. Give back what was received and not begun. A service that does not answer holds up nothing of what follows.
        3. Let the handlers end, with their leases renewed, until the drain timeout or a second signal.
        4. Interrupt those that have not, and give back what they held.

        Deletes and releases go out all the while; at the end those under way are waited for.
        """
        if self._reading is not None:
            self._reading.cancel()
        dispatch, drain_timeout_s = self.dispatch, self._settings.drain_timeout_s
        dispatch.close()
        await self.receiver.stop()
        self._receives_ended.set()
        given_back = self._processor.give_back(dispatch.not_begun())
        if dispatch.running:
            _log.info("stopping: waiting for %d handlers, at most %g s", dispatch.running, drain_timeout_s)
        drained: asyncio.Future[Any] = asyncio.gather(given_back, dispatch.drained())
        await until_first(drained, self._dependencies.sleep(drain_timeout_s), self._hurried.wait())
        if not drained.done():
            if dispatch.running:
                _log.warning("stopping: %d handlers are interrupted", dispatch.running)
            dispatch.interrupt()
            self.deletes.hurry()
            self._releases.hurry()
            await until_first(drained, asyncio.sleep(_LAST_S))
        if not drained.done():
            # Otherwise asyncio would report the cancellation as an exception that was never retrieved.
            drained.add_done_callback(lambda done: done.cancelled() or done.exception())
            drained.cancel()
            if dispatch.running:
                _log.warning(
                    "stopping: %d of the handlers did not end, and are left behind", dispatch.running
                )
            abandoned = asyncio.ensure_future(self._processor.abandon(dispatch.messages()))
            await until_first(abandoned, asyncio.sleep(_LAST_S))
        # What a group gave back after its member failed may have come in while the others were drained.
        await self._processor.give_back(dispatch.not_begun())
        _log.info("stopped consuming %s", self.facts.url)

    async def _close(self) -> None:
        self.is_receiving = False
        self._metrics.unwatch(self._settings.name)
        if self._journal is not None:
            await asyncio.to_thread(self._journal.stop)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._keeper is not None:
            await self._keeper.close()
        if self._api is not None:
            await self._api.close()
        if self._executor is not None:
            # A thread cannot be ended from outside: one that still works is left to itself.
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._table.settings.executor = None


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await what starts threads and processes; a caller that is cancelled meanwhile goes once they can be closed again, or soon
    after where that does not come about."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_LAST_S)
        task.cancel()
        raise


async def until_first(awaited: asyncio.Future[Any], *others: Awaitable[Any]) -> None:
    """Return when the first is done, or one of the others, which are cancelled then."""
    waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(other) for other in others]
    try:
        await asyncio.wait([awaited, *waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


# ---- what a consumer stands on: the service it calls, the clock it reads, the keeper of its leases; tests bring their own

RECEIVES_MAX: Final = 32  # at a time; each holds a connection while it waits
_OTHER_CONNECTIONS: Final = 32  # for deletes, releases and dead letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Real ones are made by `real_dependencies`, manual ones by the harness in `veil.testing`."""

    make_api: Callable[[], SqsClient]
    make_keeper: Callable[[RenewalPolicy, KeeperEvents], Keeper]
    monotonic: Callable[[], float] = steady_s
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: random.Random = field(default_factory=random.Random)


def worker_agent(name: str | None) -> str:
    """How this process names itself to the queue, so that its workers can be told apart there."""
    parts = {"host": socket.gethostname(), "pid": str(os.getpid()), "worker": name or ""}
    plain = {part: re.sub(r"[^A-Za-z0-9._-]", "-", text)[:64] for part, text in parts.items() if text}
    return " ".join(f"{part}/{text}" for part, text in plain.items())


def real_dependencies(settings: ConsumerSettings) -> Dependencies:
    """The service that the settings, the environment and the profile name, and a keeper with connections of its own."""
    api = functools.partial(
        SqsClient,
        endpoint=settings.endpoint,
        region=settings.region or region_in(settings.queue),
        profile=settings.profile,
        monotonic=steady_s,
        user_agent_extra=worker_agent(settings.worker),
    )

    def make_keeper(policy: RenewalPolicy, events: KeeperEvents) -> Keeper:
        if settings.helper_process:
            from veil.consumer.renewal.keeper_process import KeeperProcess

            return KeeperProcess(api, policy, events=events)
        from veil.consumer.renewal.keeper import KeeperThread

        return KeeperThread(api, policy, events=events)

    return Dependencies(
        make_api=functools.partial(api, connections=RECEIVES_MAX + _OTHER_CONNECTIONS),
        make_keeper=make_keeper,
    )
