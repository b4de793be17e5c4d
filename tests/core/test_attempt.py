"""The rule that says what came of an attempt, and the header by which a holder says it itself."""

from __future__ import annotations

from itertools import product

import pytest

from veil.core.attempt import (
    ANY_ENTRY,
    GIVEN_BACK,
    HEADER_BYTES_MAX,
    PATIENCE_MAX_MS,
    PATIENCE_MIN_MS,
    AttemptFacts,
    AttemptOutcome,
    ReportedOutcome,
    outcome_of,
    patience_ms,
    read_header,
    write_header,
)

NOW = 10
AT = (None, 4, 5, 6)


def every_case() -> list[AttemptFacts]:
    """Each fact unknown, before, at and after a deadline of 5, and with a deadline that is to come."""
    return [
        AttemptFacts(*case)
        for case in product(
            (None, 5, 15),
            (None, 4),
            (None, "failed", "given_back"),
            (None, 4),
            (False, True),
            AT,
            (None, 6),
            AT,
            AT,
        )
    ]


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        (AttemptFacts(deadline=15), AttemptOutcome.OPEN),
        (AttemptFacts(deadline=15, deleted_at=4), AttemptOutcome.COMPLETED),
        (AttemptFacts(deadline=5, deleted_at=8), AttemptOutcome.COMPLETED),
        (AttemptFacts(deadline=15, said="failed", is_returned=True), AttemptOutcome.FAILED),
        (AttemptFacts(deadline=15, said="failed", deleted_at=4), AttemptOutcome.FAILED),
        (AttemptFacts(deadline=15, is_returned=True), AttemptOutcome.GIVEN_BACK),
        (AttemptFacts(deadline=15, gone_at=9), AttemptOutcome.REMOVED),
        (AttemptFacts(deadline=5), AttemptOutcome.UNKNOWN),
        (AttemptFacts(deadline=5, refused_at=8, silent_at=7), AttemptOutcome.OVERRAN),
        (AttemptFacts(deadline=5, seen_at=8), AttemptOutcome.FAILED),
        (AttemptFacts(deadline=5, silent_at=8), AttemptOutcome.CRASHED),
        (AttemptFacts(deadline=5, seen_at=4, silent_at=4), AttemptOutcome.UNKNOWN),
        (AttemptFacts(deadline=15, undone_at=4), AttemptOutcome.UNDONE),
    ],
)
def test_an_attempt_is_judged_by_what_is_known_of_it(facts: AttemptFacts, outcome: AttemptOutcome):
    assert outcome_of(facts, NOW) is outcome


def test_silence_counts_after_a_window_of_the_holder_and_not_before_a_minute():
    assert patience_ms(30_000) == PATIENCE_MIN_MS
    assert patience_ms(600_000) == 600_000
    assert patience_ms(43_200_000) == PATIENCE_MAX_MS


# ---- the header


def test_a_header_says_of_each_entry_what_was_said_of_it():
    error = ReportedOutcome("failed", "shop.NoStock", "none left: ∅", "  File …")
    reported = {
        "0": error,
        "1": GIVEN_BACK,
        "2": ReportedOutcome("failed", worked_ms=5),
        "3": error,
        "5": ReportedOutcome(None, worked_ms=0),
    }
    text = write_header(reported)
    assert text.isascii()
    assert read_header(text, [*reported, "4"]) == [*reported.values(), None]
    assert text.count("File") == 1


def test_a_header_of_many_entries_without_errors_is_written_whole():
    reported = {str(at): ReportedOutcome(None, worked_ms=123_456) for at in range(1_000)}
    assert len(write_header(reported)) > HEADER_BYTES_MAX  # the server ignores it, and counts it
    assert write_header({"0": None}) == ""


def test_errors_of_one_place_carry_their_traceback_once():
    reported = {
        str(at): ReportedOutcome("failed", "shop.NoStock", f"none left of {at}", "  File …" * 100)
        for at in range(10)
    }
    text = write_header(reported)
    assert read_header(text, reported) == list(reported.values())
    assert (text.count("none left"), text.count("File")) == (10, 100)


def test_one_word_may_stand_for_every_entry():
    assert read_header(write_header({ANY_ENTRY: GIVEN_BACK}), ["17"]) == [GIVEN_BACK]


@pytest.mark.parametrize("size", [10, 3_000, 100_000])
def test_errors_that_do_not_fit_are_cut_and_the_outcomes_stay(size: int):
    reported = {
        str(at): ReportedOutcome("failed", f"E{at}", "é" * size, f"{'x' * size}{at}") for at in range(10)
    }
    text = write_header(reported)
    assert len(text) <= HEADER_BYTES_MAX
    found = read_header(text, reported)
    assert found is not None
    for cut, each in zip(found, reported.values(), strict=True):
        assert cut is not None
        assert (cut.outcome, cut.error_type) == ("failed", each.error_type)
        assert each.traceback is not None and cut.traceback is not None
        assert each.traceback.endswith(cut.traceback)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"failed":[]}',
        '{"failed":{"0":0}}',
        '{"failed":{"0":[0,"b"]}}',
        '{"failed":{"0":[-1,"b"]},"errors":[["a",null]]}',
        '{"failed":{"0":[1,"b"]},"errors":[["a",null]]}',
        '{"failed":{"0":[0,"b"]},"errors":[["a"]]}',
        '{"failed":{"0":[0,"b"]},"errors":[["a","\\ud800"]]}',
        '{"failed":{"0":0},"errors":[["a","b",null]]}',
        '{"given_back":["\ud800"]}',
        f'{{"given_back":["{"x" * HEADER_BYTES_MAX}"]}}',
    ],
)
def test_a_header_that_is_not_one_says_nothing(text: str):
    assert read_header(text, ["0"]) is None
