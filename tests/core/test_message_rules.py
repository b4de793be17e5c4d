"""What may be sent, what it weighs, and the digests that clients compare."""

from __future__ import annotations

import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veil.core.errors import (
    AttributeRefused,
    BodyMissing,
    BodyTooLong,
    CharactersRefused,
    DeduplicationMissing,
    GroupMissing,
    IdentifierRefused,
    NotForQueueType,
)
from veil.core.message import MessageAttribute
from veil.core.message_rules import (
    Draft,
    attributes_md5,
    body_md5,
    check_draft,
    check_identifier,
    content_deduplication_id,
    size_bytes,
)
from veil.core.queue import QueueSettings

STANDARD = QueueSettings()
FIFO = QueueSettings(fifo=True)


def with_attribute(name: str, data_type: str, value: str | bytes) -> Draft:
    return Draft("body", attributes={name: MessageAttribute(data_type, value)})


# ---- bodies


def test_a_body_is_needed() -> None:
    with pytest.raises(BodyMissing):
        check_draft(Draft(""), STANDARD)


@pytest.mark.parametrize(
    "body", ["a", " ", "\t\n\r", "\x7f\x85", "\ud7ff\ue000\ufffd", "\U00010000\U0010ffff", "é\n🙂", "﷐\u200b"]
)
def test_the_characters_of_xml_pass(body: str) -> None:
    assert check_draft(Draft(body), STANDARD) == body.encode()


@pytest.mark.parametrize(
    "body", ["\x00", "a\x08", "\x0b", "\x0c", "\x1f", "é\x01", "\ufffe", "x\uffff", "\ud800", "a\udfff\n"]
)
def test_characters_outside_xml_are_refused(body: str) -> None:
    with pytest.raises(CharactersRefused):
        check_draft(Draft(body), STANDARD)


def _in_xml_set(character: str) -> bool:
    point = ord(character)
    return (
        point in (0x9, 0xA, 0xD)
        or 0x20 <= point <= 0xD7FF
        or 0xE000 <= point <= 0xFFFD
        or 0x10000 <= point <= 0x10FFFF
    )


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=20))
def test_the_quick_check_agrees_with_the_definition(body: str) -> None:
    if all(map(_in_xml_set, body)):
        check_draft(Draft(body), STANDARD)
    else:
        with pytest.raises(CharactersRefused):
            check_draft(Draft(body), STANDARD)


def test_the_size_counts_body_and_attributes_in_utf8() -> None:
    draft = Draft(
        "äö",
        attributes={"é": MessageAttribute("String", "ü"), "b": MessageAttribute("Binary.x", b"\x00\x01")},
        trace_header="not counted",
    )
    assert size_bytes(draft) == 4 + (2 + 6 + 2) + (1 + 8 + 2)
    assert size_bytes(Draft("\ud800")) == 3  # asked before the characters are checked


def test_the_queues_maximum_is_allowed_and_one_byte_more_is_not() -> None:
    small = QueueSettings(message_bytes_max=1024)
    check_draft(Draft("x" * 1024), small)
    with pytest.raises(BodyTooLong) as refusal:
        check_draft(Draft("x" * 1025), small)
    assert (refusal.value.size_bytes, refusal.value.max_bytes) == (1025, 1024)
    with pytest.raises(BodyTooLong):
        check_draft(Draft("ä" * 513), small)
    with pytest.raises(BodyTooLong):
        check_draft(Draft("x" * 1018, attributes={"a": MessageAttribute("String", "v")}), small)


# ---- attributes


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "größe", "awsome", "x" * 256])
def test_attribute_names_that_pass(name: str) -> None:
    check_draft(with_attribute(name, "String", "v"), STANDARD)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "a/b",
        ".a",
        "a.",
        "a..b",
        "AWS.x",
        "aws.x",
        "Amazon.x",
        "AMAZON.x",
        "x" * 257,
        "a\n",
        "\ud800",
    ],
)
def test_attribute_names_that_are_refused(name: str) -> None:
    with pytest.raises(AttributeRefused) as refusal:
        check_draft(with_attribute(name, "String", "v"), STANDARD)
    assert refusal.value.attribute == name


