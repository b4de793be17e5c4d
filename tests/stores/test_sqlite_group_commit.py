"""One sync answers many operations, none is answered before it, and one that fails harms no other."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.stores.journal_kit import swept
from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue, receipts_of, some_messages
from tests.stores.sqlite_kit import WAL, SyncGate, crashed_copy, open_store, rows, turns
from tests.waiting import until_async
from veil.core.clock import ManualClock
from veil.core.errors import QueueMissing, StoreFailed, StoreFull
from veil.core.lease import Deletion
from veil.core.queue import QueueCounts
from veil.stores.sqlite import SqliteStore, commit, leases
from veil.stores.sqlite.recovery.verify import verify
from veil.stores.sqlite.store import CLAIMED_BYTES_MAX
from veil.stores.store import Extension


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> SyncGate:
    return SyncGate(monkeypatch)


@pytest.fixture
async def store(gate: SyncGate, tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path, clock) as store:
        yield store
        gate.error = None
        gate.open()


def planted(store: SqliteStore, work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Put an operation of the test's own among the others."""
    return store._commits.submit(work)


async def test_concurrent_sends_share_their_commits(store: SqliteStore):
    queue = await make_queue(store)
    before = store.commit_stats.commits
    await asyncio.gather(*(store.send(queue, [a_message(f"m{n}")]) for n in range(128)))
    assert store.commit_stats.commits - before <= 8
    assert await store.counts(queue) == QueueCounts(visible=128)


async def test_a_commit_waits_for_what_the_loops_next_turn_brings(store: SqliteStore):
    queue = await make_queue(store)
    await asyncio.gather(*(store.send(queue, [a_message()]) for _ in range(2)))
    before = store.commit_stats.commits
    sends = []
    for _ in range(20):  # as clients whose requests arrive one after the other
        sends.append(asyncio.ensure_future(store.send(queue, [a_message()])))
        await asyncio.sleep(0)
    await asyncio.gather(*sends)
    assert store.commit_stats.commits - before == 1


async def test_a_client_that_is_alone_does_not_wait_for_others(store: SqliteStore):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    alone = asyncio.ensure_future(store.send(queue, [a_message()]))
    await asyncio.sleep(0)  # the turn in which the commit is due
    assert store._commits._syncing
    await alone


async def test_a_commit_does_not_wait_for_ever(store: SqliteStore):
    queue = await make_queue(store)
    await asyncio.gather(*(store.send(queue, [a_message()]) for _ in range(2)))
    sends: list[asyncio.Future[Any]] = []
    while not (store._commits._syncing or any(send.done() for send in sends)):
        assert len(sends) <= commit.GROUP_ENOUGH
        sends.append(asyncio.ensure_future(store.send(queue, [a_message()])))
        await asyncio.sleep(0)
    await asyncio.gather(*sends)


async def test_operations_wait_for_the_disk_on_the_loop_only_while_the_disk_is_quick(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    now_s = 0.0
    sync_s = commit.QUICK_SYNC_S / 2
    on_loop: list[bool] = []

    def sync(fd: int) -> None:
        nonlocal now_s
        now_s += sync_s
        on_loop.append(threading.current_thread() is threading.main_thread())

    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store)
        monkeypatch.setattr(commit.time, "perf_counter", lambda: now_s)
        monkeypatch.setattr(os, "fdatasync", sync)

        async def synced_on_loop(*sends: int) -> list[bool]:
            on_loop.clear()
            for count in sends:
                await asyncio.gather(*(store.send(queue, [a_message()]) for _ in range(count)))
            return list(on_loop)

        await synced_on_loop(*[1] * 100)  # whatever the opening took is forgotten
        assert await synced_on_loop(1, 2, 1) == [True, True, True]
        sync_s = commit.QUICK_SYNC_S * 100
        await synced_on_loop(1)
        sync_s = commit.QUICK_SYNC_S / 2
        assert await synced_on_loop(1) == [True]  # a single slow one says little, however slow it was
        await synced_on_loop(*[1] * 100)
        sync_s = commit.QUICK_SYNC_S * 10
        assert await synced_on_loop(1, 1, 1) == [True, True, False]  # the first two could not know
        sync_s = commit.QUICK_SYNC_S / 2
        assert await synced_on_loop(1, 2, 1) == [False, False, False]  # not trusted again at once
        await synced_on_loop(*[1] * 100)
        assert await synced_on_loop(1) == [True]
        monkeypatch.undo()


