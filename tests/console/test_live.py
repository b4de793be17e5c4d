"""Live pages: rendered once for all who look, not at all for nobody, and they end with their session or their server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.console.web import Visitor
from veil.console import live
from veil.console.live import SESSION_ENDED, Live, LoopTime, Viewer
from veil.core.clock import ManualClock
from veil.core.errors import QueueMissing
from veil.testing import VeilServer


class Scene:
    """A page with one number on it, and a clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.live = Live(self.clock)
        self.number = 0
        self.welcome = True
        self.problem: Exception | None = None

    async def render(self) -> dict[str, str]:
        if self.problem is not None:
            raise self.problem
        return {"number": str(self.number), "still": "always the same"}

    async def look(self) -> AsyncIterator[bytes]:
        stream = self.live.stream("page", self.render, lambda: self.welcome, Viewer("1", "LOOK"))
        assert await anext(stream) == b"retry: 2000\n\n"
        return stream

    async def second(self) -> None:
        self.clock.advance(seconds=1)
        for _ in range(20):
            await asyncio.sleep(0)


def told(event: bytes) -> Any:
    name, data = event.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_the_first_event_has_everything_and_later_ones_what_changed():
    scene = Scene()
    stream = await scene.look()
    assert told(await anext(stream))[1]["html"] == {"number": "0", "still": "always the same"}
    scene.number = 1
    await scene.second()
    assert told(await anext(stream))[1]["html"] == {"number": "1"}
    await stream.aclose()  # type: ignore[attr-defined]


async def test_ten_who_look_cost_as_one_and_nobody_costs_nothing():
    scene = Scene()
    streams = [await scene.look() for _ in range(10)]
    for stream in streams:
        await anext(stream)
    await scene.second()
    await scene.second()
    assert scene.live.renders == 3
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    await scene.second()
    await scene.second()
    assert scene.live.renders == 3 and scene.live.streams == 0


async def test_a_slow_reader_gets_the_latest_and_not_all():
    scene = Scene()
    stream = await scene.look()
    await anext(stream)
    for scene.number in (1, 2, 3):
        await scene.second()
    assert told(await anext(stream))[1]["html"] == {"number": "3"}
    await stream.aclose()  # type: ignore[attr-defined]


async def test_it_ends_when_there_is_nothing_more_to_see():
    scene = Scene()
    stream = await scene.look()
    await anext(stream)
    scene.problem = QueueMissing("orders")
    await scene.second()
    assert told(await anext(stream)) == ("gone", {"sentence": "queue orders does not exist"})
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_who_comes_after_a_failure_sees_the_page_move_although_a_slow_reader_has_not_heard_of_it():
    scene = Scene()
    slow = await scene.look()
    await anext(slow)
    scene.problem = QueueMissing("orders")
    await scene.second()
    scene.problem = None
    stream = await scene.look()
    await scene.second()
    assert told(await anext(stream))[1]["html"]["number"] == "0"
    scene.number = 1
    await scene.second()
    assert told(await anext(stream))[1]["html"] == {"number": "1"}
    assert told(await anext(slow))[0] == "gone"
    await stream.aclose()  # type: ignore[attr-defined]


async def test_it_ends_with_the_session():
    scene = Scene()
    stream = await scene.look()
    await anext(stream)
    scene.welcome, scene.number = False, 1
    await scene.second()
    assert told(await anext(stream)) == ("gone", {"sentence": SESSION_ENDED})


async def test_a_stream_says_now_and_then_that_it_is_there():
    scene = Scene()
    stream = await scene.look()
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    for _ in range(16):
        await scene.second()
    assert waiting.done()
    assert await waiting == b": still here\n\n"
    await stream.aclose()  # type: ignore[attr-defined]


