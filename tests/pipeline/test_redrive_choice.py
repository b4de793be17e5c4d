"""Which dead letters are redriven and as what, in Spark's SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.dead_letters_kit import a_letter, frame
from veil.pipeline.dead_letters.analysis import dead_letters
from veil.pipeline.dead_letters.queue import DeadLettersRefused
from veil.pipeline.dead_letters.selection import Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def letters(spark: SparkSession) -> DataFrame:
    timeouts = [
        a_letter(n, veil__error_type="Timeout", veil__reason=f"after {n} s", kind="a") for n in range(3)
    ]
    others = [a_letter(n, source="orders") for n in range(3, 5)]
    return dead_letters(frame(spark, *timeouts, *others)).cache()


def ids(chosen: DataFrame) -> list[int]:
    return sorted(row["seq"] for row in chosen.collect())


@pytest.mark.parametrize(
    ("where", "selected"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("error_type = 'Timeout'", [0, 1, 2]),
        ("error_type = 'Timeout' and first_seen > '2026-03-02 12:00:30'", [1, 2]),
        ("source = 'orders' and not redriven_before", [3, 4]),
        ("get_json_object(body, '$.n') = '4'", [4]),
        ("attributes['kind'].string_value = 'a' and fingerprint like 'after%'", [0, 1, 2]),
        ("error_type is null and receive_count >= 4", []),
    ],
)
def test_a_condition_over_the_columns_selects(letters: DataFrame, where: str | None, selected: list[int]):
    assert ids(Selection(where).applied(letters)) == selected


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (Selection("eror_type = 'x'"), r"--where \"eror_type = 'x'\": .*eror_type.* columns are queue, message_id, seq"),
        (Selection("error_type ="), "--where 'error_type =': "),
        (Selection("receive_count"), "--where 'receive_count': expected a condition, this is a int"),
        (Selection(body="receive_count"), "--set-body 'receive_count': expected text, this is a int"),
        (Selection(body="nonsense("), r"--set-body 'nonsense\('"),
        (Selection(attributes={"x": "attributes"}), "--set-attribute x=attributes: expected text, a number or bytes"),
    ],
)  # fmt: skip
def test_what_spark_cannot_read_is_refused_by_option_and_value(
    spark: SparkSession, choice: Selection, told: str
):
    with pytest.raises(DeadLettersRefused, match=told):
        choice.check(spark)


def test_nothing_changes_unless_it_is_said(letters: DataFrame):
    rows = Selection("seq = 1").applied(letters).collect()

    assert [(row["new_body"], row["new_attributes"]) for row in rows] == [(None, None)]


def test_a_body_can_be_another_and_where_it_is_null_the_old_one_stays(letters: DataFrame):
    changed = Selection(body="if(seq = 1, concat(body, '!'), null)").applied(letters)

    bodies = {row["seq"]: row["new_body"] for row in changed.collect()}
    assert bodies == {0: None, 1: '{"n": 1}!', 2: None, 3: None, 4: None}


def test_attributes_are_added_replaced_and_removed_and_the_others_stay(letters: DataFrame):
    given = {"kind": "null", "tries": "receive_count + 1", "note": "upper('b')", "raw": "X'0102'"}

    (row,) = Selection("seq = 1", attributes=given).applied(letters).collect()

    found: dict[str, Any] = {name: tuple(value) for name, value in row["new_attributes"].items()}
    assert found == {
        "veil.error_type": ("String", "Timeout", None),
        "veil.reason": ("String", "after 1 s", None),
        "tries": ("Number", "4", None),
        "note": ("String", "B", None),
        "raw": ("Binary", None, b"\x01\x02"),
    }
