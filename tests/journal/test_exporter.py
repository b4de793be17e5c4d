"""The exporter waits as long as it may, gives up on nothing, and tells what goes wrong without shouting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.journal.kit import DirectSink, events_of
from tests.stores.kit import a_message, make_queue
from veil.core.clock import ManualClock
from veil.core.event import ExportPlan, OutboxRow
from veil.journal import frames
from veil.journal.exporter import Exporter
from veil.journal.helper_process import ExportFailed
from veil.journal.segments import list_segments
from veil.journal.storage import Storage
from veil.stores.memory import MemoryStore

DAY_MS = 86_400_000


class ASink(DirectSink):
    """Fails on demand, and lets a test wait for what it did."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.broken = False
        self.tries = 0
        self.closed = 0
        self.happened = asyncio.Event()

    async def write(self, plan: ExportPlan, rows: AsyncIterator[Sequence[OutboxRow]]) -> frames.Written:
        self.tries += 1
        self.happened.set()
        if self.broken:
            raise ExportFailed("No space left on device")
        return await super().write(plan, rows)

    async def close(self) -> None:
        self.closed += 1


class World:
    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.place = Storage.at(tmp_path / "journal")
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock, journal=True)
        self.sink = ASink(self.place.uri)
        self.exporter = Exporter(self.store, self.sink, self.clock, **settings)

    async def send(self, count: int = 1) -> None:
        queue = await make_queue(self.store)
        for _ in range(count):
            await self.store.send(queue, [a_message()])

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in small steps, and everything happen that comes of each."""
        for _ in range(round(seconds * 4)):
            self.clock.advance(250)
            for _ in range(20):
                await asyncio.sleep(0)

    @property
    def exported(self) -> int:
        return len(events_of(self.place))


async def test_events_wait_for_the_interval_and_then_go_together(tmp_path: Path):
    world = World(tmp_path, interval_s=60)
    world.exporter.start()
    await world.send(3)
    await world.pass_time(50)
    await world.send(2)
    assert world.exported == 0

    await world.pass_time(12)
    assert world.exported == 5
    assert len(list_segments(world.place)) == 1
    assert (await world.store.outbox_size()).rows == 0
    await world.exporter.stop(5)


async def test_much_is_exported_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("veil.journal.exporter.SEGMENT_BYTES_MAX", 2_000)
    world = World(tmp_path, interval_s=3_600)
    world.exporter.start()
    await world.send(5)
    await world.pass_time(5)
    assert world.exported == 0

    await world.send(100)
    await world.pass_time(5)
    assert world.exported >= 85
    assert all(segment.last - segment.first < 40 for segment in list_segments(world.place))
    await world.exporter.stop(5)


async def test_a_stop_exports_what_is_left(tmp_path: Path):
    world = World(tmp_path, interval_s=60)
    world.exporter.start()
    await world.send(3)
    await world.exporter.stop(5)
    assert world.exported == 3


class SlowSink(DirectSink):
    """Stands still behind the first rows, until it may go on."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()

    async def write(self, plan: ExportPlan, rows: AsyncIterator[Sequence[OutboxRow]]) -> frames.Written:
        async def slowly() -> AsyncIterator[Sequence[OutboxRow]]:
            async for some in rows:
                yield some
                self.began.set()
                await self.goes_on.wait()

        return await super().write(plan, slowly())


async def test_a_node_that_is_overtaken_does_not_replace_a_whole_segment(tmp_path: Path):
    world = World(tmp_path)
    await world.send(200)
    sink = SlowSink(world.place.uri)
    exporting = asyncio.ensure_future(Exporter(world.store, sink, world.clock).export_all())
    await sink.began.wait()
    await world.exporter.export_all()
    sink.goes_on.set()
    assert await exporting == 0
    assert world.exported == 200


async def test_the_duty_is_kept_as_long_as_an_export_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world = World(tmp_path)
    await world.send()
    asked: list[int] = []

    async def has_duty(duty: str) -> bool:
        asked.append(world.clock.now_ms())
        return True

    monkeypatch.setattr(world.store, "has_duty", has_duty)
    sink = SlowSink(world.place.uri)
    exporting = asyncio.ensure_future(Exporter(world.store, sink, world.clock).export_one())
    await sink.began.wait()
    await world.pass_time(10)
    assert len(asked) == 10
    sink.goes_on.set()
    assert await exporting
    await world.pass_time(10)
    assert len(asked) == 10


