"""Operations share transactions, and none of them notices."""

from __future__ import annotations

import asyncio
from collections import Counter

import psycopg
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
from tests.stores.postgres_nodes_kit import nodes
from veil.core.clock import ManualClock
from veil.core.errors import InFlightLimit, MessageGone, QueueMissing, StoreError, StoreUnavailable
from veil.core.lease import Deletion
from veil.core.queue import QueueCounts
from veil.stores.postgres import commit
from veil.stores.postgres.connection import parse_dsn
from veil.stores.postgres.engine import Need
from veil.stores.postgres.pipeline import PipelinedConnection
from veil.stores.store import Extension


@pytest.fixture
async def store(postgres):
    async with nodes(postgres, 1, clock=ManualClock()) as [store]:
        yield store


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
async def test_what_arrives_together_shares_a_few_transactions(store, name):
    queue = await make_queue(store, name)
    sends = [
        store.send(queue, [a_grouped_message(str(n)) if queue.settings.fifo else a_message(str(n))])
        for n in range(60)
    ]
    before = store.commit_stats.commits

    sent = await asyncio.gather(*sends)

    assert len({each.seq for [each] in sent}) == 60
    assert store.commit_stats.commits - before <= 6
    assert (await store.counts(queue)).visible == 60


async def test_operations_of_every_kind_and_queue_go_together(store):
    queues = [await make_queue(store, f"q{n}") for n in range(3)]
    held = []
    for queue in queues:
        await store.send(queue, some_messages("a", "b", "c"))
        held.append(await store.receive(queue, 2))
    before = store.commit_stats.commits

    answers = await asyncio.gather(
        *(store.send(queue, [a_message("d")]) for queue in queues),
        *(store.receive(queue, 1) for queue in queues),
        *(
            store.delete(queue, [receipt_of(queue, taken[0])])
            for queue, taken in zip(queues, held, strict=True)
        ),
        *(
            store.extend(queue, [Extension(receipt_of(queue, taken[1]), 0)])
            for queue, taken in zip(queues, held, strict=True)
        ),
    )

    assert store.commit_stats.commits - before <= 2
    assert [bodies(each) for each in answers[3:6]] == [["c"]] * 3
    assert answers[6:] == [[Deletion.DELETED]] * 3 + [[None]] * 3
    for queue in queues:
        assert await store.counts(queue) == QueueCounts(2, 1, 0)


async def test_receives_that_share_a_transaction_get_what_each_asked_for(store):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages(*(f"{n:02}" for n in range(20))))

    taken = await asyncio.gather(
        store.receive(queue, 3),
        store.receive(queue, 5, visibility_s=60),
        store.receive(queue, 1),
        store.receive(queue, 7, visibility_s=60),
        store.receive(queue, 10),
    )

    assert Counter(body for each in taken for body in bodies(each)) == Counter(f"{n:02}" for n in range(20))
    assert all(len(each) <= count for each, count in zip(taken, (3, 5, 1, 7, 10), strict=True))
    assert all(bodies(each) == sorted(bodies(each)) for each in taken)
    windows = [{m.due_at_ms - m.received_at_ms for m in each} for each in taken]
    assert windows == [{30_000}, {60_000}, {30_000}, {60_000}, {30_000}]


async def test_a_refusal_does_not_disturb_the_others(store):
    kept, gone = await make_queue(store, "kept"), await make_queue(store, "gone")
    await store.delete_queue(gone)
    [message] = await store.receive(kept, 1) or [None]

    answers = await asyncio.gather(
        store.send(kept, [a_message("before")]),
        store.send(gone, [a_message("lost")]),
        store.receive(gone, 1),
        store.send(kept, [a_message("after")]),
        return_exceptions=True,
    )

    assert message is None
    assert [isinstance(each, QueueMissing) for each in answers] == [False, True, True, False]
    assert sorted(bodies(await store.receive(kept, 10))) == ["after", "before"]


async def test_what_the_database_cannot_store_fails_alone(store):
    queue = await make_queue(store)

    answers = await asyncio.gather(
        *(store.send(queue, [a_message(body)]) for body in ("good", "a\x00b", "also good")),
        return_exceptions=True,
    )

    assert [isinstance(each, StoreError) for each in answers] == [False, True, False]
    assert sorted(bodies(await store.receive(queue, 10))) == ["also good", "good"]


