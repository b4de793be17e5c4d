"""Connections break; the store says unknown where it must, and goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.postgres_server import PostgresServer, why_no_server
from tests.stores.kit import a_message, bodies, make_queue, receipt_of, receipts_of, some_messages
from tests.stores.postgres_nodes_kit import ask, cut, heard_by, nodes
from tests.waiting import until_async
from veil.core.clock import ManualClock
from veil.core.errors import QueueMissing, StoreError, StoreUnavailable
from veil.core.queue import Queue, QueueCounts
from veil.stores.postgres import PostgresStore, engine, transaction
from veil.stores.postgres import nodes as nodes_module
from veil.stores.postgres.pipeline import PipelinedConnection
from veil.stores.store import Extension

LISTENER = "query = 'LISTEN veil'"
WAITS_FOR_STANDBY = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
ASLEEP = "query = 'SELECT pg_sleep(600)'"


async def test_a_store_whose_connections_were_all_cut_goes_on(postgres):
    async with nodes(postgres, 1) as [store]:
        queue = await make_queue(store)
        await store.send(queue, some_messages("a", "b"))
        for _ in range(3):
            assert cut(postgres)
            assert (await store.counts(queue)).visible == 2
            await store.send(queue, [a_message("more")])
            await store.delete(queue, receipts_of(queue, await store.receive(queue, 1)))

        assert await store.counts(queue) == QueueCounts(2, 0, 0)


async def test_who_is_cancelled_while_the_connection_breaks_is_cancelled(postgres):
    """The store stops its tasks by cancelling them: one that took the broken connection for its end would go on for ever."""
    async with nodes(postgres, 1) as [store]:

        async def sleep():
            async with store._engine.transaction() as tx:
                await tx.rows("SELECT pg_sleep(600)")

        asleep = asyncio.create_task(sleep())
        await until_async(lambda: ask(postgres, f"SELECT 1 FROM pg_stat_activity WHERE {ASLEEP}") != [])
        assert cut(postgres, ASLEEP) == 1
        asleep.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asleep


async def test_a_connection_that_breaks_at_the_commit_leaves_it_unknown_and_a_retry_is_safe(
    postgres, monkeypatch
):
    async with nodes(postgres, 1) as [store]:
        queue, messages = await make_queue(store), some_messages("a")
        real = transaction.Transaction.commit

        async def broken(tx, last):
            tx.is_ending = True
            await tx.connection.close()
            await real(tx, last)

        monkeypatch.setattr(transaction.Transaction, "commit", broken)
        with pytest.raises(StoreUnavailable):
            await store.send(queue, messages, retry_key=b"k")
        monkeypatch.undo()

        sent = await store.send(queue, messages, retry_key=b"k")
        assert await store.send(queue, messages, retry_key=b"k") == sent
        assert await store.counts(queue) == QueueCounts(1, 0, 0)


async def test_who_only_looks_does_not_mind_a_connection_that_breaks_at_the_commit(postgres, monkeypatch):
    async with nodes(postgres, 1) as [store]:
        queue, real, broken = await make_queue(store), transaction.Transaction.commit, 0

        async def break_once(tx, last):
            nonlocal broken
            if not broken or tx.has_claimed:
                broken += 1
                await tx.connection.close()
            await real(tx, last)

        monkeypatch.setattr(transaction.Transaction, "commit", break_once)
        assert await store.counts(queue) == QueueCounts(0, 0, 0)
        assert await store.find_queue(queue.key._replace(name="another")) is None
        assert broken == 1
        with pytest.raises(StoreUnavailable):
            await store.receive(queue, 1)  # which may have taken something with BEGIN


async def test_a_pooler_that_hangs_up_before_the_commit_costs_nobody_an_error(postgres, monkeypatch):
    """PgBouncer ends clients by 08P01 while its server is away (server_login_retry, query_wait_timeout, a restart)."""
    async with nodes(postgres, 1) as [store]:
        queue, fifo = await make_queue(store), await make_queue(store, "f.fifo", fifo=True)
        real, hung_up = PipelinedConnection.exchange, 0

        async def hangs_up(connection, statements):
            nonlocal hung_up
            if ("BEGIN", {}) in statements and hung_up % 2 == 0:
                hung_up += 1
                await connection.close()
                raise psycopg.errors.ProtocolViolation("server_login_retry")
            hung_up += ("BEGIN", {}) in statements
            return await real(connection, statements)

        monkeypatch.setattr(PipelinedConnection, "exchange", hangs_up)
        await store.send(queue, [a_message("a")])
        await store.send(fifo, [a_message("b", group="g", deduplication_id="d")])
        assert bodies(await store.receive(queue, 1)) == ["a"]
        assert await store.counts(fifo) == QueueCounts(1, 0, 0)
        assert hung_up >= 8


async def test_a_node_that_cannot_be_told_looks_for_itself_and_listens_again(postgres, monkeypatch):
    monkeypatch.setattr(nodes_module, "RECONNECT_S", 1.0)
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one)
        await one.send(queue, [a_message("told")])
        await heard_by(other).wake(queue.id)
        assert cut(postgres, LISTENER) == 2
        await until_async(lambda: not other._engine.is_listening)
        heard_by(other).available.clear()

        await one.send(queue, [a_message("not told")])
        await heard_by(other).wake(queue.id)

        await until_async(lambda: other._engine.is_listening)
        await one.send(queue, [a_message("told again")])
        await heard_by(other).wake(queue.id)


async def test_an_edit_is_seen_by_a_node_that_cannot_be_told(postgres, monkeypatch):
    monkeypatch.setattr(nodes_module, "RECONNECT_S", 60.0)
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one)
        cut(postgres, LISTENER)
        await until_async(lambda: not other._engine.is_listening)
        from tests.stores.test_postgres_nodes import edited

        await one.edit_queue(queue, edited(delay_s=3))

        found = await other.find_queue(queue.key)
        assert found is not None
        assert found.settings.delay_s == 3


async def test_a_deadlock_in_the_database_is_nothing_that_a_caller_notices(postgres):
    async with nodes(postgres) as both:
        queue = await make_queue(both[0])
        await both[0].send(queue, some_messages(*map(str, range(40))))
        receipts = receipts_of(queue, await both[0].receive(queue, 40, visibility_s=60))

        async def extend_and_delete(store, some):
            for receipt in some:
                await store.extend(queue, [Extension(receipt, 100)])
            return await store.delete(queue, list(some))

        await asyncio.gather(
            *(extend_and_delete(both[n % 2], receipts[:: -1 if n % 2 else 1]) for n in range(4))
        )

        assert await both[0].counts(queue) == QueueCounts(0, 0, 0)


async def test_a_database_that_takes_no_writes_is_unavailable_and_then_is_not(postgres):
    async with nodes(postgres, 1) as [store]:
        queue = await make_queue(store)
        name = ask(postgres, "SELECT current_database()")[0][0]
        ask(postgres, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        cut(postgres)
        with pytest.raises(StoreUnavailable):
            await store.send(queue, [a_message()])

        with_writes = "SET default_transaction_read_only = off"
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(with_writes.encode())
            connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'.encode())
        cut(postgres)
        await store.send(queue, [a_message("at last")])
        assert bodies(await store.receive(queue, 10)) == ["at last"]


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
async def test_nobody_waits_for_ever_for_a_lock_that_is_not_let_go(postgres, monkeypatch, name):
    monkeypatch.setattr(transaction, "LOCK_WAIT_MS", 100)
    async with nodes(postgres, 1) as [store]:
        queue = await make_queue(store, name)
        with psycopg.connect(postgres) as stuck:
            stuck.execute("SELECT pg_advisory_xact_lock(1447381324, %s)", (queue.id,))
            with pytest.raises(StoreUnavailable):
                await store.counts(queue)
            with pytest.raises(StoreUnavailable):
                await store.receive(queue, 1)

        assert await store.counts(queue) == QueueCounts(0, 0, 0)


async def test_a_node_that_stands_still_within_a_transaction_loses_it(postgres, monkeypatch):
    monkeypatch.setattr(transaction, "LOCK_WAIT_MS", 300)
    async with nodes(postgres, 1) as [store]:
        queue = await make_queue(store)
        async with store._engine.transaction() as tx:
            asked = store._engine.wanted_of([queue.id])
            await tx.begin([queue.id], exclusive=True, numbers=0, now_ms=None, looks=asked)
            alive = f"SELECT 1 FROM pg_stat_activity WHERE pid = {tx.connection.info.backend_pid}"
            await until_async(lambda: ask(postgres, alive) == [])

        assert await store.counts(queue) == QueueCounts(0, 0, 0)


async def test_a_node_that_slept_for_days_does_not_believe_in_queues_that_are_gone(postgres):
    clock = ManualClock()
    async with nodes(postgres, clock=clock) as (one, other):
        queue = await make_queue(one)
        await other.find_queue(queue.key)
        for task in other._nodes._tasks:  # it sleeps
            task.cancel()
        await one.delete_queue(queue)
        clock.advance(seconds=2 * 86_400)
        await one._sweeper
        await one.settle()
        assert ask(postgres, "SELECT 1 FROM veil.queue") == []

        with pytest.raises(QueueMissing):
            await other.send(queue, [a_message("would be lost")])
        assert await other.find_queue(queue.key) is None


async def test_a_store_that_was_closed_says_so(postgres):
    async with nodes(postgres, 1) as [store]:
        queue = await make_queue(store)
        await store.close()
        with pytest.raises(StoreError):
            await store.send(queue, [a_message()])


# ---- a standby that is waited for and not there


@pytest.fixture
async def lonely(monkeypatch) -> AsyncIterator[tuple[PostgresServer, PostgresStore, Queue]]:
    """A store on a primary whose commits wait for a standby from now on."""
    if (reason := why_no_server()) is not None:
        pytest.skip(reason)
    with PostgresServer(in_memory=True) as server:
        async with nodes(server.dsn("postgres"), 1) as [store]:
            queue = await make_queue(store)
            await store.send(queue, [a_message("before")])
            server.run_sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            server.run_sql("SELECT pg_reload_conf()")
            await until_async(lambda: a_commit_hangs(server))
            yield server, store, queue
            monkeypatch.setattr(engine, "DRAIN_S", 0.1)


async def a_commit_hangs(server: PostgresServer) -> bool:
    """Whether a commit waits for the standby already: a reload reaches the server's processes one by one."""
    dsn, is_held = server.dsn("postgres"), False
    writing = asyncio.create_task(asyncio.to_thread(ask, dsn, "SELECT pg_logical_emit_message(true, '', '')"))
    while not writing.done():
        is_held = bool(ask(dsn, f"SELECT pg_cancel_backend(pid) {WAITS_FOR_STANDBY}")) or is_held
        await asyncio.sleep(0.01)
    await writing
    return is_held