@pytest.mark.parametrize("settles", ["meanwhile", "afterwards"])
async def test_a_stalled_disk_costs_no_holder_its_lease(
    gate: SyncGate, tmp_path: Path, clock: ManualClock, settles: str
):
    store = SqliteStore(tmp_path, clock, lease_grace=True)
    await store.open()
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message("work")])
    await store.receive(queue, 1)
    gate.shut()
    stalled = asyncio.ensure_future(store.send(queue, [a_message("more", delay_s=600)]))
    await turns()
    clock.advance(seconds=60)
    settling = asyncio.ensure_future(store.settle()) if settles == "meanwhile" else None
    await turns()
    gate.open()
    await stalled
    await (settling or store.settle())
    assert await store.counts(queue) == QueueCounts(in_flight=1, delayed=1)
    clock.advance(seconds=15)  # the grace is half the window
    await store.settle()
    assert await store.counts(queue) == QueueCounts(visible=1, delayed=1)
    await store.close()


async def test_a_renewal_shares_the_sync_of_what_was_due_before_it(
    store: SqliteStore, gate: SyncGate, clock: ManualClock
):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("lapses", "held"))
    await store.receive(queue, 1, visibility_s=1)
    held = await store.receive(queue, 1)
    clock.advance(seconds=2)
    gate.shut()
    extending = asyncio.ensure_future(store.extend(queue, [Extension(receipts_of(queue, held)[0], 60)]))
    await turns()
    assert not extending.done()
    gate.open(1)
    assert await asyncio.wait_for(extending, 60) == [None]
    assert await store.counts(queue) == QueueCounts(visible=1, in_flight=1)


async def test_nothing_is_acknowledged_before_the_sync(store: SqliteStore, gate: SyncGate):
    queue = await make_queue(store)
    await store.send(queue, some_messages("held", "kept"))
    [held] = await store.receive(queue, 1)
    gate.shut()
    changes = [
        asyncio.ensure_future(store.send(queue, [a_message("new")])),
        asyncio.ensure_future(store.receive(queue, 1)),
        asyncio.ensure_future(store.extend(queue, [Extension(receipts_of(queue, [held])[0], 60)])),
        asyncio.ensure_future(store.delete(queue, receipts_of(queue, [held]))),
        asyncio.ensure_future(make_queue(store, "another")),
    ]
    await turns()
    assert not any(change.done() for change in changes)
    gate.open()
    sent, received, extended, deleted, _ = await asyncio.gather(*changes)
    assert len(sent) == 1 and bodies(received) == ["kept"]
    assert extended == [None] and deleted == [Deletion.DELETED]


async def test_a_look_is_answered_while_the_disk_works(store: SqliteStore, gate: SyncGate):
    queue = await make_queue(store)
    gate.shut()
    sending = asyncio.ensure_future(store.send(queue, [a_message("new")]))
    await turns()
    assert bodies(await asyncio.wait_for(store.peek(queue), 60)) == ["new"]
    assert await asyncio.wait_for(store.list_moves(queue.key, 10), 60) == []
    assert not sending.done()
    gate.open()
    await sending


