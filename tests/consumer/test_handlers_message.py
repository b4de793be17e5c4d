"""A message tells what it is, whoever wrapped it."""

import json
from datetime import UTC, datetime

import pytest

from tests.consumer.handler_kit import a_message, text
from veil.client.api import Attribute

EVENT = json.dumps({"specversion": "1.0", "type": "order.created", "data": {"id": 1}})


def test_a_message_tells_what_the_queue_said_about_it() -> None:
    message = a_message("hello", id="m-9", receive_count=3, group="g")
    assert (message.id, message.body, message.queue, message.group) == ("m-9", "hello", "orders", "g")
    assert message.receive_count == 3
    assert message.sent_at == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert message.lease.token == 3


def test_a_service_that_does_not_say_when_is_not_invented_for() -> None:
    message = a_message(system={"SentTimestamp": ""})
    assert message.sent_at is None
    assert message.first_received_at is None


def test_the_type_is_the_attribute_before_anything_else() -> None:
    assert a_message(EVENT, attributes={"type": text("order.paid")}).type == "order.paid"
    assert a_message(EVENT).type == "order.created"
    assert a_message("plain").type is None


def test_the_attribute_that_tells_the_type_can_be_another() -> None:
    message = a_message(attributes={"ce-type": text("a"), "type": text("b")}, type_attribute="ce-type")
    assert message.type == "a"


def test_an_attribute_of_bytes_tells_no_type() -> None:
    assert a_message(attributes={"type": Attribute.of("Binary", b"x")}).type is None


@pytest.mark.parametrize(
    "body", ['{"specversion": "1.0"}', '["specversion"]', '{"specversion": "1.0", "type"', '"specversion"']
)
def test_what_only_looks_like_a_cloud_event_has_no_type(body: str) -> None:
    message = a_message(body)
    assert message.type is None
    assert message.content.text == body


def test_the_body_is_in_no_representation_and_no_log() -> None:
    message = a_message("secret")
    assert "secret" not in repr(message)
    assert "secret" not in str(message.facts)
    assert message.facts == {"message_id": "m-1", "queue": "orders", "receive_count": 1}
