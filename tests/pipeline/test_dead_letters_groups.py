"""Dead letters become groups that tell what failed, since when and how often."""

from __future__ import annotations

from datetime import timedelta
from errno import EROFS
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.dead_letters_kit import NOON, a_letter, frame
from veil.journal.storage import LocalStorage, Storage
from veil.pipeline.dead_letters.analysis import FILE, dead_letters, grouped, read_groups, write_groups
from veil.pipeline.dead_letters.queue import peeked
from veil.pipeline.queues import QueueAddress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEASES = "message_id string, queue string, delivery int, outcome string, error_type string, error_text string, traceback string"
NO_ERROR = (None, None, None)
MESSAGES = "message_id string, dead_lettered_at timestamp, dead_letter_queue string"


TRACE = """Traceback (most recent call last):
  File "/srv/shop/handlers.py", line 12, in handle
    pay(order)
  File "/srv/shop/pay.py", line 3, in {function}
    raise Declined
"""


def by_id(letters: DataFrame) -> dict[str, Any]:
    return {row["message_id"]: row for row in letters.collect()}


def test_a_consumers_copy_tells_its_source_its_error_and_the_id_that_the_sender_knows(spark: SparkSession):
    copy = a_letter(
        1, veil__source_queue="orders", veil__error_type="shop.Declined", veil__reason="card 4711 declined",
        veil__message_id="the-first", veil__receive_count=5, veil__handler="pay", type="payment", receive_count=0,
    )  # fmt: skip

    (row,) = dead_letters(frame(spark, copy)).collect()

    assert (row["source"], row["message_type"], row["error_type"]) == ("orders", "payment", "shop.Declined")
    assert (row["error_text"], row["fingerprint"]) == ("card 4711 declined", "card <n> declined")
    assert (row["first_id"], row["receive_count"], row["handler"]) == ("the-first", 5, "pay")
    assert row["dead_since"] == row["first_seen"] == row["sent_at"]
    assert row["redriven_before"] is False


def test_what_the_server_dead_lettered_has_a_source_and_no_error(spark: SparkSession):
    spent = a_letter(1, source="orders", receive_count=4, Veil__RedrivenFrom="an-earlier-one")

    (row,) = dead_letters(frame(spark, spent)).collect()

    assert (row["source"], row["error_type"], row["fingerprint"]) == ("orders", None, None)
    assert row["dead_since"] is None
    assert row["first_seen"] == row["sent_at"]
    assert row["receive_count"] == 4
    assert row["redriven_before"] is True


def test_the_tables_tell_how_the_leases_ended_and_since_when_it_is_dead(spark: SparkSession):
    peeked = frame(spark, a_letter(1, source="orders"), a_letter(2, veil__message_id="old"), a_letter(3))
    leases = spark.createDataFrame(
        [
            ("message-1", "orders", 1, "failed", "KeyError", "'a'", TRACE.format(function="first")),
            (
                "message-1",
                "orders",
                2,
                "failed",
                "shop.Declined",
                "card 4711 declined",
                TRACE.format(function="pay"),
            ),
            ("message-1", "orders", 3, "crashed", *NO_ERROR),
            ("message-1", "orders-dead", 1, "given_back", *NO_ERROR),  # somebody looked at the dead letter
            ("message-1", "orders", 0, "open", *NO_ERROR),  # no lease
            ("old", "orders", 1, "completed", *NO_ERROR),
        ],
        LEASES,
    )
    died_at = NOON + timedelta(hours=9)
    messages = spark.createDataFrame([("message-1", died_at, "orders-dead"), ("old", None, None)], MESSAGES)

    rows = by_id(dead_letters(peeked, leases, messages))

    assert rows["message-1"]["leases"] == "1 × crashed, 2 × failed"
    assert rows["message-2"]["leases"] == "1 × completed"
    # Though the server dead-lettered it for its receives, its last error is known.
    assert (rows["message-1"]["error_type"], rows["message-1"]["fingerprint"]) == (
        "shop.Declined",
        "card <n> declined",
    )
    assert rows["message-1"]["place"] == "shop/pay.py in pay"
    assert rows["message-3"]["leases"] is None
    assert rows["message-1"]["first_seen"].timestamp() == died_at.timestamp()
    assert len(rows) == 3