@pytest.mark.parametrize("syncing", [True, False], ids=["being synced", "not yet committed"])
async def test_a_duplicate_is_not_acknowledged_before_its_first_is_on_disk(
    store: SqliteStore, gate: SyncGate, syncing: bool
):
    queue = await make_queue(store, "orders.fifo")
    other = await make_queue(store, "other")
    gate.shut()
    if not syncing:
        other_send = asyncio.ensure_future(store.send(other, [a_message("in the sync before")]))
        await turns()
    first = asyncio.ensure_future(store.send(queue, [a_grouped_message("a", deduplication_id="same")]))
    await turns()
    again = asyncio.ensure_future(store.send(queue, [a_grouped_message("a", deduplication_id="same")]))
    await turns()
    if not syncing:
        gate.open(1)
        await other_send
        await turns()
    assert not first.done() and not again.done()
    gate.open()
    assert (await again)[0].duplicate and (await again)[0].seq == (await first)[0].seq


async def test_a_second_delete_is_not_acknowledged_before_the_first_is_on_disk(
    store: SqliteStore, gate: SyncGate
):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    receipts = receipts_of(queue, await store.receive(queue, 1))
    gate.shut()
    first = asyncio.ensure_future(store.delete(queue, receipts))
    await turns()
    second = asyncio.ensure_future(store.delete(queue, receipts))
    await turns()
    assert not first.done() and not second.done()
    gate.open()
    assert await first == [Deletion.DELETED] and await second == [Deletion.GONE]


async def test_a_refusal_in_a_group_leaves_the_others_alone(store: SqliteStore):
    queue = await make_queue(store)
    gone = await make_queue(store, "gone")
    await store.delete_queue(gone)
    answers = await asyncio.gather(
        store.send(queue, [a_message("a")]),
        store.send(gone, [a_message("b")]),
        store.send(queue, [a_message("c")]),
        return_exceptions=True,
    )
    assert isinstance(answers[1], QueueMissing)
    assert bodies(await store.receive(queue, 10)) == ["a", "c"]


@pytest.mark.parametrize("syncing", [False, True], ids=["at rest", "while the last group is synced"])
async def test_an_operation_that_breaks_in_a_group_fails_alone(
    store: SqliteStore, gate: SyncGate, tmp_path: Path, caplog: pytest.LogCaptureFixture, syncing: bool
):
    queue = await make_queue(store)
    if syncing:
        gate.shut()
        earlier = asyncio.ensure_future(store.send(queue, [a_message("earlier")]))
        await turns()

    def breaks() -> None:
        store._db.states[queue.id].counts[0] += 1_000
        store._db.execute("UPDATE queue_count SET visible = 77")
        raise RuntimeError("planted")

    before = [asyncio.ensure_future(store.send(queue, [a_message(f"before {n}")])) for n in range(5)]
    await asyncio.sleep(0)
    broken = planted(store, breaks)
    after = [asyncio.ensure_future(store.send(queue, [a_message(f"after {n}")])) for n in range(5)]
    if syncing:
        await turns()
        assert not any(future.done() for future in [earlier, broken, *before, *after])
        gate.open()
        await earlier
    with pytest.raises(RuntimeError, match="planted"):
        await broken
    assert all(len(sent) == 1 for sent in await asyncio.gather(*before, *after))
    assert "planted" in caplog.text

    expected = 11 if syncing else 10
    assert await store.counts(queue) == QueueCounts(visible=expected)
    await store._commits.drain()
    assert rows(crashed_copy(tmp_path, tmp_path / "copy"), "SELECT visible FROM queue_count") == [(expected,)]
    assert len(await store.receive(queue, 20)) == expected


