"""The copy that goes to the dead letters says what happened, and is one that every queue takes."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumer.handler_kit import ManualTime, a_message, text
from veil.client.api import Attribute
from veil.consumer import processing
from veil.consumer.outcomes import DeadLetter
from veil.consumer.processing import dead_letter_copy
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft, check_draft, size_bytes
from veil.core.queue import QueueSettings

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


def an_error(words: str = "no such customer") -> Exception:
    try:
        raise ValueError(words)
    except ValueError as error:
        return error


def drafted(body: str, attributes: dict[str, Attribute]) -> Draft:
    own = {name: MessageAttribute(each.data_type, each.value) for name, each in attributes.items()}
    return Draft(body, own or None)


def check(body: str, attributes: dict[str, Attribute]) -> None:
    """Raise unless a queue takes it."""
    check_draft(drafted(body, attributes), QueueSettings())


def test_the_copy_says_what_happened() -> None:
    time = ManualTime()
    message = a_message(
        '{"id": 1}',
        receive_count=3,
        attributes={"type": text("order.created")},
        system={"ApproximateFirstReceiveTimestamp": "1700000001500"},
        time=time,
    )
    time.advance(20)
    outcome = DeadLetter("ValueError: no such customer", error=an_error(), handler="ship")
    body, attributes = dead_letter_copy(message, outcome, now=NOW)
    check(body, attributes)
    assert body == '{"id": 1}'
    trace = attributes.pop("veil.traceback").value
    assert isinstance(trace, str)
    assert trace.startswith("Traceback")
    assert trace.rstrip().endswith("ValueError: no such customer")
    assert attributes == {
        "type": text("order.created"),
        "veil.error_type": text("ValueError"),
        "veil.reason": text("ValueError: no such customer"),
        "veil.source_queue": text("orders"),
        "veil.message_id": text("m-1"),
        "veil.receive_count": Attribute.of("Number", "3"),
        "veil.handler": text("ship"),
        "veil.first_received_at": text("2023-11-14T22:13:21.500Z"),
        "veil.last_received_at": text("2026-11-15T11:59:40.000Z"),
    }


@pytest.mark.parametrize("receive_count", [1, 2])
def test_no_message_was_received_last_before_it_was_received_first(receive_count: int) -> None:
    """The first is told by the service's clock, which may be ahead of ours."""
    time = ManualTime()
    ahead_ms = int(NOW.timestamp() * 1000) + 400
    message = a_message(
        receive_count=receive_count, system={"ApproximateFirstReceiveTimestamp": str(ahead_ms)}, time=time
    )
    time.advance(20)
    _, attributes = dead_letter_copy(message, DeadLetter("no"), now=NOW)
    assert attributes["veil.first_received_at"] == attributes["veil.last_received_at"]


def test_without_an_error_there_is_the_reason() -> None:
    _, attributes = dead_letter_copy(a_message(), DeadLetter("on purpose"), now=NOW)
    assert attributes["veil.reason"] == text("on purpose")
    assert not {"veil.error_type", "veil.traceback", "veil.handler"} & attributes.keys()


@pytest.mark.parametrize("count", [0, 1, 5, 8, 9, 10])
def test_the_senders_attributes_stay_and_ours_take_the_places_left_by_importance(count: int) -> None:
    own = {f"a{number}": text("x") for number in range(count)}
    message = a_message(attributes=own, system={"ApproximateFirstReceiveTimestamp": "1700000001500"})
    body, attributes = dead_letter_copy(message, DeadLetter("r", error=an_error(), handler="h"), now=NOW)
    check(body, attributes)
    assert own.items() <= attributes.items()
    order = [
        processing.ERROR_TYPE, processing.REASON, processing.SOURCE_QUEUE, processing.MESSAGE_ID, processing.RECEIVE_COUNT,
        processing.HANDLER, processing.TRACEBACK, processing.FIRST_RECEIVED_AT, processing.LAST_RECEIVED_AT,
    ]  # fmt: skip
    assert [name for name in attributes if name not in own] == order[: 10 - count]


