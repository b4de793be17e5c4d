"""The outbox on disk: written with the change or not at all, and known to those who check, copy and save the data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.stores.journal_kit import A_CALLER, exported, kinds, plan_of, rows_of
from tests.stores.kit import a_key, a_message, make_queue, receipt_of, receipts_of, some_messages
from tests.stores.sqlite_kit import SyncGate, change, crashed_copy, flip_bit, open_store, rows, turns
from veil.core.clock import ManualClock
from veil.stores.sqlite import SqliteStore, leases, outbox
from veil.stores.sqlite.data_directory import DATABASE
from veil.stores.sqlite.messages import send
from veil.stores.sqlite.recovery.backup import backup, restore
from veil.stores.sqlite.recovery.salvage import salvage
from veil.stores.sqlite.recovery.verify import verify


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / "data", clock, journal=True) as store:
        yield store


# ---- with the change, or not at all


async def test_the_events_of_a_group_stand_in_one_row(store: SqliteStore):
    queue = await make_queue(store)
    await asyncio.gather(*(store.send(queue, [a_message(f"m{n}")]) for n in range(20)))
    size = await store.outbox_size()
    assert size.rows <= 3
    assert len(await exported(store)) == 20


async def test_a_group_that_is_redone_tells_of_each_change_once(store: SqliteStore):
    queue = await make_queue(store)

    def breaks() -> None:
        raise RuntimeError("planted")

    first = asyncio.ensure_future(store.send(queue, [a_message("a")]))
    await asyncio.sleep(0)
    broken = store._commits.submit(breaks)
    second = asyncio.ensure_future(store.send(queue, [a_message("bb")]))
    answers = await asyncio.gather(first, broken, second, return_exceptions=True)

    assert isinstance(answers[1], RuntimeError)
    assert [event.body_bytes for event in await exported(store)] == [1, 2]


async def test_what_was_rolled_back_is_not_told(store: SqliteStore):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    await exported(store)

    def sends_and_breaks() -> None:
        send(store._db, queue, [a_message("never")], None, A_CALLER)
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError):
        await store._commits.submit(sends_and_breaks)
    await store.send(queue, [a_message("kept")])

    [event] = await exported(store)
    assert event.body_bytes == 4
    assert (await store.counts(queue)).visible == 2


async def test_a_rolled_back_row_leaves_no_gap_in_the_numbers(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    execute, failures = store._db.execute, iter([True])

    def once_failing(statement: str, *given: object) -> object:
        if statement == "COMMIT" and next(failures, False):
            raise RuntimeError("planted")
        return execute(statement, *given)

    monkeypatch.setattr(store._commits, "_execute", once_failing)
    await store.send(queue, [a_message()])

    plan = await plan_of(store)
    assert plan is not None
    assert [row.number for row in await rows_of(store, plan)] == [1, 2]
    assert kinds(await exported(store)) == ["sent", "sent"]


async def test_an_event_is_on_disk_when_its_change_is_answered(store: SqliteStore, tmp_path: Path):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    copy = crashed_copy(tmp_path / "data", tmp_path / "copy")
    assert rows(copy, "SELECT (SELECT count(*) FROM message), (SELECT count(*) FROM outbox)") == [(1, 1)]


async def test_a_refusal_is_on_disk_when_it_is_answered(store: SqliteStore, tmp_path: Path):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [message] = await store.receive(queue, 1)
    await store.delete(queue, [receipt_of(queue, message)])
    await exported(store)
    await store.delete(queue, [receipt_of(queue, message)])
    copy = crashed_copy(tmp_path / "data", tmp_path / "copy")
    assert rows(copy, "SELECT count(*) FROM outbox") == [(1,)]


async def test_a_plan_is_on_disk_when_it_is_given_out(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    gate = SyncGate(monkeypatch)
    async with open_store(tmp_path / "data", clock, journal=True) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message()])
        gate.shut()
        asked = asyncio.ensure_future(plan_of(store))
        await turns()
        assert not asked.done()
        gate.open()
        assert await asked is not None


async def test_deletes_are_told_alike_whether_they_come_together_or_alone(store: SqliteStore):
    queue = await make_queue(store)
    await store.send(queue, some_messages(*"abcdefgh"))
    messages = await store.receive(queue, 8)
    await exported(store)
    receipts = receipts_of(queue, messages)
    await store.delete(queue, receipts[:5])
    for receipt in receipts[5:]:
        await store.delete(queue, [receipt])

    told = await exported(store)
    assert [(e.message_id, e.delivery, e.deadline_ms) for e in told] == [
        (m.message_id, m.delivery, m.due_at_ms) for m in messages
    ]


# ---- exporting in small pieces


async def test_a_large_plan_is_read_and_removed_a_little_at_a_time(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbox, "ROWS_AT_ONCE", 4)
    monkeypatch.setattr(outbox, "SIZES_AT_ONCE", 3)
    monkeypatch.setattr(outbox, "BYTES_AT_ONCE", 300)
    queue = await make_queue(store)
    for _ in range(30):
        await store.send(queue, [a_message()])
    plan = await plan_of(store)
    assert plan is not None and (plan.first, plan.last) == (1, 30)

    assert [row.number for row in await store.outbox_rows(plan, limit=25)] == list(range(1, 26))
    before = store.commit_stats.commits
    await store.finish_export(plan)
    assert store.commit_stats.commits - before >= 8
    assert await store.outbox_size() == (0, 0, None, 0)


async def test_a_crash_while_rows_are_removed_brings_none_of_them_back(
    store: SqliteStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    queue = await make_queue(store)
    for _ in range(5):
        await store.send(queue, [a_message()])
    plan = await plan_of(store)
    assert plan is not None
    monkeypatch.setattr(outbox.SqliteOutbox, "sweep", lambda self: False)
    await store.finish_export(plan)
    copy = crashed_copy(tmp_path / "data", tmp_path / "copy")
    monkeypatch.undo()

    assert rows(copy, "SELECT count(*) FROM outbox") == [(5,)]
    async with open_store(copy, clock, journal=True) as again:
        assert await plan_of(again) is None
        assert (await again.outbox_size()).rows == 0
        assert again._sweeper is not None
        await again._sweeper
        assert (await again.outbox_size()).packed_bytes == 0
        await again.send(queue, [a_message()])
        following = await plan_of(again)
        assert following is not None and following.first == 6
    assert verify(copy).is_sound


async def test_the_messages_of_a_deleted_queue_are_told_after_a_crash_too(
    store: SqliteStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leases, "CHUNK", 2)
    queue = await make_queue(store)
    await store.send(queue, some_messages(*"abcde"))
    await exported(store)
    monkeypatch.setattr(store, "_start_sweeping", lambda: None)
    await store.delete_queue(queue, caller=A_CALLER)
    deleted_at_ms = clock.now_ms()
    copy = crashed_copy(tmp_path / "data", tmp_path / "copy")
    clock.advance(seconds=60)

    async with open_store(copy, clock, journal=True) as again:
        assert again._sweeper is not None
        await again._sweeper
        told = await exported(again)
    assert [(e.kind, e.at_ms, e.caller) for e in told] == [("purged", deleted_at_ms, A_CALLER)] * 5


# ---- checked, copied, saved


async def with_an_outbox(directory: Path, clock: ManualClock) -> None:
    """Five rows, of which one is exported and two are planned."""
    async with open_store(directory, clock, journal=True) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("gone")])
        await exported(store)
        for body in ("planned one", "planned two"):
            await store.send(queue, [a_message(body)])
        await plan_of(store)
        await store.send(queue, [a_message("waits", message_type="T")])
        await store.delete(queue, receipts_of(queue, await store.receive(queue, 1)))


SPOILED = {
    "DELETE FROM outbox WHERE number = 4": "row 4 is missing",
    "DELETE FROM outbox WHERE number = (SELECT max(number) FROM outbox)": "were given out",
    "UPDATE outbox SET packed = zeroblob(length(packed)) WHERE number = 4": "outbox row 4: unreadable",
    "UPDATE clock_mark SET outbox_bytes = 1": "is said to hold 1",
    "UPDATE clock_mark SET outbox_last = 2": "planned up to 3, but the last row is said to be 2",
    "UPDATE export SET done = 9": "exported up to 9",
    "DELETE FROM export": "how far its export has come",
    "DELETE FROM meta WHERE name = 'journal_id'": "the journal_id is missing",
    "UPDATE message SET body_bytes = 7 WHERE body = 'waits'": "5 bytes, but is said to have 7",
    "UPDATE message SET message_type = CAST(x'ff' AS TEXT) WHERE body = 'waits'": "unreadable",
}


@pytest.mark.parametrize("statement", SPOILED)
async def test_a_check_finds_what_is_wrong_with_the_outbox(
    tmp_path: Path, clock: ManualClock, statement: str
):
    await with_an_outbox(tmp_path, clock)
    assert verify(tmp_path).is_sound, str(verify(tmp_path))
    change(tmp_path, statement)
    findings = verify(tmp_path)
    assert not findings.is_sound
    assert SPOILED[statement] in str(findings)


async def test_a_restore_begins_a_new_journal_of_the_same_store(tmp_path: Path, clock: ManualClock):
    data, again = tmp_path / "data", tmp_path / "again"
    await with_an_outbox(data, clock)
    backup(data, tmp_path / "monday.veil")
    restore(tmp_path / "monday.veil", again)
    assert verify(again).is_sound, str(verify(again))

    async with open_store(data, clock, journal=True) as old, open_store(again, clock, journal=True) as new:
        assert new.store_id == old.store_id
        assert await plan_of(new) is None  # told by the other store, or to be
        queue = await new.find_queue(a_key("orders"))
        assert queue is not None
        await new.send(queue, [a_message()])
        plans = [await plan_of(store) for store in (old, new)]
        assert plans[1] is not None and plans[0] is not None
        assert plans[1].first == 1
        assert plans[1].journal_id != plans[0].journal_id


async def test_a_salvage_goes_on_with_what_was_not_under_way(tmp_path: Path, clock: ManualClock):
    data, out = tmp_path / "data", tmp_path / "out"
    await with_an_outbox(data, clock)
    report = salvage(data, out)
    assert verify(out).is_sound, str(verify(out))
    assert report.events == 3

    async with open_store(data, clock, journal=True) as old, open_store(out, clock, journal=True) as new:
        plans = [await plan_of(store) for store in (old, new)]
        assert plans[0] is not None and plans[1] is not None
        assert (plans[1].first, plans[1].journal_id != plans[0].journal_id) == (1, True)
        assert new.store_id == old.store_id
        assert kinds(await exported(new)) == ["sent", "received", "deleted"]


async def test_a_salvage_passes_over_rows_that_cannot_be_read(tmp_path: Path, clock: ManualClock):
    data, out = tmp_path / "data", tmp_path / "out"
    await with_an_outbox(data, clock)
    change(data, "UPDATE outbox SET packed = zeroblob(9) WHERE number = 5")
    change(data, "UPDATE message SET body_bytes = 0")
    salvage(data, out)
    assert verify(out).is_sound, str(verify(out))
    async with open_store(out, clock, journal=True) as store:
        assert kinds(await exported(store)) == ["sent", "deleted"]


async def test_a_flipped_bit_in_the_outbox_costs_no_message(tmp_path: Path, clock: ManualClock):
    data, out = tmp_path / "data", tmp_path / "out"
    await with_an_outbox(data, clock)
    packed = rows(data, "SELECT packed FROM outbox WHERE number = 4")[0][0]
    assert isinstance(packed, bytes)
    flip_bit(data / DATABASE, (data / DATABASE).read_bytes().index(packed))
    assert not verify(data).is_sound
    assert salvage(data, out).messages == 3
    assert verify(out).is_sound