async def test_refusals_in_a_group_that_is_redone_read_the_state_once(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    queue = await make_queue(store)
    tries = 0

    def refused_the_second_time() -> None:  # as sends are when the disk is full
        nonlocal tries
        tries += 1
        if tries > 10:
            raise StoreFull("no room")
        store._db.execute("UPDATE queue SET ranked = ranked")

    def broken() -> None:
        raise RuntimeError("in the middle of a group")

    loads, load = [], store._db.load
    monkeypatch.setattr(store._db, "load", lambda: loads.append(load()))
    works = [planted(store, refused_the_second_time) for _ in range(10)]
    results = await asyncio.gather(*works, planted(store, broken), return_exceptions=True)
    assert [type(each) for each in results] == [*[StoreFull] * 10, RuntimeError]
    assert len(loads) == 2  # for each of the two roll-backs that undid something
    assert await store.counts(queue) == QueueCounts()


async def test_a_settling_that_is_redone_keeps_the_counts_right(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("a", "b", "c"))
    await store.receive(queue, 3)
    clock.advance(seconds=31)

    def breaks() -> None:
        raise RuntimeError("planted")

    settling_ = asyncio.ensure_future(store.settle())
    await asyncio.sleep(0)
    broken = planted(store, breaks)
    with pytest.raises(RuntimeError):
        await broken
    await settling_
    assert await store.counts(queue) == QueueCounts(visible=3)
    await store.close()
    findings = verify(tmp_path)
    assert findings.is_sound, str(findings)
    await store.open()


async def test_a_group_that_is_redone_is_announced_once(store: SqliteStore, events: Any):
    store.events = events
    queue = await make_queue(store)
    sends = [asyncio.ensure_future(store.send(queue, [a_message()])) for _ in range(3)]
    await asyncio.sleep(0)

    def breaks() -> None:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError):
        await planted(store, breaks)
    await asyncio.gather(*sends)
    assert events.available[queue.id] == 3


# ---- a sync that fails


async def test_a_failed_sync_stops_the_store_for_good(gate: SyncGate, tmp_path: Path, clock: ManualClock):
    failures: list[BaseException] = []
    store = SqliteStore(tmp_path, clock)
    store.on_failure = failures.append
    await store.open()
    queue = await make_queue(store)
    await store.send(queue, [a_message("acknowledged")])
    gate.shut()
    syncing = [asyncio.ensure_future(store.send(queue, [a_message(f"syncing {n}")])) for n in range(3)]
    await turns()
    applied = [asyncio.ensure_future(store.send(queue, [a_message(f"applied {n}")])) for n in range(3)]
    await turns()
    gate.error = OSError(5, "Input/output error")
    gate.open()
    for answer in await asyncio.gather(*syncing, *applied, return_exceptions=True):
        assert isinstance(answer, StoreFailed)
    with pytest.raises(StoreFailed):
        await store.send(queue, [a_message("later")])
    with pytest.raises(StoreFailed):
        await store.peek(queue)
    gate.error = None  # the disk seems to be well again, which proves nothing
    with pytest.raises(StoreFailed):
        await store.receive(queue, 1)
    assert len(failures) == 1
    await store.close()

    async with open_store(tmp_path, clock) as store:
        found = set(bodies(await store.peek(queue)))
        assert "acknowledged" in found
        assert found <= {"acknowledged", "syncing 0", "syncing 1", "syncing 2"}
        assert await store.counts(queue) == QueueCounts(visible=len(found))


async def test_a_failed_sync_stops_the_store_while_a_checkpoint_is_under_way(
    store: SqliteStore, gate: SyncGate
):
    failures: list[BaseException] = []
    store.on_failure = failures.append
    queue = await make_queue(store)
    checkpointer, is_busy, goes_on = store._commits._checkpointer, threading.Event(), threading.Event()

    def busy() -> bool:
        is_busy.set()
        goes_on.wait()
        return False

    checkpointer.set_progress_handler(busy, 1)
    under_way = asyncio.ensure_future(asyncio.to_thread(lambda: checkpointer.execute("SELECT 1").fetchall()))
    await until_async(is_busy.is_set)
    gate.error = OSError(5, "Input/output error")
    try:
        with pytest.raises(StoreFailed):
            await store.send(queue, [a_message()])
        assert failures == [gate.error]
    finally:
        goes_on.set()
        await under_way
        checkpointer.set_progress_handler(None)


