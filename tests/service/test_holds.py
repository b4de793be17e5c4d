"""Holds and chosen redrives as the service does them: counted, checked, and left to their name when the caller is gone."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.kit import Desk, open_desk
from veil.core.errors import AttributeRefused, BodyTooLong, HoldNameRefused
from veil.core.lease import HoldKey
from veil.core.message import MessageAttribute, Sent
from veil.core.queue import Chosen, ContentChange
from veil.service.receive import delete_holds, extend_holds, open_stream, receive_hold

KEY = HoldKey("epoch", 0, 0)


async def hold(desk: Desk, key: HoldKey = KEY):
    return await receive_hold(desk.service, desk.queue, key, count=10, visibility_s=30)


async def test_what_a_hold_does_is_counted_like_any_receive_extension_and_delete(orders: Desk):
    await orders.send("a")
    await orders.send("b")
    await hold(orders)
    await hold(orders)
    await hold(orders, HoldKey("epoch", 0, 1))
    await extend_holds(orders.service, orders.queue, "epoch", "me", 30)
    await delete_holds(orders.service, orders.queue, "epoch", "me", 0)

    counted = {event: orders.tally(event) for event in ("received", "empty_receive", "extended", "deleted")}
    assert counted == {"received": 2, "empty_receive": 1, "extended": 4, "deleted": 2}


async def test_a_caller_that_leaves_finds_the_messages_under_their_name(orders: Desk):
    await orders.send("a")
    leaving = asyncio.ensure_future(hold(orders))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    content = await hold(orders)

    assert [message.body for message in content.messages] == ["a"]
    assert [message.receive_count for message in content.messages] == [1]


async def test_a_held_message_wakes_a_long_poll_when_its_window_ends(orders: Desk):
    await orders.send("a")
    await hold(orders)
    waiting = await orders.poll()
    orders.clock.advance(seconds=15)
    await extend_holds(orders.service, orders.queue, "epoch", "me", 3)
    orders.clock.advance(seconds=4)

    assert [message.body for message in await waiting] == ["a"]


async def test_names_are_checked_before_anything_is_done(orders: Desk):
    service, queue = orders.service, orders.queue
    for call in (
        open_stream(service, queue, "a b", "me"),
        open_stream(service, queue, "epoch", ""),
        hold(orders, HoldKey("", 0, 0)),
        hold(orders, HoldKey("epoch", -1, 0)),
        extend_holds(service, queue, "epoch", "a b", 30),
        delete_holds(service, queue, "epoch", "me", -1),
    ):
        with pytest.raises(HoldNameRefused):
            await call


# ---- chosen redrives


async def test_what_is_changed_must_pass_the_checks_of_a_send_to_where_it_goes(orders: Desk):
    small = await open_desk(orders.service, "small", message_bytes_max=1_024)
    colour = {"colour": MessageAttribute("String", "blue"), "Type": MessageAttribute("String", "order")}
    sent = [await orders.send("x" * 1_020, attributes=colour), await orders.send("y")]
    [long, short] = [Chosen(each.seq, each.message_id, small.queue.key) for each in sent]
    wrong = {"": MessageAttribute("String", "x")}
    changes = [ContentChange("z" * 1_020), ContentChange(attributes=wrong), ContentChange("mended")]
    chosen = [
        each._replace(change=change) for each, change in zip([long, short, short], changes, strict=True)
    ]
    answers = await orders.service.store.redrive(orders.queue, chosen)

    assert [type(answer) for answer in answers] == [BodyTooLong, AttributeRefused, Sent]
    [moved] = await small.receive()
    assert (moved.body, moved.body_bytes, moved.attributes) == ("mended", 6, None)
    assert await orders.bodies() == ["x" * 1_020]


async def test_a_mark_and_new_attributes_count_for_the_type_and_the_rest_stays(orders: Desk):
    other = await open_desk(orders.service, "other")
    sent = await orders.send(
        "a", attributes={"Type": MessageAttribute("String", "order")}, trace_header="Root=1"
    )
    change = ContentChange(type_attributes=orders.service.rules.type_attributes, is_marked=True)
    chosen = Chosen(sent.seq, sent.message_id, other.queue.key, change)
    [moved] = await orders.service.store.redrive(orders.queue, [chosen])
    assert isinstance(moved, Sent)

    [message] = await other.receive()
    assert message.attributes is not None
    assert message.attributes["Veil.RedrivenFrom"] == ("String", sent.message_id)
    assert (message.message_id, message.message_type, message.trace_header) == (
        moved.message_id,
        "order",
        "Root=1",
    )
