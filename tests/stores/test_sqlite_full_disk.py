"""A full disk refuses sends; receives, deletes and extensions go on, and sends too when there is room again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.kit import a_message, make_queue, receipts_of
from tests.stores.sqlite_kit import SyncGate, open_store, turns
from veil.core.clock import ManualClock
from veil.core.errors import StoreFull
from veil.core.lease import Deletion
from veil.core.queue import Queue
from veil.stores.sqlite import SqliteStore
from veil.stores.sqlite.data_directory import RETRY_MS
from veil.stores.sqlite.recovery.verify import verify
from veil.stores.store import Extension

BODY = "x" * 60_000


async def fill(store: SqliteStore, queue: Queue) -> int:
    """Send until it is refused; how many were accepted."""
    for number in range(2_000):
        try:
            await store.send(queue, [a_message(BODY)])
        except StoreFull:
            return number
    raise AssertionError("the disk never became full")


async def assert_all_but_sends_go_on(store: SqliteStore, queue: Queue, deletes: int) -> None:
    for _ in range(deletes):
        received = await store.receive(queue, 1)
        receipts = receipts_of(queue, received)
        assert await store.extend(queue, [Extension(receipts[0], 60)]) == [None]
        assert await store.delete(queue, receipts) == [Deletion.DELETED]


async def test_a_database_that_may_not_grow_refuses_sends_alone(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store)
        release = store._reserve.release

        def give_up_reserve(now_ms: int) -> None:
            release(now_ms)
            store._connection.pragma("max_page_count", 700)

        monkeypatch.setattr(store._reserve, "release", give_up_reserve)
        store._connection.pragma("max_page_count", 600)
        accepted = await fill(store, queue)
        assert accepted > 10
        assert (await store.counts(queue)).visible == accepted
        await assert_all_but_sends_go_on(store, queue, accepted // 2)
        store._connection.pragma("max_page_count", 1 << 30)
        with pytest.raises(StoreFull):
            await store.send(queue, [a_message()])  # the reserve is looked at once a second
        clock.advance(RETRY_MS)
        await store.send(queue, [a_message("welcome")])
        assert (await store.counts(queue)).visible == accepted - accepted // 2 + 1
    findings = verify(tmp_path)
    assert findings.is_sound, str(findings)


async def test_a_send_that_finds_no_room_takes_no_receive_in_its_group_with_it(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    gate = SyncGate(monkeypatch)
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("first"), a_message("second")])
        store._connection.pragma("max_page_count", 60)
        gate.shut()
        earlier = asyncio.ensure_future(store.receive(queue, 1))
        await turns()
        group = [
            asyncio.ensure_future(store.receive(queue, 1)),
            asyncio.ensure_future(store.send(queue, [a_message("y" * 1_000_000)])),
            asyncio.ensure_future(store.send(queue, [a_message("small")])),
        ]
        await turns()
        gate.open()
        received, large, small = await asyncio.gather(*group, return_exceptions=True)
        assert [m.body for m in await earlier] == ["first"]
        assert not isinstance(received, BaseException) and [m.body for m in received] == ["second"]
        assert isinstance(large, StoreFull) and isinstance(small, StoreFull)
        store._connection.pragma("max_page_count", 1 << 30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_on_a_disk_that_is_full_only_sends_are_refused(small_disk: Path, clock: ManualClock):
    failures: list[BaseException] = []
    async with open_store(small_disk, clock) as store:
        store.on_failure = failures.append
        queue = await make_queue(store)
        accepted = await fill(store, queue)
        assert accepted > 50
        assert not (small_disk / "reserve").exists()
        clock.advance(RETRY_MS)
        # While the WAL is still being moved into the database there may be room for the reserve, and so for some more.
        accepted += await fill(store, queue)
        assert not (small_disk / "reserve").exists()
        await assert_all_but_sends_go_on(store, queue, accepted - 10)
        assert (await store.counts(queue)).visible == 10
        assert not failures

        subprocess.run(["mount", "-o", "remount,size=120m", str(small_disk)], check=True)
        clock.advance(RETRY_MS)
        await store.send(queue, [a_message("welcome")])
        assert (small_disk / "reserve").exists()
    findings = verify(small_disk)
    assert findings.is_sound, str(findings)
    assert findings.messages == 11


async def test_what_was_deleted_makes_room_on_a_disk_that_the_database_fills(
    small_disk: Path, clock: ManualClock
):
    async with open_store(small_disk, clock) as store:
        queue = await make_queue(store)
        for _ in range(5):
            assert await fill(store, queue) > 50
            await assert_all_but_sends_go_on(store, queue, (await store.counts(queue)).visible)
            assert not (small_disk / "reserve").exists()
    async with open_store(small_disk, clock) as store:
        assert await fill(store, await make_queue(store)) > 50
    findings = verify(small_disk)
    assert findings.is_sound, str(findings)


async def test_a_server_starts_on_a_disk_without_a_byte_left(small_disk: Path, clock: ManualClock):
    async with open_store(small_disk, clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("early")])
    with (small_disk / "of another").open("wb", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4096))
    async with open_store(small_disk, clock) as store:
        await assert_all_but_sends_go_on(store, await make_queue(store), 1)
        with pytest.raises(StoreFull):
            await store.send(queue, [a_message("late")])
        (small_disk / "of another").unlink()
        clock.advance(RETRY_MS)
        await store.send(queue, [a_message("later")])
    findings = verify(small_disk)
    assert findings.is_sound, str(findings)
