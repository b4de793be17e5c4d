"""What a receipt can still do: current, lapsed, replaced, foreign, forged, spent."""

from __future__ import annotations

from tests.service.kit import Desk, open_desk
from veil.core.clock import ManualClock
from veil.core.errors import MessageGone, ReceiptInvalid
from veil.core.receipt import ReceiptBook
from veil.service.messages import delete, extend_lease, purge
from veil.service.service import Service


async def test_deleting_again_succeeds_and_counts_once(orders: Desk) -> None:
    await orders.send()
    receipt = orders.receipt(await orders.receive_one())
    assert [await orders.delete(receipt), await orders.delete(receipt)] == [None, None]
    assert orders.tally("deleted") == 1


async def test_a_late_delete_does_not_take_the_message_from_its_present_holder(
    orders: Desk, clock: ManualClock
) -> None:
    await orders.send()
    stalled = orders.receipt(await orders.receive_one())
    clock.advance(seconds=31)
    await orders.receive_one()
    assert await orders.delete(stalled) is None  # SQS answers success
    assert (await orders.counts()).in_flight == 1
    assert (orders.tally("deleted"), orders.tally("stale_receipt")) == (0, 1)


async def test_a_late_release_does_not_take_the_message_from_its_present_holder(
    orders: Desk, clock: ManualClock
) -> None:
    await orders.send()
    stalled = orders.receipt(await orders.receive_one())
    clock.advance(seconds=31)
    await orders.receive_one()
    assert isinstance(await orders.release(stalled), MessageGone)
    assert await orders.receive() == []
    assert (orders.tally("released"), orders.tally("stale_receipt")) == (0, 1)


async def test_another_queues_receipt_is_refused(orders: Desk, service: Service) -> None:
    other = await open_desk(service, "other")
    await other.send()
    foreign = other.receipt(await other.receive_one())
    assert isinstance(await orders.delete(foreign), ReceiptInvalid)
    assert isinstance(await orders.extend(foreign, 10), ReceiptInvalid)
    assert (await other.counts()).in_flight == 1


async def test_forged_and_mangled_receipts_are_refused(orders: Desk) -> None:
    await orders.send()
    message = await orders.receive_one()
    good = orders.receipt(message)
    forged = ReceiptBook(b"another key").write(orders.queue.id, message.seq, message.delivery)
    for text in (forged, good[:-1], good + "A", "", "x" * len(good), good.swapcase()):
        assert isinstance(await orders.delete(text), ReceiptInvalid)
        assert isinstance(await orders.release(text), ReceiptInvalid)
    assert (await orders.counts()).in_flight == 1


async def test_a_bad_receipt_in_a_batch_fails_alone(orders: Desk) -> None:
    await orders.send("a")
    await orders.send("b")
    a, b = await orders.receive()
    answers = await delete(orders.service, orders.queue, [orders.receipt(a), "nonsense", orders.receipt(b)])
    assert [type(answer) for answer in answers] == [type(None), ReceiptInvalid, type(None)]
    assert await orders.counts() == (0, 0, 0)


async def test_extensions_in_a_batch_are_judged_one_by_one(orders: Desk, clock: ManualClock) -> None:
    await orders.send("a")
    await orders.send("b")
    a, b = await orders.receive()
    changes = [(orders.receipt(a), 0), ("nonsense", 10), (orders.receipt(b), 600)]
    answers = await extend_lease(orders.service, orders.queue, changes)
    assert [type(answer) for answer in answers] == [type(None), ReceiptInvalid, type(None)]
    clock.advance(seconds=599)
    assert await orders.bodies() == ["a"]
    assert (orders.tally("extended"), orders.tally("released")) == (1, 1)


async def test_deleting_what_a_purge_removed_succeeds(orders: Desk) -> None:
    await orders.send()
    receipt = orders.receipt(await orders.receive_one())
    await purge(orders.service, orders.queue)
    assert await orders.delete(receipt) is None
    assert orders.tally("deleted") == 0
