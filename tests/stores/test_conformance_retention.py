"""Delays before a message can be received, and retention after which it is gone."""

from __future__ import annotations

from dataclasses import replace

from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue, receipt_of, some_messages
from veil.core.errors import MessageGone
from veil.core.lease import Deletion, State
from veil.stores.store import Extension


def with_settings(**changes):
    return lambda content: content._replace(settings=replace(content.settings, **changes))


async def test_a_delayed_message_appears_at_its_instant_and_is_announced(store, clock, events):
    queue = await make_queue(store)
    await store.send(queue, [a_message("x", delay_s=10)])
    assert events.available[queue.id] == 0
    [peeked] = await store.peek(queue)
    assert (peeked.state, peeked.due_at_ms) == (State.DELAYED, clock.now_ms() + 10_000)

    clock.advance(9_999)
    assert await store.receive(queue, 1) == []
    clock.advance(1)
    await store.settle()
    assert events.available[queue.id] >= 1
    assert bodies(await store.receive(queue, 1)) == ["x"]


async def test_the_end_of_a_delay_is_no_lapse(store, clock, events):
    queue = await make_queue(store, delay_s=1)
    await store.send(queue, [a_message()])
    clock.advance(seconds=1)
    await store.settle()

    assert events.totals["lapsed", queue.id] == 0


async def test_the_messages_own_delay_beats_the_queues_also_when_it_is_zero(store):
    queue = await make_queue(store, delay_s=10)
    await store.send(queue, [a_message("own", delay_s=0), a_message("queue's")])

    assert bodies(await store.receive(queue, 10)) == ["own"]


async def test_a_message_that_was_delayed_takes_the_place_of_its_send(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message("early", delay_s=5)])
    await store.send(queue, some_messages("late"))
    clock.advance(seconds=5)

    assert bodies(await store.receive(queue, 10)) == ["early", "late"]


async def test_a_new_delay_of_a_standard_queue_does_not_touch_what_is_waiting(store, clock):
    queue = await make_queue(store, delay_s=10)
    await store.send(queue, [a_message()])
    await store.edit_queue(queue, with_settings(delay_s=0))

    assert await store.counts(queue) == (0, 0, 1)


async def test_a_new_delay_of_a_fifo_queue_reaches_what_is_waiting(store, clock):
    queue = await make_queue(store, "q.fifo", delay_s=100)
    await store.send(queue, [a_grouped_message("x")])
    clock.advance(seconds=5)
    await store.edit_queue(queue, with_settings(delay_s=10))

    clock.advance(4_999)
    assert await store.counts(queue) == (0, 0, 1)
    clock.advance(1)
    assert bodies(await store.receive(queue, 1)) == ["x"]


async def test_the_settings_that_count_are_the_queues_present_ones(store, clock):
    old = await make_queue(store, visibility_s=30)
    await store.edit_queue(old, with_settings(visibility_s=5, delay_s=7))
    await store.send(old, [a_message()])
    [peeked] = await store.peek(old)
    clock.advance(seconds=7)
    [held] = await store.receive(old, 1)

    assert peeked.due_at_ms == clock.now_ms()
    assert held.due_at_ms == clock.now_ms() + 5_000


async def test_a_message_is_gone_when_its_retention_ends_and_not_before(store, clock, events):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message()])
    clock.advance(59_999)
    assert await store.counts(queue) == (1, 0, 0)
    clock.advance(1)

    assert await store.receive(queue, 1) == []
    assert await store.counts(queue) == (0, 0, 0)
    assert await store.peek(queue) == []
    assert events.totals["expired", queue.id] == 1


async def test_an_expired_message_is_gone_though_somebody_holds_it(store, clock, events):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1, visibility_s=600)
    clock.advance(seconds=60)
    receipt = receipt_of(queue, held)

    [refusal] = await store.extend(queue, [Extension(receipt, 600)])
    assert isinstance(refusal, MessageGone)
    assert await store.delete(queue, [receipt]) == [Deletion.GONE]
    assert await store.counts(queue) == (0, 0, 0)
    assert events.totals["expired", queue.id] == 1


async def test_an_expired_message_is_gone_though_it_was_never_visible(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message("x", delay_s=900)])
    clock.advance(seconds=60)

    assert await store.counts(queue) == (0, 0, 0)


async def test_retention_does_not_start_again_with_a_receive(store, clock):
    queue = await make_queue(store, retention_s=60, visibility_s=1)
    await store.send(queue, [a_message()])
    clock.advance(seconds=58)
    await store.receive(queue, 1)
    clock.advance(seconds=2)

    assert await store.receive(queue, 1) == []


async def test_a_shorter_retention_ends_what_is_older_at_once(store, clock):
    queue = await make_queue(store, retention_s=600)
    await store.send(queue, [*some_messages("visible", "held"), a_message("delayed", delay_s=500)])
    await store.receive(queue, 1, visibility_s=500)
    clock.advance(seconds=60)
    await store.send(queue, some_messages("young"))
    await store.edit_queue(queue, with_settings(retention_s=60))

    assert bodies(await store.peek(queue)) == ["young"]


async def test_a_longer_retention_keeps_what_has_not_expired_yet(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, some_messages("visible", "held"))
    await store.receive(queue, 1, visibility_s=500)
    clock.advance(59_999)
    await store.edit_queue(queue, with_settings(retention_s=120))
    clock.advance(60_000)
    assert await store.counts(queue) == (1, 1, 0)
    clock.advance(1)
    assert await store.counts(queue) == (0, 0, 0)


async def test_a_longer_retention_does_not_bring_back_what_had_expired(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, some_messages("visible", "held"))
    await store.receive(queue, 1, visibility_s=500)
    clock.advance(seconds=60)
    await store.edit_queue(queue, with_settings(retention_s=120))

    assert await store.counts(queue) == (0, 0, 0)


async def test_the_next_due_instant_is_never_later_than_an_expiry(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message()])

    due_ms = store.next_due_ms()
    assert due_ms is not None and due_ms <= clock.now_ms() + 60_000


async def test_delay_and_retention_survive_a_restart_with_the_time_that_was_left(store, clock, reopen):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message("x", delay_s=20)])
    clock.advance(seconds=10)
    store = await reopen()

    clock.advance(9_999)
    assert await store.counts(queue) == (0, 0, 1)
    clock.advance(1)
    assert await store.counts(queue) == (1, 0, 0)
    clock.advance(39_999)
    assert await store.counts(queue) == (1, 0, 0)
    clock.advance(1)
    assert await store.counts(queue) == (0, 0, 0)
