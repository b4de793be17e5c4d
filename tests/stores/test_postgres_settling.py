"""What is due may be in the hands of another transaction: whoever looks waits for it, and not for ever."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tests.stores.kit import bodies, make_queue, receipts_of, some_messages
from tests.stores.postgres_nodes_kit import nodes
from tests.waiting import until_async
from veil.core.clock import ManualClock
from veil.core.queue import QueueCounts
from veil.stores.postgres import engine

LOCK = b"SELECT 1 FROM veil.message FOR UPDATE"


class CountedPauses(tuple[float, ...]):
    """Pauses that tell how many were made."""

    made = 0

    def __getitem__(self, at):
        self.made += 1
        return super().__getitem__(at)


@pytest.fixture
def pauses(monkeypatch):
    pauses = CountedPauses([0.001] * 10_000)
    monkeypatch.setattr(engine, "PAUSES_S", pauses)
    return pauses


@pytest.fixture
async def lapsed(postgres):
    """A store, and a queue whose one message is not held any longer, though nobody has looked yet."""
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        await store.send(queue, some_messages("back"))
        await store.receive(queue, 1, visibility_s=30)
        clock.advance(seconds=30)
        yield store, queue


@pytest.mark.parametrize("look", ["counts", "receive"])
async def test_what_another_transaction_is_about_is_waited_for(postgres, lapsed, pauses, look):
    store, queue = lapsed
    async with await psycopg.AsyncConnection.connect(postgres) as other:
        await other.execute(LOCK)
        asked = asyncio.create_task(store.counts(queue) if look == "counts" else store.receive(queue, 1))
        await until_async(lambda: pauses.made >= 3)
        assert not asked.done()
        await other.rollback()
        answer = await asked
    assert answer == QueueCounts(1, 0, 0) if look == "counts" else bodies(answer) == ["back"]


@pytest.mark.parametrize("look", ["counts", "receive"])
async def test_what_this_node_is_about_is_waited_for_however_long_it_takes(lapsed, monkeypatch, look):
    """A loaded machine may let a transaction stand between two statements for longer than any pause."""
    store, queue = lapsed
    monkeypatch.setattr(engine, "PAUSES_S", ())
    settle, begun, goes_on = engine.settle, asyncio.Event(), asyncio.Event()

    async def slow(tx, state):
        more = await settle(tx, state)
        await tx.rows_of_each()
        begun.set()
        await goes_on.wait()
        return more

    monkeypatch.setattr(engine, "settle", slow)
    settling = asyncio.create_task(store.settle())
    await begun.wait()
    monkeypatch.setattr(engine, "settle", settle)
    asked = asyncio.create_task(store.counts(queue) if look == "counts" else store.receive(queue, 1))
    done, _ = await asyncio.wait([asked], timeout=0.3)
    assert not done
    goes_on.set()
    await settling
    answer = await asked
    assert answer == QueueCounts(1, 0, 0) if look == "counts" else bodies(answer) == ["back"]


async def test_what_another_transaction_did_meanwhile_is_counted(postgres, monkeypatch):
    """Between the look at the counts and the look at what is due."""
    clock = ManualClock()
    async with nodes(postgres, 2, clock=clock) as [store, other]:
        queue = await make_queue(store)
        await store.send(queue, some_messages("back", "back too"))
        await store.receive(queue, 2, visibility_s=30)
        clock.advance(seconds=30)
        settle = engine.settle

        async def overtaken(tx, state):
            monkeypatch.setattr(engine, "settle", settle)
            assert await other.counts(queue) == QueueCounts(2, 0, 0)
            return await settle(tx, state)

        monkeypatch.setattr(engine, "settle", overtaken)
        assert await store.counts(queue) == QueueCounts(2, 0, 0)


async def test_when_the_first_deadline_passes_unused_the_next_one_is_found(postgres):
    """Operations look for what is due and no further: what was deleted in time leaves a deadline that nothing comes of."""
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        await store.send(queue, some_messages("done in time", "lapses"))
        [done] = await store.receive(queue, 1, visibility_s=30)
        clock.advance(seconds=10)
        [lapses] = await store.receive(queue, 1, visibility_s=30)
        await store.delete(queue, receipts_of(queue, [done]))
        assert store.next_due_ms() <= done.due_at_ms

        clock.advance(seconds=20)
        await store.settle()
        assert store.next_due_ms() == lapses.due_at_ms

        clock.advance(seconds=10)
        await store.settle()
        assert await store.counts(queue) == QueueCounts(1, 0, 0)


async def test_a_transaction_that_hangs_does_not_stop_the_queue(postgres, lapsed):
    store, queue = lapsed
    async with await psycopg.AsyncConnection.connect(postgres) as other:
        await other.execute(LOCK)
        async with asyncio.timeout(60):
            assert await store.counts(queue) == QueueCounts(0, 1, 0)
            assert await store.receive(queue, 1) == []
            await store.send(queue, some_messages("new"))
            assert bodies(await store.receive(queue, 10)) == ["new"]
        await other.rollback()
    assert bodies(await store.receive(queue, 10)) == ["back"]
