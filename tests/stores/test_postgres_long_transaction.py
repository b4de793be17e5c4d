"""Somebody's long transaction keeps every dead row: no operation goes through more of them the longer it lasts."""

from __future__ import annotations

import asyncio
import json

import psycopg
import pytest

from tests.stores.kit import a_grouped_message, a_message, make_queue, receipts_of, some_messages
from tests.stores.postgres_nodes_kit import ask, nodes
from tests.waiting import until_async
from veil.core.clock import ManualClock
from veil.core.queue import QueueCounts
from veil.stores.postgres import engine, outbox, watermarks
from veil.stores.postgres.pipeline import Q

FEW, MANY = 400, 4_000  # messages that lived and died meanwhile
# Blocks of 8 KB: the dead ones fill hundreds. To claim writes into every index of each of twenty messages, and indexes grow;
# it was seen to read from 12 to 41 more (140 where it looks from the front), the others 4 at most.
MORE_MAX = {"claim": 80}
MORE_MAX_ELSE = 40


async def churn(store, queue, messages, by=10):
    async def lives(count):
        for _ in range(count):
            await store.send(queue, some_messages(*["m"] * by))
            taken = await store.receive(queue, by)
            await store.delete(queue, receipts_of(queue, taken))

    await asyncio.gather(*(lives(messages // by // 8) for _ in range(8)))


async def blocks_read(dsn, now_ms, query, named):
    """How many blocks of tables and indexes a statement of the store reads now."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("SELECT set_config('veil.now_ms', %s, true)", [str(now_ms)])
        cursor = await connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.encode(), named)
        [(found,)] = await cursor.fetchall()
        await connection.rollback()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def blocks_by_statement(dsn, store, clock, queue):
    """What each statement of a common operation on twenty messages reads."""
    clock.advance(seconds=60)
    await churn(store, queue, 80)
    await store.send(queue, some_messages(*["m"] * 40))
    receipts = receipts_of(queue, await store.receive(queue, 20))
    priority, seq = store._engine.watermarks._marks[queue.id].scan_from
    named = {
        "queue": queue.id,
        "seqs": [each.seq for each in receipts],
        "holders": [each.holder for each in receipts],
        "retention_ms": 345_600_000,
        "visibility_ms": 600_000,
        "wall_ms": None,
        "limit": 20,
        "receives_max": 9,
        "priority": priority,
        "from": seq,
        **{name: [1] * len(receipts) for name in ("states", "dues", "received", "deliveries", "wakes")},
        **{name: [1] * len(receipts) for name in ("receive_counts", "firsts")},
        **store._engine.wanted_of([queue.id]),
    }
    statements = ("look_at_queues", "claim", "take_held", "held", "write_leases")
    read = {name: await blocks_read(dsn, clock.now_ms(), getattr(Q, name), named) for name in statements}
    await store.delete(queue, receipts)
    await store.delete(queue, receipts_of(queue, await store.receive(queue, 20)))
    return read


async def test_no_statement_reads_what_died_long_ago(postgres, monkeypatch):
    # Without the look from the front that comes from time to time.
    monkeypatch.setattr(watermarks, "FULL_EVERY_S", 3_600.0)
    monkeypatch.setattr(watermarks, "FULL_EVERY_MAX_S", 3_600.0)
    clock = ManualClock()
    async with (
        nodes(postgres, 1, clock=clock) as [store],
        await psycopg.AsyncConnection.connect(postgres) as other,
    ):
        queue = await make_queue(store, visibility_s=600)
        await other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await other.execute("SELECT count(*) FROM veil.queue")
        ask(postgres, "ANALYZE veil.message")  # few rows are alive, now and later
        await churn(store, queue, FEW)
        before = await blocks_by_statement(postgres, store, clock, queue)

        await churn(store, queue, MANY)

        after = await blocks_by_statement(postgres, store, clock, queue)
        more = {name: blocks - before[name] for name, blocks in after.items()}
        assert {
            name: blocks for name, blocks in more.items() if blocks > MORE_MAX.get(name, MORE_MAX_ELSE)
        } == {}


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
async def test_counts_are_folded_while_two_nodes_work_and_stay_exact(postgres, monkeypatch, name):
    monkeypatch.setattr(engine, "COMPACT_AFTER", 5)
    async with nodes(postgres, 2) as both:
        queue = await make_queue(both[0], name)
        make = a_grouped_message if queue.settings.fifo else a_message

        async def live(store, n):
            await store.send(queue, [make(f"a{n}"), make(f"b{n}")])
            taken = await store.receive(queue, 1, visibility_s=600)
            await store.delete(queue, receipts_of(queue, taken))

        async def lives(store, at):
            for n in range(30):
                await live(store, f"{at}-{n}")

        # One after the other on each node, so that they are many transactions.
        await asyncio.gather(*(lives(store, at) for at, store in enumerate(both)))
        for store in both:
            await store._engine.compaction.drain()

        states = [message.state for message in await both[0].peek(queue, limit=1_000)]
        expected = QueueCounts(states.count(0), states.count(2), 0)
        assert [await store.counts(queue) for store in both] == [expected, expected]
        generations = ask(
            postgres, f"SELECT DISTINCT generation FROM veil.queue_count WHERE queue_id = {queue.id}"
        )
        assert len(generations) == 1
        assert generations[0][0] > 2


async def test_a_fold_gives_way_to_whoever_is_in_a_transaction(postgres, monkeypatch):
    monkeypatch.setattr(engine, "COMPACT_AFTER", 2)
    monkeypatch.setattr(engine, "COMPACT_WAIT_MS", 1)
    async with nodes(postgres, 1) as [store]:
        queue = await make_queue(store)
        of_queue = f"FROM veil.queue_count WHERE queue_id = {queue.id}"
        async with await psycopg.AsyncConnection.connect(postgres) as other:
            await other.execute("SELECT pg_advisory_xact_lock_shared(1447381324, %s)", [queue.id])
            for _ in range(4):
                await store.send(queue, some_messages("m"))
            await store._engine.compaction.drain()
            assert ask(postgres, f"SELECT DISTINCT generation {of_queue}") == [(0,)]
        await store.send(queue, some_messages("m"))
        await until_async(lambda: ask(postgres, f"SELECT max(generation) {of_queue}") == [(1,)])
        assert await store.counts(queue) == QueueCounts(5, 0, 0)


async def test_the_counts_of_the_outbox_move_on_and_are_folded(postgres, monkeypatch):
    monkeypatch.setattr(outbox, "WRITES_A_TURN", 1)
    async with nodes(postgres, 1, journal=True) as [store]:
        queue = await make_queue(store)
        for _ in range(6):
            await store.send(queue, some_messages("m"))
        assert ask(postgres, "SELECT count(*) > 3 FROM veil.outbox_count") == [(True,)]
        # Not before: the node asks for the size by itself from time to time, and would fold them on a slow machine.
        monkeypatch.setattr(outbox, "COUNTS_MAX", 3)

        size = await store.outbox_size()

        assert ask(postgres, "SELECT count(*) FROM veil.outbox_count") == [(1,)]
        assert size.rows == ask(postgres, "SELECT count(*) FROM veil.outbox")[0][0] == 6
        await store.send(queue, some_messages("m"))
        assert (await store.outbox_size()).rows == 7
