"""A client that got no answer sends again: nothing is stored twice."""

from __future__ import annotations

import pytest

from tests.stores.kit import bodies, make_queue, receipts_of, some_messages
from veil.core.limits import REPEATED_SEND_MS

KEY = b"k" * 16


async def test_a_repeated_send_stores_nothing_and_is_answered_like_the_first(store, events):
    queue = await make_queue(store)
    first = await store.send(queue, some_messages("a", "b"), retry_key=KEY)
    again = await store.send(queue, some_messages("a", "b"), retry_key=KEY)

    assert [(one.message_id, one.seq) for one in again] == [(one.message_id, one.seq) for one in first]
    assert bodies(await store.peek(queue)) == ["a", "b"]
    assert events.totals["repeated_send", queue.id] == 1


async def test_a_repeated_send_is_known_after_its_message_was_deleted(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a"), retry_key=KEY)
    await store.delete(queue, receipts_of(queue, await store.receive(queue, 1)))
    await store.send(queue, some_messages("a"), retry_key=KEY)

    assert await store.receive(queue, 1) == []


async def test_another_key_and_no_key_are_other_sends(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a"), retry_key=KEY)
    await store.send(queue, some_messages("b"), retry_key=b"o" * 16)
    await store.send(queue, some_messages("c"))
    await store.send(queue, some_messages("d"))

    assert bodies(await store.peek(queue)) == ["a", "b", "c", "d"]


async def test_the_same_key_in_another_queue_is_another_send(store):
    one, other = await make_queue(store, "one"), await make_queue(store, "other")
    await store.send(one, some_messages("a"), retry_key=KEY)
    await store.send(other, some_messages("a"), retry_key=KEY)

    assert bodies(await store.peek(other)) == ["a"]


async def test_a_send_is_known_for_five_minutes(store, clock):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a"), retry_key=KEY)
    clock.advance(REPEATED_SEND_MS - 1)
    await store.send(queue, some_messages("b"), retry_key=KEY)
    clock.advance(1)
    await store.send(queue, some_messages("c"), retry_key=KEY)

    assert bodies(await store.peek(queue)) == ["a", "c"]


@pytest.mark.parametrize("settled", [False, True])
async def test_a_repeated_send_is_known_after_a_restart(store, reopen, clock, settled):
    queue = await make_queue(store)
    [first] = await store.send(queue, some_messages("a"), retry_key=KEY)
    if settled:
        clock.advance(seconds=60)
        await store.settle()
    store = await reopen()
    [again] = await store.send(queue, some_messages("b"), retry_key=KEY)

    assert (again.message_id, again.seq) == (first.message_id, first.seq)
    assert bodies(await store.peek(queue)) == ["a"]
