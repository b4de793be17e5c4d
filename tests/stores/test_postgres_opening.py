"""A store opens only a database that can keep the promises, and says in words why not."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from tests.postgres_server import PostgresServer, why_no_server
from tests.stores.kit import a_message, bodies, make_queue
from tests.stores.postgres_nodes_kit import ask, nodes
from veil.core.errors import StoreError, StoreTooNew, StoreUnavailable
from veil.core.queue import QueueCounts
from veil.stores.postgres import PostgresStore, opening
from veil.stores.postgres.connection import parse_dsn
from veil.stores.postgres.opening import SCHEMA_VERSION


async def opened(dsn: str) -> None:
    store = PostgresStore(dsn)
    await store.open()
    await store.close()


async def test_an_empty_database_is_made_ready_and_kept(postgres):
    async with nodes(postgres, 1) as [store]:
        first, queue = store.store_id, await make_queue(store)
        await store.send(queue, [a_message("kept")])
        receipt = store.receipts.write(1, 2, 3)
    async with nodes(postgres, 1) as [store]:
        assert store.store_id == first
        assert store.receipts.read(receipt, 1).seq == 2
        assert bodies(await store.receive(queue, 1)) == ["kept"]


async def test_nodes_that_start_at_once_on_an_empty_database_make_it_once(postgres):
    await asyncio.gather(*(opened(postgres) for _ in range(4)))

    assert ask(
        postgres, "SELECT convert_from(value, 'UTF8') FROM veil.meta WHERE name = 'schema_version'"
    ) == [(str(SCHEMA_VERSION),)]


async def test_everything_stands_in_a_schema_of_its_own(postgres):
    await opened(postgres)

    schemas = "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_schema NOT LIKE 'pg_%'"
    assert sorted(ask(postgres, schemas)) == [("information_schema",), ("veil",)]


async def test_counts_of_the_first_version_are_taken_over(postgres):
    async with nodes(postgres, 1) as [store]:
        queue = await make_queue(store)
        await store.send(queue, [a_message("kept"), a_message("held")])
        await store.receive(queue, 1, visibility_s=600)
    ask(
        postgres,
        """ALTER TABLE veil.queue_count DROP CONSTRAINT queue_count_pkey, DROP COLUMN generation,
               DROP COLUMN changes, ADD PRIMARY KEY (queue_id, slot);
           ALTER TABLE veil.move_task DROP COLUMN scan;
           DROP TABLE veil.heard, veil.lease_time, veil.server, veil.placement, veil.carried;
           UPDATE veil.meta SET value = '1'::bytea WHERE name = 'schema_version'""",
    )
    async with nodes(postgres, 1) as [store]:
        assert await store.counts(queue) == QueueCounts(1, 1, 0)
        await store.send(queue, [a_message("new")])
        assert await store.counts(queue) == QueueCounts(2, 1, 0)


async def test_data_of_a_newer_version_is_refused(postgres):
    await opened(postgres)
    newer = SCHEMA_VERSION + 1
    ask(postgres, f"UPDATE veil.meta SET value = '{newer}'::bytea WHERE name = 'schema_version'")

    with pytest.raises(StoreTooNew, match=f"version {newer}, this Veil knows up to {SCHEMA_VERSION}"):
        await opened(postgres)


async def test_a_server_that_does_not_sync_is_refused():
    if (reason := why_no_server()) is not None:
        pytest.skip(reason)
    server = PostgresServer(in_memory=True, settings={"fsync": "off"})
    server.create()
    server.start()
    try:
        with pytest.raises(StoreError, match=r"fsync=off.*set fsync=on"):
            await opened(server.dsn("postgres"))
    finally:
        server.remove()


async def test_an_old_server_is_refused(postgres, monkeypatch):
    monkeypatch.setattr(opening, "VERSION_MIN", 99)

    with pytest.raises(StoreError, match="is too old: 99 or newer is needed"):
        await opened(postgres)


async def test_a_commit_that_is_not_waited_for_is_warned_of(postgres, caplog):
    with caplog.at_level(logging.WARNING, logger="veil.stores"):
        await opened(postgres + ("&" if "?" in postgres else "?") + "options=-csynchronous_commit%3Doff")

    assert "synchronous_commit=off" in caplog.text


async def test_a_database_that_cannot_be_reached_is_said_so():
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await opened("postgresql://nobody@127.0.0.1:1/nowhere?connect_timeout=2")


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://h/d?veil_pooler=yes", "veil_pooler=yes: expected 0 or 1"),
        ("postgresql://h/d?veil_connections=0", "veil_connections=0: expected 1 to 60"),
        ("postgresql://h/d?veil_connections=many", "veil_connections=many: expected 1 to 60"),
        ("postgresql://h/d?nonsense=1", "cannot be read"),
        ("nonsense", "cannot be read"),
    ],
)
def test_an_address_that_cannot_be_is_refused_in_words(dsn, expected):
    with pytest.raises(StoreError, match=expected):
        parse_dsn(dsn)


def test_what_is_for_veil_is_not_passed_on_to_the_database():
    dsn = parse_dsn("postgresql://u@h:5/d?veil_pooler=1&sslmode=require&veil_connections=3")

    assert dsn.text == "postgresql://u@h:5/d?sslmode=require"
    assert (dsn.pooler, dsn.connections) == (True, 3)
    assert dsn.options()["prepare_threshold"] is None


async def test_behind_a_pooler_nothing_is_left_on_a_connection(postgres):
    dsn = postgres + ("&" if "?" in postgres else "?") + "veil_pooler=1&veil_connections=1"
    async with nodes(dsn, 1) as [store]:
        queue = await make_queue(store)
        for n in range(10):
            await store.send(queue, [a_message(str(n))])
        async with store._pool.connection() as connection:
            cursor = await connection.execute(
                "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_locks"
                " WHERE locktype = 'advisory' AND pid = pg_backend_pid()), current_setting('veil.now_ms', true)"
            )
            assert await cursor.fetchone() == (0, 0, "")


async def test_a_cancellation_that_comes_together_with_a_connection_counts(postgres, monkeypatch):
    async with nodes(postgres + ("&" if "?" in postgres else "?") + "veil_connections=1", 1) as [store]:
        real, asking = store._pool.getconn, []

        async def cancelled_with_its_answer(timeout: float | None = None) -> object:
            connection = await real(timeout)
            if asyncio.current_task() in asking:
                asking[0].cancel()
                with contextlib.suppress(asyncio.CancelledError):  # as wait_for of Python 3.11 does
                    await asyncio.sleep(0)
            return connection

        monkeypatch.setattr(store._pool, "getconn", cancelled_with_its_answer)
        asking.append(asyncio.create_task(store.has_duty("sweep")))
        with pytest.raises(asyncio.CancelledError):
            await asking[0]
        await store.has_duty("sweep")  # the one connection is back
