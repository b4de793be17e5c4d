"""No queue is so large that what happens to all of it holds up everybody else: it goes some rows and some bytes at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue
from tests.stores.sqlite_kit import open_store
from veil.core.clock import ManualClock
from veil.core.event import NOBODY
from veil.core.lease import HoldKey
from veil.core.queue import MoveTask
from veil.stores.sqlite import leases, moves, queues
from veil.stores.sqlite.recovery.verify import verify

_OF_A_QUEUE = ("message", "deduplication", "lane", "attempt", "hold", "stream", "queue_count")


async def test_messages_that_are_due_go_by_their_bytes_too(tmp_path: Path, clock: ManualClock, monkeypatch):
    monkeypatch.setattr(leases, "CHUNK_BYTES", 1_000)
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store, retention_s=60)
        await store.send(queue, [a_message("x" * 600) for _ in range(5)])
        clock.advance(seconds=60)
        seen = []
        while await store._do(leases.settle, store._db, queue.id):
            seen.append(store._db.states[queue.id].visible)
        assert seen == [3, 1] and await store.counts(queue) == (0, 0, 0)


async def test_so_do_those_of_a_purge_and_of_a_deleted_queue(tmp_path: Path, clock: ManualClock, monkeypatch):
    monkeypatch.setattr(leases, "CHUNK_BYTES", 1_000)
    async with open_store(tmp_path, clock) as store:
        db, queue = store._db, await make_queue(store)
        await store.send(queue, [a_message("x" * 600) for _ in range(5)])
        up_to_seq = db.sequence.last
        assert await store._do(queues.purge_step, db, queue, up_to_seq, NOBODY)
        assert await store.counts(queue) == (3, 0, 0)

        await store._do(queues.delete, db, queue, NOBODY)
        assert await store._do(queues.sweep_deleted, db)
        assert db.execute("SELECT count(*) FROM message").get == 1


async def test_a_step_of_a_move_task_goes_by_bytes_too(tmp_path: Path, clock: ManualClock, monkeypatch):
    monkeypatch.setattr(moves, "CHUNK_BYTES", 1_000)
    async with open_store(tmp_path, clock) as store:
        dead, other = await make_queue(store, "dead"), await make_queue(store, "other")
        await store.send(dead, [a_message("x" * 600) for _ in range(5)])
        await store.start_move(MoveTask("t", dead.key, other.key, None, "RUNNING", 0, 0, 0))
        steps = [await store.step_move("t", 10) for _ in range(3)]
        moved = [(task.moved, task.status) for task in steps]
        assert moved == [(2, "RUNNING"), (4, "RUNNING"), (5, "COMPLETED")]
        assert await store.counts(other) == (5, 0, 0)


async def test_leases_of_a_deleted_queue_are_written_some_at_a_time(
    tmp_path: Path, clock: ManualClock, monkeypatch
):
    monkeypatch.setattr(leases, "CHUNK", 10)
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("x") for _ in range(35)])
        await store.receive(queue, 35)
        written, write_back = list[int](), store._db.write_back

        def counted(state, seqs=None) -> None:
            before = len(state.leases.by_seq)
            write_back(state, seqs)
            written.append(before - len(state.leases.by_seq))

        monkeypatch.setattr(store._db, "write_back", counted)
        await store.delete_queue(queue)
        assert written == [10, 10, 10, 5, 0]


@pytest.mark.parametrize("steps", [0, 1, 3, 1_000])
async def test_what_a_deleted_queue_had_goes_afterwards(
    tmp_path: Path, clock: ManualClock, monkeypatch, steps
):
    monkeypatch.setattr(queues, "CHUNK", 10)
    async with open_store(tmp_path, clock) as store:
        db, queue = store._db, await make_queue(store, "orders.fifo")
        await store.send(queue, [a_grouped_message("x", f"g{n}") for n in range(25)])
        await store.receive(queue, 1, attempt_id="a")
        for number in range(12):
            await store.receive_hold(queue, HoldKey(f"s{number}", 0, 0), 1, visibility_s=30)
        await store._do(queues.delete, db, queue, NOBODY)
        taken = 0
        while taken < steps and await store._do(queues.sweep_deleted, db):
            taken += 1
        if steps == 1_000:
            assert 5 < taken < 20
            assert [db.execute(f"SELECT count(*) FROM {table}").get for table in _OF_A_QUEUE] == [0] * 7
    # Whoever is killed in the middle leaves nothing that is wrong, and the next start goes on.
    assert verify(tmp_path).is_sound
    async with open_store(tmp_path, clock) as store:
        assert store._sweeper is not None
        await store._sweeper
        assert [store._db.execute(f"SELECT count(*) FROM {table}").get for table in _OF_A_QUEUE] == [0] * 7


async def test_a_receive_past_a_noisy_group_looks_at_few_of_the_others(tmp_path: Path, clock: ManualClock):
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("loud", group="noisy") for _ in range(60)])
        assert len(await store.receive(queue, 40)) == 40

        async def steps_of_a_receive() -> int:
            """In SQLite's own measure."""
            steps = 0

            def count() -> bool:
                nonlocal steps
                steps += 1
                return False

            store._connection.set_progress_handler(count, 10)
            assert bodies(await store.receive(queue, 1)) == ["quiet"]
            store._connection.set_progress_handler(None)
            return steps

        await store.send(queue, [a_message("quiet", group=f"g{number}") for number in range(200)])
        few = await steps_of_a_receive()
        await store.send(queue, [a_message("quiet", group=f"h{number}") for number in range(4_000)])
        assert await steps_of_a_receive() < 2 * few
