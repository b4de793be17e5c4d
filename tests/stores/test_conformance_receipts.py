"""What a receipt may still do, when it is current, late, old, foreign or repeated."""

from __future__ import annotations

import pytest

from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue, receipt_of, some_messages
from veil.core.errors import MessageGone, ReceiptExpired, ReceiptInvalid
from veil.core.lease import Deletion, State
from veil.core.receipt import Receipt
from veil.stores.store import Extension


async def held_twice(store, clock, queue, visibility_s=30):
    """A message whose first lease lapsed and which somebody else holds now."""
    await store.send(queue, [a_grouped_message("x") if queue.settings.fifo else a_message("x")])
    [old] = await store.receive(queue, 1, visibility_s=1)
    clock.advance(seconds=1)
    [current] = await store.receive(queue, 1, visibility_s=visibility_s)
    return receipt_of(queue, old), receipt_of(queue, current)


async def test_the_current_receipt_deletes_and_the_message_never_comes_back(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)

    assert await store.delete(queue, [receipt_of(queue, held)]) == [Deletion.DELETED]

    clock.advance(seconds=60)
    assert await store.receive(queue, 1) == []
    assert await store.peek(queue) == []


async def test_deleting_again_is_a_success_also_within_one_call(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    receipt = receipt_of(queue, held)

    assert await store.delete(queue, [receipt, receipt]) == [Deletion.DELETED, Deletion.GONE]
    assert await store.delete(queue, [receipt]) == [Deletion.GONE]


async def test_a_late_receipt_still_deletes_while_nobody_holds_the_message(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=1)

    assert await store.delete(queue, [receipt_of(queue, held)]) == [Deletion.DELETED]
    assert await store.peek(queue) == []


async def test_the_receipt_of_an_earlier_receive_deletes_too_while_nobody_holds_the_message(store, clock):
    queue = await make_queue(store)
    old, _ = await held_twice(store, clock, queue, visibility_s=5)
    clock.advance(seconds=5)

    assert await store.delete(queue, [old]) == [Deletion.DELETED]


async def test_an_old_receipt_never_deletes_what_somebody_else_holds(store, clock, events):
    queue = await make_queue(store)
    old, current = await held_twice(store, clock, queue)

    assert await store.delete(queue, [old]) == [Deletion.STALE]
    assert events.totals["stale_receipt", queue.id] == 1
    assert await store.delete(queue, [current]) == [Deletion.DELETED]


async def test_an_old_receipt_never_changes_the_window_of_the_holder(store, clock):
    queue = await make_queue(store)
    old, _ = await held_twice(store, clock, queue)

    [longer, released] = await store.extend(queue, [Extension(old, 3600), Extension(old, 0)])

    assert isinstance(longer, MessageGone)
    assert isinstance(released, MessageGone)
    assert await store.receive(queue, 1) == []
    clock.advance(seconds=30)
    assert len(await store.receive(queue, 1)) == 1


async def test_an_extension_after_the_lapse_takes_the_message_back(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=1)

    assert await store.extend(queue, [Extension(receipt_of(queue, held), 10)]) == [None]

    assert await store.receive(queue, 1) == []
    [peeked] = await store.peek(queue)
    assert (peeked.state, peeked.delivery, peeked.receive_count) == (State.IN_FLIGHT, 1, 1)


async def test_a_late_extension_by_an_older_receipt_makes_that_one_the_holder(store, clock):
    queue = await make_queue(store)
    old, newer = await held_twice(store, clock, queue, visibility_s=5)
    clock.advance(seconds=5)

    assert await store.extend(queue, [Extension(old, 60)]) == [None]

    assert await store.delete(queue, [newer]) == [Deletion.STALE]
    [refusal] = await store.extend(queue, [Extension(newer, 60)])
    assert isinstance(refusal, MessageGone)
    assert await store.delete(queue, [old]) == [Deletion.DELETED]


async def test_a_late_extension_still_counts_its_twelve_hours_from_the_latest_receive(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=43_100)

    [refusal, agreed] = await store.extend(
        queue, [Extension(receipt_of(queue, held), 101), Extension(receipt_of(queue, held), 100)]
    )
    assert refusal is not None
    assert agreed is None


async def test_a_release_when_nobody_holds_the_message_succeeds_without_effect(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=1)

    assert await store.extend(queue, [Extension(receipt_of(queue, held), 0)]) == [None]
    assert (await store.counts(queue)) == (1, 0, 0)


async def test_after_a_look_without_visibility_the_receipt_still_deletes(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [look] = await store.receive(queue, 1, visibility_s=0)

    assert await store.delete(queue, [receipt_of(queue, look)]) == [Deletion.DELETED]


async def test_the_visibility_of_a_deleted_message_cannot_change(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    await store.delete(queue, [receipt_of(queue, held)])

    [refusal] = await store.extend(queue, [Extension(receipt_of(queue, held), 10)])
    assert isinstance(refusal, MessageGone)


async def test_a_delivery_number_that_was_never_given_out_does_nothing(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [look] = await store.receive(queue, 1, visibility_s=0)
    future = Receipt(queue.id, look.seq, look.delivery + 1)

    assert await store.delete(queue, [future]) == [Deletion.STALE]
    [refusal] = await store.extend(queue, [Extension(future, 10)])
    assert isinstance(refusal, MessageGone)
    assert len(await store.peek(queue)) == 1


async def test_each_entry_of_a_call_stands_alone(store, clock):
    queue = await make_queue(store)
    old, current = await held_twice(store, clock, queue)
    await store.send(queue, some_messages("y"))
    [other] = await store.receive(queue, 1)

    results = await store.delete(queue, [old, Receipt(queue.id, 1, 1), receipt_of(queue, other), current])

    assert results == [Deletion.STALE, Deletion.GONE, Deletion.DELETED, Deletion.DELETED]


async def test_fifo_refuses_a_late_delete_and_the_message_comes_back(store, clock):
    queue = await make_queue(store, "orders.fifo", visibility_s=1)
    await store.send(queue, [a_grouped_message("x")])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=1)

    [refusal] = await store.delete(queue, [receipt_of(queue, held)])
    assert isinstance(refusal, ReceiptExpired)
    assert bodies(await store.receive(queue, 1)) == ["x"]


async def test_fifo_refuses_whatever_an_old_receipt_asks(store, clock):
    queue = await make_queue(store, "orders.fifo")
    old, current = await held_twice(store, clock, queue)

    [deletion] = await store.delete(queue, [old])
    [longer, released] = await store.extend(queue, [Extension(old, 60), Extension(old, 0)])
    assert [type(r) for r in (deletion, longer, released)] == [ReceiptExpired] * 3
    assert await store.delete(queue, [current]) == [Deletion.DELETED]


async def test_fifo_refuses_a_late_extension(store, clock):
    queue = await make_queue(store, "orders.fifo", visibility_s=1)
    await store.send(queue, [a_grouped_message("x")])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=1)

    [longer, released] = await store.extend(
        queue, [Extension(receipt_of(queue, held), 60), Extension(receipt_of(queue, held), 0)]
    )
    assert [type(r) for r in (longer, released)] == [ReceiptExpired] * 2


async def test_fifo_says_gone_of_a_deleted_message(store):
    queue = await make_queue(store, "orders.fifo")
    await store.send(queue, [a_grouped_message("x")])
    [held] = await store.receive(queue, 1)
    await store.delete(queue, [receipt_of(queue, held)])

    assert await store.delete(queue, [receipt_of(queue, held)]) == [Deletion.GONE]
    [refusal] = await store.extend(queue, [Extension(receipt_of(queue, held), 1)])
    assert isinstance(refusal, MessageGone)


async def test_the_stores_book_reads_its_own_receipts_and_only_for_their_queue(store):
    queue, other = await make_queue(store), await make_queue(store, "other")
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    text = store.receipts.write(queue.id, held.seq, held.delivery)

    assert store.receipts.read(text, queue.id) == Receipt(queue.id, held.seq, held.delivery, text)
    with pytest.raises(ReceiptInvalid):
        store.receipts.read(text, other.id)


async def test_receipts_are_read_after_a_restart(store, reopen):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    text = store.receipts.write(queue.id, held.seq, held.delivery)

    store = await reopen()
    assert await store.delete(queue, [store.receipts.read(text, queue.id)]) == [Deletion.DELETED]


async def test_a_deleted_messages_place_is_never_given_to_another_not_even_after_a_restart(store, reopen):
    queue = await make_queue(store)
    [first] = await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    await store.delete(queue, [receipt_of(queue, held)])

    store = await reopen()
    [second] = await store.send(queue, [a_message()])
    assert second.seq > first.seq
