"""The consumer as its user sees it: a queue, handlers, and ways to run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace, TracebackType
from typing import Any, Final

from veil.client.queue import Queue
from veil.consumer.error_reports import told
from veil.consumer.handlers.running import HandlingSettings
from veil.consumer.handlers.signature import handler_name
from veil.consumer.handlers.table import HandlerTable
from veil.consumer.message import current_message
from veil.consumer.metrics import ConsumerMetrics, HealthPages
from veil.consumer.outcomes import FailurePolicy, FailureSpec, Outcome
from veil.consumer.renewal.policies import Adaptive, RenewalPolicy
from veil.consumer.runner import ConsumerFailed, Dependencies, Runner, real_dependencies, until_first
from veil.consumer.settings import ConsumerSettings, Seconds, SettingsError
from veil.consumer.tracing import Tracing, is_set_up

_log = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LAST_TASKS_S: Final = 1.0
_A_LIFESPAN: Final = "a function that returns an async context manager; is @asynccontextmanager missing?"


# ---- children that handlers fork, as the pools of `multiprocessing` do
#
# They inherit the event loop's signal handlers, and the pipe by which these wake it: a signal to a child would stop the consumer,
# and not end the child. So a child goes back to the handlers from before, and gets no signal until it has.

_handlers_before: Final[dict[signal.Signals, Any]] = {}  # while a loop of this process takes the signals


def _hold_signals(how: int) -> None:
    if _handlers_before:
        signal.pthread_sigmask(how, _SIGNALS)


def _take_signals_in_child() -> None:
    if _handlers_before:
        signal.set_wakeup_fd(-1)
        for number, handler in _handlers_before.items():
            signal.signal(number, handler)
        _hold_signals(signal.SIG_UNBLOCK)


os.register_at_fork(
    before=functools.partial(_hold_signals, signal.SIG_BLOCK),
    after_in_parent=functools.partial(_hold_signals, signal.SIG_UNBLOCK),
    after_in_child=_take_signals_in_child,
)


class Consumer:
    """Receives the messages of one queue and gives them to handlers, keeping every message's lease while it is held.

    `run()` blocks until a signal; `async with` runs it in the background of the caller's event loop. Every setting is
    described, with its reason, in docs/consumer.md; one that cannot work raises SettingsError here, in one line.
    """

    def __init__(
        self,
        queue: str,
        *,
        concurrency: int = 10,
        visibility: Seconds | None = None,
        renewal: RenewalPolicy | None = None,
        on_failure: FailureSpec | None = None,
        on_poison: Outcome | None = None,
        on_unknown: str | Outcome = "poison",
        prefetch: int | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        helper_process: bool = False,
        drain_timeout: Seconds = 25.0,
        message_type_attribute: str = "type",
        health_port: int | None = None,
        health_host: str = "127.0.0.1",
        worker: str | None = None,
        error_texts: bool = True,
        journal: str | os.PathLike[str] | None = None,
        metrics: ConsumerMetrics | None = None,
        lifespan: Callable[[Consumer], AbstractAsyncContextManager[Any]] | None = None,
    ) -> None:
        if lifespan is not None and not callable(lifespan):
            raise SettingsError("lifespan", lifespan, _A_LIFESPAN)
        if not isinstance(metrics, ConsumerMetrics | None):
            raise SettingsError("metrics", metrics, "a ConsumerMetrics")
        # What a lifespan opens, for the handlers and dependencies of this consumer.
        self.state = SimpleNamespace()
        self._lifespan = lifespan
        self._queue: Queue | None = None
        self._running: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None  # the same, while its lifespan is being opened
        self.settings = ConsumerSettings(
            queue=queue,
            concurrency=concurrency,
            visibility=visibility,
            renewal=Adaptive() if renewal is None else renewal,
            prefetch=prefetch,
            endpoint=endpoint,
            region=region,
            profile=profile,
            helper_process=helper_process,
            drain_timeout=drain_timeout,
            message_type_attribute=message_type_attribute,
            on_poison=on_poison,
            health_port=health_port,
            health_host=health_host,
            worker=worker,
            error_texts=error_texts,
            journal=journal,
        )
        if renewal is None and self.settings.visibility_s is not None:
            # A length that is given is meant for every window, not only for the first.
            window = timedelta(seconds=self.settings.visibility_s)
            self.configure(renewal=Adaptive(window_min=window, window_max=window))
        handling = HandlingSettings(on_failure=FailurePolicy(on_failure), on_poison=on_poison)
        self.table = HandlerTable(handling, on_unknown=on_unknown)
        self.metrics = metrics or ConsumerMetrics()
        # Makes a function a handler: `@app.handler`, or `@app.handler(type="order.paid", batch=100, …)`.
        self.handler = self.table.handler
        # Puts a middleware around every handler, inside those registered before it; returns it unchanged.
        self.use = self.table.use
        self._is_traced = False
        self.runner: Runner | None = None  # the latest run, for tests and tools that look inside
        # Tasks of the latest run that did not end when they were cancelled; kept, or else Python would end them in its own way.
        self.left_behind: set[asyncio.Task[Any]] = set()
        self._health: asyncio.Server | None = None
        self._signals = 0

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._running is not None and not self._running.done()

    @property
    def health_port(self) -> int | None:
        """The port that the health endpoint listens on; None while there is none."""
        return None if self._health is None else int(self._health.sockets[0].getsockname()[1])

    def configure(self, **changes: Any) -> None:
        """Replace settings before the start, as `veil run --concurrency` does; raises SettingsError."""
        if self.is_running:
            raise RuntimeError("the consumer is running; its settings are those it was started with")
        self.settings = replace(self.settings, **changes)
        self._queue = None

    # ---- sending

    @property
    def queue(self) -> Queue:
        """The queue that it consumes, to send to."""
        if self._queue is None:
            given = self.settings
            self._queue = Queue(
                given.queue,
                endpoint=given.endpoint,
                region=given.region,
                profile=given.profile,
                type_attribute=given.message_type_attribute,
            )
        return self._queue

    @property
    def send(self) -> Callable[..., str]:
        """Send to its own queue: `app.send({"id": 7}, type="order")`, as `Queue.send` does."""
        return self.queue.send

    @property
    def asend(self) -> Callable[..., Coroutine[Any, Any, str]]:
        """Send to its own queue from a coroutine, as `Queue.asend` does."""
        return self.queue.asend

    # ---- running

    def run(self) -> None:
        """Consume until SIGTERM or SIGINT; a second signal hurries, a third leaves at once.

        Raises ConsumerFailed when the consumer cannot go on: no such queue, no access, or a handler's `Stop`.
        """
        import uvloop

        _check_may_run()
        # Not asyncio.Runner, which waits without end for a handler that does not let itself be cancelled. Its message was given
        # back: once the loop is closed it goes no further.
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            self._run_main(loop)
        finally:
            try:
                self.left_behind = loop.run_until_complete(_ended_tasks())
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                asyncio.set_event_loop(None)
                loop.close()

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except ConsumerFailed:
            if error is None:
                raise
            _log.exception("the consumer had failed")

    async def start(self, dependencies: Dependencies | None = None) -> None:
        """Start on the running event loop; returns once messages are received."""
        if self.is_running:
            raise RuntimeError("the consumer is running already")
        if not self._is_traced and is_set_up():
            self._is_traced = True
            self.table.use(Tracing(), outermost=True)
        dependencies = dependencies or real_dependencies(self.settings)
        runner = self.runner = Runner(self.settings, self.table, dependencies, self.metrics)
        started = asyncio.Event()
        running = self._running = asyncio.get_running_loop().create_task(
            self._watched(runner, started.set), name=f"veil consumer of {self.settings.name}"
        )
        try:
            await until_first(running, started.wait())
        except BaseException:
            self.hurry()
            await asyncio.wait([running])
            raise
        if running.done():
            self._running = None
            running.result()

    async def wait(self) -> None:
        """Return when the consumer has stopped; raises ConsumerFailed when it was not asked to."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Stop, in the order that docs/consumer.md tells; returns when nothing is held any more, or at once in a handler of this
        consumer, which would otherwise wait for itself."""
        if self._running is None or self.runner is None:
            return
        self._ask_to_stop(self.runner)
        if self.runner.is_handling(current_message()):
            return
        running = self._running
        try:
            await asyncio.shield(running)
        finally:
            if running.done():
                self._running = None

    def hurry(self) -> None:
        """While stopping: wait for handlers no longer, interrupt them and give their messages back."""
        if self.runner is not None:
            self._ask_to_stop(self.runner)
            self.runner.hurry()

    # ---- within

    def _ask_to_stop(self, runner: Runner, error: ConsumerFailed | None = None) -> None:
        runner.ask_to_stop(error)
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()

    async def _watched(self, runner: Runner, started: Callable[[], None]) -> None:
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            # Around everything: what the handlers need is open before the first message and closed after the last.
            if self._lifespan is not None and not runner.is_stopping():
                self._opening = asyncio.current_task()
                try:
                    opened: Any = self._lifespan(self)
                    if not isinstance(opened, AbstractAsyncContextManager):
                        raise SettingsError("lifespan", handler_name(self._lifespan), _A_LIFESPAN)
                    await stack.enter_async_context(opened)
                except asyncio.CancelledError:
                    if runner.is_stopping():
                        return
                    raise
                finally:
                    self._opening = None
            if settings.health_port is not None:
                where = (settings.health_host, settings.health_port)
                pages = HealthPages(lambda: runner.problem, self.metrics)
                try:
                    self._health = await pages.listen(*where)
                except OSError as error:
                    # asyncio puts its own words around those of the system.
                    reason = os.strerror(error.errno) if error.errno else str(error)
                    text = f"health_port={where[1]}: cannot listen on {where[0]}: {reason}"
                    raise ConsumerFailed(text) from error
                stack.callback(setattr, self, "_health", None)
                stack.callback(self._health.close)
            await runner.run(started)

    def _run_main(self, loop: asyncio.AbstractEventLoop) -> None:
        main = loop.create_task(self._main())
        while True:
            try:
                loop.run_until_complete(main)
                return
            except SystemExit as error:
                # Of a task that a handler has started: it ends the loop, which goes on to give back what is held.
                if main.done() or self.runner is None:
                    raise
                reason = f"queue {self.settings.queue}: a task ended the process: {told(error)}"
                self._ask_to_stop(self.runner, ConsumerFailed(reason))

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        self._signals = 0
        try:
            for number in _SIGNALS:
                _handlers_before[number] = signal.getsignal(number)
                loop.add_signal_handler(number, self._signalled, number)
            await self.start()
            await self.wait()
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
            _handlers_before.clear()

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self.runner is None:
            return
        if self._signals == 1:
            _log.info("%s: stopping", number.name)
            self._ask_to_stop(self.runner)
        elif self._signals == 2:
            _log.warning("second %s: handlers are interrupted", number.name)
            self.hurry()
        else:
            logging.shutdown()
            os._exit(128 + number)


def _check_may_run() -> None:
    if threading.current_thread() is not threading.main_thread():
        problem = "only the main thread can take signals"
    elif asyncio._get_running_loop() is not None:
        problem = "an event loop is running in this thread"
    else:
        return
    raise RuntimeError(
        f"run() cannot be called here, because {problem}; use `async with` the consumer instead"
    )


async def _ended_tasks() -> set[asyncio.Task[Any]]:
    """Cancel what is left on the loop, and return what does not end then."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    return (await asyncio.wait(left, timeout=_LAST_TASKS_S))[1] if left else set()
