"""Numbers, lengths and instants as people read them; commands as shells do."""

from __future__ import annotations

import shlex
import time

import pytest

from tests.console.hostile import STRINGS
from veil.console import formatting
from veil.console.aws_command import aws_command
from veil.console.forms import read_form, read_query
from veil.console.refusals import Refused


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (1, "1 s"),
        (90, "1 min 30 s"),
        (3_661, "1 h 1 min 1 s"),
        (43_200, "12 h"),
        (345_600, "4 d"),
        (0.25, "0.25 s"),
        (None, "–"),
    ],
)
def test_a_length_is_exact(seconds: float | None, words: str):
    assert formatting.length(seconds) == words


@pytest.mark.parametrize(
    ("per_second", "words"),
    [(0, "0"), (0.1, "6 /min"), (0.001, "1 /min"), (2.54, "2.5 /s"), (1234.5, "1,234 /s")],
)
def test_a_rate_is_said_in_the_unit_that_suits_it(per_second: float, words: str):
    assert formatting.rate(per_second) == words


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 bytes"), (1023, "1,023 bytes"), (2048, "2 KiB"), (5 << 20, "5 MiB")]
)
def test_sizes(size: int, words: str):
    assert formatting.file_size(size) == words


def test_an_instant_is_relative_with_the_exact_one_beside_it():
    html = formatting.ago(1_700_000_000_123, 1_700_000_090_123)
    assert ">1 min 30 s ago<" in html and 'title="2023-11-14 22:13:20.123 UTC"' in html


@pytest.mark.parametrize("text", STRINGS)
def test_a_command_brings_any_text_through_a_shell_as_it_is(text: str):
    command = aws_command("send-message", "http://localhost:9324", "us-east-1", {"--message-body": text})
    words = shlex.split(command.replace(" \\\n", " ", 1))
    assert words[:2] == ["aws", "sqs"] and words[words.index("--message-body") + 1] == text


def test_a_form_keeps_repeated_fields_and_line_breaks():
    form = read_form("application/x-www-form-urlencoded", b"a=1&a=2&b=x%0D%0Ay+&c=")
    assert form.all("a") == ["1", "2"] and form.raw("b") == "x\ny " and form.text("b") == "x\r\ny"
    assert form.checked("c") and not form.checked("d")


def test_a_form_with_a_file_is_read():
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="token"\r\n\r\nabc\r\n'
        b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\n'
        b"one\ntwo\x00\xff\r\n--edge--\r\n"
    )
    form = read_form("multipart/form-data; boundary=edge", body)
    assert form.text("token") == "abc"
    assert form.files["file"] == ("a.txt", b"one\ntwo\x00\xff")


def test_a_number_of_a_query_is_kept_within_its_bounds():
    query = read_query("page=99999999999999999999999&other=-1&third=x")
    assert query.number("page", 1, 1, 50) == 1 and read_query("page=51").number("page", 1, 1, 50) == 50
    assert query.number("other", 1, 1, 50) == 1 and query.number("third", 7, 1, 50) == 7


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--edge",
        b"--edge--\r\n",
        b"--edge\r\n\r\nx\r\n--edge--\r\n",
        b'--edge\r\nContent-Disposition: form-data; name="a"\r\n\r\nx',
        b'--other\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--other--',
    ],
)
def test_a_form_that_is_cut_short_is_refused_or_empty(body: bytes):
    try:
        form = read_form("multipart/form-data; boundary=edge", body)
    except Refused:
        return
    assert form.pairs == [] and form.files == {}


def test_a_large_file_is_read_at_once():
    lines = b"x\n" * 4_000_000
    head = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a%22b"\r\n\r\n'
    begun_s = time.process_time()
    form = read_form("multipart/form-data; boundary=edge", head + lines + b"\r\n--edge--\r\n")
    assert time.process_time() - begun_s < 0.5
    assert form.files["file"].name == 'a"b' and len(form.files["file"].content) == len(lines)
