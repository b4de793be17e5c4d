"""Handlers against a queue in the test's own process: the real consumer and the real rules, on a clock the test moves.

    async def test_a_failed_order_is_tried_again_later():
        async with ConsumerHarness(app) as harness:
            await harness.send({"order": 7})
            await harness.settle()
            assert await harness.in_flight() == ['{"order": 7}']
            await harness.advance(seconds=10)
            …

No sockets, no sleeping: time passes only in `advance`.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from veil.client.api import Attribute, Failure
from veil.client.client import SqsClient
from veil.client.queue import Queue as SendingQueue
from veil.client.queue import attribute_of
from veil.consumer.app import Consumer
from veil.consumer.message import current_message
from veil.consumer.renewal.keeper import Keeper, KeeperEvents, LeaseKeeper
from veil.consumer.renewal.policies import RenewalPolicy
from veil.consumer.runner import Dependencies, Runner
from veil.core.lease import State
from veil.core.message import StoredMessage
from veil.core.queue import Queue
from veil.testing.in_process import InProcessService, ManualTime

# So many turns of the event loop without any call, begun or ended handler: nothing more happens until time passes.
_QUIET_TURNS: Final = 25
_PATIENCE_S: Final = 10.0


class _QueueHere(SendingQueue):
    """What a consumer under test sends to itself by, without sockets and from any thread."""

    def __init__(self, name: str, api: SqsClient, type_attribute: str) -> None:
        super().__init__(name, type_attribute=type_attribute)
        self._api, self._loop = api, asyncio.get_running_loop()

    def _submit(self, entry: Any) -> Future[str]:
        given = entry.entry
        sent = self._api.send(
            self.name,
            given["MessageBody"],
            attributes=given.get("MessageAttributes"),
            group=given.get("MessageGroupId"),
            deduplication_id=given.get("MessageDeduplicationId"),
            delay_s=given.get("DelaySeconds"),
        )
        return asyncio.run_coroutine_threadsafe(sent, self._loop)


class NotSettled(AssertionError):
    """Handlers were still at work after ten real seconds."""


class ConsumerHarness:
    """Runs a consumer against an in-process queue of its name, with dead letters unless `dead_letters` is false. What the
    consumer sends to its own queue stays there; it opens no health port and writes no journal.

    `harness.clock` is the only clock: moving it alone (`harness.clock.advance`) is what a stopped process would see, while
    `await harness.advance` lets everything happen at its own instant.
    """

    def __init__(
        self,
        app: Consumer,
        *,
        visibility_s: int = 30,
        dead_letters: bool = True,
        receives_max: int = 10,
        **queue_settings: Any,
    ) -> None:
        self._app, self._settings = app, app.settings
        self._visibility_s, self._receives_max = visibility_s, receives_max
        self._queue_settings = queue_settings
        self.queue_name = app.settings.name
        fifo = ".fifo" if self.queue_name.endswith(".fifo") else ""
        self.dead_letters_name = (
            f"{self.queue_name.removesuffix('.fifo')}-dead{fifo}" if dead_letters else None
        )
        self.clock = ManualTime()
        self.service = InProcessService(self.clock)
        self.api = self.service.api()
        self._resting: Counter[int] = Counter()  # messages whose handler sleeps on the manual clock
        self._queue: Queue
        self._sent = 0

    # ---- start and stop

    async def __aenter__(self) -> ConsumerHarness:
        await self.service.service.start()
        fifo_settings: dict[str, Any] = (
            {"content_deduplication": True} if self.queue_name.endswith(".fifo") else {}
        )
        if self.dead_letters_name is not None:
            await self.service.create(self.dead_letters_name, **fifo_settings)
        self._queue = await self.service.create(
            self.queue_name,
            visibility_s=self._visibility_s,
            dead_letters=self.dead_letters_name,
            receives_max=self._receives_max,
            **(fifo_settings | self._queue_settings),
        )
        self._app.configure(health_port=None, journal=None)
        try:
            await self.start()
        except BaseException:
            await self._left()
            raise
        return self

    async def __aexit__(self, *raised: Any) -> None:
        try:
            self._app.hurry()
            await self._app.__aexit__(*raised)
        finally:
            await self._left()

    async def start(self) -> None:
        """Start the consumer; after a `stop`, again."""
        self._app._queue = _QueueHere(self.queue_name, self.api, self._settings.message_type_attribute)

        def make_keeper(policy: RenewalPolicy, events: KeeperEvents) -> Keeper:
            clock = self.clock
            return LeaseKeeper(
                self.service.api,
                policy,
                monotonic=clock.monotonic_s,
                events=events,
                call_later=clock.call_later,
            )

        await self._app.start(
            Dependencies(
                make_api=self.service.api,
                make_keeper=make_keeper,
                monotonic=self.clock.monotonic_s,
                wall=lambda: self.clock.wall_ms() / 1000,
                sleep=self._slept,
                random=random.Random(0),  # noqa: S311 - the same jitter in every run of a test
            )
        )

    async def stop(self, *, drain_for_s: float | None = None) -> None:
        """Stop the consumer as a signal would; of the drain timeout only so much passes, then it is hurried."""
        stopping = asyncio.ensure_future(self._app.stop())
        await self._turns()
        if drain_for_s is not None and not stopping.done():
            await self.advance(drain_for_s)
            self._app.hurry()
        async with asyncio.timeout(_PATIENCE_S):
            await stopping

    # ---- what a test does

    async def send(
        self,
        body: Any = "hello",
        *,
        type: str | None = None,
        attributes: Mapping[str, str | bytes | Attribute] | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
        delay_s: int | None = None,
    ) -> str:
        """Send a message (what is no text, as JSON) and give its id; on a FIFO queue, into the group `g` by default."""
        self._sent += 1
        own = {name: attribute_of(name, value) for name, value in (attributes or {}).items()}
        if type is not None:
            own[self._app.settings.message_type_attribute] = Attribute.of("String", type)
        fifo = self.queue_name.endswith(".fifo")
        return await self.api.send(
            self.queue_name,
            body if isinstance(body, str) else json.dumps(body),
            attributes=own,
            group=group or ("g" if fifo else None),
            deduplication_id=deduplication_id or (f"d{self._sent}" if fifo else None),
            delay_s=delay_s,
        )

    def fail(self, call: str, failure: Failure = Failure.UNREACHABLE, *, times: int = 1) -> None:
        """Let the next calls of that name (`receive`, `delete`, `extend`, `send`) fail, the renewals' too."""
        self.service.fail(call, failure, times=times)

    async def settle(self, *, running: int | None = None) -> None:
        """Let everything happen that needs no time to pass. Returns when no handler is at work, except those that sleep in
        `harness.sleep`; or, where `running` is given, when just so many are."""
        until_s = time.monotonic() + _PATIENCE_S
        quiet, seen = 0, None
        while quiet < _QUIET_TURNS:
            await asyncio.sleep(0)
            now = self._state()
            handled = self.runner.dispatch.messages()
            at_work = [message for message in handled if not self._resting[id(message)]]
            if now != seen or (len(at_work) if running is None else abs(running - self.running)) > 0:
                quiet, seen = 0, now
                if time.monotonic() > until_s:
                    raise NotSettled(f"still being handled: {', '.join(map(repr, at_work)) or 'nothing'}")
                if at_work:
                    await asyncio.sleep(0.0005)  # a handler in a thread needs the interpreter
            else:
                quiet += 1

    async def advance(self, seconds: float) -> None:
        """Let time pass, each thing happening at its own instant."""
        target_ms = self.clock.now_ms() + round(seconds * 1000)
        await self._turns()
        while (due_ms := self.clock.next_due_ms()) is not None and due_ms <= target_ms:
            self.clock.advance(max(0, due_ms - self.clock.now_ms()))
            await self._turns()
        self.clock.advance(target_ms - self.clock.now_ms())
        await self._turns()

    async def sleep(self, seconds: float) -> None:
        """For handlers: sleep on the harness's clock; `settle` does not wait for them."""
        key = id(current_message())
        self._resting[key] += 1
        try:
            await self._slept(seconds)
        finally:
            self._resting[key] -= 1

    # ---- what a test looks at

    @property
    def runner(self) -> Runner:
        """The consumer's inside."""
        assert self._app.runner is not None
        return self._app.runner

    @property
    def running(self) -> int:
        """How many handlers are at work."""
        return self.runner.dispatch.running

    @property
    def deleted(self) -> list[str]:
        """The bodies of the messages that were deleted from the queues, in order."""
        return [message.body for message in self.service.deleted]

    async def visible(self) -> list[str]:
        """The bodies that anybody could receive now, the oldest first."""
        return await self._bodies(State.VISIBLE)

    async def in_flight(self) -> list[str]:
        """The bodies that are hidden because a consumer holds them, or held them and let them expire."""
        return await self._bodies(State.IN_FLIGHT)

    async def dead_letters(self) -> list[StoredMessage]:
        """The messages among the dead letters, with their attributes."""
        assert self.dead_letters_name is not None, "this harness has no dead letters"
        return await self.service.messages(self.dead_letters_name)

    # ---- within

    async def _left(self) -> None:
        self._app.configure(health_port=self._settings.health_port, journal=self._settings.journal)
        await self.service.service.stop()

    async def _bodies(self, state: State) -> list[str]:
        return [
            message.body for message in await self.service.messages(self.queue_name) if message.state == state
        ]

    async def _slept(self, seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due_ms = self.clock.now_ms() + max(0, round(seconds * 1000))
        timer = self.clock.call_at(due_ms, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    def _state(self) -> tuple[int, ...]:
        dispatch = self.runner.dispatch
        return (
            self.service.calls.total(),
            dispatch.running,
            dispatch.waiting,
            dispatch.settling,
            self.runner.receiver.under_way,
        )

    async def _turns(self) -> None:
        """Let the loop turn until nothing more happens, without waiting for any handler."""
        quiet, seen = 0, None
        while quiet < _QUIET_TURNS:
            await asyncio.sleep(0)
            now = self._state()
            quiet, seen = (quiet + 1 if now == seen else 0), now
