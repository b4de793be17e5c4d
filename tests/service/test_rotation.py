"""Receipts that are replaced, and deletes that take no late ones: what the service tells and counts."""

from __future__ import annotations

import pytest

from tests.service.kit import open_desk, until
from veil.core.errors import MessageGone, NotForQueueType, PriorityRefused, ReceiptInvalid
from veil.core.lease import WAITING
from veil.service.messages import delete, rotate_receipt


async def test_a_rotation_is_counted_as_an_extension_and_to_nought_as_a_release(service):
    desk = await open_desk(service)
    await desk.send()
    receipt = desk.receipt(await desk.receive_one())
    renewed, deadline_ms = await rotate_receipt(service, desk.queue, receipt, 60)
    assert deadline_ms == desk.clock.now_ms() + 60_000
    await rotate_receipt(service, desk.queue, renewed, 0)

    assert (desk.tally("extended"), desk.tally("released")) == (1, 1)


async def test_a_rotation_wakes_whoever_waits_when_its_deadline_comes(service):
    desk = await open_desk(service)
    await desk.send("again")
    receipt = desk.receipt(await desk.receive_one(visibility_s=1_000))
    await rotate_receipt(service, desk.queue, receipt, 5)
    poll = await desk.poll()
    desk.clock.advance(seconds=5)

    await until(poll.done)
    assert [message.body for message in await poll] == ["again"]


async def test_forged_and_dead_receipts_are_told_apart(service):
    desk = await open_desk(service)
    await desk.send()
    old = desk.receipt(await desk.receive_one())
    await rotate_receipt(service, desk.queue, old, 60)

    with pytest.raises(MessageGone):
        await rotate_receipt(service, desk.queue, old, 60)
    with pytest.raises(ReceiptInvalid):
        await rotate_receipt(service, desk.queue, "forged", 60)


async def test_a_strict_delete_tells_of_everything_that_it_did_not_delete(service):
    desk = await open_desk(service, visibility_s=5)
    await desk.send("late")
    late = desk.receipt(await desk.receive_one())
    desk.clock.advance(seconds=5)
    await desk.send("kept")
    _, message = await desk.receive()
    kept = desk.receipt(message)

    answers = await delete(service, desk.queue, [late, kept, kept, "forged"], strict=True)
    assert [type(answer) for answer in answers] == [MessageGone, type(None), MessageGone, ReceiptInvalid]
    assert desk.tally("deleted") == 1


async def test_a_sent_message_can_be_taken_back_while_it_waits(service):
    desk = await open_desk(service)
    sent = await desk.send(delay_s=604_800)
    waiting = service.store.receipts.write(desk.queue.id, sent.seq, WAITING)

    assert await delete(service, desk.queue, [waiting], strict=True) == [None]
    assert (await desk.counts()).delayed == 0


async def test_a_delay_that_is_set_anew_wakes_whoever_waits_and_is_no_extension(service):
    desk = await open_desk(service, delay_s=172_800)
    for visibility_s, body in ((5, "soon"), (0, "now")):
        sent = await desk.send(body)
        waiting = service.store.receipts.write(desk.queue.id, sent.seq, WAITING)
        poll = await desk.poll()
        await rotate_receipt(service, desk.queue, waiting, visibility_s)
        desk.clock.advance(seconds=visibility_s)

        await until(poll.done)
        assert [message.body for message in await poll] == [body]
    assert (desk.tally("extended"), desk.tally("released")) == (0, 0)


async def test_priorities_are_checked_where_messages_are_sent(service):
    desk, fifo = await open_desk(service), await open_desk(service, "turns.fifo")
    for priority in (0, 17):
        with pytest.raises(PriorityRefused):
            await desk.send(priority=priority)
    with pytest.raises(NotForQueueType):
        await fifo.send(group="g", deduplication_id="d", priority=1)
    await fifo.send(group="g", deduplication_id="d", priority=8)
    for body, priority in (("last", 16), ("plain", None), ("first", 1)):
        await desk.send(body, priority=priority)

    assert [message.body for message in await service.store.peek_next(desk.queue, limit=2)] == [
        "first",
        "plain",
    ]
    assert await desk.bodies() == ["first", "plain", "last"]
