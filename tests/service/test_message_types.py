"""What kind a message is, told from its attributes when it is sent."""

from __future__ import annotations

import pytest

from tests.service.kit import Desk, open_desk
from veil.core.clock import ManualClock
from veil.core.message import MessageAttribute, message_type
from veil.service.service import Service, ServiceRules
from veil.stores.memory import MemoryStore

NAMES = ServiceRules().type_attributes


def text(value: str, data_type: str = "String") -> MessageAttribute:
    return MessageAttribute(data_type, value)


@pytest.mark.parametrize("name", ["MessageType", "message_type", "Type", "type"])
async def test_a_message_is_of_the_type_that_its_attribute_says(orders: Desk, name: str) -> None:
    await orders.send(attributes={name: text("OrderPlaced"), "other": text("x")})
    assert (await orders.receive_one()).message_type == "OrderPlaced"


async def test_a_message_without_such_an_attribute_has_no_type(orders: Desk) -> None:
    await orders.send()
    await orders.send(attributes={"colour": text("red")})
    assert [message.message_type for message in await orders.receive()] == [None, None]


def test_the_first_name_in_the_rule_wins() -> None:
    attributes = {"type": text("last"), "MessageType": text("first")}
    assert message_type(attributes, NAMES) == "first"


def test_only_texts_are_types() -> None:
    attributes = {
        "MessageType": MessageAttribute("Binary", b"raw"),
        "message_type": text("7", "Number"),
        "Type": text("custom", "String.kind"),
    }
    assert message_type(attributes, NAMES) == "custom"


def test_a_long_type_is_cut() -> None:
    assert message_type({"type": text("x" * 1000)}, NAMES) == "x" * 256


async def test_the_rule_is_the_operators() -> None:
    clock = ManualClock()
    service = Service(MemoryStore(clock), clock, ServiceRules(type_attributes=("kind",)))
    await service.start()
    desk = await open_desk(service)
    await desk.send(attributes={"type": text("no"), "kind": text("yes")})
    assert (await desk.receive_one()).message_type == "yes"
    await service.stop()
