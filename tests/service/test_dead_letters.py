"""A message that was received too often goes to the dead letters instead."""

from __future__ import annotations

import pytest

from tests.service.kit import Desk, open_desk
from tests.stores.kit import redrive_to
from veil.core.clock import ManualClock
from veil.service.service import Service


@pytest.fixture
async def dead(service: Service) -> Desk:
    return await open_desk(service, "dead")


@pytest.fixture
async def fragile(service: Service, dead: Desk) -> Desk:
    return await open_desk(service, "fragile", redrive=redrive_to("dead", 2))


async def test_it_moves_when_a_receive_would_exceed_the_maximum_and_not_before(
    fragile: Desk, dead: Desk, clock: ManualClock
) -> None:
    sent = await fragile.send("poison")
    for _ in range(2):
        await fragile.receive_one()
        clock.advance(seconds=30)
    assert await fragile.counts() == (1, 0, 0)  # a lapse alone moves nothing
    assert await fragile.receive() == []
    assert await fragile.counts() == (0, 0, 0)
    letter = await dead.receive_one()
    assert (letter.message_id, letter.body, letter.receive_count) == (sent.message_id, "poison", 3)
    assert letter.dead_letter_source == fragile.queue.key.arn
    assert fragile.tally("dead_lettered") == 1


async def test_a_receiver_waiting_at_the_dead_letters_is_woken(fragile: Desk, dead: Desk) -> None:
    poll = await dead.poll()
    await fragile.send("poison")
    for _ in range(2):
        await fragile.receive_one(visibility_s=0)
    await fragile.receive()
    assert [message.body for message in await poll] == ["poison"]
