"""Holds in the embedded store: what a crash, a restore, a rollback and older data leave of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.kit import bodies, make_queue, receipts_of, some_messages
from tests.stores.sqlite_kit import change, crashed_copy, open_store, rows, take_priorities_away
from veil.core.clock import ManualClock
from veil.core.errors import HoldClosed
from veil.core.event import NOBODY
from veil.core.lease import HoldKey, HoldTally
from veil.core.queue import Queue
from veil.stores.sql import START
from veil.stores.sqlite import SqliteStore, holds
from veil.stores.sqlite.recovery.backup import backup, restore
from veil.stores.sqlite.recovery.salvage import salvage
from veil.stores.sqlite.recovery.verify import verify

NAMES = [f"m{number}" for number in range(8)]


def key(batch: int = 0, part: int = 0) -> HoldKey:
    return HoldKey("epoch", batch, part)


async def four_holds(store: SqliteStore) -> Queue:
    queue = await make_queue(store)
    await store.send(queue, some_messages(*NAMES))
    await store.open_stream(queue, "epoch", "me")
    for part in range(4):
        await store.receive_hold(queue, key(part=part), 2, visibility_s=30)
    return queue


async def test_a_deletion_that_a_crash_cut_short_is_closed_at_once_and_goes_on_when_repeated(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "DELETED_AT_ONCE", 2)
    async with open_store(tmp_path / "live", clock) as store:
        queue = await four_holds(store)
        step = await store._do(holds.delete_holds, store._db, queue, "epoch", "me", 0, NOBODY, START)
        assert step == (HoldTally(2, 0), (0, 0))
        crashed = crashed_copy(tmp_path / "live", tmp_path / "crashed")

    async with open_store(crashed, clock) as store:
        with pytest.raises(HoldClosed):
            await store.receive_hold(queue, key(part=3), 2, visibility_s=30)
        assert await store.extend_holds(queue, "epoch", "me", visibility_s=30) == (6, 0)
        assert await store.delete_holds(queue, "epoch", "me", up_to_batch=0) == (6, 0)
        assert await store.counts(queue) == (0, 0, 0)
    assert verify(crashed).is_sound


async def test_many_holds_are_gone_through_in_steps(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holds, "HOLDS_AT_ONCE", 3)
    async with open_store(tmp_path, clock) as store:
        queue = await four_holds(store)
        for batch in range(1, 8):
            assert (await store.receive_hold(queue, key(batch), 2, visibility_s=30)).messages == []

        assert await store.extend_holds(queue, "epoch", "me", visibility_s=30) == (8, 0)
        assert await store.delete_holds(queue, "epoch", "me", up_to_batch=7) == (8, 0)
    assert rows(tmp_path, "SELECT count(*) FROM hold") == [(0,)]


async def test_a_hold_whose_transaction_failed_is_as_if_it_had_not_been(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path, clock, journal=True) as store:
        queue = await four_holds(store)

        def stumbles(*_: object) -> int:
            store._db.execute("DELETE FROM message")
            raise RuntimeError("in the middle of it")

        with monkeypatch.context() as broken:
            broken.setattr(holds, "apply", stumbles)
            with pytest.raises(RuntimeError):
                await store.delete_holds(queue, "epoch", "me", up_to_batch=0)

        again = await store.receive_hold(queue, key(), 2, visibility_s=30)  # nothing was closed
        assert (bodies(again.messages), again.lost) == (["m0", "m1"], 0)
        assert await store.counts(queue) == (0, 8, 0)


async def test_after_a_restore_open_leases_are_held_and_lapsed_ones_are_not_trusted(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_store(tmp_path / "data", clock) as store:
        queue = await four_holds(store)
        first = await store.receive_hold(queue, key(), 2, visibility_s=300)
        backup(tmp_path / "data", tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    clock.advance(seconds=31)

    async with open_store(tmp_path / "restored", clock) as store:
        again = await store.receive_hold(queue, key(), 2, visibility_s=30)
        assert receipts_of(queue, again.messages) == receipts_of(queue, first.messages)
        assert await store.receive_hold(queue, key(part=1), 2, visibility_s=30) == ([], 2, True)
        assert await store.delete_holds(queue, "epoch", "me", up_to_batch=0) == (6, 2)
        assert bodies(await store.peek(queue)) == ["m2", "m3"]
    assert verify(tmp_path / "restored").is_sound


async def test_holds_are_salvaged_and_one_that_cannot_be_read_deletes_nothing(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_store(tmp_path / "data", clock) as store:
        queue = await four_holds(store)
    change(tmp_path / "data", "UPDATE hold SET members = x'c1' WHERE part = 1")
    change(tmp_path / "data", "DELETE FROM stream")
    salvage(tmp_path / "data", tmp_path / "out")
    assert verify(tmp_path / "out").is_sound

    async with open_store(tmp_path / "out", clock) as store:
        await store.open_stream(queue, "epoch", "me")
        assert await store.delete_holds(queue, "epoch", "me", up_to_batch=0) == (6, 0)
        assert bodies(await store.peek(queue)) == ["m2", "m3"]


async def test_data_from_before_there_were_holds_is_brought_up_to_date(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store)
        await store.send(queue, some_messages("a"))
    take_priorities_away(tmp_path)
    change(tmp_path, "DROP TABLE hold")
    change(tmp_path, "DROP TABLE stream")
    change(tmp_path, "PRAGMA user_version = 1")
    assert verify(tmp_path).is_sound

    async with open_store(tmp_path, clock) as store:
        assert bodies((await store.receive_hold(queue, key(), 1, visibility_s=30)).messages) == ["a"]
