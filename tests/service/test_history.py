"""How queues fared: counted in the span of its time, sampled, bounded, and known after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.service.kit import Desk, open_desk, until
from veil.core.clock import ManualClock, Trouble, TroubleKind
from veil.service import history as history_module
from veil.service.history import (
    FIELDS,
    HOURS,
    MINUTES,
    RESOLUTIONS,
    WEEK,
    QueueHistory,
    Resolution,
    _bucket,
    _length_ms,
)
from veil.service.queues import delete_queue
from veil.service.service import Service
from veil.stores.memory import MemoryStore
from veil.stores.sqlite import history_file
from veil.stores.sqlite.history_file import HistoryFile


class Watched:
    """A service that is watched, and its history."""

    def __init__(self, clock: ManualClock, service: Service) -> None:
        self.clock, self.service = clock, service
        self.activity = service.watch()
        self.history: QueueHistory = self.activity.history

    async def pass_time(self, seconds: int) -> None:
        """Let the clock go on, a second at a time, and every look that it brings end."""
        for _ in range(seconds):
            self.clock.advance(seconds=1)
            await until(lambda: self.history._sampling is None)

    def column(self, desk: Desk | str, field: str, resolution: Resolution = MINUTES) -> list[int | None]:
        self.activity.tick()
        key = desk if isinstance(desk, str) else desk.queue.id
        return list(self.history.view(key, resolution).columns[field])


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    clock = ManualClock()
    clock.advance(60_000 - clock.now_ms() % 60_000)
    service = Service(MemoryStore(clock), clock)
    watched = Watched(clock, service)
    await service.start()
    yield watched
    await service.stop()


async def test_what_happens_is_counted_in_the_span_of_its_time(watched: Watched) -> None:
    orders = await open_desk(watched.service)
    for _ in range(3):
        await orders.send()
    await watched.pass_time(5)
    await orders.send()
    assert watched.column(orders, "sent")[-3:] == [0, 3, 1]

    await watched.pass_time(600)
    assert sum(map(int, watched.column(orders, "sent"))) == 0  # type: ignore[arg-type]
    assert sum(map(int, watched.column(orders, "sent", HOURS))) == 4  # type: ignore[arg-type]
    assert watched.column(orders, "sent", WEEK)[-1] == 4
    assert watched.history.recent(orders.queue.id, "sent") == 0


async def test_depth_and_age_are_sampled_and_the_account_has_the_sum(watched: Watched) -> None:
    orders, bills = await open_desk(watched.service), await open_desk(watched.service, "bills")
    await orders.send()
    await bills.send("later", delay_s=300)
    await watched.pass_time(10)

    assert watched.column(orders, "visible")[-4:] == [None, 1, 1, 1]
    assert watched.column(orders, "oldest_s")[-1] == 10
    assert watched.column(bills, "delayed")[-1] == 1
    account = orders.queue.key.account
    assert [watched.column(account, state)[-1] for state in ("visible", "delayed", "in_flight")] == [1, 1, 0]
    assert watched.column(account, "oldest_s")[-1] == 10


async def test_a_coarser_span_keeps_the_highest_depth(watched: Watched) -> None:
    orders = await open_desk(watched.service)
    for _ in range(3):
        await orders.send()
    await watched.pass_time(10)
    for message in await orders.receive(visibility_s=600):
        await orders.delete(orders.receipt(message))
    await watched.pass_time(10)

    assert watched.column(orders, "visible")[-1] == 0
    assert watched.column(orders, "visible", HOURS)[-1] == 3


async def test_handling_is_the_time_from_receive_to_delete(watched: Watched) -> None:
    orders = await open_desk(watched.service)
    for seconds in (*[1] * 50, 10):
        await orders.send()
        message = await orders.receive_one()
        watched.clock.advance(seconds * 1000)
        await orders.delete(orders.receipt(message))

    p50, p99 = (watched.column(orders, field, WEEK)[-1] for field in ("p50_ms", "p99_ms"))
    assert p50 is not None and 1_000 <= p50 <= 1_125
    assert p99 is not None and 10_000 <= p99 <= 11_250


@pytest.mark.parametrize("ms", [0, 1, 7, 8, 9, 15, 16, 100, 999, 12_345, 43_200_000])
def test_a_length_is_told_within_an_eighth(ms: int) -> None:
    assert ms <= _length_ms(_bucket(ms)) <= ms * 1.125


async def test_a_queue_that_was_deleted_has_no_history(watched: Watched) -> None:
    orders = await open_desk(watched.service)
    await orders.send()
    await watched.pass_time(5)
    await delete_queue(watched.service, orders.queue)
    await watched.pass_time(5)
    assert watched.history.is_quiet(orders.queue.id)
    assert orders.queue.id not in watched.history.depths


async def test_only_so_many_queues_have_a_history_those_that_did_something_last(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "SERIES_MAX", 3)
    desks = [await open_desk(watched.service, f"q{number}") for number in range(5)]
    for desk in desks:
        await desk.send()
        watched.activity.tick()
    assert len(watched.history._series) <= 3
    assert not watched.history.is_quiet(desks[-1].queue.id)
    assert watched.history.is_quiet(desks[0].queue.id)


async def test_a_look_that_fails_is_no_end_of_looking(watched: Watched, caplog: Any) -> None:
    orders = await open_desk(watched.service)
    await orders.send()
    counts = watched.service.store.counts

    async def broken(queue: Any) -> Any:
        raise RuntimeError("no counts today")

    watched.service.store.counts = broken  # type: ignore[method-assign]
    await watched.pass_time(5)
    assert "no counts today" in caplog.text
    watched.service.store.counts = counts  # type: ignore[method-assign]
    await orders.send()
    await watched.pass_time(5)
    assert watched.column(orders, "visible")[-1] == 2


# ---- over a restart

Start = Callable[[], Any]


async def _run(path: Path, clock: ManualClock, store: MemoryStore) -> Watched:
    service = Service(store, clock)
    service.watch(HistoryFile(path))
    watched = Watched(clock, service)
    await service.start()
    return watched


async def test_all_three_resolutions_outlive_a_restart(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "history.db"
    clock.advance(7_200_000 - clock.now_ms() % 7_200_000)
    store = MemoryStore(clock)  # outlives the service here, as a durable one does
    first = await _run(path, clock, store)
    orders = await open_desk(first.service)
    await orders.send()
    await first.pass_time(130)
    await orders.send()
    message = await orders.receive_one()
    await orders.delete(orders.receipt(message))
    before = {
        (field, each.words): first.column(orders, field, each) for each in RESOLUTIONS for field in FIELDS
    }
    await first.service.stop()

    second = await _run(path, clock, store)
    for (field, words), values in before.items():
        [resolution] = [each for each in RESOLUTIONS if each.words == words]
        assert list(second.history.view(orders.queue.id, resolution).columns[field]) == values, (field, words)
    # And it goes on in the same spans.
    await Desk(second.service, orders.queue).send()
    assert second.column(orders, "sent", WEEK)[-1] == 3
    await second.service.stop()
    assert path.stat().st_mode & 0o077 == 0


async def test_the_servers_troubles_are_known_where_they_lie_and_after_a_restart(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "history.db"
    clock.advance(7_200_000 - clock.now_ms() % 7_200_000)
    store = MemoryStore(clock, lease_grace=True)
    first = await _run(path, clock, store)
    store.lease_time.waits("disk", TroubleKind.DISK)
    clock.advance(seconds=10)
    store.lease_time.answered("disk")
    # Another node tells more of the same.
    first.service.troubled(Trouble(clock.now_ms() - 11_000, clock.now_ms() - 1_000, "disk"))
    clock.advance(seconds=2)
    [(begin, end, trouble)] = first.history.troubles(MINUTES)
    assert (trouble.to_ms - trouble.from_ms, trouble.kind) == (11_000, "disk")
    assert (begin, end) == (116.8, 119.0)
    await first.service.stop()

    store.lease_time.note(Trouble(clock.now_ms(), clock.now_ms() + 30_000, "restart"))
    clock.advance(seconds=30)
    second = await _run(path, clock, store)
    kinds = [trouble.kind for _, _, trouble in second.history.troubles(WEEK)]
    assert kinds == ["disk", "restart"]
    clock.advance(seconds=700)
    assert second.history.troubles(MINUTES) == []
    await second.service.stop()
    clock.advance(seconds=WEEK.span_s * WEEK.spans)
    third = await _run(path, clock, store)
    assert [trouble.to_ms for trouble in third.history._troubles] == [clock.now_ms()]  # this start's own
    await third.service.stop()


async def test_a_minute_is_written_while_it_runs_so_that_a_kill_costs_no_more(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "history.db"
    store = MemoryStore(clock)
    watched = await _run(path, clock, store)
    orders = await open_desk(watched.service)
    await orders.send()
    await watched.pass_time(61)
    oldest = watched.history._oldest()

    reader = HistoryFile(path)
    assert {row[2] for row in await asyncio.to_thread(reader.read, oldest)} == {
        orders.queue.id,
        orders.queue.key.account,
    }
    reader.close()
    await watched.service.stop()


async def test_what_is_older_than_a_week_is_dropped(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history.db")
    row = bytes(4 * len(FIELDS))
    file.write([(2, span, 7, row) for span in range(100)], [0, 0, 0])
    file.write([], [0, 0, 90])
    assert [span for _, span, _, _ in file.read([0, 0, 0])] == list(range(90, 100))
    file.close()


@pytest.mark.parametrize("content", [b"no database at all" * 1000, b"SQLite format 3\x00" + b"\xff" * 8192])
async def test_a_file_that_cannot_be_read_is_begun_anew(tmp_path: Path, content: bytes, caplog: Any) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(content)
    clock = ManualClock()
    watched = await _run(path, clock, MemoryStore(clock))
    orders = await open_desk(watched.service)
    await orders.send()
    assert "starts again" in caplog.text
    await watched.service.stop()

    again = HistoryFile(path)
    assert again.read([0, 0, 0])
    again.close()


def test_the_file_cannot_grow_beyond_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(history_file, "BYTES_MAX", 1 << 20)
    file, row = HistoryFile(tmp_path / "history.db"), bytes(1_000)
    for first in range(0, 4_000, 500):
        file.write([(0, span, 1, row) for span in range(first, first + 500)], [0, 0, 0])
        assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 4 << 20
    assert "starts again" in caplog.text
    file.close()
