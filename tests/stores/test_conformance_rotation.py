"""Receipts that die: by rotation, by their deadline where that is asked for, and with the delay of a waiting message."""

from __future__ import annotations

import pytest

from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue, receipt_of, some_messages
from veil.core.errors import MessageGone
from veil.core.lease import Deletion
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.receipt import Receipt, rotation_of
from veil.stores.store import Extension, Rotated


@pytest.fixture(params=["orders", "orders.fifo"])
async def queue(request, store):
    """A queue of each type with one message in it."""
    queue = await make_queue(store, request.param, visibility_s=30)
    message = a_grouped_message("a") if request.param.endswith(".fifo") else a_message("a")
    await store.send(queue, [message])
    return queue


async def taken(store, queue) -> Receipt:
    [message] = await store.receive(queue, 1)
    return receipt_of(queue, message)


async def rotated(store, queue, receipt, visibility_s) -> Rotated:
    [answer] = await store.rotate(queue, [Extension(receipt, visibility_s)])
    assert isinstance(answer, Rotated), answer
    return answer


async def test_a_rotation_gives_a_new_receipt_and_the_old_one_dies(store, clock, queue):
    old = await taken(store, queue)
    clock.advance(seconds=10)
    new = await rotated(store, queue, old, 60)

    assert new.deadline_ms == clock.now_ms() + 60_000
    assert (new.receipt.delivery, rotation_of(new.receipt.holder)) == (old.delivery, 1)
    [refused] = await store.rotate(queue, [Extension(old, 60)])
    assert isinstance(refused, MessageGone)
    assert await store.delete(queue, [old], strict=True) == [Deletion.STALE]
    assert (await store.counts(queue)).in_flight == 1
    assert await store.delete(queue, [new.receipt], strict=True) == [Deletion.DELETED]
    assert await store.peek(queue) == []


async def test_an_old_receipt_cannot_touch_the_rotated_lease_leniently_either(store, queue):
    old = await taken(store, queue)
    await rotated(store, queue, old, 60)

    [deletion] = await store.delete(queue, [old])
    [extension] = await store.extend(queue, [Extension(old, 5)])
    await store.undo_receive(queue, [old])

    assert deletion is Deletion.STALE or isinstance(deletion, Exception)
    assert extension is not None
    assert (await store.counts(queue)).in_flight == 1


async def test_a_rotated_lease_can_be_rotated_extended_and_lapses_like_any_other(store, clock, queue):
    first = await taken(store, queue)
    second = (await rotated(store, queue, first, 20)).receipt
    third = (await rotated(store, queue, second, 20)).receipt
    assert await store.extend(queue, [Extension(third, 5)]) == [None]
    clock.advance(seconds=5)

    [again] = await store.receive(queue, 1)
    assert (again.receive_count, again.delivery) == (2, first.delivery + 1)
    assert await store.delete(queue, [receipt_of(queue, again)]) == [Deletion.DELETED]


async def test_a_rotation_counts_no_receive_and_begins_the_twelve_hours_anew(store, clock, queue):
    receipt = await taken(store, queue)
    for _ in range(3):
        clock.advance(seconds=VISIBILITY_MAX_S - 60 if rotation_of(receipt.holder) else 1)
        receipt = (await rotated(store, queue, receipt, VISIBILITY_MAX_S)).receipt

    [message] = await store.peek(queue)
    assert message.receive_count == 1
    assert message.received_at_ms == clock.now_ms()


async def test_a_rotation_to_zero_releases_and_leaves_no_receipt_alive(store, clock, queue):
    old = await taken(store, queue)
    released = await rotated(store, queue, old, 0)

    assert released.deadline_ms == clock.now_ms()
    for dead in (old, released.receipt):
        assert await store.delete(queue, [dead], strict=True) == [Deletion.STALE]
    assert bodies(await store.receive(queue, 1)) == ["a"]


async def test_a_receive_after_a_rotation_has_a_receipt_that_works(store, clock, queue):
    await rotated(store, queue, await taken(store, queue), 5)
    clock.advance(seconds=5)

    assert await store.delete(queue, [await taken(store, queue)], strict=True) == [Deletion.DELETED]


