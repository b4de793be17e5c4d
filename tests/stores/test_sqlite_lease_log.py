"""Leases that are kept out of their messages' rows: nobody can tell, whatever happens to the store meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.stores.kit import (
    a_grouped_message,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    receipts_of,
    redrive_to,
    some_messages,
)
from tests.stores.sqlite_kit import change, crashed_copy, open_store, rows
from veil.core import limits
from veil.core.clock import ManualClock
from veil.core.errors import InFlightLimit, MessageNotVisible, StoreDamaged
from veil.core.lease import Deletion, HoldKey, State
from veil.core.queue import Chosen, MoveTask, QueueCounts
from veil.stores.sqlite import SqliteStore, lease_log
from veil.stores.sqlite.recovery.backup import backup, restore
from veil.stores.sqlite.recovery.salvage import salvage
from veil.stores.sqlite.recovery.verify import verify
from veil.stores.store import Extension

STATES = "SELECT state, delivery FROM message ORDER BY seq"
VISIBLE, IN_FLIGHT = int(State.VISIBLE), int(State.IN_FLIGHT)


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / "data", clock) as store:
        yield store


async def test_a_receive_and_a_renewal_change_no_row_and_a_delete_removes_it(
    store: SqliteStore, tmp_path: Path
) -> None:
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    taken = await store.receive(queue, 2)
    await store.extend(queue, [Extension(receipt, 60) for receipt in receipts_of(queue, taken)])
    assert rows(tmp_path / "data", STATES) == [(VISIBLE, 0), (VISIBLE, 0)]
    assert await store.counts(queue) == QueueCounts(in_flight=2)
    assert await store.receive(queue, 1) == []

    assert await store.delete(queue, receipts_of(queue, taken)) == [Deletion.DELETED] * 2
    assert rows(tmp_path / "data", STATES) == []
    assert await store.counts(queue) == QueueCounts()


async def test_whoever_looks_finds_the_leases_and_writes_none(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("a", "b"))
    [taken] = await store.receive(queue, 1)
    assert await store.oldest_sent_ms(queue) == clock.now_ms()  # that of b
    assert bodies(await store.peek_next(queue)) == ["b"]
    [a, b] = await store.peek(queue)
    assert (a.state, a.delivery, a.receive_count, a.due_at_ms) == (IN_FLIGHT, 1, 1, clock.now_ms() + 30_000)
    assert b.state == VISIBLE
    assert a == taken
    assert await store.peek(queue, sent_after_ms=clock.wall_ms()) == [a, b]
    assert [type(each) for each in await store.discard(queue, [(a.seq, a.message_id)])] == [MessageNotVisible]
    chosen = Chosen(a.seq, a.message_id, queue.key)
    assert [type(each) for each in await store.redrive(queue, [chosen])] == [MessageNotVisible]
    assert rows(tmp_path / "data", STATES) == [(VISIBLE, 0), (VISIBLE, 0)]


async def test_receives_that_read_whole_messages_pass_over_what_is_leased(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    await make_queue(store, "dead")
    queue = await make_queue(store, redrive=redrive_to("dead", 2))
    await store.send(queue, some_messages(*"abcdef"))
    assert bodies(await store.receive(queue, 2)) == ["a", "b"]
    assert bodies(await store.receive(queue, 1, visibility_s=0)) == ["c"]
    assert bodies(await store.receive(queue, 100)) == ["c", "d", "e", "f"]  # their bytes are counted
    assert [state for state, _ in rows(tmp_path / "data", STATES)] == [VISIBLE] * 2 + [IN_FLIGHT] * 4
    assert await store.counts(queue) == QueueCounts(in_flight=6)
    clock.advance(seconds=31)
    assert bodies(await store.receive(queue, 10)) == list("abdef")  # c is spent


async def test_a_move_task_passes_over_what_is_leased(store: SqliteStore) -> None:
    await make_queue(store, "orders", redrive=redrive_to("dead", 1))
    dead, other = await make_queue(store, "dead"), await make_queue(store, "other")
    await store.send(dead, some_messages("a", "b"))
    await store.receive(dead, 1)
    task = await store.start_move(MoveTask("t", dead.key, other.key, None, "RUNNING", 0, 0, 0))
    assert task.to_move == 1
    assert (await store.step_move("t", 10)).moved == 1
    assert bodies(await store.receive(other, 10)) == ["b"]
    assert await store.counts(dead) == QueueCounts(in_flight=1)


async def test_leases_survive_a_crash(store: SqliteStore, clock: ManualClock, tmp_path: Path) -> None:
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("a", "b", "c", "d"))
    taken = await store.receive(queue, 3)
    await store.delete(queue, [receipt_of(queue, taken[0])])
    await store.extend(queue, [Extension(receipt_of(queue, taken[2]), 90)])

    async with open_store(crashed_copy(tmp_path / "data", tmp_path / "copy"), clock) as again:
        assert await again.counts(queue) == QueueCounts(visible=1, in_flight=2)
        assert bodies(await again.receive(queue, 10)) == ["d"]
        clock.advance(seconds=31)
        assert bodies(await again.receive(queue, 10)) == ["b", "d"]
        # c was extended, and its receipt is as good as before.
        assert await again.delete(queue, [receipt_of(queue, taken[2])]) == [Deletion.DELETED]
    assert str(verify(tmp_path / "copy")) == ""


async def test_a_lease_that_is_in_its_row_already_is_not_opened_again_after_a_crash(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("a", "b"))
    [a, _] = await store.receive(queue, 2)
    await store.edit_queue(
        queue, lambda content: content._replace(settings=replace(content.settings, retention_s=60))
    )
    await store.extend(queue, [Extension(receipt_of(queue, a), 0)])
    [again] = await store.receive(queue, 2)

    async with open_store(crashed_copy(tmp_path / "data", tmp_path / "copy"), clock) as copy:
        [a, b] = await copy.peek(queue)
        assert (a.delivery, a.receive_count, a.due_at_ms) == (2, 2, again.due_at_ms)
        assert (b.delivery, b.receive_count) == (1, 1)


async def test_leases_are_as_they_were_when_a_transaction_is_undone(store: SqliteStore) -> None:
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b", "c", "d"))
    first = await store.receive(queue, 2)

    def broken() -> None:
        raise RuntimeError("in the middle of a group")

    results = await asyncio.gather(
        store.extend(queue, [Extension(receipt_of(queue, first[0]), 60)]),
        store.delete(queue, [receipt_of(queue, first[1])]),
        store.receive(queue, 1),
        store._commits.submit(broken),
        return_exceptions=True,
    )
    [c] = results[2]  # type: ignore[misc]
    assert results[:2] == [[None], [Deletion.DELETED]]
    assert isinstance(results[3], RuntimeError)
    assert await store.counts(queue) == QueueCounts(visible=1, in_flight=2)
    assert bodies(await store.receive(queue, 10)) == ["d"]
    held = receipts_of(queue, [first[0], c])
    assert await store.delete(queue, held) == [Deletion.DELETED] * 2
    assert bodies(await store.peek(queue)) == ["d"]


async def test_what_came_back_is_received_after_a_transaction_was_undone(store: SqliteStore) -> None:
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b", "c"))
    [a, b] = receipts_of(queue, await store.receive(queue, 2))
    await store.delete(queue, [b])
    await store.extend(queue, [Extension(a, 0)])

    def broken() -> None:
        raise RuntimeError("in the middle of a group")

    with pytest.raises(RuntimeError):
        await store._commits.submit(broken)
    assert bodies(await store.receive(queue, 10)) == ["a", "c"]


async def test_what_comes_back_has_only_the_leases_behind_it_written(
    store: SqliteStore, tmp_path: Path
) -> None:
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b", "c", "d"))
    taken = await store.receive(queue, 3)
    await store.extend(queue, [Extension(receipt_of(queue, taken[1]), 0)])
    assert [state for state, _ in rows(tmp_path / "data", STATES)] == [VISIBLE, VISIBLE, IN_FLIGHT, VISIBLE]
    assert bodies(await store.receive(queue, 10)) == ["b", "d"]
    assert await store.counts(queue) == QueueCounts(in_flight=4)


async def test_what_comes_back_is_received_before_what_was_not_received_yet(
    store: SqliteStore, clock: ManualClock
) -> None:
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("a", "b", "c", "d"))
    taken = await store.receive(queue, 3)
    await store.extend(queue, [Extension(receipt_of(queue, taken[1]), 0)])
    assert bodies(await store.receive(queue, 1, visibility_s=60)) == ["b"]
    clock.advance(seconds=30)
    assert bodies(await store.receive(queue, 10)) == ["a", "c", "d"]


async def test_a_dead_letter_older_than_what_was_received_there_is_received(
    store: SqliteStore, clock: ManualClock
) -> None:
    target = await make_queue(store, "dead")
    source = await make_queue(store, "orders", redrive=redrive_to("dead", 1))
    await store.send(source, [a_message("spent")])
    clock.advance(seconds=1)
    await store.send(target, some_messages("new", "newer"))
    assert bodies(await store.receive(target, 1)) == ["new"]
    await store.receive(source, 1, visibility_s=0)
    assert await store.receive(source, 1) == []
    assert bodies(await store.receive(target, 10)) == ["spent", "newer"]


async def test_beyond_a_bound_leases_are_written_at_once(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_log, "LEASES_MAX", 3)
    queue = await make_queue(store)
    await store.send(queue, some_messages(*"abcdef"))
    taken = [*await store.receive(queue, 2), *await store.receive(queue, 2), *await store.receive(queue, 1)]
    assert bodies(taken) == list("abcde")
    states = [state for state, _ in rows(tmp_path / "data", STATES)]
    assert states == [VISIBLE, VISIBLE, IN_FLIGHT, IN_FLIGHT, VISIBLE, VISIBLE]

    held = receipts_of(queue, taken)
    assert await store.extend(queue, [Extension(receipt, 60) for receipt in held]) == [None] * 5
    assert await store.delete(queue, held) == [Deletion.DELETED] * 5
    assert bodies(await store.receive(queue, 10)) == ["f"]


async def test_the_log_begins_anew_when_it_is_long(
    store: SqliteStore, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_log, "LOG_BYTES_MAX", 500)
    queue = await make_queue(store)
    for n in range(100):
        await store.send(queue, [a_message(f"m{n}")])
        await store.receive(queue, 1)
        [(size,)] = rows(tmp_path / "data", "SELECT coalesce(sum(length(packed)), 0) FROM lease_log")
        assert isinstance(size, int) and size < 700
    async with open_store(crashed_copy(tmp_path / "data", tmp_path / "copy"), clock) as again:
        assert await again.counts(queue) == QueueCounts(in_flight=100)
        assert {message.delivery for message in await again.peek(queue)} == {1}


async def test_the_log_begins_anew_when_it_tells_of_many_messages_however_short_it_is(
    store: SqliteStore, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_log, "LOGGED_MAX", 200)
    queue = await make_queue(store)
    await store.send(queue, [a_message("held")])
    await store.receive(queue, 1)
    for _ in range(30):
        await store.send(queue, some_messages(*map(str, range(100))))
        await store.delete(queue, receipts_of(queue, await store.receive(queue, 100)))
        packed = [bytes(row) for (row,) in rows(tmp_path / "data", "SELECT packed FROM lease_log")]  # type: ignore[call-overload]
        assert sum(map(len, lease_log.folded(packed).values())) <= 300
    async with open_store(crashed_copy(tmp_path / "data", tmp_path / "copy"), clock) as again:
        assert await again.counts(queue) == QueueCounts(in_flight=1)

    def broken() -> None:
        raise RuntimeError("has the log read again")

    with pytest.raises(RuntimeError):
        await store._commits.submit(broken)
    for _ in range(2):
        await store.send(queue, some_messages(*map(str, range(100))))
        await store.receive(queue, 100)
    assert len(rows(tmp_path / "data", "SELECT 1 FROM lease_log")) <= 2


async def test_the_log_is_bounded_however_often_a_transaction_is_undone(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_log, "LOGGED_MAX", 200)
    queue = await make_queue(store)
    await store.send(queue, some_messages(*map(str, range(100))))
    held = receipts_of(queue, await store.receive(queue, 100))

    def broken() -> None:
        raise RuntimeError("has the log read again")

    for number in range(10):
        await store.extend(queue, [Extension(receipt, 60 + number) for receipt in held])
        with pytest.raises(RuntimeError):
            await store._commits.submit(broken)
    assert len(rows(tmp_path / "data", "SELECT 1 FROM lease_log")) <= 2
    assert await store.delete(queue, held) == [Deletion.DELETED] * 100


async def test_the_log_names_what_was_sent_in_bursts_by_the_bursts(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    queue = await make_queue(store)
    for burst in range(4):
        await store.send(queue, some_messages(*[f"m{burst}-{n}" for n in range(25)]))
        clock.advance(5)
    taken = await store.receive(queue, 100)
    [(size,)] = rows(tmp_path / "data", "SELECT length(packed) FROM lease_log")
    assert isinstance(size, int) and size < 120  # two numbers of nine bytes for each

    async with open_store(crashed_copy(tmp_path / "data", tmp_path / "copy"), clock) as again:
        assert await again.counts(queue) == QueueCounts(in_flight=100)
    assert await store.delete(queue, receipts_of(queue, taken)) == [Deletion.DELETED] * 100


async def test_what_needs_the_row_of_one_message_writes_no_other(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("a", "b", "c"))
    taken = await store.receive(queue, 3)
    [a, b, c] = receipts_of(queue, taken)
    await store.rotate(queue, [Extension(b, 60)])
    states = [state for state, _ in rows(tmp_path / "data", STATES)]
    assert states == [VISIBLE, IN_FLIGHT, VISIBLE]
    assert await store.receive(queue, 3) == []

    async with open_store(crashed_copy(tmp_path / "data", tmp_path / "copy"), clock) as again:
        clock.advance(seconds=31)
        assert bodies(await again.receive(queue, 3)) == ["a", "c"]
    assert await store.delete(queue, [a, c]) == [Deletion.DELETED] * 2
    assert await store.counts(queue) == QueueCounts(in_flight=1)


async def test_a_queue_that_gets_groups_keeps_its_leases(store: SqliteStore) -> None:
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    [a] = await store.receive(queue, 1)
    await store.send(queue, [a_grouped_message("c", "tenant")])
    assert bodies(await store.receive(queue, 10)) == ["b", "c"]
    assert await store.delete(queue, [receipt_of(queue, a)]) == [Deletion.DELETED]


async def test_a_hold_is_deleted_without_its_leases_ever_being_written(
    store: SqliteStore, tmp_path: Path
) -> None:
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b", "c"))
    await store.open_stream(queue, "epoch", "me")
    await store.receive_hold(queue, HoldKey("epoch", 0, 0), 2, visibility_s=30)
    assert rows(tmp_path / "data", STATES) == [(VISIBLE, 0)] * 3
    assert await store.delete_holds(queue, "epoch", "me", up_to_batch=0) == (2, 0)
    assert bodies(await store.peek(queue)) == ["c"]


async def test_verify_counts_what_the_log_has(store: SqliteStore, clock: ManualClock, tmp_path: Path) -> None:
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    await store.receive(queue, 1)
    copy = crashed_copy(tmp_path / "data", tmp_path / "copy")
    assert verify(copy).is_sound
    change(copy, "DELETE FROM lease_log")
    assert "counts say 1 visible, 1 in flight" in str(verify(copy))
    change(copy, "INSERT INTO lease_log (packed) VALUES (x'99')")
    assert "lease log: unreadable" in str(verify(copy))


async def test_backups_and_what_is_salvaged_have_the_leases(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("a", "b"))
    [held] = await store.receive(queue, 1)
    backup(tmp_path / "data", tmp_path / "backup.veil")
    restore(tmp_path / "backup.veil", tmp_path / "restored")
    salvage(crashed_copy(tmp_path / "data", tmp_path / "damaged"), tmp_path / "salvaged")

    for directory in (tmp_path / "restored", tmp_path / "salvaged"):
        async with open_store(directory, clock) as again:
            assert bodies(await again.receive(queue, 10)) == ["b"]
            assert await again.delete(queue, [receipt_of(queue, held)]) == [Deletion.DELETED]


async def test_a_receive_that_is_refused_after_leases_were_written_leaves_them_written(
    store: SqliteStore, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IN_FLIGHT_MAX", 3)
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b", "c", "d"))
    [a] = await store.receive(queue, 1, attempt_id="t1")
    await store.delete(queue, [receipt_of(queue, a)])
    held = await store.receive(queue, 3)
    with pytest.raises(InFlightLimit):
        await store.receive(queue, 1, attempt_id="t1")  # looks whether a is still held, and then for more

    monkeypatch.undo()
    assert await store.receive(queue, 10) == []
    async with open_store(crashed_copy(tmp_path / "data", tmp_path / "copy"), clock) as again:
        assert await again.receive(queue, 10) == []
    assert await store.delete(queue, receipts_of(queue, held)) == [Deletion.DELETED] * 3


async def test_a_log_that_cannot_be_read_is_told_as_damage(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    copy = crashed_copy(tmp_path / "data", tmp_path / "copy")
    endless = msgspec.msgpack.encode([[0, 1, [1, 1 << 60], 1, 1, 1]])  # as a flipped bit may make it
    for packed in ("99", endless.hex()):
        change(copy, f"INSERT INTO lease_log (packed) VALUES (x'{packed}')")
        with pytest.raises(StoreDamaged, match="run 'veil verify'"):
            await SqliteStore(copy, clock).open()
        assert "lease log: unreadable" in str(verify(copy))
        change(copy, "DELETE FROM lease_log")
    async with open_store(copy, clock):
        pass  # the lock was let go of