@pytest.mark.parametrize(
    "data_type", ["String", "String.label", "Number", "Number.int", "String." + "x" * 249]
)
def test_data_types_that_pass(data_type: str) -> None:
    check_draft(with_attribute("a", data_type, "1"), STANDARD)


@pytest.mark.parametrize("data_type", ["", "string", "Text", "Strings", "String." + "x" * 250, "String.\x00"])
def test_data_types_that_are_refused(data_type: str) -> None:
    with pytest.raises(AttributeRefused, match="type"):
        check_draft(with_attribute("a", data_type, "1"), STANDARD)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [("String", ""), ("Binary", b""), ("Binary", "text"), ("String", b"bytes"), ("Number", "")],
)
def test_an_attribute_needs_a_value_of_its_type(data_type: str, value: str | bytes) -> None:
    kind = data_type.split(".")[0]
    with pytest.raises(AttributeRefused) as refusal:
        check_draft(with_attribute("a", data_type, value), STANDARD)
    assert refusal.value.reason == (
        f"Message (user) attribute 'a' must contain a non-empty value of type '{kind}'."
    )


@pytest.mark.parametrize(
    "value",
    [
        "0",
        "-1",
        "+1.50",
        ".5",
        "5.",
        "1e10",
        "1E-5",
        "9" * 38,
        "0." + "0" * 40 + "1",
        "1e126",
        "-1e126",
        "1e-128",
        "0e999",
        "0.001e129",
    ],
)
def test_numbers_that_pass(value: str) -> None:
    check_draft(with_attribute("n", "Number", value), STANDARD)


@pytest.mark.parametrize(
    "value",
    [
        "one",
        "1,5",
        "0x1",
        "1 ",
        "--1",
        ".",
        "e5",
        "nan",
        "9" * 39,
        "１",
        "1.1e126",
        "-1e127",
        "9e-129",
        "1e999",
    ],
)
def test_numbers_that_are_refused(value: str) -> None:
    with pytest.raises(AttributeRefused, match="number"):
        check_draft(with_attribute("n", "Number", value), STANDARD)


def test_a_number_has_at_most_256_characters() -> None:
    check_draft(with_attribute("n", "Number", "0" * 255 + "1"), STANDARD)
    with pytest.raises(AttributeRefused, match="number"):
        check_draft(with_attribute("n", "Number", "0" * 256 + "1"), STANDARD)


@pytest.mark.parametrize("text", ["1" * 20_000 + "x", "1" * 1_000_000 + "x", "." * 1_000_000, "1e" * 500_000])
def test_a_text_that_is_nearly_a_number_costs_no_more_than_its_length(text: str) -> None:
    began_s = time.thread_time()
    with pytest.raises(AttributeRefused, match="number"):
        check_draft(with_attribute("n", "Number", text), STANDARD)
    assert time.thread_time() - began_s < 1  # matched with backtracking, 20,000 digits took nine


def test_what_is_too_large_is_refused_before_its_attributes_are_looked_at() -> None:
    with pytest.raises(BodyTooLong):
        check_draft(with_attribute("n", "Number", "x" * 2_000_000), STANDARD)


def test_the_text_of_attributes_obeys_the_character_rule() -> None:
    check_draft(with_attribute("a", "String", "line\nline"), STANDARD)
    with pytest.raises(AttributeRefused, match="characters"):
        check_draft(with_attribute("a", "String", "\x00"), STANDARD)
    with pytest.raises(AttributeRefused):
        check_draft(Draft("body", trace_header="\x00"), STANDARD)


