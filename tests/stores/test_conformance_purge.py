"""A purge removes what was sent before it, and rests."""

from __future__ import annotations

import pytest

from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue, receipt_of, some_messages
from veil.core.errors import MessageGone, PurgeInProgress
from veil.core.lease import Deletion
from veil.stores.store import Extension


async def test_a_purge_removes_visible_held_and_delayed_messages(store):
    queue = await make_queue(store)
    await store.send(queue, [*some_messages("a", "b"), a_message("c", delay_s=10)])
    await store.receive(queue, 1)
    await store.purge(queue, rest_ms=60_000)

    assert await store.counts(queue) == (0, 0, 0)
    assert await store.peek(queue) == []


async def test_what_is_sent_after_a_purge_stays(store, clock):
    queue = await make_queue(store)
    await store.send(queue, some_messages("before"))
    await store.purge(queue, rest_ms=60_000)
    await store.send(queue, some_messages("after"))

    assert bodies(await store.receive(queue, 10)) == ["after"]


async def test_purged_messages_do_not_come_back_when_their_time_comes(store, clock):
    queue = await make_queue(store, visibility_s=10)
    await store.send(queue, [*some_messages("held"), a_message("delayed", delay_s=10)])
    await store.receive(queue, 1)
    await store.purge(queue, rest_ms=60_000)
    clock.advance(seconds=10)

    assert await store.receive(queue, 10) == []


async def test_receipts_of_purged_messages_say_gone(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    await store.purge(queue, rest_ms=60_000)
    receipt = receipt_of(queue, held)

    assert await store.delete(queue, [receipt]) == [Deletion.GONE]
    [refusal] = await store.extend(queue, [Extension(receipt, 10)])
    assert isinstance(refusal, MessageGone)


async def test_a_purge_frees_the_groups(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, [a_grouped_message("a"), a_grouped_message("b")])
    await store.receive(queue, 1)
    await store.purge(queue, rest_ms=60_000)
    await store.send(queue, [a_grouped_message("c")])

    assert bodies(await store.receive(queue, 10)) == ["c"]


async def test_a_second_purge_has_to_wait(store, clock):
    queue = await make_queue(store)
    await store.purge(queue, rest_ms=60_000)
    await store.send(queue, [a_message()])
    clock.advance(59_999)
    with pytest.raises(PurgeInProgress):
        await store.purge(queue, rest_ms=60_000)
    assert await store.counts(queue) == (1, 0, 0)

    clock.advance(1)
    await store.purge(queue, rest_ms=60_000)
    assert await store.counts(queue) == (0, 0, 0)


async def test_without_a_rest_purges_may_follow_one_another(store):
    queue = await make_queue(store)
    await store.purge(queue, rest_ms=60_000)
    await store.purge(queue, rest_ms=0)


async def test_a_purge_leaves_other_queues_alone(store):
    queue, other = await make_queue(store), await make_queue(store, "other")
    await store.send(other, [a_message()])
    await store.purge(queue, rest_ms=0)

    assert await store.counts(other) == (1, 0, 0)


async def test_a_large_queue_is_purged_as_a_whole(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message(f"m{n}") for n in range(3_000)])
    await store.receive(queue, 1_200)
    await store.purge(queue, rest_ms=0)

    assert await store.counts(queue) == (0, 0, 0)
    await store.send(queue, some_messages("after"))
    assert bodies(await store.peek(queue)) == ["after"]


async def test_a_purge_and_its_rest_survive_a_restart(store, clock, reopen):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    await store.purge(queue, rest_ms=60_000)
    clock.advance(seconds=30)

    store = await reopen()
    assert await store.counts(queue) == (0, 0, 0)
    with pytest.raises(PurgeInProgress):
        await store.purge(queue, rest_ms=60_000)
    clock.advance(seconds=30)
    await store.purge(queue, rest_ms=60_000)