async def test_what_is_due_has_happened_before_a_group_looks(store):
    queue = await make_queue(store, visibility_s=5)
    await store.send(queue, some_messages("lapses", "is deleted late"))
    first, second = await store.receive(queue, 2)
    store.clock.advance(seconds=6)

    again, deleted, extended = await asyncio.gather(
        store.receive(queue, 1),
        store.delete(queue, [receipt_of(queue, second)]),
        store.extend(queue, [Extension(receipt_of(queue, first), 10)]),
    )

    assert [message.delivery for message in again] == [2]
    assert deleted == [Deletion.DELETED]
    assert isinstance(extended[0], MessageGone)  # not the holder any more
    assert await store.counts(queue) == QueueCounts(0, 1, 0)


async def test_spent_messages_go_aside_and_others_take_their_place(store):
    await make_queue(store, "dead")
    queue = await make_queue(store, visibility_s=5, redrive=redrive_to("dead", 1))
    await store.send(queue, some_messages(*(f"{n:02}" for n in range(10))))
    first = await store.receive(queue, 6)
    await store.extend(queue, [Extension(receipt, 0) for receipt in receipts_of(queue, first)])

    taken = await asyncio.gather(*(store.receive(queue, 2) for _ in range(2)))

    assert [bodies(each) for each in taken] == [["06", "07"], ["08", "09"]]
    dead = await store.find_queue(queue.settings.redrive.dead_letters)
    letters = await store.receive(dead, 10)
    assert bodies(letters) == [f"{n:02}" for n in range(6)]
    assert {message.receive_count for message in letters} == {2}


@pytest.mark.parametrize("visibilities", [(30, 30, 30), (30, 60, 90)])
async def test_the_limit_of_messages_in_flight_holds_for_a_group(store, monkeypatch, visibilities):
    monkeypatch.setattr("veil.core.limits.IN_FLIGHT_MAX", 5)
    queue = await make_queue(store)
    await store.send(queue, some_messages(*map(str, range(10))))

    receives = (store.receive(queue, 4, visibility_s=visibility_s) for visibility_s in visibilities)
    answers = await asyncio.gather(*receives, return_exceptions=True)

    assert sum(len(each) for each in answers if isinstance(each, list)) == 5
    assert [type(each) for each in answers if not isinstance(each, list)] == [InFlightLimit]
    assert await store.counts(queue) == QueueCounts(5, 5, 0)


async def test_a_caller_that_goes_away_leaves_its_operation_to_be_done(store):
    queue = await make_queue(store)
    leaving = asyncio.ensure_future(store.send(queue, [a_message("of one who left")]))
    staying = asyncio.ensure_future(store.send(queue, [a_message("of one who stayed")]))
    await asyncio.sleep(0)
    leaving.cancel()
    await staying

    assert sorted(bodies(await store.receive(queue, 10))) == ["of one who left", "of one who stayed"]


async def test_a_send_that_is_repeated_within_a_group_is_stored_once(store):
    queue, messages = await make_queue(store), some_messages("once")

    one, other = await asyncio.gather(*(store.send(queue, messages, retry_key=b"k") for _ in range(2)))

    assert one == other
    assert await store.counts(queue) == QueueCounts(1, 0, 0)


async def test_a_retry_key_can_be_used_again_when_it_was_forgotten_for_long(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message("first")], retry_key=b"k")
    store.clock.advance(seconds=301)

    await asyncio.gather(
        store.send(queue, [a_message("second")], retry_key=b"k"), store.send(queue, [a_message("third")])
    )

    assert sorted(bodies(await store.receive(queue, 10))) == ["first", "second", "third"]


async def test_an_old_receipt_and_the_present_one_in_one_group_delete_once(store):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, [a_message()])
    [old] = await store.receive(queue, 1)
    store.clock.advance(seconds=2)
    [present] = await store.receive(queue, 1)

    stale, deleted = await asyncio.gather(
        store.delete(queue, [receipt_of(queue, old)]), store.delete(queue, [receipt_of(queue, present)])
    )

    assert deleted == [Deletion.DELETED]
    assert stale in ([Deletion.STALE], [Deletion.GONE])
    assert await store.counts(queue) == QueueCounts(0, 0, 0)


@pytest.fixture
async def held_up(postgres):
    """A store, a queue that another node keeps to itself, one that is free, and what ends that."""
    async with nodes(postgres, 2, clock=ManualClock()) as [store, other]:
        busy, free = await make_queue(store, "busy"), await make_queue(store, "free")
        held, over = asyncio.Event(), asyncio.Event()

        async def hold(_: object) -> None:
            held.set()
            await over.wait()

        holding = asyncio.ensure_future(other._engine.run(hold, Need([busy], exclusive=True)))
        await held.wait()
        yield store, busy, free, over
        over.set()
        await holding


