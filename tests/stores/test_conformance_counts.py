"""Counts are exact, at every instant."""

from __future__ import annotations

import asyncio

from tests.stores.kit import a_message, make_queue, receipt_of, receipts_of, some_messages
from veil.stores.store import Extension


async def test_the_three_counts_follow_a_message_through_its_life(store, clock):
    queue = await make_queue(store, visibility_s=10)
    assert await store.counts(queue) == (0, 0, 0)
    await store.send(queue, [a_message("x", delay_s=5)])
    assert await store.counts(queue) == (0, 0, 1)
    clock.advance(seconds=5)
    assert await store.counts(queue) == (1, 0, 0)
    await store.receive(queue, 1)
    assert await store.counts(queue) == (0, 1, 0)
    clock.advance(seconds=10)
    assert await store.counts(queue) == (1, 0, 0)
    [held] = await store.receive(queue, 1)
    await store.delete(queue, [receipt_of(queue, held)])
    assert await store.counts(queue) == (0, 0, 0)


async def test_a_message_that_several_extend_at_once_is_counted_once(store, clock):
    """A client that got no answer in time asks again, and both may come to share a transaction."""
    queue = await make_queue(store, visibility_s=10)
    await store.send(queue, some_messages("late", "released"))
    late, released = await store.receive(queue, 2)
    await store.extend(queue, [Extension(receipt_of(queue, released), 60)])
    clock.advance(seconds=10)
    assert await store.counts(queue) == (1, 1, 0)
    again = [(late, 60), (released, 0), (late, 60), (released, 0), (late, 50)]
    await asyncio.gather(*(store.extend(queue, [Extension(receipt_of(queue, m), s)]) for m, s in again))
    assert await store.counts(queue) == (1, 1, 0)
    assert len(await store.receive(queue, 10)) == 1


async def test_release_undo_and_late_extension_are_counted(store, clock):
    queue = await make_queue(store, visibility_s=10)
    await store.send(queue, some_messages("released", "undone", "late"))
    released, undone, late = await store.receive(queue, 3)
    await store.extend(queue, [Extension(receipt_of(queue, released), 0)])
    assert await store.counts(queue) == (1, 2, 0)
    await store.undo_receive(queue, [receipt_of(queue, undone)])
    assert await store.counts(queue) == (2, 1, 0)
    clock.advance(seconds=10)
    await store.extend(queue, [Extension(receipt_of(queue, late), 10)])
    assert await store.counts(queue) == (2, 1, 0)


async def test_a_late_delete_is_counted_once(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, some_messages("a", "b"))
    held = await store.receive(queue, 2)
    clock.advance(seconds=1)
    await store.delete(queue, receipts_of(queue, held[:1]) * 2)

    assert await store.counts(queue) == (1, 0, 0)


async def test_the_oldest_visible_message_tells_its_age(store, clock):
    queue = await make_queue(store, visibility_s=10)
    assert await store.oldest_sent_ms(queue) is None
    await store.send(queue, some_messages("a"))
    first_ms = clock.now_ms()
    clock.advance(seconds=1)
    await store.send(queue, some_messages("b"))
    assert await store.oldest_sent_ms(queue) == first_ms

    await store.receive(queue, 1)
    assert await store.oldest_sent_ms(queue) == first_ms + 1_000
    clock.advance(seconds=10)
    assert await store.oldest_sent_ms(queue) == first_ms


async def test_counts_survive_a_restart(store, clock, reopen):
    queue = await make_queue(store, visibility_s=10)
    await store.send(queue, [*some_messages("a", "b", "c"), a_message("d", delay_s=60)])
    await store.receive(queue, 1)
    before = await store.counts(queue)

    store = await reopen()
    assert before == (2, 1, 1) == await store.counts(queue)
    clock.advance(seconds=10)
    assert await store.counts(queue) == (3, 0, 1)
