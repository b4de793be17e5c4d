"""Version 3 of the data: what was there before priorities, and what is checked and saved of them."""

from __future__ import annotations

from pathlib import Path

from tests.stores.kit import a_message, bodies, make_queue, receipt_of, some_messages
from tests.stores.sqlite_kit import change, open_store, rows, take_priorities_away
from veil.core.clock import ManualClock
from veil.core.lease import Deletion
from veil.stores.sqlite.recovery.salvage import salvage
from veil.stores.sqlite.recovery.verify import verify
from veil.stores.store import Extension, Rotated


async def test_data_from_before_there_were_priorities_is_brought_up_to_date(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store, visibility_s=30)
        await store.send(queue, some_messages("a", "b"))
        await store.send(queue, [a_message("c", group="g")])
        [held] = await store.receive(queue, 1)
    take_priorities_away(tmp_path)
    assert verify(tmp_path).is_sound

    async with open_store(tmp_path, clock) as store:
        await store.send(queue, [a_message("urgent", priority=1)])
        assert await store.delete(queue, [receipt_of(queue, held)]) == [Deletion.DELETED]
        assert bodies(await store.receive(queue, 5)) == ["urgent", "b", "c"]
    assert verify(tmp_path).is_sound


async def test_a_queue_without_priorities_is_not_looked_through_for_them(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_store(tmp_path, clock) as store:
        plain, ranked = await make_queue(store, "plain"), await make_queue(store, "ranked")
        await store.send(plain, some_messages("a"))
        await store.send(ranked, [a_message("a", priority=9)])
    assert rows(tmp_path, "SELECT name, ranked FROM queue ORDER BY name") == [("plain", 0), ("ranked", 1)]


async def test_a_rotated_lease_is_sound_to_verify_and_goes_on_after_a_salvage(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_store(tmp_path / "data", clock) as store:
        queue = await make_queue(store, visibility_s=30)
        await store.send(queue, [a_message("a"), a_message("b", priority=3), a_message("c", priority=16)])
        [b] = await store.receive(queue, 1)
        [rotated] = await store.rotate(queue, [Extension(receipt_of(queue, b), 600)])
        assert isinstance(rotated, Rotated)
    assert verify(tmp_path / "data").is_sound
    salvage(tmp_path / "data", tmp_path / "out")
    assert verify(tmp_path / "out").is_sound

    async with open_store(tmp_path / "out", clock) as store:
        assert bodies(await store.receive(queue, 5)) == ["a", "c"]
        assert await store.delete(queue, [receipt_of(queue, b)]) == [Deletion.STALE]
        assert await store.delete(queue, [rotated.receipt]) == [Deletion.DELETED]


async def test_data_from_before_there_were_priorities_can_be_salvaged(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_store(tmp_path / "data", clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("a"), a_message("b", group="g")])
    take_priorities_away(tmp_path / "data")
    salvage(tmp_path / "data", tmp_path / "out")

    async with open_store(tmp_path / "out", clock) as store:
        found = await store.receive(queue, 5)
        assert [(message.body, message.priority) for message in found] == [("a", 8), ("b", 8)]


async def test_a_priority_that_cannot_be_is_salvaged_as_the_ordinary_one(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_store(tmp_path / "data", clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("a", priority=2)])
    change(tmp_path / "data", "UPDATE message SET priority = 99")
    salvage(tmp_path / "data", tmp_path / "out")

    async with open_store(tmp_path / "out", clock) as store:
        assert [message.priority for message in await store.receive(queue, 5)] == [8]
