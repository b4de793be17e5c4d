"""What becomes of drafts on their way into a queue."""

from __future__ import annotations

import hashlib
import re

import pytest

from tests.service.kit import Desk, open_desk
from veil.core.clock import ManualClock
from veil.core.errors import (
    BodyMissing,
    BodyTooLong,
    CharactersRefused,
    DeduplicationMissing,
    GroupMissing,
    IdentifierRefused,
    NotForQueueType,
    QueueMissing,
)
from veil.core.message import MessageAttribute, Sent
from veil.core.message_rules import Draft
from veil.service.messages import new_id, send
from veil.service.queues import delete_queue
from veil.service.service import Service


async def test_a_sent_message_arrives_as_it_was(orders: Desk) -> None:
    attributes = {
        "kind": MessageAttribute("String", "new"),
        "raw": MessageAttribute("Binary.png", b"\x00\xff"),
    }
    sent = await orders.send("grüße\r\n🙂", attributes=attributes, trace_header="Root=1", group="tenant-1")
    message = await orders.receive_one()
    assert (message.message_id, message.seq) == (sent.message_id, sent.seq)
    assert (message.body, message.attributes) == ("grüße\r\n🙂", attributes)
    assert (message.trace_header, message.group, message.sender) == ("Root=1", "tenant-1", "tester")
    assert message.body_md5 == hashlib.md5("grüße\r\n🙂".encode()).hexdigest()


async def test_a_bad_draft_fails_alone_and_the_good_ones_are_sent_in_order(orders: Desk) -> None:
    drafts = [Draft("a"), Draft("\x00"), Draft("b"), Draft(""), Draft("x" * 1_048_577)]
    answers = await send(orders.service, orders.queue, drafts, sender="tester")
    assert [type(answer) for answer in answers] == [Sent, CharactersRefused, Sent, BodyMissing, BodyTooLong]
    received = await orders.receive()
    assert [message.body for message in received] == ["a", "b"]
    assert [message.message_id for message in received] == [answers[0].message_id, answers[2].message_id]  # type: ignore[union-attr]
    assert orders.tally("sent") == 2


async def test_a_batch_of_nothing_good_leaves_the_store_alone(orders: Desk) -> None:
    await delete_queue(orders.service, orders.queue)
    (answer,) = await send(orders.service, orders.queue, [Draft("")], sender="tester")
    assert isinstance(answer, BodyMissing)
    with pytest.raises(QueueMissing):
        await orders.send()


async def test_a_messages_delay_beats_the_queues_zero_included(service: Service, clock: ManualClock) -> None:
    desk = await open_desk(service, "late", delay_s=10)
    await desk.send("own", delay_s=5)
    await desk.send("none", delay_s=0)
    await desk.send("queue")
    assert await desk.bodies() == ["none"]
    clock.advance(seconds=5)
    assert await desk.bodies() == ["own"]
    clock.advance(seconds=5)
    assert await desk.bodies() == ["queue"]


async def test_a_fifo_message_needs_a_group_or_the_whole_call_fails(steps: Desk) -> None:
    drafts = [Draft("a", group="g", deduplication_id="1"), Draft("", deduplication_id="2")]
    with pytest.raises(GroupMissing):
        await send(steps.service, steps.queue, drafts, sender="tester")
    assert await steps.receive() == []


async def test_a_fifo_message_needs_a_deduplication_id_unless_its_content_is_one(steps: Desk) -> None:
    with pytest.raises(DeduplicationMissing):
        await steps.send("a", group="g")
    await steps.change(content_deduplication=True)
    await steps.send("a", group="g")
    message = await steps.receive_one()
    assert message.deduplication_id == hashlib.sha256(b"a").hexdigest()


async def test_a_fifo_message_takes_no_delay_of_its_own_and_zero_means_the_queues(
    service: Service, clock: ManualClock
) -> None:
    desk = await open_desk(service, "late.fifo", delay_s=10)
    with pytest.raises(NotForQueueType):
        await desk.send("a", group="g", deduplication_id="1", delay_s=1)
    await desk.send("a", group="g", deduplication_id="1", delay_s=0)
    assert await desk.receive() == []
    clock.advance(seconds=10)
    assert await desk.bodies() == ["a"]


async def test_a_duplicate_is_answered_with_the_first_ones_id_and_not_delivered(steps: Desk) -> None:
    first = await steps.send("a", group="g", deduplication_id="same")
    draft = Draft("b", group="g", deduplication_id="same")
    (second,) = await send(steps.service, steps.queue, [draft], sender="tester")
    assert second == (first.message_id, first.seq, True)
    assert draft.body_md5 == hashlib.md5(b"b").hexdigest()  # of what was sent now: the client checks it
    assert await steps.bodies() == ["a"]
    assert (steps.tally("sent"), steps.tally("duplicate")) == (1, 1)


async def test_an_attempt_id_is_checked_and_honoured_on_fifo_and_ignored_elsewhere(
    orders: Desk, steps: Desk
) -> None:
    await steps.send_all("a", group="g")
    [first] = await steps.receive(attempt_id="once")
    [again] = await steps.receive(attempt_id="once")
    assert (again.seq, again.holder, again.receive_count) == (first.seq, first.holder, 1)
    with pytest.raises(IdentifierRefused):
        await steps.receive(attempt_id="with blank")
    await orders.send("a")
    await orders.receive_one(attempt_id="once")
    assert await orders.receive(attempt_id="once") == []


def test_ids_are_random_uuids_of_version_four() -> None:
    ids = [new_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    form = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
    assert all(form.match(each) for each in ids)