async def begun(operation):
    """The operation, under way or in line."""
    task = asyncio.ensure_future(operation)
    for _ in range(3):
        await asyncio.sleep(0)
    return task


async def test_a_few_wait_for_the_group_under_way_and_go_together(held_up, monkeypatch):
    monkeypatch.setattr(commit, "SMALL_GROUP_WAIT_S", 60.0)
    store, busy, free, over = held_up
    before = store.commit_stats.commits
    sends = [await begun(store.send(queue, [a_message()])) for queue in (busy, *[free] * 5)]

    over.set()
    await asyncio.gather(*sends)

    assert store.commit_stats.commits - before == 2


async def test_a_group_that_has_to_wait_for_somebody_does_not_hold_up_the_next_for_long(held_up):
    store, busy, free, over = held_up
    stuck = await begun(store.send(busy, [a_message("a")]))

    await asyncio.wait_for(store.send(free, [a_message("b")]), 60)

    assert not stuck.done()
    over.set()
    await stuck


async def test_nobody_is_left_without_an_answer_when_a_group_fails_twice(store, monkeypatch):
    """Once together for a reason that the store knows, and then each alone for one that it does not."""
    queue = await make_queue(store)

    async def refuses(engine, group):
        raise StoreError("odd")

    async def breaks(*args, **given):
        raise KeyError("nobody thought of it")

    monkeypatch.setattr(commit.bulk, "run", refuses)
    monkeypatch.setattr(store._engine, "run", breaks)
    sends = [store.send(queue, [a_message()]) for _ in range(3)]

    answers = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), 60)

    assert {type(answer) for answer in answers} == {KeyError}


async def test_one_that_came_while_two_groups_were_under_way_waits_for_neither_for_long(held_up):
    store, busy, free, over = held_up
    stuck = await begun(store.send(busy, [a_message("a")]))
    beside = [store.send(free, [a_message("b")]) for _ in range(commit.BESIDE_FROM)]
    under_way = asyncio.gather(*beside)
    last = await begun(store.send(free, [a_message("c")]))
    assert store._groups._plain.running == 2

    await asyncio.wait_for(asyncio.gather(under_way, last), 60)

    assert not stuck.done()
    over.set()
    await stuck


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
async def test_a_database_that_refuses_at_once_costs_nobody_a_lease(postgres, monkeypatch, name):
    """As a pooler does whose database is away: nothing waits, and nothing is done."""
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock, lease_grace=True) as [store]:
        queue = await make_queue(store, name, visibility_s=30)
        await store.send(queue, [a_grouped_message("work") if queue.settings.fifo else a_message("work")])
        [message] = await store.receive(queue, 1)
        renewal = [Extension(receipt_of(queue, message), 30)]

        async def refuses(*given):
            raise psycopg.OperationalError("server login has been failing")

        with monkeypatch.context() as away:
            away.setattr(store._engine.pool, "getconn", refuses)
            for _ in range(40):
                with pytest.raises(StoreUnavailable):
                    await store.extend(queue, renewal)
                await asyncio.sleep(0)  # nothing waits any more when time goes on
                clock.advance(seconds=1)

        async with await psycopg.AsyncConnection.connect(
            parse_dsn(postgres).text, autocommit=True
        ) as another_node:
            await another_node.execute("UPDATE veil.lease_time SET beat_ms = %s", (clock.now_ms(),))
        assert await store.receive(queue, 1) == []
        assert await store.extend(queue, renewal) == [None]


async def test_a_fifo_send_takes_three_round_trips(postgres, monkeypatch):
    """BEGIN, the look for duplicates, COMMIT with the message."""
    async with nodes(postgres, 1) as [store]:
        queue = await make_queue(store, "orders.fifo", fifo=True)
        real, trips, taken = PipelinedConnection.exchange, Counter(), []

        async def counted(connection, statements):
            if ("BEGIN", {}) in statements:
                trips[connection] = 0
            trips[connection] += 1
            if any(query.startswith("INSERT INTO veil.message ") for query, _ in statements):
                taken.append(trips[connection])
            return await real(connection, statements)

        monkeypatch.setattr(PipelinedConnection, "exchange", counted)
        await store.send(queue, [a_grouped_message("a")])
    assert taken == [3]
