"""Texts of one error have one fingerprint, and texts of different errors keep theirs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from veil.core.text import CHARS_MAX, fingerprint
from veil.pipeline.dead_letters.analysis import fingerprint_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAME = {
    "order <n> not found": ("order 17 not found", "order 123456789 not found"),
    "took <n> s, limit <n>": ("took 3.5 s, limit 30", "took 31,250 s, limit 7"),
    "no row for <id>": (
        "no row for 7c9e6679-7425-40de-944b-e07fc1f90ae7",
        "no row for 7C9E6679-7425-40DE-944B-E07FC1F90AE8",
        "no row for deadbeef01",
        "no row for 0x7f3a",
        "no row for 01J9ZQ5V6W7X8Y9Z0A1B2C3D4E",
    ),
    "connect to <address> failed": (
        "connect to 10.0.0.17:5432 failed",
        "connect to 192.168.1.1 failed",
        "connect to [2001:db8::1]:443 failed",
        "connect to fe80::1 failed",
        "connect to 00:1a:2b:3c:4d:5e failed",
        "connect to ada@example.org failed",
    ),
    "cannot read <path>": ("cannot read /var/lib/a-1.json", "cannot read ~/b.csv", r"cannot read C:\data\x.txt"),
    "KeyError: <text>": ("KeyError: 'colour'", 'KeyError: "size 5"', "KeyError: `x`", "KeyError: “x”"),
    "GET <url> gave <n>": ("GET https://api.example.org/v1/9?x=1 gave 503", "GET http://a/b gave 500"),
    "late since <time>": (
        "late since 2026-01-31T10:11:12.345Z",
        "late since 2026-02-01 23:59",
        "late since 10:11:12",
        "late since 2026-02-01 23:59:01+01:00",
    ),
    "one line": ("one\n   line ", "one\tline"),
}  # fmt: skip
KEPT = (
    "the card was declined",
    "can't open the customer's account",
    "std::bad_alloc in Basket::add",
    "either/or is neither",
    "TimeoutError",
    "unexpected-keyword-argument-in-call",
)


def fingerprints(spark: SparkSession, *texts: str | None) -> list[str | None]:
    from pyspark.sql import functions as F  # noqa: N812

    rows = spark.createDataFrame([(at, text) for at, text in enumerate(texts)], "at int, text string")
    return [row[0] for row in rows.orderBy("at").select(fingerprint_of(F.col("text"))).collect()]


def test_what_differs_from_message_to_message_is_masked(spark: SparkSession):
    texts = [(text, shown) for shown, several in SAME.items() for text in several]

    found = fingerprints(spark, *(text for text, _ in texts))

    assert dict(zip([text for text, _ in texts], found, strict=True)) == dict(texts)


def test_words_stay_as_they_are(spark: SparkSession):
    assert fingerprints(spark, *KEPT) == list(KEPT)


def test_no_text_has_no_fingerprint_and_a_long_one_is_cut(spark: SparkSession):
    nothing, long = fingerprints(spark, None, "word " * 1_000)

    assert nothing is None
    assert long is not None
    assert len(long) == CHARS_MAX


def test_the_console_masks_as_spark_does(spark: SparkSession):
    texts = [text for several in SAME.values() for text in several] + list(KEPT) + ["word " * 1_000]

    assert [fingerprint(text) for text in texts] == fingerprints(spark, *texts)


def test_no_text_takes_longer_than_its_length_allows(spark: SparkSession):
    """With backtracking each of them would take minutes."""
    pieces = ["a", "1", "f", ":", "/", "'", "a@", "1.", "-1", "::f", "aA1-", "<"]
    begun_s = time.monotonic()
    fingerprints(spark, *[piece * (8_192 // len(piece)) for piece in pieces for _ in range(20)])

    assert time.monotonic() - begun_s < 120