@pytest.mark.parametrize("late_ms", [0, 1])
async def test_a_lapsed_receipt_does_nothing_strictly(store, clock, queue, late_ms):
    receipt = await taken(store, queue)
    clock.advance(30_000 + late_ms)

    [refused] = await store.rotate(queue, [Extension(receipt, 5)])
    assert isinstance(refused, MessageGone)
    assert await store.delete(queue, [receipt], strict=True) == [Deletion.STALE]
    assert bodies(await store.receive(queue, 1)) == ["a"]


async def test_a_receipt_works_strictly_to_the_last_millisecond(store, clock, queue):
    receipt = await taken(store, queue)
    clock.advance(29_999)

    assert await store.delete(queue, [receipt], strict=True) == [Deletion.DELETED]
    assert await store.delete(queue, [receipt], strict=True) == [Deletion.GONE]


async def test_a_rotation_outlives_a_restart(store, reopen):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, some_messages("a"))
    old = await taken(store, queue)
    new = (await rotated(store, queue, old, 60)).receipt

    store = await reopen()
    assert await store.delete(queue, [old]) == [Deletion.STALE]
    assert await store.delete(queue, [new]) == [Deletion.DELETED]


async def test_each_is_rotated_on_its_own(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    a, b = [receipt_of(queue, message) for message in await store.receive(queue, 2)]
    await store.delete(queue, [a])

    gone, kept = await store.rotate(queue, [Extension(a, 5), Extension(b, 5)])
    assert isinstance(gone, MessageGone)
    assert isinstance(kept, Rotated)


# ---- waiting messages


async def test_a_waiting_message_can_be_taken_back_by_its_receipt(store, clock):
    queue = await make_queue(store)
    [sent] = await store.send(queue, [a_message("a", delay_s=604_800)])
    waiting = Receipt(queue.id, sent.seq, 0)

    assert (await store.counts(queue)).delayed == 1
    assert await store.delete(queue, [waiting], strict=True) == [Deletion.DELETED]
    assert (await store.counts(queue)).delayed == 0
    assert await store.delete(queue, [waiting], strict=True) == [Deletion.GONE]


async def test_the_receipt_of_a_waiting_message_dies_with_the_delay(store, clock):
    queue = await make_queue(store)
    [sent] = await store.send(queue, [a_message("a", delay_s=10)])
    waiting = Receipt(queue.id, sent.seq, 0)
    clock.advance(seconds=10)

    for strict in (True, False):
        assert await store.delete(queue, [waiting], strict=strict) == [Deletion.STALE]
    [message] = await store.receive(queue, 1)
    assert await store.delete(queue, [waiting]) == [Deletion.STALE]
    assert await store.delete(queue, [receipt_of(queue, message)]) == [Deletion.DELETED]


async def test_an_extension_is_nothing_for_the_receipt_of_a_waiting_message(store):
    queue = await make_queue(store)
    [sent] = await store.send(queue, [a_message("a", delay_s=10)])
    asked = [Extension(Receipt(queue.id, sent.seq, 0), 5)]

    assert [type(answer) for answer in await store.extend(queue, asked)] == [MessageGone]
    assert (await store.counts(queue)).delayed == 1


@pytest.fixture(params=["orders", "orders.fifo"])
async def waiting(request, store):
    """A queue of each type with one message that waits for an hour, and the receipt of its sender."""
    fifo = request.param.endswith(".fifo")
    queue = await make_queue(store, request.param, delay_s=3600)
    [sent] = await store.send(queue, [a_grouped_message("a") if fifo else a_message("a")])
    return queue, Receipt(queue.id, sent.seq, 0)


@pytest.mark.parametrize("delay_s", [1, 7_200])
async def test_a_waiting_message_gets_a_new_delay_by_its_receipt_and_counts_as_delayed_until_then(
    store, clock, waiting, delay_s
):
    queue, sender = waiting
    clock.advance(seconds=60)
    new = await rotated(store, queue, sender, delay_s)

    assert (new.receipt.delivery, rotation_of(new.receipt.holder)) == (0, 1)
    assert new.deadline_ms == clock.now_ms() + delay_s * 1000
    counts = await store.counts(queue)
    assert (counts.visible, counts.in_flight, counts.delayed) == (0, 0, 1)
    clock.advance(delay_s * 1000 - 1)
    assert await store.receive(queue, 1) == []
    clock.advance(1)
    [message] = await store.receive(queue, 1)
    assert (message.body, message.receive_count, message.delivery) == ("a", 1, 1)
    assert await store.delete(queue, [receipt_of(queue, message)], strict=True) == [Deletion.DELETED]
    assert (await store.counts(queue)) == (0, 0, 0)


async def test_a_waiting_message_is_visible_at_once_where_its_receipt_says_so(store, clock, waiting):
    queue, sender = waiting
    new = await rotated(store, queue, sender, 0)

    assert new.deadline_ms == clock.now_ms()
    for dead in (sender, new.receipt):
        assert await store.delete(queue, [dead], strict=True) == [Deletion.STALE]
    assert bodies(await store.receive(queue, 1)) == ["a"]
    assert (await store.counts(queue)).in_flight == 1


async def test_of_the_receipts_of_a_waiting_message_only_the_latest_counts(store, waiting):
    queue, first = waiting
    second = (await rotated(store, queue, first, 100)).receipt
    third = (await rotated(store, queue, second, 100)).receipt

    for dead in (first, second):
        [refused] = await store.rotate(queue, [Extension(dead, 1)])
        assert isinstance(refused, MessageGone)
        for strict in (True, False):
            assert await store.delete(queue, [dead], strict=strict) == [Deletion.STALE]
    assert (await store.counts(queue)).delayed == 1
    assert await store.delete(queue, [third], strict=True) == [Deletion.DELETED]
    assert (await store.counts(queue)) == (0, 0, 0)


async def test_the_new_receipt_of_a_waiting_message_dies_with_the_new_delay(store, clock, waiting):
    queue, sender = waiting
    new = (await rotated(store, queue, sender, 10)).receipt
    clock.advance(seconds=10)

    [refused] = await store.rotate(queue, [Extension(new, 10)])
    assert isinstance(refused, MessageGone)
    assert await store.delete(queue, [new], strict=True) == [Deletion.STALE]
    receipt = await taken(store, queue)
    assert await store.delete(queue, [new]) == [Deletion.STALE]
    assert await store.delete(queue, [receipt]) == [Deletion.DELETED]


async def test_a_new_delay_outlives_a_restart_with_its_receipt(store, clock, reopen, waiting):
    queue, sender = waiting
    new = (await rotated(store, queue, sender, 10)).receipt

    store = await reopen()
    assert await store.delete(queue, [sender]) == [Deletion.STALE]
    clock.advance(seconds=9)
    assert await store.receive(queue, 1) == []
    later = await rotated(store, queue, new, 2)
    clock.advance(seconds=2)
    assert later.deadline_ms == clock.now_ms()
    assert bodies(await store.receive(queue, 1)) == ["a"]


async def test_retention_counts_from_the_send_whatever_delay_is_set_anew(store, clock):
    """A transactional queue of SMQ's clients: what is not committed is never seen, since its retention ends first."""
    queue = await make_queue(store, delay_s=172_800, retention_s=169_200)
    sent = await store.send(queue, some_messages("committed", "forgotten", "too late"))
    commit, _, late = [Receipt(queue.id, each.seq, 0) for each in sent]
    clock.advance(seconds=169_190)
    await rotated(store, queue, commit, 1)
    await rotated(store, queue, late, 10)
    clock.advance(seconds=1)

    assert bodies(await store.receive(queue, 10)) == ["committed"]
    clock.advance(seconds=9)
    assert await store.peek(queue) == []
    [refused] = await store.rotate(queue, [Extension(late, 1)])
    assert isinstance(refused, MessageGone)


async def test_a_look_tells_how_often_the_open_leases_receipt_was_replaced(store, clock, queue):
    first = await taken(store, queue)
    assert [rotation_of(message.holder) for message in await store.peek(queue)] == [0]
    second = (await rotated(store, queue, first, 60)).receipt
    third = (await rotated(store, queue, second, 60)).receipt
    assert (
        [rotation_of(message.holder) for message in await store.peek(queue)]
        == [rotation_of(third.holder)]
        == [2]
    )
    assert [rotation_of(message.holder) for message in await store.peek(queue, sent_after_ms=1)] == [2]

    clock.advance(seconds=60)
    assert [rotation_of(message.holder) for message in await store.peek(queue)] == [0]