def standby_is_there(server: PostgresServer) -> None:
    server.run_sql("ALTER SYSTEM RESET synchronous_standby_names")
    server.run_sql("SELECT pg_reload_conf()")


async def test_whoever_waits_for_a_commit_that_hangs_is_told_that_nobody_knows(lonely, monkeypatch):
    server, store, queue = lonely
    monkeypatch.setattr(engine, "ANSWER_S", 0.5)
    sends = [store.send(queue, [a_message(f"{n}")]) for n in range(40)]
    made = make_queue(store, "another")

    answers = await asyncio.gather(*sends, store.receive(queue, 1), made, return_exceptions=True)

    assert {type(answer) for answer in answers} == {StoreUnavailable}
    monkeypatch.setattr(engine, "ANSWER_S", 600.0)
    standby_is_there(server)
    await store.send(queue, [a_message("after")])
    assert "after" in bodies(await store.receive(queue, 100))


async def test_what_was_answered_while_the_node_stood_still_is_not_overdue(postgres, monkeypatch):
    """Suspended, or stopped by somebody: when it goes on every timer is due at once, and so are the answers."""
    async with nodes(postgres, 1) as [store]:
        queue, real = await make_queue(store), PipelinedConnection.exchange
        loop, stood_s = asyncio.get_running_loop(), 0.0
        monkeypatch.setattr(loop, "time", lambda real=loop.time: real() + stood_s)

        async def stand_still(connection, statements):
            nonlocal stood_s
            # Fewer times than an answer has turns: the node's own beats, due again at once, would use them all up.
            stood_s += 3_600.0 if stood_s < 5 * 3_600.0 else 0.0
            return await real(connection, statements)

        monkeypatch.setattr(PipelinedConnection, "exchange", stand_still)
        await store.send(queue, [a_message("a")])
        assert (await store.counts(queue)).visible == 1
        assert await store.active_moves() == []
        assert stood_s > 3_600.0