async def test_a_failed_sync_of_sqlite_itself_is_not_retried(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    failures: list[BaseException] = []
    store.on_failure = failures.append
    queue = await make_queue(store)
    real = store._commits._execute

    def execute(statement: str, *arguments: Any) -> Any:
        if statement == "COMMIT":
            monkeypatch.setattr(store._commits, "_execute", real)
            raise apsw.IOError("disk I/O error")
        return real(statement, *arguments)

    monkeypatch.setattr(store._commits, "_execute", execute)
    with pytest.raises(StoreFailed):
        await store.send(queue, [a_message()])
    assert len(failures) == 1


async def test_a_sync_that_fails_while_operations_are_redone_answers_all_of_them(
    store: SqliteStore, gate: SyncGate
):
    queue = await make_queue(store)
    gate.shut()
    first = asyncio.ensure_future(store.send(queue, [a_message("first")]))
    await turns()
    second = asyncio.ensure_future(store.send(queue, [a_message("second")]))
    await asyncio.sleep(0)

    def breaks() -> None:
        raise RuntimeError("planted")

    broken = planted(store, breaks)
    third = asyncio.ensure_future(store.send(queue, [a_message("third")]))
    await turns()
    gate.error = OSError(5, "Input/output error")
    gate.open()
    answers = await asyncio.gather(first, second, broken, third, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreFailed] * 4


# ---- checkpoints


async def test_a_store_that_closes_takes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    failures: list[BaseException] = []
    begun, goes_on = threading.Event(), threading.Event()
    async with open_store(tmp_path) as store:
        queue = await make_queue(store)
        store.on_failure = failures.append
        end = store._commits._end
        monkeypatch.setattr(store._commits, "_end", lambda *given: (begun.set(), goes_on.wait(), end(*given)))
        closing = asyncio.create_task(store._commits.close())
        await until_async(begun.is_set)
        with pytest.raises(StoreFailed, match="closed"):
            await store.send(queue, [a_message()])
        goes_on.set()
        await closing
        with pytest.raises(StoreFailed, match="closed"):
            await store.send(queue, [a_message()])
        monkeypatch.setattr(store._commits, "close", turns)
    assert failures == []


async def test_the_log_stays_short(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit, "CHECKPOINT_WAL_PAGES", 50)
    monkeypatch.setattr(commit, "_QUICK_S", 600.0)
    queue = await make_queue(store)
    longest = 0
    for _ in range(40):
        await asyncio.gather(*(store.send(queue, [a_message("x" * 8_000)]) for _ in range(5)))
        await until_async(lambda: not store._commits._checkpointing)
        longest = max(longest, (tmp_path / WAL).stat().st_size)
    database = (tmp_path / "veil.db").stat().st_size
    assert database > 40 * 5 * 8_000 * 0.8  # the messages went into the database
    assert longest < 120 * 4_120  # and the log began anew again and again
    assert (await store.counts(queue)).visible == 200


class Checkpointer:
    """The connection that checkpoints, with a way of its own to do so."""

    def __init__(self, store: SqliteStore, checkpoint: Callable[[], None]) -> None:
        self._real, self._checkpoint = store._commits._checkpointer, checkpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def wal_checkpoint(self, **given: Any) -> Any:
        self._checkpoint()
        return self._real.wal_checkpoint(**given)


async def test_the_log_begins_anew_under_load_once_it_is_long(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commit, "CHECKPOINT_WAL_PAGES", 1)
    monkeypatch.setattr(commit, "RESTART_WAL_PAGES", 60)
    monkeypatch.setattr(commit, "_QUICK_S", 600.0)
    commits = store._commits
    # As it is while operations go on: behind what a checkpoint has moved there is always something more.
    monkeypatch.setattr(commits, "_checkpoint", lambda: (commits._wal_pages, commits._wal_pages - 1))
    queue = await make_queue(store)
    lengths = []
    for n in range(100):
        await store.send(queue, [a_message(str(n))])
        lengths.append(commits._wal_pages)
        await until_async(lambda: not commits._checkpointing)
    ends = [length for length, following in pairwise(lengths) if following < length]
    assert len(ends) > 2  # it began anew again and again
    assert min(ends) >= 60 and max(ends) < 120  # and not at every checkpoint
    assert (await store.counts(queue)).visible == 100


async def test_a_checkpoint_that_hangs_holds_up_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(commit, "CHECKPOINT_WAL_PAGES", 1)
    begun, goes_on = threading.Event(), threading.Event()

    def hangs() -> None:
        begun.set()
        goes_on.wait(60)

    monkeypatch.setattr(store._commits, "_checkpointer", Checkpointer(store, hangs))
    queue = await make_queue(store)
    await asyncio.to_thread(begun.wait, 60)

    for n in range(30):
        await store.send(queue, [a_message(str(n))])
    assert store._commits._checkpointing
    goes_on.set()
    await until_async(lambda: not store._commits._checkpointing)
    await store.send(queue, [a_message("last")])
    assert (await store.counts(queue)).visible == 31


async def test_a_checkpoint_that_fails_on_the_disk_stops_the_store(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commit, "CHECKPOINT_WAL_PAGES", 1)

    def fails() -> None:
        raise apsw.IOError("disk I/O error")

    failed = asyncio.Event()
    store.on_failure = lambda error: failed.set()
    monkeypatch.setattr(store._commits, "_checkpointer", Checkpointer(store, fails))
    queue = await make_queue(store)
    await failed.wait()
    with pytest.raises(StoreFailed):
        await store.send(queue, [a_message()])


async def test_operations_that_arrive_at_the_end_of_a_checkpoint_are_done_after_it(
    store: SqliteStore, gate: SyncGate, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commit, "WAL_PAGES_MAX", 1)
    queue = await make_queue(store)
    gate.shut()
    first = asyncio.ensure_future(store.send(queue, [a_message("first")]))
    await turns()
    second = asyncio.ensure_future(store.send(queue, [a_message("second")]))
    await turns()
    assert not second.done()
    gate.open()
    await asyncio.gather(first, second)
    assert bodies(await store.peek(queue)) == ["first", "second"]


@pytest.mark.parametrize("last", [False, True], ids=["", "its last pages"])
async def test_a_checkpoint_that_finds_no_room_stops_nothing(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, last: bool
):
    queue = await make_queue(store)
    await store.send(queue, [a_message("before")])

    class Full:
        """The connection, on a disk that has no room for the database to grow."""

        def __init__(self, real: apsw.Connection) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def wal_checkpoint(self, **_: Any) -> None:
            raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(commit, "WAL_PAGES_MAX" if last else "CHECKPOINT_WAL_PAGES", 1)
    name = "_connection" if last else "_checkpointer"
    monkeypatch.setattr(store._commits, name, Full(getattr(store._commits, name)))
    assert len(await store.receive(queue, 1)) == 1  # in the group whose checkpoint fails
    await until_async(lambda: not store._commits._checkpointing)
    monkeypatch.undo()
    assert await store.counts(queue) == QueueCounts(in_flight=1)


# ---- sweeping


async def test_a_deleted_queue_is_swept_in_the_background(store: SqliteStore, tmp_path: Path):
    queue = await make_queue(store)
    other = await make_queue(store, "other")
    for _ in range(3):
        await store.send(queue, [a_message("x") for _ in range(700)])
    await store.delete_queue(queue)
    assert len(await store.send(other, [a_message("meanwhile")])) == 1
    assert store._sweeper is not None
    await store._sweeper
    copy = crashed_copy(tmp_path, tmp_path / "copy")
    assert rows(copy, f"SELECT count(*) FROM message WHERE queue_id <> {other.id}") == [(0,)]
    assert rows(copy, "SELECT id FROM queue") == [(other.id,)]


async def test_a_queue_that_is_deleted_while_a_sweep_ends_is_swept(
    store: SqliteStore, gate: SyncGate, tmp_path: Path
):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    other = await make_queue(store, "other")
    gate.shut()
    send = asyncio.ensure_future(store.send(other, [a_message()]))
    await turns()
    store._start_sweeping()  # finds nothing, and waits for the sync before it goes on to the outbox
    await turns()
    delete = asyncio.ensure_future(store.delete_queue(queue))
    await turns()
    gate.open()
    await asyncio.gather(send, delete)
    await swept(store)
    assert rows(tmp_path, f"SELECT count(*) FROM message WHERE queue_id <> {other.id}") == [(0,)]


async def test_a_deleted_queue_is_swept_after_a_restart(tmp_path: Path, clock: ManualClock):
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store)
        for _ in range(3):
            await store.send(queue, [a_message("x") for _ in range(700)])
        await store.delete_queue(queue)
        copy = crashed_copy(tmp_path, tmp_path / "copy")
    assert rows(copy, "SELECT count(*) > 0 FROM message") == [(1,)]
    async with open_store(copy, clock) as store:
        assert store._sweeper is not None
        await store._sweeper
    assert rows(copy, "SELECT count(*) FROM message") == [(0,)]
    assert rows(copy, "SELECT count(*) FROM queue") == [(0,)]


