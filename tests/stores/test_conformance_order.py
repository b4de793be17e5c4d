"""Standard queues: oldest first, and a message that comes back takes its old place."""

from __future__ import annotations

import pytest

from tests.stores.kit import a_message, bodies, make_queue, receipt_of, some_messages
from veil.core.message import MessageAttribute
from veil.stores.store import Extension


async def test_messages_come_in_the_order_in_which_they_were_sent(store, clock):
    queue = await make_queue(store)
    for body in "abc":
        await store.send(queue, some_messages(body))
        clock.advance(1)

    assert bodies(await store.receive(queue, 2)) == ["a", "b"]
    assert bodies(await store.receive(queue, 2)) == ["c"]


async def test_places_rise_within_one_call_and_while_time_stands_still(store):
    queue = await make_queue(store)
    sent = await store.send(queue, some_messages("a", "b")) + await store.send(queue, some_messages("c"))

    assert [s.seq for s in sent] == sorted({s.seq for s in sent})
    assert not any(s.duplicate for s in sent)


async def test_a_message_that_lapses_goes_before_those_sent_later(store, clock):
    queue = await make_queue(store, visibility_s=5)
    await store.send(queue, some_messages("a"))
    await store.receive(queue, 1)
    await store.send(queue, some_messages("b"))
    clock.advance(seconds=5)

    assert bodies(await store.receive(queue, 2)) == ["a", "b"]


async def test_a_released_message_takes_its_old_place(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b", "c"))
    [a, _] = await store.receive(queue, 2)
    await store.extend(queue, [Extension(receipt_of(queue, a), 0)])

    assert bodies(await store.receive(queue, 2)) == ["a", "c"]


async def test_a_message_comes_out_as_it_went_in(store, clock):
    queue = await make_queue(store)
    attributes = {
        "kind": MessageAttribute("String.label", "grün"),
        "n": MessageAttribute("Number", "007.50"),
        "raw": MessageAttribute("Binary", b"\x00\xff"),
    }
    sent = a_message(
        "ein Wort \N{SNOWMAN}", attributes=attributes, trace_header="Root=1", sender="me", group="tenant"
    )
    [place] = await store.send(queue, [sent])

    [got] = await store.receive(queue, 1)

    assert (got.message_id, got.seq) == (sent.message_id, place.seq)
    assert (got.body, got.body_md5, got.attributes) == (sent.body, sent.body_md5, attributes)
    assert (got.trace_header, got.sender, got.group) == ("Root=1", "me", "tenant")
    assert (got.sent_wall_ms, got.dead_letter_source) == (clock.wall_ms(), None)


async def test_queues_do_not_see_each_others_messages(store):
    one, other = await make_queue(store, "one"), await make_queue(store, "other")
    await store.send(one, some_messages("a"))
    await store.send(other, some_messages("b"))

    assert bodies(await store.receive(one, 10)) == ["a"]
    assert bodies(await store.receive(other, 10)) == ["b"]


async def test_a_send_announces_its_messages(store, events):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b", "c"))

    assert events.available[queue.id] >= 3


async def test_peek_pages_through_everything_and_receives_nothing(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message("a"), a_message("b", delay_s=10), a_message("c")])
    await store.receive(queue, 1)

    first = await store.peek(queue, limit=2)
    rest = await store.peek(queue, after_seq=first[-1].seq, limit=2)

    assert bodies(first) + bodies(rest) == ["a", "b", "c"]
    assert [message.receive_count for message in first + rest] == [1, 0, 0]


@pytest.mark.parametrize("where", ["body", "attributes", "trace_header"])
async def test_a_peek_ends_with_the_message_that_brings_it_to_its_bytes(store, where):
    queue = await make_queue(store)
    large = "x" * 1_000
    given = {
        "body": {"body": large},
        "attributes": {"attributes": {"a": MessageAttribute("String", large)}},
        "trace_header": {"trace_header": large},
    }[where]
    await store.send(queue, [a_message(**given) for _ in range(5)])

    assert len(await store.peek(queue, bytes_max=2_500)) == 3
    assert len(await store.peek(queue, bytes_max=1)) == 1
    assert len(await store.peek(queue)) == 5


async def test_everything_is_in_its_place_after_a_restart(store, reopen):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b", "c"))
    await store.receive(queue, 1)
    before = await store.peek(queue)

    store = await reopen()
    assert await store.peek(queue) == before
    assert bodies(await store.receive(queue, 10)) == ["b", "c"]