def test_groups_count_span_and_show_the_newest_and_the_oldest(spark: SparkSession, tables_place: Storage):
    timeouts = [
        a_letter(n, veil__source_queue="orders", veil__error_type="Timeout", veil__reason=f"after {n} s", receive_count=n)
        for n in range(1, 8)
    ]  # fmt: skip
    others = [a_letter(10, source="orders", state="in_flight"), a_letter(11, source="mails", type="mail")]
    letters = dead_letters(frame(spark, *timeouts, *others))

    write_groups(grouped(letters, NOON), tables_place)
    first, *rest = read_groups(tables_place)

    assert (first.source, first.error_type, first.fingerprint) == ("orders", "Timeout", "after <n> s")
    assert first.messages == 7
    assert (first.receive_count_min, first.receive_count_median, first.receive_count_max) == (1, 4, 7)
    assert (first.first_seen, first.last_seen) == (NOON + timedelta(minutes=1), NOON + timedelta(minutes=7))
    assert [example.message_id for example in first.examples] == ["message-7", "message-1"]
    assert first.examples[0].error_text == "after 7 s"
    assert first.examples[0].body == '{"n": 7}'
    assert {(group.source, group.message_type, group.messages, group.in_flight) for group in rest} == {
        ("orders", None, 1, 1),
        ("mails", "mail", 1, 0),
    }
    assert first.analysed_at == NOON
    assert len({group.group_id for group in (first, *rest)}) == 3


def test_errors_of_one_type_that_were_raised_in_two_places_are_two_groups(
    spark: SparkSession, tables_place: Storage
):
    letters = [
        a_letter(
            n,
            veil__error_type="KeyError",
            veil__reason=f"no key {n}",  # the numbers differ, and yet it is the same error, today and tomorrow
            veil__traceback=TRACE.format(function=function),
        )
        for n, function in enumerate(["pay", "pay", "ship"])
    ]
    write_groups(grouped(dead_letters(frame(spark, *letters)), NOON), tables_place)

    groups = read_groups(tables_place)

    assert [(group.error_type, group.place, group.messages) for group in groups] == [
        ("KeyError", "shop/pay.py in pay", 2),
        ("KeyError", "shop/pay.py in ship", 1),
    ]


def test_the_commonest_lease_histories_come_first(spark: SparkSession, tables_place: Storage):
    letters = frame(spark, *(a_letter(n, source="orders") for n in range(5)))
    ends = ["crashed", "crashed", "crashed", "completed", None]
    leases = [(f"message-{n}", "orders", 1, end, *NO_ERROR) for n, end in enumerate(ends) if end]

    told = dead_letters(letters, spark.createDataFrame(leases, LEASES))
    write_groups(grouped(told, NOON), tables_place)

    (group,) = read_groups(tables_place)
    assert [(each.messages, each.leases) for each in group.leases] == [
        (3, "1 × crashed"),
        (1, "1 × completed"),
    ]


def test_an_analysis_replaces_the_table_and_leaves_nothing_beside_it(
    spark: SparkSession, tables_place: Storage
):
    assert read_groups(tables_place) == []
    letters = dead_letters(frame(spark, a_letter(1, source="queue-1")))
    write_groups(grouped(letters, NOON), tables_place)
    assert [group.source for group in read_groups(tables_place)] == ["queue-1"]

    write_groups(grouped(dead_letters(frame(spark)), NOON), tables_place)

    assert read_groups(tables_place) == []
    assert [entry.name for entry in tables_place.entries()] == [FILE]


def test_tables_that_cannot_be_written_to_are_named_before_spark_does_anything(
    tables_place: Storage, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(EROFS, "Read-only file system", tables_place.uri)

    monkeypatch.setattr(LocalStorage, "writing", refuse)
    nobody: Any = object()

    with (
        pytest.raises(OSError, match="Read-only file system"),
        peeked(nobody, QueueAddress("dead"), [], tables_place),
    ):
        pass
