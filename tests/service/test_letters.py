"""Dead letters are sorted by what stands on them, whoever wrote it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from veil.core.message import MessageAttribute, StoredMessage
from veil.core.queue import Queue, QueueKey, QueueSettings
from veil.core.text import fingerprint
from veil.service.dead_letters import LetterFilter, read_filter, read_letter, with_room_for_mark, write_filter

DEAD = Queue(1, QueueKey("us-east-1", "000000000000", "orders-dead"), QueueSettings())


def a_message(body: str = "x", dead_letter_source: str | None = None, **attributes: str) -> StoredMessage:
    texts: dict[str, Any] = {
        name.replace("__", "."): MessageAttribute("String", value) for name, value in attributes.items()
    }
    return StoredMessage(
        7, "id-7", body, "", texts or None, None, "", 0, None, None, dead_letter_source, 3, None, 3, 0, None, None
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("order 4711 has no lines", "order <n> has no lines"),
        ("KeyError: 'customer'", "KeyError: <text>"),
        ("user 0f9ab8c7d6 at https://pay.example/x?y=1 said 12:30:01", "user <id> at <url> said <time>"),
        ("id 11111111-2222-3333-4444-555555555555\n  gone", "id <id> gone"),
        ("it doesn't matter, it isn't there", "it doesn't matter, it isn't there"),
    ],
)
def test_what_differs_from_one_error_to_the_next_is_masked(reason: str, expected: str):
    assert fingerprint(reason) == expected


@pytest.mark.parametrize(
    "source",
    ["orders", "arn:aws:sqs:us-east-1:000000000000:orders", "http://localhost:9324/000000000000/orders"],
)
def test_a_consumer_may_name_the_source_by_name_arn_or_url(source: str):
    letter = read_letter(DEAD, a_message(veil__source_queue=source))
    assert letter.source == DEAD.key._replace(name="orders")
    assert not letter.is_known_to_server


def test_a_source_of_another_account_is_not_believed():
    letter = read_letter(DEAD, a_message(veil__source_queue="arn:aws:sqs:us-east-1:111111111111:theirs"))
    assert letter.source is None


def test_the_servers_own_word_comes_before_the_consumers():
    arn = "arn:aws:sqs:us-east-1:000000000000:mails"
    letter = read_letter(DEAD, a_message(dead_letter_source=arn, veil__source_queue="orders"))
    assert letter.source is not None and letter.source.name == "mails" and letter.is_known_to_server


def test_a_filter_lets_through_what_fits_all_of_it():
    letter = read_letter(DEAD, a_message("Order ONE", veil__reason="no lines", veil__source_queue="orders"))
    assert LetterFilter().matches(letter)
    assert LetterFilter(text="order one", source="orders", redriven="no").matches(letter)
    assert LetterFilter(text="NO LINES", group=letter.group).matches(letter)
    for wish in (
        LetterFilter(text="two"),
        LetterFilter(source="mails"),
        LetterFilter(redriven="yes"),
        LetterFilter(type="A"),
        LetterFilter(error="KeyError"),
        LetterFilter(group="000000000000"),
    ):
        assert not wish.matches(letter)
        assert read_filter(write_filter(wish)) == wish


def test_room_for_the_mark_is_made_of_what_consumers_write_and_never_of_what_senders_wrote():
    senders = {f"a{number}": "1" for number in range(9)}
    full = a_message(**senders, veil__traceback="…")
    kept = with_room_for_mark(full)
    assert kept is not None and set(kept) == set(senders)
    assert with_room_for_mark(a_message(**senders, a9="1")) is None
    assert with_room_for_mark(a_message(a="1")) is None


@pytest.mark.parametrize("text", ["9" * 5_000, "²", "٣", "-1", "", "1" * 10, "1e3"])
def test_a_receive_count_that_is_none_is_passed_over(text: str):
    assert read_letter(DEAD, a_message(veil__receive_count=text)).receives == 3


def test_the_consumers_receive_count_comes_before_the_dead_letter_queues():
    assert read_letter(DEAD, a_message(veil__receive_count="17")).receives == 17


@pytest.mark.parametrize("piece", ["„", "“", "„x", "`", '"', "'", "::", "a1-", "1.", "/"])
def test_no_reason_takes_longer_than_its_length_allows(piece: str):
    harmless_s = _fingerprint_s("order 17 has no lines. ")
    assert _fingerprint_s(piece) < max(25 * harmless_s, 0.05)


def _fingerprint_s(piece: str) -> float:
    began_s = time.process_time()
    for _ in range(10):
        fingerprint((piece * 4_000)[:4_000])
    return time.process_time() - began_s
