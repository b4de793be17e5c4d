"""Numbers, lengths and instants as people read them; commands as shells do."""

from __future__ import annotations

import json
import shlex
import time
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest

from tests.console.hostile import STRINGS
from veil.console import templates
from veil.console.changes import aws_command
from veil.console.web import Refused, read_form, read_query
from veil.words import exact_length


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
    assert exact_length(seconds) == words


@pytest.mark.parametrize(
    ("per_second", "words"),
    [(0, "0"), (0.1, "6 /min"), (0.001, "1 /min"), (2.54, "2.5 /s"), (1234.5, "1,234 /s")],
)
def test_a_rate_is_said_in_the_unit_that_suits_it(per_second: float, words: str):
    assert templates.rate(per_second) == words


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 bytes"), (1023, "1,023 bytes"), (2048, "2 KiB"), (5 << 20, "5 MiB")]
)
def test_sizes(size: int, words: str):
    assert templates.file_size(size) == words


def test_an_instant_is_relative_with_the_exact_one_beside_it():
    visit = SimpleNamespace(is_live=False, wall_ms=1_700_000_090_123)
    html = templates.ago({"visit": visit}, 1_700_000_000_123)
    assert ">1 min 30 s ago<" in html and 'title="2023-11-14 22:13:20.123 UTC"' in html


def test_a_running_time_stays_the_same_text_in_a_stream():
    for wall_ms in (1_700_000_090_123, 1_700_000_091_123):
        visit = SimpleNamespace(is_live=True, wall_ms=wall_ms, now_ms=wall_ms)
        assert ">0 s ago<" in templates.ago({"visit": visit}, 1_700_000_000_123)
        assert ">0 s<" in templates.countdown({"visit": visit}, 1_800_000_000_123)


@pytest.mark.parametrize("text", STRINGS)
def test_a_command_brings_any_text_through_a_shell_as_it_is(text: str):
    command = aws_command("send-message", "http://localhost:9324", "us-east-1", {"MessageBody": text})
    words = shlex.split(command.replace(" \\\n", " ", 1))
    assert words[:3] == ["aws", "sqs", "send-message"]
    if words[3] == "--cli-input-json":
        assert json.loads(words[4]) == {"MessageBody": text}
    else:
        assert words[3:5] == ["--message-body", text]
        assert not text.startswith(("-", "file://", "fileb://", "http://", "https://"))


async def test_a_form_keeps_repeated_fields_and_line_breaks():
    form = await read_form("application/x-www-form-urlencoded", b"a=1&a=2&b=x%0D%0Ay+&c=")
    assert form.all("a") == ["1", "2"] and form.raw("b") == "x\ny " and form.text("b") == "x\r\ny"
    assert form.checked("c") and not form.checked("d")


async def test_a_form_with_a_file_is_read():
    body = (
        b'--edge\r\nContent-Disposition: form-data; name="token"\r\n\r\nabc\r\n'
        b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\n'
        b"one\ntwo\x00\xff\r\n--edge--\r\n"
    )
    form = await read_form("multipart/form-data; boundary=edge", body)
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
async def test_a_form_that_is_cut_short_is_refused_or_empty(body: bytes):
    try:
        form = await read_form("multipart/form-data; boundary=edge", body)
    except Refused:
        return
    assert form.pairs == [] and form.files == {}


async def test_a_large_file_is_read_at_once():
    lines = b"x\n" * 4_000_000
    head = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a%22b"\r\n\r\n'
    begun_s = time.process_time()
    form = await read_form("multipart/form-data; boundary=edge", head + lines + b"\r\n--edge--\r\n")
    assert time.process_time() - begun_s < 0.5
    assert form.files["file"].name == 'a"b' and len(form.files["file"].content) == len(lines)


@pytest.mark.parametrize("piece", [b"%41", b"a%41", b"+", b"%E2%82%AC", b"%FF%E2", b"x%", b"%4", b"%zz"])
@pytest.mark.parametrize("count", [1, 5, 20_000, 100_003])
async def test_a_field_is_decoded_as_the_standard_library_does(piece: bytes, count: int):
    if count > 5 and piece in (b"x%", b"%4", b"%zz"):
        return  # a lone percent sign is read as it stands in a short field only: no browser sends one
    form = await read_form("application/x-www-form-urlencoded", b"a=" + piece * count)
    assert form.pairs == parse_qsl(f"a={(piece * count).decode()}", keep_blank_values=True, errors="replace")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/x-www-form-urlencoded", b"&a=1" * 2_001),
        ("application/x-www-form-urlencoded", b"a=\xff"),
        (
            "multipart/form-data; boundary=X",
            b"--X" + b'\r\n--X\r\nx; name="a"\r\n\r\n' * 2_001 + b"\r\n--X--",
        ),
        ("multipart/form-data; boundary=X", b"--X\r\nx;" + b'name="' * 10_000 + b'"\r\n\r\ny\r\n--X--'),
        ("multipart/form-data; boundary=" + " " * 30_000, b"--X"),
        ("text/plain", b"a=1"),
        ("application/x-www-form-urlencoded", b"a=" + b"%41" * (2_100_000)),
        ("multipart/form-data; boundary=X", b'--X\r\nx; name="a"\r\n\r\n' + b"y" * 2_100_000 + b"\r\n--X--"),
    ],
)
async def test_a_form_beyond_its_bounds_is_refused(content_type: str, body: bytes):
    with pytest.raises(Refused):
        await read_form(content_type, body)
