"""Live pages: each view is rendered at most once a second, once for all its viewers, and not at all without any.

All views together keep the server from its queues for at most a hundredth of the time: where drawing takes long, or many
different views are open, each is drawn more rarely, down to once in fifteen seconds.

A stream sends the fragments of a page that have changed since it last did, by the id of the element they stand in. A slow
reader gets the latest of each, not all of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Hashable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from veil.console.web import Refused
from veil.core.clock import Clock
from veil.core.errors import VeilError

_log = logging.getLogger(__name__)


T = TypeVar("T")


class LoopTime(Generic[T]):
    """Awaits something and adds up the time between its waits; what happens while it waits is not its own."""

    def __init__(self, awaited: Awaitable[T]) -> None:
        self._steps = awaited.__await__()
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        step = partial(next, self._steps)
        while True:
            begun_s = perf_counter()
            try:
                waited_for = step()
            except StopIteration as end:
                answer: T = end.value
                return answer
            finally:
                self.seconds += perf_counter() - begun_s
            try:
                yield waited_for
            except BaseException as thrown:  # a cancellation, or what the wait came to
                step = partial(self._steps.throw, thrown)
            else:
                step = partial(next, self._steps)


EVERY_MS: Final = 1_000
EVERY_MS_MAX: Final = 15_000  # however long it takes, a page that is called live moves
SHARE_MAX: Final = 0.01  # of the time, for all views
STREAMS_MAX: Final = 200
# A browser has six open at most, and only those that are seen: enough for a team that shares a key, and nobody's key or
# account takes them all.
STREAMS_PER_KEY_MAX: Final = 40
STREAMS_PER_ACCOUNT_MAX: Final = 150
_PING_MS: Final = 15_000
SESSION_ENDED: Final = "Your session has ended. Log in again to go on: reload this page."
# A browser comes back by itself; so no stream outlives what a proxy or a session allows for long.
_STREAM_MS_MAX: Final = 30 * 60_000

Fragments = Mapping[str, str]
Render = Callable[[], Awaitable[Fragments]]


class Viewer(NamedTuple):
    """Whose streams are counted together."""

    account: str = ""
    name: str = ""  # the key's id


class _Reader:
    """One open stream: what it has still to be sent."""

    __slots__ = ("gone", "pending", "wake")

    def __init__(self) -> None:
        self.pending: dict[str, str] = {}
        self.wake = asyncio.Event()
        self.gone = ""  # why there is nothing more to see


class _View:
    """One view that somebody looks at."""

    def __init__(self) -> None:
        self.readers: set[_Reader] = set()
        self.shown: dict[str, str] = {}
        self.task: asyncio.Task[None]


class Live:
    """The views that are being looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._views: dict[Hashable, _View] = {}
        self.streams = 0
        self._of_viewers: Counter[Viewer] = Counter()
        self.renders = 0  # for tests and for the curious: none while nobody looks

    async def stream(
        self, key: Hashable, render: Render, is_welcome: Callable[[], bool], viewer: Viewer
    ) -> AsyncIterator[bytes]:
        """Events for one reader until it goes; those with an equal key share what `render` gives.

        One that is too many gets a single event, which tells the page why it does not update: a browser shows nothing of
        an answer with another status than 200.
        """
        problem = self._too_many(viewer)
        if problem:
            yield event("full", {"sentence": problem})
            return
        reader = _Reader()
        view = self._views.get(key)
        # One whose drawing has failed is only left to those whom it has not told of that yet.
        if view is None or view.task.done():
            view = self._views[key] = _View()
            view.task = asyncio.get_running_loop().create_task(self._keep_rendering(view, render))
        view.readers.add(reader)
        reader.pending.update(view.shown)
        if view.shown:
            reader.wake.set()
        self.streams += 1
        self._of_viewers[viewer] += 1
        until_ms = self._clock.now_ms() + _STREAM_MS_MAX
        try:
            yield b"retry: 2000\n\n"
            while self._clock.now_ms() < until_ms:
                await self._wait(reader.wake, _PING_MS)
                reader.wake.clear()
                if not is_welcome():
                    yield event("gone", {"sentence": SESSION_ENDED})
                    return
                if reader.gone:
                    yield event("gone", {"sentence": reader.gone})
                    return
                if not reader.pending:
                    yield b": still here\n\n"
                    continue
                pending, reader.pending = reader.pending, {}
                yield event("fragments", {"now_ms": self._clock.now_ms(), "html": pending})
        finally:
            self.streams -= 1
            self._of_viewers[viewer] -= 1
            self._of_viewers += Counter()  # without those that have none left
            view.readers.discard(reader)
            if not view.readers:
                view.task.cancel()
                if self._views.get(key) is view:
                    del self._views[key]

    def _too_many(self, viewer: Viewer) -> str:
        """Why the viewer gets no further stream; empty where it does."""
        of_account = sum(count for each, count in self._of_viewers.items() if each.account == viewer.account)
        for whose, count, most in (
            (f"the key {viewer.name}", self._of_viewers[viewer], STREAMS_PER_KEY_MAX),
            ("this server", self.streams, STREAMS_MAX),
            ("this account", of_account, STREAMS_PER_ACCOUNT_MAX),
        ):
            if count >= most:
                limit = f"{whose} has {most} live pages open, as many as it may have"
                return f"This page does not update by itself: {limit}. Close some of them."
        return ""

    async def _keep_rendering(self, view: _View, render: Render) -> None:
        while True:
            drawing = LoopTime(render())
            try:
                self.renders += 1
                fragments = await drawing
            except (VeilError, Refused) as problem:
                self._end(view, str(problem))
                return
            except Exception:
                _log.exception("a live page failed")
                self._end(view, "This page could not be updated; the server's log says why.")
                return
            changed = {name: html for name, html in fragments.items() if view.shown.get(name) != html}
            view.shown = dict(fragments)
            if changed:
                for reader in view.readers:
                    reader.pending.update(changed)
                    reader.wake.set()
            await self._wait(asyncio.Event(), self.pause_ms(drawing.seconds))

    def pause_ms(self, drawing_s: float) -> int:
        """How long a view rests after a drawing that took so long, so that all that are open keep within their share."""
        wanted_ms = round(drawing_s * 1_000 * len(self._views) / SHARE_MAX)
        return min(max(EVERY_MS, wanted_ms), EVERY_MS_MAX)

    @staticmethod
    def _end(view: _View, sentence: str) -> None:
        for reader in view.readers:
            reader.gone = sentence
            reader.wake.set()

    async def _wait(self, wake: asyncio.Event, ms: int) -> None:
        """Return when the event is set, which happens after so long at the latest."""
        timer = self._clock.call_at(self._clock.now_ms() + ms, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()


def event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