async def test_only_so_many_streams_are_open_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    scene = Scene()
    stream = await scene.look()
    name, data = told(await anext(scene.live.stream("page", scene.render, lambda: True, Viewer("1", "LOOK"))))
    assert name == "full" and "this server has 1 live pages open" in data["sentence"]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_one_key_or_account_does_not_take_all_streams():
    scene = Scene()

    async def opened(account: str, name: str, count: int) -> list[Any]:
        streams = []
        for _ in range(count):
            stream = scene.live.stream("page", scene.render, lambda: True, Viewer(account, name))
            if await anext(stream) == b"retry: 2000\n\n":
                streams.append(stream)
        return streams

    mine = await opened("1", "LOOK", 300)
    assert len(mine) == live.STREAMS_PER_KEY_MAX
    for number in range(10):
        mine += await opened("1", f"LOOK{number}", 100)
    assert len(mine) == live.STREAMS_PER_ACCOUNT_MAX
    theirs = await opened("2", "OTHER", 1)
    assert len(theirs) == 1

    for stream in [*mine, *theirs]:
        await stream.aclose()
    assert scene.live.streams == 0
    again = await opened("1", "LOOK", 1)
    assert len(again) == 1
    await again[0].aclose()


def test_over_a_socket_events_come_and_stopping_the_server_does_not_wait_for_readers():
    # Whoever waits for the readers waits longer than a test may take.
    with VeilServer("--stop-grace-s", "600") as server:
        visitor = Visitor(server)
        visitor.get("/console/queues")
        connection, answer = visitor.open("/console/queues/live")
        assert answer.status == 200
        assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
        lines = [answer.fp.readline() for _ in range(4)]
        assert lines[0] == b"retry: 2000\n" and lines[2] == b"event: fragments\n"
        assert server.close() == 0
        answer.read()
        connection.close()


@pytest.mark.parametrize(
    ("drawing_s", "views", "pause_ms"),
    [(0.001, 1, 1_000), (0.010, 1, 1_000), (0.015, 1, 1_500), (0.010, 4, 4_000), (3.0, 1, live.EVERY_MS_MAX)],
)
async def test_all_views_together_take_a_hundredth_of_the_time(drawing_s: float, views: int, pause_ms: int):
    scene = Scene()
    streams = [
        scene.live.stream(number, scene.render, lambda: scene.welcome, Viewer("1", "LOOK"))
        for number in range(views)
    ]
    for stream in streams:
        await anext(stream)
    assert scene.live.pause_ms(drawing_s) == pause_ms
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass by which drawing is measured, and none passes otherwise."""
    passed_s = [0.0]
    monkeypatch.setattr(live, "perf_counter", lambda: sum(passed_s))
    return passed_s.append


async def test_a_view_that_takes_long_to_draw_is_drawn_more_rarely(spend: Callable[[float], None]):
    scene = Scene()
    quickly = scene.render

    async def slowly() -> dict[str, str]:
        spend(0.03)
        return await quickly()

    scene.render = slowly  # type: ignore[method-assign]
    stream = await scene.look()
    await anext(stream)
    await scene.second()
    await scene.second()
    assert scene.live.renders == 1
    for _ in range(live.EVERY_MS_MAX // 1_000):
        await scene.second()
    assert scene.live.renders > 1
    await stream.aclose()  # type: ignore[attr-defined]


async def test_only_what_it_does_itself_is_counted_and_a_cancellation_reaches_it(
    spend: Callable[[float], None],
):
    others = asyncio.Event()
    told: list[str] = []

    async def drawn() -> str:
        spend(0.25)
        try:
            await others.wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        spend(0.5)
        return "drawn"

    timed = LoopTime(drawn())
    waiting = asyncio.ensure_future(_awaited(timed))
    await asyncio.sleep(0)
    spend(30)  # somebody else's time
    others.set()
    assert await waiting == "drawn"
    assert timed.seconds == 0.75
    others.clear()
    leaving = asyncio.ensure_future(_awaited(LoopTime(drawn())))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert told == ["cancelled"]


async def _awaited(timed: LoopTime[str]) -> str:
    return await timed