def test_a_message_that_dies_again_says_why_this_time_and_keeps_its_first_id() -> None:
    first = a_message(id="first")
    _, attributes = dead_letter_copy(first, DeadLetter("one", handler="h"), now=NOW)
    again = a_message(id="second", attributes=attributes)
    _, attributes = dead_letter_copy(again, DeadLetter("two"), now=NOW)
    assert attributes["veil.reason"] == text("two")
    assert attributes["veil.message_id"] == text("first")
    assert "veil.handler" not in attributes


def test_without_texts_a_dead_letter_tells_the_class_of_its_error_alone() -> None:
    error = an_error("of jane")
    for reason in ("of jane", f"{type(error).__name__}: of jane"):
        outcome = DeadLetter(reason, error=error)
        _, attributes = dead_letter_copy(a_message(), outcome, now=NOW, error_texts=False)
        assert attributes["veil.reason"] == attributes["veil.error_type"]
        assert "veil.traceback" not in attributes
    _, attributes = dead_letter_copy(
        a_message(), DeadLetter("too old", error=error), now=NOW, error_texts=False
    )
    assert attributes["veil.reason"] == text("too old")


def test_characters_that_no_queue_takes_are_replaced() -> None:
    outcome = DeadLetter("null \x00, escape \x1b[31m, half \ud800, no character \uffff, fine \n😀")
    body, attributes = dead_letter_copy(a_message(), outcome, now=NOW)
    check(body, attributes)
    assert (
        attributes["veil.reason"].value
        == "null \ufffd, escape \ufffd[31m, half \ufffd, no character \ufffd, fine \n😀"
    )


def test_long_texts_are_cut_and_of_a_traceback_the_end_is_kept() -> None:
    outcome = DeadLetter("ü" * 5_000, error=an_error("x" * 20_000 + " the end"))
    body, attributes = dead_letter_copy(a_message(), outcome, now=NOW)
    check(body, attributes)
    reason, trace = attributes["veil.reason"].value, attributes["veil.traceback"].value
    assert isinstance(reason, str)
    assert isinstance(trace, str)
    assert len(reason.encode()) <= 1_024
    assert reason.endswith("ü…")
    assert len(trace.encode()) <= 8_192
    assert trace.startswith("…")
    assert trace.rstrip().endswith("the end")


@pytest.mark.parametrize("room", [0, 1, 30, 60, 200, 1_000, 20_000])
def test_the_copy_is_never_larger_than_the_queue_takes(room: int) -> None:
    message = a_message("x" * (1_048_576 - room))
    body, attributes = dead_letter_copy(
        message, DeadLetter("why " * 100, error=an_error(), handler="ship"), now=NOW
    )
    check(body, attributes)
    assert bool(attributes) == (room >= 30)


def test_a_queue_that_takes_less_gets_less() -> None:
    _, attributes = dead_letter_copy(a_message("x" * 900), DeadLetter("y" * 2_000), now=NOW, bytes_max=1_024)
    assert sum(len(n) + len(a.data_type) + len(a.value) for n, a in attributes.items()) <= 124 + 4


@given(
    body=st.text(min_size=1, max_size=200).filter(lambda body: body.isprintable()),
    reason=st.text(max_size=300),
    handler=st.text(max_size=300),
    room=st.integers(0, 2_000),
    count=st.integers(0, 10),
)
def test_whatever_is_said_the_queue_takes_the_copy(
    body: str, reason: str, handler: str, room: int, count: int
) -> None:
    own = {f"a{number}": Attribute.of("Binary", b"\x00") for number in range(count)}
    message = a_message(body, attributes=own)
    size = len(body.encode()) + sum(len(name) + 7 for name in own)
    outcome = DeadLetter(reason, error=an_error(reason), handler=handler)
    copied, attributes = dead_letter_copy(message, outcome, now=NOW, bytes_max=size + room)
    check(copied, attributes)
    assert size_bytes(drafted(copied, attributes)) <= size + room
