"""Rules as somebody writes them, and what they do with messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from veil.pipeline.routing.router import CLASS, ROUTED_FROM, forwarded
from veil.pipeline.routing.rules import (
    Match,
    RouteRefused,
    RouteTable,
    Rule,
    Target,
    check_class_by,
    class_column,
    read_rule_file,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RULES = """
default = "o-medium"

[queues]
o-short = "30s"
o-medium = "5min"
"o-long.fifo" = "1h"

[[rules]]
type = ["mail", "sms*"]
queue = "o-short"

[[rules]]
json = { "$.order.kind" = "bulk", "$.paid" = true }
group = "tenant-*"
queue = "o-long.fifo"

[[rules]]
size_from = 1000
queue = "o-long.fifo"
"""
SCHEMA = """message_id string, body string,
    attributes map<string, struct<data_type: string, string_value: string, binary_value: binary>>,
    system_attributes map<string, string>"""


def written(text: str, tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(text, encoding="utf-8")
    return file


def a_message(
    number: int, body: str = "x", type_: str | None = None, group: str | None = None, **more: str
) -> Any:
    attributes: dict[str, Any] = {name: ("String", value, None) for name, value in more.items()}
    if type_ is not None:
        attributes["MessageType"] = ("String", type_, None)
    return (f"{number:036d}", body, attributes, {} if group is None else {"MessageGroupId": group})


def messages(spark: SparkSession, *rows: Any) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA)


def sent_on(rows: DataFrame, table: RouteTable) -> list[Any]:
    return sorted(forwarded(rows, table, keeps_order=False, parts=2).collect())


def test_the_first_rule_that_matches_decides(spark: SparkSession, tmp_path: Path):
    table = read_rule_file(written(RULES, tmp_path))
    bulk = '{"order": {"kind": "bulk"}, "paid": true}'
    rows = messages(
        spark,
        a_message(0, type_="mail"),
        a_message(1, type_="sms-urgent", body="x" * 2000),
        a_message(2, type_="mailing"),
        a_message(3, body=bulk, group="tenant-7"),
        a_message(4, body=bulk, group="other"),
        a_message(5, body=bulk),
        a_message(6, body='{"order": {"kind": "bulk"}, "paid": false}', group="tenant-7"),
        a_message(7, body="x" * 1000),
        a_message(8, body="é" * 499),
        a_message(9, body="not json {", group="tenant-7"),
    )

    assert [row["queue"] for row in sent_on(rows, table)] == [
        "o-short", "o-short", "o-medium", "o-long.fifo", "o-medium", "o-medium", "o-medium", "o-long.fifo",
        "o-medium", "o-medium",
    ]  # fmt: skip


def test_targets_and_timeouts_are_those_of_the_file(tmp_path: Path):
    table = read_rule_file(written(RULES, tmp_path))

    assert table.targets == (Target("o-short", 30), Target("o-medium", 300), Target("o-long.fifo", 3600))
    assert [str(rule) for rule in table.rules] == [
        "type 'mail', 'sms*'",
        "group 'tenant-*' and $.order.kind 'bulk' and $.paid 'true'",
        "1000 bytes or more",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("default = 1 1", "expected TOML"),
        ('default = "a"', "queues: expected a table of the target queues"),
        ('default = "b"\n[queues]\na = "30s"', "default 'b': expected one of the queues a"),
        ('default = "a"\nrulez = 1\n[queues]\na = "30s"', "the file: 'rulez': expected only"),
        ('default = "a"\n[queues]\na = "30 days"', "queue a: timeout '30 days': expected a timeout"),
        ('default = "a"\n[queues]\na = 30\n[[rules]]\nqueue = "b"\ntype = "t"', "rule 1: queue 'b': expected one of a"),
        ('default = "a"\n[queues]\na = 30\n[[rules]]\nqueue = "a"', "rule 1: expected a condition"),
        ('default = "a"\n[queues]\na = 30\n[[rules]]\nqueue = "a"\ntyp = "t"', "rule 1: 'typ': expected only queue, type"),
        ('default = "a"\n[queues]\na = 30\n[[rules]]\nqueue = "a"\njson = { kind = "x" }', "json 'kind': expected a path"),
        ('default = "a"\n[queues]\na = 30\n[[rules]]\nqueue = "a"\nsize_from = "big"', "size_from 'big': expected a number"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_meant_is_told_with_the_place_in_it(text: str, told: str, tmp_path: Path):
    with pytest.raises(RouteRefused) as refused:
        read_rule_file(written(text, tmp_path))

    assert told in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(RouteRefused, match="No such file"):
        read_rule_file(tmp_path / "none.toml")


@pytest.mark.parametrize("by", ["kind", "json:", "json:$", "json:kind", "json:$.a b"])
def test_a_class_that_cannot_be_is_told(by: str):
    with pytest.raises(RouteRefused, match="expected type, group, size or json"):
        check_class_by(by)


def test_classes_are_type_group_field_and_size(spark: SparkSession):
    rows = messages(
        spark,
        a_message(1, '{"a": {"b": 5}}', "mail", "g"),
        a_message(2, "x" * 2000),
        a_message(3, "x" * 300_000),
    )

    def classes(by: str) -> list[str | None]:
        return [
            row[0] for row in rows.orderBy("message_id").select(class_column(check_class_by(by))).collect()
        ]

    assert classes("type") == ["mail", None, None]
    assert classes("group") == ["g", None, None]
    assert classes("json:$.a.b") == ["5", None, None]
    assert classes("size") == ["up to 1 KiB", "up to 16 KiB", "above 256 KiB"]


def test_a_message_keeps_what_it_has_and_is_marked_with_its_id(spark: SparkSession):
    table = RouteTable((Target("a"), Target("b.fifo")), "a", (Rule("b.fifo", (Match("type", ("bill",)),)),))
    rows = messages(spark, a_message(1, type_="mail", group="g", colour="red"), a_message(2, type_="bill"))

    plain, fifo = sent_on(rows, table)

    assert plain["attributes"]["colour"]["string_value"] == "red"
    assert plain["attributes"][ROUTED_FROM]["string_value"] == plain["message_id"]
    assert (plain["group"], fifo["group"]) == ("g", fifo["message_id"])
    assert fifo["deduplication_id"] == fifo["message_id"]


def test_messages_without_a_class_can_have_a_rule_of_their_own(spark: SparkSession):
    table = RouteTable((Target("a"), Target("b")), "a", (Rule("b", (Match("type", ("", "x")),)),))

    found = sent_on(messages(spark, a_message(1), a_message(2, type_="x"), a_message(3, type_="y")), table)

    assert [row["queue"] for row in found] == ["b", "b", "a"]


def test_one_that_was_routed_before_keeps_its_first_id(spark: SparkSession):
    table = RouteTable((Target("a"),), "a")

    (row,) = sent_on(messages(spark, a_message(1, **{ROUTED_FROM: "first"})), table)

    assert row["attributes"][ROUTED_FROM]["string_value"] == "first"


def test_a_mark_for_which_there_is_no_room_is_left_out(spark: SparkSession):
    table = RouteTable((Target("a"),), "a", class_by="group")
    many = {f"n{number}": "v" for number in range(9)}
    rows = messages(
        spark,
        a_message(1, group="g"),
        a_message(2, group="g", **many),
        a_message(3, group="g", last="v", **many),
        a_message(4, "x" * (1 << 20), group="g"),
        a_message(5, "x" * ((1 << 20) - 36 - 15 - 6), group="g"),
    )

    found = [{ROUTED_FROM, CLASS} & set(row["attributes"]) for row in sent_on(rows, table)]

    assert found == [{ROUTED_FROM, CLASS}, {ROUTED_FROM}, set(), set(), {ROUTED_FROM}]


def test_a_group_of_a_fifo_intake_is_one_tasks_in_the_order_of_the_intake(spark: SparkSession):
    from pyspark.sql import functions as F  # noqa: N812

    rows = [
        (
            str(number),
            "x",
            {},
            {"MessageGroupId": f"g{number % 5}", "SequenceNumber": str(10**20 - 50 + number)},
        )
        for number in range(100)
    ]
    scattered = messages(spark, *rows).repartition(3).orderBy(F.rand(seed=1))

    found = forwarded(scattered, RouteTable((Target("a"),), "a"), keeps_order=True, parts=2)

    in_place = found.select("message_id", "group", F.spark_partition_id().alias("task")).collect()
    assert len({row["task"] for row in in_place}) == 2
    for group in range(5):
        of_it = [row for row in in_place if row["group"] == f"g{group}"]
        assert len({row["task"] for row in of_it}) == 1
        assert [int(row["message_id"]) for row in of_it] == list(range(group, 100, 5))
