"""Several nodes on one PostgreSQL keep the promises together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.stores.kit import (
    a_grouped_message,
    a_key,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    receipts_of,
    some_messages,
)
from tests.stores.postgres_nodes_kit import ask, heard_by, nodes
from tests.waiting import until_async
from veil.core.clock import ManualClock, TroubleKind
from veil.core.errors import InFlightLimit, QueueMissing
from veil.core.lease import Deletion, HoldKey
from veil.core.queue import QueueCounts
from veil.stores.postgres import connection
from veil.stores.postgres import nodes as nodes_module
from veil.stores.store import Chosen, Extension, QueueContent

pytestmark = pytest.mark.usefixtures("postgres")


def edited(**changes):
    return lambda content: QueueContent(replace(content.settings, **changes), content.tags)


@pytest.fixture
def no_beats(monkeypatch):
    """Nodes that learn of one another only by what they are told."""
    monkeypatch.setattr(nodes_module, "BEAT_S", 3_600.0)
    monkeypatch.setattr(nodes_module, "ALONE_BEAT_S", 3_600.0)


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
async def test_receivers_on_two_nodes_never_hold_the_same_message(postgres, name):
    async with nodes(postgres) as both:
        queue = await make_queue(both[0], name)
        sent = [
            a_grouped_message(f"m{n}", f"g{n}") if queue.settings.fifo else a_message(f"m{n}")
            for n in range(240)
        ]
        for at in range(0, 240, 40):
            await both[at % 2].send(queue, sent[at : at + 40])

        async def receiver(store):
            got = []
            while messages := await store.receive(queue, 7, visibility_s=600):
                got += messages
            return got

        taken = await asyncio.gather(*(receiver(both[n % 2]) for n in range(8)))
        times = Counter(message.body for got in taken for message in got)
        # An empty answer may mean that others were about to take the rest: whoever comes then finds nothing.
        while rest := await both[0].receive(queue, 10, visibility_s=600):
            times.update(bodies(rest))

        assert times == Counter(message.body for message in sent)
        for store in both:
            assert await store.counts(queue) == QueueCounts(0, 240, 0)


# Near the smaller limit receives always follow one another, near the larger one only from half of it on.
@pytest.mark.parametrize("limit", [100, 1_500])
async def test_the_limit_of_messages_in_flight_holds_exactly_over_all_nodes(postgres, in_flight_max, limit):
    in_flight_max(limit)
    async with nodes(postgres) as both:
        queue = await make_queue(both[0])
        for _ in range(limit // 50 + 2):
            await both[0].send(queue, some_messages(*map(str, range(50))))

        async def receiver(store, name):
            held = 0
            with contextlib.suppress(InFlightLimit):
                while True:
                    attempt_id = f"{name} {held}" if name % 5 == 0 else None
                    held += len(await store.receive(queue, 7, visibility_s=600, attempt_id=attempt_id))
            hold = await store.receive_hold(queue, HoldKey(f"{name}", 1, 0), 7, visibility_s=600)
            return held + len(hold.messages)

        held = await asyncio.gather(*(receiver(both[name % 2], name) for name in range(12)))

        assert sum(held) == (await both[0].counts(queue)).in_flight == limit


async def test_a_fifo_group_has_one_holder_whichever_node_is_asked(postgres):
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one, "orders.fifo")
        await one.send(queue, [a_grouped_message("first"), a_grouped_message("second")])
        [first] = await one.receive(queue, 1)

        assert await other.receive(queue, 10) == []
        assert await other.delete(queue, [receipt_of(queue, first)]) == [Deletion.DELETED]
        assert bodies(await one.receive(queue, 10)) == ["second"]


async def test_a_send_on_one_node_wakes_the_other(postgres, no_beats):
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one)
        for _ in range(3):
            await one.send(queue, [a_message()])
            await heard_by(other).wake(queue.id)


async def test_a_release_and_a_delete_in_a_group_wake_the_other_node_too(postgres, no_beats):
    async with nodes(postgres) as (one, other):
        queue, fifo = await make_queue(one), await make_queue(one, "orders.fifo")
        await one.send(queue, [a_message()])
        [held] = await one.receive(queue, 1)
        await one.send(fifo, [a_grouped_message("first"), a_grouped_message("second")])
        [first] = await one.receive(fifo, 1)
        await heard_by(other).wake(fifo.id)

        await one.extend(queue, [Extension(receipt_of(queue, held), 0)])
        await heard_by(other).wake(queue.id)
        await one.delete(fifo, [receipt_of(fifo, first)])
        await heard_by(other).wake(fifo.id)


async def test_a_redrive_to_more_queues_than_one_notification_names_wakes_the_other_node(
    postgres, no_beats, monkeypatch
):
    monkeypatch.setattr(connection, "_WAKES_MAX", 2)
    async with nodes(postgres) as (one, other):
        dead, homes = await make_queue(one), [await make_queue(one, f"home-{place}") for place in range(5)]
        await one.send(dead, [a_message() for _ in homes])
        letters = await one.peek(dead)
        pairs = zip(letters, homes, strict=True)
        await one.redrive(dead, [Chosen(each.seq, each.message_id, home.key) for each, home in pairs])
        await until_async(lambda: all(heard_by(other).available[home.id] for home in homes))


async def test_what_one_node_received_the_other_extends_and_deletes(postgres):
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one)
        await one.send(queue, some_messages("a", "b"))
        receipts = receipts_of(queue, await one.receive(queue, 2))

        assert await other.extend(queue, [Extension(receipts[0], 60)]) == [None]
        assert await other.delete(queue, receipts) == [Deletion.DELETED] * 2
        assert await one.counts(queue) == QueueCounts(0, 0, 0)


async def test_an_edit_on_one_node_counts_on_the_other_at_once(postgres):
    async with nodes(postgres, clock=ManualClock()) as (one, other):
        queue = await make_queue(one, visibility_s=30)
        assert (await other.find_queue(queue.key)) == queue
        await one.send(queue, [a_message()])
        await one.edit_queue(queue, edited(visibility_s=77))

        [message] = await other.receive(queue, 1)

        assert message.due_at_ms == message.received_at_ms + 77_000
        found = await other.find_queue(queue.key)
        assert found is not None
        assert found.settings.visibility_s == 77


async def test_a_queue_that_one_node_pauses_and_resumes_is_so_for_the_other(postgres, no_beats):
    async with nodes(postgres, clock=ManualClock()) as (one, other):
        queue = await make_queue(one)
        await one.send(queue, [a_message()])
        await one.edit_queue(queue, edited(paused=True))
        assert await other.receive(queue, 1) == []

        heard_by(other).available.clear()
        await one.edit_queue(queue, edited(paused=False))
        await heard_by(other).wake(queue.id)
        assert len(await other.receive(queue, 1)) == 1


async def test_an_edit_reaches_a_node_that_does_nothing(postgres, no_beats):
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one)
        await other.find_queue(queue.key)
        await one.edit_queue(queue, edited(delay_s=5))

        await until_async(lambda: other._engine.queues.by_key[queue.key].queue.settings.delay_s == 5)


async def test_a_queue_is_made_and_deleted_for_every_node(postgres):
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one)
        assert await other.find_queue(queue.key) == queue
        assert [each.key for each in await other.all_queues()] == [queue.key]
        await other.send(queue, [a_message()])
        await one.delete_queue(queue)

        with pytest.raises(QueueMissing):
            await other.send(queue, [a_message()])
        with pytest.raises(QueueMissing):
            await other.counts(queue)
        assert await other.find_queue(queue.key) is None


async def test_two_nodes_that_make_the_same_queue_make_one(postgres):
    async with nodes(postgres) as both:
        made = await asyncio.gather(*(make_queue(store, "same") for store in both for _ in range(3)))

        assert len({queue.id for queue in made}) == 1


async def test_a_queue_whose_first_group_was_sent_elsewhere_is_served_fairly(postgres):
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one)
        await other.find_queue(queue.key)
        await one.send(queue, [a_message(f"loud {n}", group="loud") for n in range(40)])
        await one.receive(queue, 35, visibility_s=600)
        await one.send(queue, [a_message("quiet", group="quiet")])

        assert bodies(await other.receive(queue, 2))[0] == "quiet"


async def test_a_send_that_is_repeated_on_another_node_is_not_doubled(postgres):
    async with nodes(postgres) as (one, other):
        queue, messages = await make_queue(one), some_messages("a", "b")
        first = await one.send(queue, messages, retry_key=b"invocation")

        assert await other.send(queue, messages, retry_key=b"invocation") == first
        assert await one.counts(queue) == QueueCounts(2, 0, 0)


async def test_a_send_that_is_made_on_two_nodes_at_once_is_not_doubled(postgres):
    async with nodes(postgres) as both:
        queue = await make_queue(both[0])
        for n in range(10):
            message = [a_message(f"m{n}")]
            sent = await asyncio.gather(*(store.send(queue, message, retry_key=b"%d" % n) for store in both))
            assert sent[0] == sent[1]

        assert await both[0].counts(queue) == QueueCounts(10, 0, 0)


async def test_deduplication_holds_over_all_nodes(postgres):
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one, "orders.fifo")
        [first] = await one.send(queue, [a_message("a", group="g", deduplication_id="same")])

        [second] = await other.send(queue, [a_message("b", group="g", deduplication_id="same")])

        assert second.duplicate
        assert second.seq == first.seq


async def test_a_lease_of_a_node_that_died_lapses_in_time_on_the_others(postgres):
    async with nodes(postgres) as (one, other):
        queue = await make_queue(one, visibility_s=1)
        await one.send(queue, [a_message()])
        await one.receive(queue, 1)
        for task in one._nodes._tasks:  # as if it were dead: it does nothing more by itself
            task.cancel()
        heard, taken = heard_by(other), []
        heard.available.clear()

        while not taken:  # the wake of the send itself may come late
            await heard.wake(queue.id)
            heard.available.clear()
            taken = await other.receive(queue, 1)

        assert len(taken) == 1


async def test_a_duty_is_one_nodes_until_it_leaves_or_is_late(postgres):
    async with nodes(postgres) as (one, other):
        assert await one._nodes.has_duty("export")
        assert not await other._nodes.has_duty("export")
        assert await one._nodes.has_duty("export")  # renewed

        ask(postgres, "UPDATE veil.duty SET until_ms = 0 WHERE name = 'export'")
        assert await other._nodes.has_duty("export")
        assert not await one._nodes.has_duty("export")

        await other._nodes.stop()
        assert await one._nodes.has_duty("export")


async def test_a_node_that_is_alone_tells_nobody(postgres):
    async with nodes(postgres, 1) as [alone]:
        assert not alone._engine.has_other_nodes
        queue = await make_queue(alone)
        await alone.send(queue, [a_message()])
        async with nodes(postgres, 1):
            await until_async(lambda: alone._engine.has_other_nodes)
        await until_async(lambda: not alone._engine.has_other_nodes)


async def test_nodes_tell_one_another_whom_they_have_heard(postgres):
    async with nodes(postgres, 1) as [one]:
        assert await one.share_heard(b"one") == []
        async with nodes(postgres, 1) as [other]:
            assert await one.share_heard(b"one more") == [None]  # it is there, and has told nothing
            assert await other.share_heard(b"other") == [b"one more"]
            assert await one.share_heard(b"one more") == [b"other"]
        assert await one.share_heard(b"one more") == [b"other"]  # told for a while after it left
        ask(postgres, "UPDATE veil.heard SET at_ms = at_ms - 7200001")
        await one.share_heard(b"one more")
        assert await one.share_heard(b"one more") == []


async def test_nodes_of_one_database_have_numbers_of_their_own(postgres):
    async with nodes(postgres, 3) as all_three:
        assert sorted(store._engine.node for store in all_three) == [0, 1, 2]
    async with nodes(postgres, 1) as [again]:
        assert again._engine.node == 0  # left behind, and used again


async def test_a_look_whether_messages_can_be_sent_is_no_sign_of_a_healthy_node(postgres, no_beats):
    async with nodes(postgres) as [node, _]:
        await make_queue(node)
        seen = ask(postgres, "UPDATE veil.node SET seen_ms = seen_ms - 1000 RETURNING seen_ms")
        await node.probe()
        assert sorted(ask(postgres, "SELECT seen_ms FROM veil.node")) == sorted(seen)


async def test_the_counts_of_every_slot_add_up(postgres):
    async with nodes(postgres) as both:
        queue = await make_queue(both[0])

        async def life(store, n):
            await store.send(queue, some_messages(f"a{n}", f"b{n}"))
            taken = await store.receive(queue, 1, visibility_s=600)
            await store.delete(queue, receipts_of(queue, taken))

        await asyncio.gather(*(life(both[n % 2], n) for n in range(40)))

        left = len(await both[0].peek(queue, limit=1000))
        in_flight = sum(message.state == 2 for message in await both[0].peek(queue, limit=1000))
        assert await both[0].counts(queue) == await both[1].counts(queue)
        assert await both[0].counts(queue) == QueueCounts(left - in_flight, in_flight, 0)
        slots = ask(postgres, f"SELECT slot FROM veil.queue_count WHERE queue_id = {queue.id}")
        assert len(slots) > 1


async def test_a_missing_dead_letter_queue_that_is_made_elsewhere_is_used(postgres):
    from tests.stores.kit import redrive_to

    async with nodes(postgres, clock=ManualClock()) as (one, other):
        queue = await make_queue(one, visibility_s=5, redrive=redrive_to("dead", 1))
        await one.send(queue, [a_message("spent")])
        [message] = await other.receive(queue, 1)
        await other.extend(queue, [Extension(receipt_of(queue, message), 0)])
        dead = await make_queue(one, "dead")

        assert await other.receive(queue, 1) == []
        assert bodies(await other.receive(dead, 1)) == ["spent"]
        assert await one.find_queue(a_key("dead")) == dead


async def test_a_trouble_that_many_waited_through_is_told_once(postgres: str, no_beats: None) -> None:
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock, lease_grace=True) as [store]:
        began_ms = clock.now_ms()
        for n in range(5):
            store.lease_time.waits(n, TroubleKind.DATABASE)
            clock.advance(100)
        clock.advance(seconds=1)
        for n in (3, 1, 0, 2, 4):
            clock.advance(10)
            store.lease_time.answered(n)
        clock.advance(1)
        store.lease_time.waits("later", TroubleKind.DATABASE)
        clock.advance(seconds=1)
        store.lease_time.answered("later")

        spans = [(trouble.from_ms - began_ms, trouble.to_ms - began_ms) for trouble in store._nodes._troubles]
        assert spans == [(0, 1_550), (1_551, 2_551)]


@pytest.mark.parametrize("silent_ms", [2_400, 2_600, 7_400, 7_600])
async def test_a_lapse_reckons_with_a_node_that_has_fallen_silent_before_any_heartbeat_has_noted_it(
    postgres: str, no_beats: None, silent_ms: int
) -> None:
    clock = ManualClock()
    async with nodes(postgres, 1, clock=clock, lease_grace=True) as [store]:
        queue = await make_queue(store, visibility_s=2)
        await store.send(queue, [a_message("work")])
        await store.receive(queue, 1)
        clock.advance(seconds=2)
        now_ms = clock.now_ms()
        ask(
            postgres,
            f"INSERT INTO veil.node (number, name, seen_ms) SELECT 63, 'silent', {now_ms - silent_ms}",
        )
        ask(postgres, f"UPDATE veil.lease_time SET beat_ms = {now_ms}")

        # A shorter silence is everyday life, and after a longer one the node is dead.
        is_silent = 2_500 <= silent_ms <= 7_500
        assert len(await store.receive(queue, 1)) == (0 if is_silent else 1)


async def test_a_node_that_falls_silent_is_noted_and_the_others_hearts_go_on(postgres: str) -> None:
    def row() -> tuple[Any, ...]:
        with psycopg.connect(postgres, autocommit=True) as connection:
            found = connection.execute("SELECT kind, beat_ms, to_ms FROM veil.lease_time").fetchone()
        assert found is not None
        return found

    def fall_silent(for_ms: int, database_away_ms: int = 0) -> None:
        now_ms = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        with psycopg.connect(postgres) as connection:
            connection.execute(
                f"INSERT INTO veil.node (number, name, seen_ms) SELECT 63, 'silent', {now_ms} - {for_ms}"
                " ON CONFLICT (number) DO UPDATE SET seen_ms = excluded.seen_ms"
            )
            if database_away_ms:
                connection.execute(
                    f"UPDATE veil.lease_time SET kind = NULL, beat_ms = {now_ms} - {database_away_ms}"
                )

    async with nodes(postgres, 1, lease_grace=True) as [store]:
        store.begin_serving()
        # The second was alive when the database went away, and finds it again later than the first.
        for silence in ((3_000,), (10_000, 9_500)):
            tries = 0
            while row()[0] != "node" or not tries:  # again, for a heartbeat that came too late to see it
                if tries % 100 == 0:
                    fall_silent(*silence)
                tries += 1
                await asyncio.sleep(0.05)
        store.lease_time.waits("test", TroubleKind.DISK)
        while row()[0] != "disk":  # which goes on
            await asyncio.sleep(0.05)
        store.lease_time.answered("test")
        async with asyncio.timeout(60):
            beat_ms = row()[1]
            while row()[1] <= beat_ms + 2_000:
                await asyncio.sleep(0.05)
        store.end_serving()