async def test_a_long_purge_lets_others_in_between(store: SqliteStore):
    queue = await make_queue(store)
    other = await make_queue(store, "other")
    for _ in range(4):
        await store.send(queue, [a_message("x") for _ in range(leases.CHUNK)])
    purging = asyncio.ensure_future(store.purge(queue, rest_ms=0))
    await asyncio.sleep(0)
    await store.send(other, [a_message("in between")])
    assert not purging.done()
    await purging
    assert await store.counts(queue) == QueueCounts()
    assert await store.counts(other) == QueueCounts(visible=1)


async def test_a_purge_that_a_crash_cuts_short_leaves_counts_and_lanes_right(
    store: SqliteStore, tmp_path: Path, clock: ManualClock
):
    queue = await make_queue(store, "orders.fifo")
    for _ in range(3):
        await store.send(queue, [a_grouped_message("x", group=f"g{n}") for n in range(leases.CHUNK)])
    await store.receive(queue, 10)
    purging = asyncio.ensure_future(store.purge(queue, rest_ms=0))
    while (await store.counts(queue)).visible > leases.CHUNK:  # then the first chunk is on disk
        await asyncio.sleep(0)
    assert not purging.done()
    copy = crashed_copy(tmp_path, tmp_path / "copy")
    await purging
    findings = verify(copy)
    assert findings.is_sound, str(findings)
    assert 0 < findings.messages < 3 * leases.CHUNK


