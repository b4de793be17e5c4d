"""Forms and queries: what the library reads, and in time that follows their size."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType
from urllib.parse import parse_qsl

import pytest

from veil.core import text as form_encoding
from veil.core.text import read_pairs


def _by_library(text: bytes) -> list[tuple[bytes, bytes]]:
    pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="surrogateescape")
    return [
        (name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape"))
        for name, value in pairs
    ]


@pytest.mark.parametrize("slice_bytes", [5, 8, 1 << 20])
def test_what_is_read_is_what_the_library_reads(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_encoding, "_SLICE_BYTES", slice_bytes)
    rng = random.Random(20_261_117)
    for _ in range(10_000):
        text = bytes(rng.choices(b"%%%%%4194aFz=&+\n\r ;", k=rng.randrange(30)))
        assert read_pairs(text, 100) == _by_library(text), text


@pytest.mark.parametrize("text", [b"a=\xc3\xa9", b"a=1&" * 100])
def test_what_is_not_ascii_or_has_too_many_fields_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="at most 100 fields"):
        read_pairs(text, 100)


def test_a_lone_percent_sign_stands_for_itself_unless_there_are_many() -> None:
    assert read_pairs(b"text=100%&x=%zz", 10) == [(b"text", b"100%"), (b"x", b"%zz")]
    with pytest.raises(ValueError, match="two hexadecimal digits"):
        read_pairs(b"a=" + b"%" * 100_000, 10)


@pytest.mark.parametrize("value", [b"%41", b"%C3%A9", b"a%41", b"%3D=", b"+%2B"])
def test_the_steps_of_python_do_not_follow_the_escapes(value: bytes) -> None:
    steps: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        steps[event] += 1

    sys.setprofile(count)
    try:
        ((_, decoded),) = read_pairs(b"a=" + value * (1 << 18), 10)
    finally:
        sys.setprofile(None)

    assert decoded == dict(_by_library(b"a=" + value))[b"a"] * (1 << 18)
    assert steps["c_call"] < 100