def test_a_trace_header_has_a_limit_of_its_own() -> None:
    full = "x" * STANDARD.message_bytes_max
    check_draft(Draft(full, trace_header="r" * 8_192), STANDARD)
    for too_long in ("r" * 8_193, "é" * 4_097, "\ud800" * 3_000):
        with pytest.raises(AttributeRefused, match="8192 bytes"):
            check_draft(Draft("body", trace_header=too_long), STANDARD)


def test_ten_attributes_are_allowed() -> None:
    ten = {f"a{number}": MessageAttribute("String", "v") for number in range(10)}
    check_draft(Draft("body", attributes=ten), STANDARD)
    with pytest.raises(AttributeRefused, match=r"\[11\]"):
        check_draft(Draft("body", attributes={**ten, "b": MessageAttribute("String", "v")}), STANDARD)


# ---- the queue's type


def test_fifo_needs_a_group_before_anything_else_is_looked_at() -> None:
    with pytest.raises(GroupMissing):
        check_draft(Draft("", delay_s=5), FIFO)


def test_fifo_needs_a_deduplication_id_or_content_to_make_one_from() -> None:
    with pytest.raises(DeduplicationMissing):
        check_draft(Draft("b", group="g"), FIFO)
    check_draft(Draft("b", group="g", deduplication_id="d"), FIFO)
    check_draft(Draft("b", group="g"), QueueSettings(fifo=True, content_deduplication=True))


def test_fifo_takes_no_delay_but_zero() -> None:
    check_draft(Draft("b", group="g", deduplication_id="d", delay_s=0), FIFO)
    with pytest.raises(NotForQueueType) as refusal:
        check_draft(Draft("b", group="g", deduplication_id="d", delay_s=2), FIFO)
    assert (refusal.value.parameter, refusal.value.value, refusal.value.queue_type) == (
        "DelaySeconds",
        2,
        "FIFO",
    )


def test_standard_takes_a_group_and_no_deduplication_id() -> None:
    check_draft(Draft("b", group="g"), STANDARD)
    with pytest.raises(NotForQueueType) as refusal:
        check_draft(Draft("b", deduplication_id="d"), STANDARD)
    assert (refusal.value.parameter, refusal.value.queue_type) == ("MessageDeduplicationId", "standard")


@pytest.mark.parametrize("value", ["a", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "x" * 128])
def test_identifiers_that_pass(value: str) -> None:
    check_identifier("MessageGroupId", value)


@pytest.mark.parametrize("value", ["", " ", "a b", "x" * 129, "ä", "a\n", "\x7f"])
def test_identifiers_that_are_refused(value: str) -> None:
    with pytest.raises(IdentifierRefused) as refusal:
        check_identifier("MessageGroupId", value)
    assert (refusal.value.parameter, refusal.value.value) == ("MessageGroupId", value)
    with pytest.raises(IdentifierRefused):
        check_draft(Draft("b", group=value), STANDARD)


# ---- digests


def test_the_digest_of_a_body() -> None:
    assert body_md5(b"hello") == "5d41402abc4b2a76b9719d911017c592"
    assert content_deduplication_id(b"a") == hashlib.sha256(b"a").hexdigest()


def test_the_digest_of_a_trace_header_is_the_one_recorded_from_sqs() -> None:
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    assert attributes_md5({"AWSTraceHeader": MessageAttribute("String", header)}) == (
        "5ae4d5d7636402d80f4eb6d213245a88"
    )


def test_the_digest_of_attributes_is_built_by_name_type_and_value() -> None:
    attributes = {"b": MessageAttribute("Binary.x", b"\xff"), "a": MessageAttribute("Number", "7")}
    expected = (
        b"\x00\x00\x00\x01a\x00\x00\x00\x06Number\x01\x00\x00\x00\x017"
        b"\x00\x00\x00\x01b\x00\x00\x00\x08Binary.x\x02\x00\x00\x00\x01\xff"
    )
    assert attributes_md5(attributes) == hashlib.md5(expected).hexdigest()
