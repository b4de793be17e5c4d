"""A look begins where there was something last; what comes back before that place is found all the same."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.stores.kit import a_message, bodies, make_queue, receipt_of, receipts_of, redrive_to, some_messages
from tests.stores.postgres_nodes_kit import nodes
from veil.core.clock import ManualClock
from veil.core.queue import QueueCounts
from veil.stores.postgres import watermarks
from veil.stores.postgres.pipeline import PipelinedConnection, Q
from veil.stores.store import Extension


@pytest.fixture(autouse=True)
def never_from_the_front(monkeypatch):
    """Without the look from the front that comes from time to time, only what is promised helps."""
    monkeypatch.setattr(watermarks, "FULL_EVERY_S", 3_600.0)
    monkeypatch.setattr(watermarks, "FULL_EVERY_MAX_S", 3_600.0)


async def beyond(store, clock, queue, *left):
    """Messages that were received before a floor that lies beyond them."""
    await store.send(queue, some_messages(*left))
    taken = await store.receive(queue, len(left), visibility_s=600)
    clock.advance(seconds=60)
    await store.send(queue, some_messages("later"))
    assert bodies(await store.receive(queue, 10, visibility_s=600)) == ["later"]
    assert await store.receive(queue, 10) == []
    assert store._engine.watermarks._marks[queue.id].scan_from > (8, taken[-1].seq)
    return taken


async def test_what_another_node_released_is_found_before_the_floor(postgres):
    clock = ManualClock()
    async with nodes(postgres, clock=clock) as (one, other):
        queue = await make_queue(one)
        [message] = await beyond(one, clock, queue, "comes back")
        await other.extend(queue, [Extension(receipt_of(queue, message), 0)])

        assert bodies(await one.receive(queue, 10)) == ["comes back"]


async def test_what_lapsed_is_found_before_the_floor_whoever_settled_it(postgres):
    clock = ManualClock()
    async with nodes(postgres, clock=clock) as (one, other):
        queue = await make_queue(one)
        await beyond(one, clock, queue, "a", "b")
        clock.advance(seconds=541)
        assert (await other.counts(queue)).visible == 2

        assert bodies(await one.receive(queue, 10)) == ["a", "b"]


async def test_a_message_of_higher_priority_goes_first_whoever_sent_it(postgres):
    clock = ManualClock()
    async with nodes(postgres, clock=clock) as (one, other):
        queue = await make_queue(one)
        await beyond(one, clock, queue, "gone")
        await other.send(
            queue, [a_message("ordinary"), a_message("last", priority=16), a_message("first", priority=1)]
        )

        assert bodies(await one.receive(queue, 10)) == ["first", "ordinary", "last"]


async def test_a_dead_letter_that_is_older_than_everything_there_is_found_and_expires_in_time(postgres):
    clock = ManualClock()
    async with nodes(postgres, clock=clock) as (one, other):
        dead = await make_queue(one, "dead", retention_s=1_000)
        source = await make_queue(one, "source", redrive=redrive_to("dead", 1))
        await one.send(source, some_messages("old", "expires"))
        taken = await one.receive(source, 2, visibility_s=1)
        clock.advance(seconds=100)
        await beyond(one, clock, dead, "newer")
        assert len(taken) == 2
        assert await other.receive(source, 10) == []  # both are spent: they go to the dead letters there

        assert bodies(await one.receive(dead, 1)) == ["old"]
        clock.advance(seconds=850)
        assert await one.counts(dead) == QueueCounts(2, 0, 0)  # newer and later; the others have expired


async def test_a_message_that_was_delayed_for_long_is_found(postgres):
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        await store.send(queue, [a_message("delayed", delay_s=900)])
        await beyond(store, clock, queue, "gone")
        clock.advance(seconds=841)

        assert "delayed" in bodies(await store.receive(queue, 10))


@pytest.mark.parametrize("statement", [Q.claim, "COMMIT"])
async def test_what_lapses_while_a_receive_is_on_its_way_is_found(postgres, monkeypatch, statement):
    """What has come back is known here before the answers to a receive that had set out from the floor."""
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        await beyond(store, clock, queue, "lapses")
        clock.advance(seconds=540 - (statement == "COMMIT"))
        real, overtaken = PipelinedConnection.exchange, False

        async def overtake(connection, statements):
            nonlocal overtaken
            if not overtaken and any(query == statement for query, _ in statements):
                overtaken = True
                clock.advance(seconds=1)
                await store.settle()
            return await real(connection, statements)

        monkeypatch.setattr(PipelinedConnection, "exchange", overtake)
        found = await store.receive(queue, 10) or await store.receive(queue, 10)
        assert bodies(found) == ["lapses"]


async def test_a_return_that_was_seen_before_its_own_commit_was_answered_counts_once(postgres, monkeypatch):
    clock = ManualClock()
    async with nodes(postgres, clock=clock) as (one, other):
        queue = await make_queue(one)
        first, second = await beyond(one, clock, queue, "first", "second")
        real, seen = PipelinedConnection.exchange, False

        async def see(connection, statements):
            nonlocal seen
            answers = await real(connection, statements)
            if not seen and statements[-1][0] == "COMMIT":
                seen = True
                await one.counts(queue)
            return answers

        monkeypatch.setattr(PipelinedConnection, "exchange", see)
        await one.extend(queue, [Extension(receipt_of(queue, first), 0)])
        assert bodies(await one.receive(queue, 10)) == ["first"]
        assert await one.receive(queue, 10) == []
        assert one._engine.watermarks._marks[queue.id].scan_from > (8, second.seq)
        await other.extend(queue, [Extension(receipt_of(queue, second), 0)])

        assert bodies(await one.receive(queue, 10)) == ["second"]


async def test_what_somebody_had_taken_and_gave_up_is_found_by_the_look_from_the_front(postgres):
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        await store.send(queue, some_messages("skipped"))
        clock.advance(seconds=60)
        with psycopg.connect(postgres) as elsewhere:
            elsewhere.execute("SELECT 1 FROM veil.message FOR UPDATE")
            assert await store.receive(queue, 1) == []
        assert await store.receive(queue, 1) == []  # from the floor, which lies beyond it

        store._engine.watermarks._marks[queue.id].full_at_s = 0.0
        assert bodies(await store.receive(queue, 1)) == ["skipped"]


async def test_a_long_transaction_elsewhere_does_not_make_looks_go_through_what_is_gone(postgres):
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        with psycopg.connect(postgres) as elsewhere:
            elsewhere.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            elsewhere.execute("SELECT 1")
            for _ in range(10):
                await store.send(queue, some_messages(*map(str, range(200))))
                taken = await store.receive(queue, 200)
                await store.delete(queue, receipts_of(queue, taken))
                clock.advance(seconds=5)
            await store.send(queue, some_messages("the one"))
            assert bodies(await store.receive(queue, 1, visibility_s=1)) == ["the one"]

            from_front = pages_read(postgres, queue.id, (0, 0))
            from_floor = pages_read(postgres, queue.id, store._engine.watermarks._marks[queue.id].scan_from)

        assert from_floor * 10 < from_front


def pages_read(dsn: str, queue_id: int, place: tuple[int, int]) -> int:
    query = (
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT seq FROM veil.message WHERE queue_id = %s AND state = 0"
        " AND (priority, seq) >= (%s, %s) ORDER BY priority, seq LIMIT 1"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        # Not the sequential scan that a table of this size would get.
        connection.execute("SET enable_seqscan = off")
        connection.execute("SET enable_bitmapscan = off")
        row = connection.execute(query, (queue_id, *place)).fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])


# ---- behind the backlog of a noisy group


async def behind_noisy_ones(store, clock, queue, monkeypatch):
    """A receive for quiet groups has passed a noisy group's messages; the next begins behind them. Returns what is in flight of
    the noisy group, and one message of a quiet group that was sent before all the noisy ones."""
    await store.send(queue, [a_message("early", group="quiet")])
    early = await store.receive(queue, 1, visibility_s=600)
    await store.send(queue, [a_message(f"noisy {number}", group="noisy") for number in range(60)])
    held = await store.receive(queue, 30, visibility_s=600)
    clock.advance(seconds=60)
    await store.send(queue, [a_message("quiet", group="other"), a_message("alone")])
    assert bodies(await store.receive(queue, 1, visibility_s=600)) == ["quiet"]
    starts, real = [], PipelinedConnection.exchange

    async def noted(connection, statements):
        starts.extend(given["after"] for query, given in statements if query == Q.visible_quiet)
        return await real(connection, statements)

    with monkeypatch.context() as patch:
        patch.setattr(PipelinedConnection, "exchange", noted)
        assert bodies(await store.receive(queue, 1, visibility_s=600)) == ["alone"]
    [last_noisy] = [each.seq for each in await store.peek_next(queue, limit=100) if each.body == "noisy 59"]
    assert starts[0] >= last_noisy  # however many there are, none of them was read again
    return early + held


async def test_a_receive_does_not_read_the_backlog_of_a_noisy_group_again(postgres, monkeypatch):
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        await behind_noisy_ones(store, clock, queue, monkeypatch)
        await store.send(queue, [a_message("later", group="other"), a_message("first", priority=1)])

        assert bodies(await store.receive(queue, 3)) == ["first", "later", "noisy 30"]


@pytest.mark.parametrize("own", [True, False], ids=["this node", "another node"])
async def test_what_came_back_for_a_quiet_group_goes_before_the_noisy_ones(postgres, monkeypatch, own):
    clock = ManualClock()
    async with nodes(postgres, clock=clock) as (one, other):
        queue = await make_queue(one)
        [early, *_] = await behind_noisy_ones(one, clock, queue, monkeypatch)
        await (one if own else other).extend(queue, [Extension(receipt_of(queue, early), 0)])

        assert bodies(await one.receive(queue, 2)) == ["early", "noisy 30"]


async def test_a_group_that_is_no_longer_noisy_has_its_old_place(postgres, monkeypatch):
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        [_, *held] = await behind_noisy_ones(store, clock, queue, monkeypatch)
        await store.delete(queue, receipts_of(queue, held))
        await store.send(queue, [a_message("later", group="other")])

        assert bodies(await store.receive(queue, 2)) == ["noisy 30", "noisy 31"]


async def test_a_noisy_run_is_not_kept_where_another_group_was_noisy_too(postgres, monkeypatch):
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock) as [store]:
        queue = await make_queue(store)
        await store.send(queue, [a_message(f"b{number}", group="b") for number in range(40)])
        held = await store.receive(queue, 39, visibility_s=600)
        await behind_noisy_ones(store, clock, queue, monkeypatch)
        await store.delete(queue, receipts_of(queue, held))
        await store.send(queue, [a_message("later", group="other")])

        assert bodies(await store.receive(queue, 3)) == ["b39", "later", "noisy 30"]
