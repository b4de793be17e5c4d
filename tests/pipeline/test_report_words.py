"""Lengths, chances and what a timeout would have changed, in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.pipeline.report_kit import BEGIN, END, a_finding
from veil import words
from veil.core.findings import RIGHT, TOO_LONG, TOO_SHORT, UNKNOWN, UNSET, Replay, after_losses
from veil.pipeline.report.summary import period_of, replay_words


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "–"), (float("nan"), "–"), (float("inf"), "–"), (0, "0 s"), (0.0004, "0.4 ms"), (0.34, "340 ms"),
        (0.9996, "1 s"), (1, "1 s"), (4.25, "4.2 s"), (9.97, "10 s"), (45, "45 s"), (59.7, "1 min"), (90, "1 min 30 s"),
        (120, "2 min"), (3599.6, "1 h"), (3600, "1 h"), (5430, "1 h 30 min"), (7199, "2 h"), (43_200, "12 h"),
        (86_399, "1 d"), (100_000, "1 d 4 h"),
    ],
)  # fmt: skip
def test_a_length_has_two_units_at_most(seconds: float | None, told: str):
    assert words.length(seconds) == told


@pytest.mark.parametrize(
    ("chance", "told"),
    [(0, "0 %"), (1e-9, "< 0.001 %"), (0.00012, "0.012 %"), (0.001, "0.1 %"), (0.0314, "3.1 %"), (0.5, "50 %"), (1, "100 %")],
)  # fmt: skip
def test_a_chance_has_two_digits_that_matter(chance: float, told: str):
    assert words.chance(chance) == told


def test_hours_are_told_as_exactly_as_it_matters():
    assert [words.hours(each) for each in (None, 0, 0.01, 3.44, 1204.2)] == [
        "–",
        "0 h",
        "36 s",
        "3.4 h",
        "1,204 h",
    ]


def test_a_span_is_told_in_the_unit_that_suits_it():
    lengths = (
        timedelta(seconds=50),
        timedelta(minutes=1),
        timedelta(minutes=40),
        timedelta(hours=30),
        timedelta(days=6),
    )

    told = [words.span(BEGIN, BEGIN + each) for each in lengths]

    assert told == ["50 seconds", "1 minute", "40 minutes", "30 hours", "6 days"]
    assert words.span(BEGIN, BEGIN) is None
    assert words.span("nonsense", None) is None


@pytest.mark.parametrize(
    ("present_s", "recommended_s", "word"),
    [
        (30, 120, TOO_SHORT), (120, 120, RIGHT), (140, 120, RIGHT), (115, 120, RIGHT), (110, 120, TOO_SHORT),
        (300, 120, TOO_LONG), (None, 120, UNSET), (30, None, UNKNOWN),
    ],
)  # fmt: skip
def test_a_timeout_is_judged_by_the_recommended_one(
    present_s: int | None, recommended_s: int | None, word: str
):
    finding = a_finding(present_timeout_s=present_s, recommended_timeout_s=recommended_s)

    assert finding.verdict() == word


WAITING = "of messages waiting hidden after crashes"
WAITED = "that messages waited hidden after crashes"


@pytest.mark.parametrize(
    ("replay", "told"),
    [
        (Replay(430, 18, 2.0, 5.2), f"avoided 412 of 430 duplicates, at the price of 3.2 h more {WAITING}"),
        (Replay(430, 18, 5.0, 5.0), "avoided 412 of 430 duplicates"),
        (Replay(430, 18, 5.0, 2.0), f"avoided 412 of 430 duplicates and saved 3.0 h of the 5.0 h {WAITED}"),
        (Replay(0, 0.1, 12.0, 2.0), f"saved 10.0 h of the 12.0 h {WAITED}"),
        (Replay(0, 3, 12.0, 2.0), f"saved 10.0 h of the 12.0 h {WAITED}, at the price of 3 more duplicates"),
        (Replay(1, 1, 1.0, 1.0), "changed nothing worth counting"),
        (Replay(1, 1, 1.0, 2.5), f"meant 1.5 h more {WAITING}"),
        (Replay(1, 3, 1.0, 1.0), "meant 2 more duplicates"),
    ],
)  # fmt: skip
def test_what_a_timeout_would_have_changed_is_a_sentence(replay: Replay, told: str):
    finding = a_finding(recommended_timeout_s=135, replay=replay)

    expected = f"Over these 6 days a timeout of 2 min 15 s would have {told}."
    assert replay_words(finding, (BEGIN, END)) == expected


def test_lapses_of_which_nobody_knows_why_are_not_told_as_crashes():
    def told(crashed_h: float | None, **counts: int) -> str:
        replay = Replay(0, 0, 12.0, 2.0, crashed_h)
        finding = a_finding(recommended_timeout_s=135, replay=replay, **counts)
        return (replay_words(finding, (BEGIN, END)) or "").partition("waited hidden ")[2]

    assert told(12.0, crashes=4, unknown=0) == "after crashes."
    assert told(9.0, crashes=4, unknown=1) == "after crashes (9.0 h) and unexplained lapses (3.0 h)."
    assert told(0.0, crashes=0, unknown=5) == "after unexplained lapses."
    # By a Veil that did not tell them apart yet.
    assert told(None, crashes=4, unknown=1) == "after crashes and unexplained lapses."


def test_hours_hidden_after_crashes_add_up_over_queues():
    first = a_finding("a", crashes=4, unknown=0, replay=Replay(0, 0, 1.0, 1.0, 1.0))
    second = a_finding("b", crashes=2, unknown=3, replay=Replay(0, 0, 5.0, 1.0, 2.0))
    no_evidence = a_finding("c", crashes=1, unknown=1, replay=None)
    old = a_finding("d", crashes=1, unknown=1, replay=Replay(0, 0, 5.0, 1.0))

    told = "after crashes (3.0 h) and unexplained lapses (3.0 h)"
    assert after_losses([first, second, no_evidence]) == told
    assert after_losses([first, second, old]) == "after crashes and unexplained lapses"
    assert after_losses([no_evidence]) == "after crashes and unexplained lapses"


def test_a_single_minute_is_told_as_one():
    finding = a_finding(recommended_timeout_s=135, replay=Replay(1, 1, 1.0, 1.0))

    told = replay_words(finding, (BEGIN, BEGIN + timedelta(minutes=1)))

    assert told is not None and told.startswith("Over this minute a timeout of")


def test_without_a_recommendation_nothing_would_have_changed():
    assert replay_words(a_finding(recommended_timeout_s=None), (BEGIN, END)) is None


def test_findings_count_in_days_and_the_tables_know_better_when_they_begin_and_end():
    finding = a_finding(since="2026-11-09T00:00:00+00:00", until="2026-11-09T00:00:00+00:00")
    begin, end = (datetime(2026, 11, 9, 14, minute, tzinfo=UTC) for minute in (3, 5))

    assert period_of(finding, (begin, end)) == (begin, end)
    assert period_of(finding, (None, None)) == (BEGIN, BEGIN + timedelta(days=1))
