"""What one node at a time does for all, and what each node may rely on about the outbox that they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from tests.service.kit import until
from tests.stores.journal_kit import swept
from tests.stores.kit import a_key, a_message, bodies, make_queue, redrive_to, some_messages
from tests.stores.postgres_nodes_kit import ask, nodes
from veil.core.clock import ManualClock
from veil.core.errors import MoveTaskRunning
from veil.core.lease import HoldKey, HoldTally
from veil.core.queue import MoveTask
from veil.service.background import LOOK_MS
from veil.service.service import Service
from veil.stores.postgres import PostgresStore, queues
from veil.stores.postgres.nodes import DUTY_MS
from veil.stores.postgres.transaction import Transaction
from veil.stores.store import ExportPlan


@asynccontextmanager
async def two_nodes(dsn: str, clock: ManualClock) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    here, there = PostgresStore(dsn, clock, journal=True), PostgresStore(dsn, clock, journal=True)
    await here.open()
    try:
        await there.open()
        try:
            yield here, there
        finally:
            await there.close()
    finally:
        await here.close()


async def let_duties_lapse(dsn: str) -> None:
    """The nodes that have duties do not ask for them in time; their time is the database's, so it is set back there."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("UPDATE veil.duty SET until_ms = until_ms - %s", (DUTY_MS + 1,))


async def export_all(store: PostgresStore) -> list[int]:
    """The numbers of all rows that are exported now."""
    numbers: list[int] = []
    while plan := await store.plan_export(rows_max=1000, bytes_max=1 << 20):
        numbers += [row.number for row in await store.outbox_rows(plan)]
        await store.finish_export(plan)
    return numbers


async def test_a_plan_waits_for_a_transaction_that_began_earlier_and_is_not_over(
    postgres: str, clock
) -> None:
    async with two_nodes(postgres, clock) as (store, _):
        queue = await make_queue(store)
        slow = await psycopg.AsyncConnection.connect(postgres)
        async with slow:
            await slow.execute(
                "INSERT INTO veil.outbox (at_ms, packed) VALUES (%s, 'late')", (clock.now_ms(),)
            )
            await store.send(queue, [a_message()])
            assert await store.plan_export(rows_max=10, bytes_max=1000) is None
            await slow.commit()
        plan = await store.plan_export(rows_max=10, bytes_max=1 << 20)
        assert plan is not None
        packed = [row.packed for row in await store.outbox_rows(plan)]
        assert packed[0] == b"late"
        assert len(packed) == 2


async def test_numbers_have_no_gap_though_transactions_were_undone(postgres: str, clock) -> None:
    async with two_nodes(postgres, clock) as (here, there):
        queue = await make_queue(here)
        for store in (here, there, here):
            await store.send(queue, [a_message()])
            async with await psycopg.AsyncConnection.connect(postgres) as connection:
                await connection.execute("INSERT INTO veil.outbox (at_ms, packed) VALUES (1, 'never')")
                await connection.rollback()
        assert await export_all(there) == [1, 2, 3]
        await here.send(queue, [a_message()])
        assert await export_all(here) == [4]


async def test_a_plan_of_one_node_is_finished_by_another(postgres: str, clock) -> None:
    async with two_nodes(postgres, clock) as (here, there):
        queue = await make_queue(here)
        await here.send(queue, [a_message()])
        plan = await here.plan_export(rows_max=10, bytes_max=1000)
        assert plan is not None
        assert await there.plan_export(rows_max=10, bytes_max=1000) == plan
        await there.finish_export(plan)
        await here.finish_export(plan)  # late, and passed over
        assert await here.plan_export(rows_max=10, bytes_max=1000) is None
        assert (await here.outbox_size()).packed_bytes == 0


async def test_whoever_looks_at_every_row_sees_those_too_that_no_plan_has_numbered(
    postgres: str, clock
) -> None:
    every = ExportPlan("any", 1, (1 << 63) - 1, "")
    async with two_nodes(postgres, clock) as (here, there):
        queue = await make_queue(here)
        await here.send(queue, [a_message()])
        plan = await here.plan_export(rows_max=10, bytes_max=1000)
        await there.send(queue, [a_message()])
        await there.send(queue, [a_message()])
        first, second, third = await here.outbox_rows(every)
        assert await here.outbox_rows(plan) == [first]
        assert await here.outbox_rows(every, after=first.number, limit=1) == [second]
        assert await here.outbox_rows(every, after=second.number) == [third]


async def test_room_that_another_node_made_in_the_outbox_is_used(postgres: str, clock) -> None:
    small = PostgresStore(postgres, clock, journal=True, outbox_bytes_max=300)
    async with two_nodes(postgres, clock) as (here, _):
        await small.open()
        try:
            queue = await make_queue(small)
            while not (await small.outbox_size()).lost_events:
                await small.send(queue, [a_message()])
            await export_all(here)
            clock.advance(10_000)
            await small.settle()
            lost = (await small.outbox_size()).lost_events
            await small.send(queue, [a_message()])
            assert (await small.outbox_size()).lost_events == lost
        finally:
            await small.close()


