"""Behind a proxy that hands out connections by transaction everything works, but for being told by other nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests.stores.kit import HeardEvents, a_message, bodies, make_queue, receipts_of
from tests.stores.model_history import Author
from tests.stores.model_steps import LockStep
from tests.transaction_pooler import TransactionPooler
from tests.waiting import until_async
from veil.core.errors import StoreUnavailable
from veil.core.lease import Deletion
from veil.stores.postgres import PostgresStore
from veil.stores.postgres import nodes as nodes_module
from veil.stores.store import Store


@pytest.fixture
async def pooler(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TransactionPooler]:
    options = parse_qs(urlsplit(postgres).query)
    if "host" not in options or not options["host"][0].startswith("/"):
        pytest.skip("the server that is named has no socket here")
    port = int(options["port"][0])
    upstream = Path(options["host"][0]) / f".s.PGSQL.{port}"
    folder = tmp_path_factory.mktemp("p")
    async with TransactionPooler(upstream, folder, port) as made:
        yield made


@pytest.fixture
def pooled(postgres: str, pooler: TransactionPooler) -> str:
    """The DSN of the test's database through the pooler."""
    parts = urlsplit(postgres)
    return f"postgresql://{parts.netloc}{parts.path}?host={pooler.folder}&port={pooler.port}&veil_pooler=1"


async def test_two_nodes_lose_nothing_and_hold_nothing_twice(pooled: str, pooler: TransactionPooler):
    nodes = [PostgresStore(pooled), PostgresStore(pooled)]
    for node in nodes:
        await node.open()
    try:
        queue = await make_queue(nodes[0], visibility_s=600)
        got: list[str] = []

        async def live(node: Store, number: int) -> None:
            for _ in range(5):
                await node.send(queue, [a_message(f"{number}")])
                messages = await node.receive(queue, 3)
                got.extend(message.message_id for message in messages)
                assert set(await node.delete(queue, receipts_of(queue, messages))) <= {Deletion.DELETED}

        await asyncio.gather(*(live(nodes[number % 2], number) for number in range(10)))
        while messages := await nodes[0].receive(queue, 10):
            got.extend(message.message_id for message in messages)
        assert len(got) == len(set(got)) == 50
        assert pooler.transactions > 50
    finally:
        for node in nodes:
            await node.close()


async def test_a_message_of_another_node_wakes_whoever_waits_though_nobody_can_tell(
    pooled: str, postgres: str
):
    here, there = PostgresStore(pooled), PostgresStore(pooled)
    heard = there.events = HeardEvents()
    await here.open()
    await there.open()
    try:
        queue = await make_queue(here)
        assert await there.find_queue(queue.key) is not None
        await here.send(queue, [a_message("hello")])
        await until_async(lambda: heard.available[queue.id])
        assert bodies(await there.receive(queue, 1)) == ["hello"]
        with psycopg.connect(postgres) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            ).fetchone()
        assert found == (0,)
    finally:
        await here.close()
        await there.close()


async def test_while_the_database_is_away_connections_are_not_made_one_after_the_other(
    pooled: str, pooler: TransactionPooler
):
    store = PostgresStore(pooled)
    await store.open()
    try:
        queue = await make_queue(store)
        pooler.is_away = True
        for client in list(pooler._clients):
            client.cancel()
        ends_s = time.monotonic() + 2
        while time.monotonic() < ends_s:
            sends = [store.send(queue, [a_message()]) for _ in range(20)]
            done = await asyncio.gather(*sends, return_exceptions=True)
            assert {type(each) for each in done} == {StoreUnavailable}
        assert pooler.refused < 100
        pooler.is_away = False
        async with asyncio.timeout(60):
            await store.send(queue, [a_message("again")])
    finally:
        await store.close()


class Pooled(LockStep):
    """The store under test is reached through the pooler."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self._dsn = dsn
        super().__init__("postgres", directory)

    def _make(self) -> Store:
        return PostgresStore(self._dsn, self.clock, journal=True)


async def test_a_random_history_agrees_with_the_reference(pooled: str, tmp_path: Path):
    run = Pooled(pooled, tmp_path)
    await run.open()
    try:
        author = Author("pooled", run)
        for number in range(150):
            step: dict[str, Any] = author.next()
            author.learn(step, await run.take(step))
            if number % 50 == 0:
                await run.audit()
        await run.audit()
    finally:
        await run.close()


async def test_requests_that_come_together_look_for_their_queues_together(
    pooled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is not told looks before each request; who comes while it does so is not answered by what was seen before."""
    monkeypatch.setattr(nodes_module, "ALONE_BEAT_S", 3_600.0)
    stores = [PostgresStore(pooled), PostgresStore(pooled)]
    for store in stores:
        await store.open()
    one, other = stores
    looks = 0
    refresh = other._engine.refresh_queues

    async def counted() -> None:
        nonlocal looks
        looks += 1
        await refresh()

    monkeypatch.setattr(other._engine, "refresh_queues", counted)
    try:
        queue = await make_queue(one)
        under_way = asyncio.create_task(other.find_queue(queue.key))
        while not looks:
            await asyncio.sleep(0)
        edited = await one.edit_queue(queue, lambda it: it._replace(settings=replace(it.settings, delay_s=3)))

        assert await asyncio.gather(*(other.find_queue(queue.key) for _ in range(50))) == [edited] * 50
        assert (await under_way) in (queue, edited)
        assert looks == 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await other.find_queue(queue.key)
        assert await other.find_queue(queue.key) == edited
    finally:
        for store in stores:
            await store.close()