@pytest.mark.parametrize("lent", [False, True], ids=["", "behind a checkpoint"])
async def test_bodies_that_wait_for_their_commit_are_bounded_however_many_receive(
    store: SqliteStore, gate: SyncGate, monkeypatch: pytest.MonkeyPatch, lent: bool
):
    monkeypatch.setattr("veil.stores.sqlite.store.CLAIMED_BYTES_MAX", 5_000)
    if lent:
        monkeypatch.setattr(commit, "WAL_PAGES_MAX", 1)
    queue = await make_queue(store)
    for _ in range(4):
        await store.send(queue, [a_message("x" * 1_000) for _ in range(10)])
    gate.shut()
    ahead = asyncio.ensure_future(store.send(queue, [a_message("behind them all")]))
    await turns()
    receives = [asyncio.ensure_future(store.receive(queue, 2)) for _ in range(20)]
    await turns()
    assert store._claimed_bytes == (0 if lent else 6_000)
    gate.open(1)
    await ahead
    await turns()
    assert 0 < store._claimed_bytes <= 6_000
    gate.open()

    received = await asyncio.gather(*receives)
    assert [len(messages) for messages in received] == [2] * 20
    assert store._claimed_bytes == 0


async def test_messages_wait_until_workers_have_taken_the_answers_before(store: SqliteStore):
    queue = await make_queue(store)
    await store.send(queue, [a_message("x")])
    store.unsent_bytes = lambda: CLAIMED_BYTES_MAX + 1
    looks = [asyncio.ensure_future(each) for each in (store.peek(queue), store.receive(queue, 1))]
    await turns()
    assert (await store.counts(queue)).in_flight == 0
    assert not any(look.done() for look in looks)
    store.unsent_bytes = lambda: 0
    for messages in await asyncio.gather(*looks):
        assert bodies(messages) == ["x"]