async def test_one_node_has_a_duty_until_it_leaves(postgres: str, clock) -> None:
    async with two_nodes(postgres, clock) as (here, there):
        assert await here.has_duty("export")
        assert not await there.has_duty("export")
        assert await there.has_duty("move:1")  # each duty by itself
        assert await here.has_duty("export")
        third = PostgresStore(postgres, clock)
        await third.open()
        assert await third.has_duty("other")
        await third.close()
        assert await here.has_duty("other")


async def test_a_duty_is_taken_over_when_its_node_does_not_ask_in_time(postgres: str, clock) -> None:
    async with two_nodes(postgres, clock) as (here, there):
        assert await here.has_duty("export")
        await let_duties_lapse(postgres)
        assert await there.has_duty("export")
        assert not await here.has_duty("export")


async def test_a_move_task_is_carried_out_once_and_by_another_node_when_its_own_is_gone(
    postgres: str, clock
) -> None:
    async with two_nodes(postgres, clock) as (here, there):
        first, second = Service(here, clock), Service(there, clock)
        dead = await make_queue(here, "dead")
        work = await make_queue(here, "work", redrive=redrive_to("dead", 1))
        await here.send(work, [a_message(str(n)) for n in range(30)])
        await here.receive(work, 30, visibility_s=0)
        assert await here.receive(work, 30, visibility_s=0) == []
        task = MoveTask("move-1", dead.key, None, 10, "RUNNING", 0, 0, clock.wall_ms())
        await here.start_move(task)
        await first.moves.resume()
        await until(lambda: "move-1" in first.moves.pauses)
        await second.moves.resume()
        await until(lambda: not second.moves.is_running("move-1"))  # it is not this node's
        assert (await here.counts(work)).visible == 1

        await first.moves.stop()  # as when the node dies: it does not say that it leaves
        await let_duties_lapse(postgres)
        clock.advance(LOOK_MS)
        await until(lambda: "move-1" in second.moves.pauses)
        assert (await here.counts(work)).visible == 2
        await second.moves.stop()


async def test_two_tasks_of_one_source_are_refused_on_whichever_nodes(postgres: str, clock) -> None:
    async with two_nodes(postgres, clock) as (here, there):
        dead = await make_queue(here, "dead")
        task = MoveTask("move-1", dead.key, None, 10, "RUNNING", 0, 0, clock.wall_ms())
        await here.start_move(task)
        with pytest.raises(MoveTaskRunning):
            await there.start_move(MoveTask("move-2", dead.key, None, 10, "RUNNING", 0, 0, 0))
        assert [each.id for each in await there.active_moves()] == ["move-1"]


async def test_a_hold_is_the_same_on_every_node(postgres: str, clock) -> None:
    async with two_nodes(postgres, clock) as (here, there):
        queue = await make_queue(here)
        await here.send(queue, [a_message("a"), a_message("b")])
        key = HoldKey("stream", 1, 0)
        taken = await here.receive_hold(queue, key, 10, visibility_s=30)
        again = await there.receive_hold(queue, key, 10, visibility_s=30)
        assert bodies(again.messages) == bodies(taken.messages) == ["a", "b"]
        assert again.again
        await there.open_stream(queue, "stream", "me")
        assert await here.extend_holds(queue, "stream", "me", visibility_s=30) == HoldTally(2, 0)
        assert await there.delete_holds(queue, "stream", "me", up_to_batch=1) == HoldTally(2, 0)
        assert await here.find_queue(a_key("orders")) == queue
        assert sum(await here.counts(queue)) == 0


async def test_a_queue_that_is_deleted_while_a_sweep_is_about_to_end_is_swept_too(postgres, monkeypatch):
    about_to_end, may_end = asyncio.Event(), asyncio.Event()
    sweep_deleted = queues.sweep_deleted

    async def sweep(tx: Transaction) -> bool:
        more = await sweep_deleted(tx)
        if not more:
            about_to_end.set()
            await may_end.wait()
        return more

    async with nodes(postgres, 1) as [store]:
        first, second = [await make_queue(store, name) for name in ("first", "second")]
        for queue in (first, second):
            await store.send(queue, some_messages("a", "b"))
        monkeypatch.setattr(queues, "sweep_deleted", sweep)
        await store.delete_queue(first)
        await about_to_end.wait()
        await store.delete_queue(second)
        may_end.set()
        await swept(store)

        assert ask(postgres, "SELECT count(*) FROM veil.message") == [(0,)]
