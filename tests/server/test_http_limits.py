"""Limits are checked as settings, and rules that need no socket are tested without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from veil.server.http_limits import HttpLimits
from veil.server.http_reader import CLOSES, STAYS_OPEN, encode_answer
from veil.server.settings import settings_table
from veil.wire.exchange import Response


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("header_bytes_max", 0),
        ("header_count_max", 0),
        ("body_bytes_max", -1),
        ("body_bytes_max", 1.5),
        ("connections_max", True),
        ("connections_max", "many"),
        ("idle_s", -0.1),
        ("idle_s", float("nan")),
        ("header_deadline_s", float("inf")),
        ("body_deadline_s", "ten"),
    ],
)
def test_a_bad_limit_is_refused_with_what_was_expected(name, value):
    (info,) = (each for each in settings_table() if each.name == f"http.{name}")
    with pytest.raises(ValueError, match=r"^a (whole )?number from"):
        info.read(value)


def test_the_defaults_are_the_documented_ones():
    limits = HttpLimits()

    assert (limits.header_bytes_max, limits.header_count_max) == (32 * 1024, 100)
    assert limits.body_bytes_max == 8 * 1024 * 1024
    assert (limits.header_deadline_s, limits.body_deadline_s, limits.idle_s) == (10, 30, 75)


DATE = b"Date: Tue, 17 Nov 2026 06:00:00 GMT\r\n"


@pytest.fixture(autouse=True)
def six_o_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veil.server.http_reader.time", SimpleNamespace(time=lambda: 1_794_895_200.9))


def test_the_date_moves_on_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DATE in encode_answer(Response(), "GET", STAYS_OPEN)
    monkeypatch.setattr("veil.server.http_reader.time", SimpleNamespace(time=lambda: 1_794_895_201.0))
    assert b"Date: Tue, 17 Nov 2026 06:00:01 GMT\r\n" in encode_answer(Response(), "GET", STAYS_OPEN)


def test_an_answer_is_one_piece_with_its_length():
    answer = encode_answer(Response(201, b"abc", "text/x", (("X-A", "1"), ("X-B", "2"))), "POST", CLOSES)

    assert answer == (
        b"HTTP/1.1 201 Created\r\n"
        + DATE
        + b"Content-Type: text/x\r\nContent-Length: 3\r\nConnection: close\r\n"
        b"X-A: 1\r\nX-B: 2\r\n\r\nabc"
    )


def test_the_answer_to_head_has_the_length_but_not_the_body():
    answer = encode_answer(Response(body=b"abc"), "HEAD", STAYS_OPEN)

    assert b"Content-Length: 3\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_an_answer_without_content_has_neither_length_nor_type():
    answer = encode_answer(Response(status=204), "POST", STAYS_OPEN)

    assert answer == b"HTTP/1.1 204 No Content\r\n" + DATE + b"\r\n"


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "a\nb", "a\rb", "a\0b"])
def test_a_header_cannot_start_another(value):
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        encode_answer(Response(headers=(("X-A", value),)), "GET", STAYS_OPEN)
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        encode_answer(Response(content_type=value), "GET", STAYS_OPEN)


def test_a_status_outside_the_final_ones_is_refused():
    with pytest.raises(ValueError, match=r"^status=101: expected 200 to 599"):
        encode_answer(Response(status=101), "GET", STAYS_OPEN)