async def test_without_events_nothing_is_written(tmp_path: Path):
    world = World(tmp_path, interval_s=1)
    world.exporter.start()
    await world.pass_time(10)
    await world.exporter.stop(5)
    assert world.sink.tries == 0
    assert not (tmp_path / "journal").exists()


async def test_a_location_that_fails_loses_nothing_and_is_told_of_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    world = World(tmp_path, interval_s=1)
    world.sink.broken = True
    world.exporter.start()
    await world.send(4)
    with caplog.at_level(logging.INFO, "veil.journal"):
        await world.pass_time(55)
        assert [record.message for record in caplog.records] == [
            "the journal cannot be exported, its events wait in the outbox: No space left on device"
        ]
        # It backs off: 1, 2, 4, 8, 15, 30 seconds.
        assert 5 <= world.sink.tries <= 7
        assert world.exporter.stats.failures == world.sink.tries
        await world.pass_time(130)
        assert 2 <= len(caplog.records) <= 4
        assert (await world.store.outbox_size()).rows == 4

        world.sink.broken = False
        await world.pass_time(62)
        assert world.exported == 4
        assert caplog.records[-1].message == "the journal is exported again"
    await world.exporter.stop(5)


async def test_a_stop_while_the_location_fails_says_so_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    world = World(tmp_path, interval_s=60)
    world.sink.broken = True
    world.exporter.start()
    await world.send()
    await world.exporter.stop(5)
    assert "waits in the outbox: No space left on device" in caplog.text
    assert (await world.store.outbox_size()).rows == 1


async def test_a_stop_does_not_wait_for_an_export_that_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    class HangingSink(ASink):
        async def write(self, plan: ExportPlan, rows: AsyncIterator[Sequence[OutboxRow]]) -> frames.Written:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    world = World(tmp_path, interval_s=60)
    exporter = Exporter(world.store, HangingSink(world.place.uri), world.clock)
    exporter.start()
    await world.send()
    await exporter.stop(0.05)
    assert "took too long" in caplog.text
    assert (await world.store.outbox_size()).rows == 1


async def test_days_whose_time_is_over_are_removed_whole(tmp_path: Path):
    world = World(tmp_path, interval_s=10, retention_days=2)
    world.exporter.start()
    for _ in range(5):
        await world.send()
        await world.pass_time(30)
        world.clock.advance(DAY_MS - 30_000)
    await world.pass_time(30)
    days = [entry.name for entry in world.place.entries() if entry.is_folder]
    # Today has none yet; of the days before it, two are kept.
    assert days == ["day=2023-11-17", "day=2023-11-18"]
    await world.exporter.stop(5)


async def test_a_retention_of_zero_keeps_for_ever(tmp_path: Path):
    world = World(tmp_path, interval_s=10, retention_days=0)
    world.exporter.start()
    await world.send()
    await world.pass_time(12)
    world.clock.advance(4_000 * DAY_MS)
    await world.send()
    await world.pass_time(12)
    assert len(list_segments(world.place)) == 2
    await world.exporter.stop(5)


async def test_no_segment_reaches_over_midnight(tmp_path: Path):
    world = World(tmp_path, interval_s=60)
    await world.send(2)
    world.clock.advance(DAY_MS)
    await world.send(3)
    await world.exporter.export_all()
    assert [(each.day, each.first, each.last) for each in list_segments(world.place)] == [
        ("2023-11-14", 1, 2),
        ("2023-11-15", 3, 5),
    ]


async def test_an_idle_exporter_lets_its_helper_go(tmp_path: Path):
    world = World(tmp_path, interval_s=10)
    world.exporter.start()
    await world.send()
    await world.pass_time(20)
    assert world.sink.closed == 0
    await world.pass_time(90)
    assert world.sink.closed > 0
    await world.exporter.stop(5)


async def test_the_location_of_another_store_is_refused_and_left_alone(tmp_path: Path):
    world = World(tmp_path)
    await world.send()
    await world.exporter.export_all()
    before = world.place.entries(recursive=True)

    stranger = Exporter(world.store, DirectSink(world.place.uri, "another"), world.clock)
    await world.send()
    with pytest.raises(Exception, match="holds the journal of another store: name another location"):
        await stranger.export_all()
    assert world.place.entries(recursive=True) == before
    with pytest.raises(Exception, match="another store"):
        await DirectSink(world.place.uri, "another").sweep("2999-01-01")