async def test_a_commit_whose_wait_for_the_standby_was_cancelled_is_not_acknowledged(lonely):
    server, store, queue = lonely
    sending = asyncio.create_task(store.send(queue, [a_message("on one machine only")]))
    waiting = f"SELECT pg_cancel_backend(pid) {WAITS_FOR_STANDBY}"
    await until_async(lambda: (ask(server.dsn("postgres"), waiting), sending.done())[1])

    with pytest.raises(StoreUnavailable, match="warning"):
        await sending


async def test_a_node_whose_commits_hang_can_be_stopped(lonely, monkeypatch):
    server, store, queue = lonely
    sending = asyncio.create_task(store.send(queue, [a_message("hangs")]))
    await until_async(lambda: ask(server.dsn("postgres"), f"SELECT 1 {WAITS_FOR_STANDBY}"))
    monkeypatch.setattr(engine, "DRAIN_S", 0.1)
    monkeypatch.setattr(nodes_module, "DRAIN_S", 0.1)

    await store.close()

    with pytest.raises(StoreUnavailable):
        await sending


# ---- a database that is away for a moment


@asynccontextmanager
async def away(dsn: str) -> AsyncIterator[None]:
    """The database takes no connections meanwhile, and all that it had are lost."""
    parts = urlsplit(dsn)
    elsewhere, name = urlunsplit(parts._replace(path="/postgres")), parts.path.lstrip("/")

    # In a thread: a loop that stands still is a trouble of its own.
    async def say(statement: str) -> None:
        await asyncio.to_thread(ask, elsewhere, statement)

    await say(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    await say(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    try:
        yield
    finally:
        await say(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@pytest.mark.parametrize("is_idle", [False, True])
@pytest.mark.parametrize("pooler", ["", "&veil_pooler=1"])
async def test_a_lease_outlasts_a_database_that_is_away_for_a_moment_whichever_node_is_back_first(
    postgres: str, pooler: str, is_idle: bool
) -> None:
    """Shorter than nodes would notice by one another's heartbeats. One has a caller who wants to renew and does not get beyond
    finding the queue; the other has none."""
    async with nodes(postgres + pooler, lease_grace=True) as (asked, idle):
        for store in (asked, idle):
            store.begin_serving()
        queue = await make_queue(asked, visibility_s=60)
        await asked.send(queue, [a_message("work")])
        [message] = await asked.receive(queue, 1, visibility_s=1)
        await idle.counts(queue)
        async with away(postgres):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await asked.find_queue(queue.key)
                    await asyncio.sleep(60)  # where it was known

        assert await (idle if is_idle else asked).receive(queue, 1) == []
        assert await asked.extend(queue, [Extension(receipt_of(queue, message), 60)]) == [None]
        for store in (asked, idle):
            store.end_serving()
