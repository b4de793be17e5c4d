"""The sink on a real Spark and a real server: what is in the queue afterwards, also when the write was cut short."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.queues_kit import Queues
from veil.pipeline import register
from veil.pipeline.lifecycles.store import spark_set
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture
def session(
    spark: SparkSession, veil_server: VeilServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkSession]:
    """A session that knows the format; Arrow batches are small, so that a task sends before it has seen all its rows."""
    register(spark)
    with spark_set(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"}):
        yield spark


@pytest.fixture
def queues(veil_server: VeilServer) -> Queues:
    return Queues(veil_server)


def write(rows: DataFrame, queues: Queues, **options: str) -> None:
    rows.write.format("veil").options(**service(queues), **options).mode("append").save()


def service(queues: Queues) -> dict[str, str]:
    return {"endpoint": queues.server.endpoint_url, "region": "us-east-1"}


def stream(spark: SparkSession, queues: Queues, folder: Path, rows: str, **options: str) -> StreamingQuery:
    """A query over the numbers in `folder/in`, a file a batch, each made into a message by the expressions."""
    numbers = (
        spark.readStream.schema("id bigint").option("maxFilesPerTrigger", "1").parquet(str(folder / "in"))
    )
    query = (
        numbers.selectExpr(*rows.split(";"))
        .writeStream.format("veil")
        .options(**service(queues), **options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def numbers(spark: SparkSession, folder: Path, count: int, files: int = 1) -> None:
    spark.range(0, count, 1, files).write.mode("append").parquet(str(folder / "in"))


def told(error: pytest.ExceptionInfo[Exception]) -> str:
    return str(error.value)


def test_rows_become_messages_with_all_they_have(session: SparkSession, queues: Queues):
    queues.create("orders")
    rows = session.sql(
        "select 'hello' body, map('kind', named_struct('data_type', 'String', 'string_value', 'new', 'binary_value', "
        "cast(null as binary)), 'raw', named_struct('data_type', 'Binary', 'string_value', cast(null as string), "
        "'binary_value', x'00ff')) attributes, 'tenant-1' message_group_id, 0 delay_s, 'Root=1-2-3' trace_header"
    )

    write(rows, queues, queue="orders")

    (got,) = queues.take_all("orders")
    assert got.body == "hello"
    assert got.text("kind") == "new"
    assert (got.attributes["raw"]["DataType"], got.attributes["raw"]["BinaryValue"]) == (
        "Binary",
        b"\x00\xff",
    )
    assert (got.system["MessageGroupId"], got.system["AWSTraceHeader"]) == ("tenant-1", "Root=1-2-3")


def test_every_row_arrives_once_and_plain_attributes_are_strings(session: SparkSession, queues: Queues):
    queues.create("orders")
    rows = session.range(0, 437, 1, 3).selectExpr(
        "concat('order ', id) body", "map('kind', 'new') attributes"
    )

    write(rows, queues, queue="orders")

    got = queues.take_all("orders")
    assert Counter(each.body for each in got) == Counter(f"order {n}" for n in range(437))
    assert {each.attributes["kind"]["DataType"] for each in got} == {"String"}


def test_a_group_of_a_fifo_queue_arrives_in_the_order_of_its_rows(session: SparkSession, queues: Queues):
    queues.create("steps.fifo")
    rows = session.range(0, 300, 1, 2).selectExpr(
        "cast(id as string) body", "concat('g', int(id / 150), '-', id % 5) group"
    )

    write(rows, queues, queue="steps.fifo")

    got = queues.take_all("steps.fifo")
    assert len(got) == 300
    by_group: dict[str, list[int]] = {}
    for each in got:
        by_group.setdefault(each.system["MessageGroupId"], []).append(int(each.body))
    assert len(by_group) == 10
    for group, numbers_ in by_group.items():
        assert numbers_ == sorted(numbers_), group


def test_a_column_can_say_the_queue_of_each_row(session: SparkSession, queues: Queues):
    queues.create("a")
    queues.create("b.fifo")
    rows = session.range(0, 60, 1, 2).selectExpr(
        "cast(id as string) body",
        "'g' group",
        "if(id % 3 = 0, 'b.fifo', 'a') target",
        "concat('d', id) deduplication_id",
    )

    write(rows, queues, queueColumn="target")

    assert {int(each.body) % 3 for each in queues.take_all("a")} == {1, 2}
    in_b = queues.take_all("b.fifo")
    assert sorted(int(each.body) for each in in_b) == list(range(0, 60, 3))
    assert {each.system["MessageDeduplicationId"] for each in in_b} == {f"d{n}" for n in range(0, 60, 3)}


def test_a_row_that_cannot_be_sent_fails_the_job_with_its_place_and_key(
    session: SparkSession, queues: Queues
):
    queues.create("orders")
    rows = session.range(0, 10, 1, 1).selectExpr("id order_id", "if(id = 7, repeat('x', 1100000), 'x') body")

    with pytest.raises(Exception, match="RowRefused") as failed:
        write(rows, queues, queue="orders", keyColumn="order_id")

    assert (
        "row 7 of partition 0 (order_id=7) cannot be sent to queue orders: the message has 1100000 bytes"
        in told(failed)
    )


def test_rows_that_cannot_be_sent_go_to_the_error_path_and_the_rest_is_sent(
    session: SparkSession, queues: Queues, tmp_path: Path
):
    queues.create("orders", MaximumMessageSize="1024")
    bodies = "case id when 3 then null when 5 then repeat('x', 2000) when 8 then 'bell \\u0007' else concat('b', id) end"
    rows = session.range(0, 20, 1, 2).selectExpr(
        "id", f"{bodies} body", "if(id = 11, 'nowhere', 'orders') target"
    )

    write(rows, queues, queueColumn="target", keyColumn="id", errorPath=str(tmp_path / "errors"))

    sent = {each.body for each in queues.take_all("orders")}
    assert sent == {f"b{n}" for n in range(20) if n not in (3, 5, 8, 11)}
    lines = refused_rows(tmp_path / "errors")
    assert {line["key"]: line["reason"].split(":")[0] for line in lines} == {
        "3": "the message has no body",
        "5": "InvalidParameterValue",  # the queue's own limit: it says so itself
        "8": "the body holds a character outside the allowed set",
        "11": "there is no such queue",
    }
    assert {line["key"]: line["body"] for line in lines}["5"] == "x" * 2000
    assert session.read.json(str(tmp_path / "errors" / "*")).count() == 4


def refused_rows(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in sorted(folder.rglob("*.jsonl")) for line in file.read_text().splitlines()
    ]


def test_a_query_that_failed_half_way_sends_nothing_twice_to_a_fifo_queue(
    session: SparkSession, queues: Queues, tmp_path: Path
):
    queues.create("steps.fifo")
    numbers(session, tmp_path, 2_000)
    rows = "if(id = 1666, null, concat('b', id)) body;concat('g', id % 9) group"
    with pytest.raises(Exception, match="the message has no body"):
        stream(session, queues, tmp_path, rows, queue="steps.fifo")
    before = queues.count("steps.fifo")
    assert 0 < before < 1_999  # cut short, after some were sent

    stream(session, queues, tmp_path, rows, queue="steps.fifo", errorPath=str(tmp_path / "errors"))

    got = queues.take_all("steps.fifo")
    assert Counter(each.body for each in got) == Counter(f"b{n}" for n in range(2_000) if n != 1666)
    (line,) = refused_rows(tmp_path / "errors")
    assert (line["row"], line["reason"]) == (1666, "the message has no body")


@pytest.mark.parametrize("queue", [pytest.param("steps.fifo", marks=pytest.mark.soak), "orders"])
def test_a_batch_whose_commit_was_lost_is_sent_again_and_is_there_once(
    session: SparkSession, queues: Queues, tmp_path: Path, queue: str
):
    """On a standard queue too, since the server is a Veil: it knows the calls again for five minutes."""
    queues.create(queue)
    numbers(session, tmp_path, 300, files=2)
    rows = "concat('b', id) body;concat('g', id % 9) group"
    stream(session, queues, tmp_path, rows, queue=queue)
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)

    again = stream(session, queues, tmp_path, rows, queue=queue)

    assert [progress["numInputRows"] for progress in again.recentProgress if progress["numInputRows"]] == [
        150
    ]
    assert Counter(each.body for each in queues.take_all(queue)) == Counter(f"b{n}" for n in range(300))


def test_a_write_with_a_name_can_be_done_again(session: SparkSession, queues: Queues):
    queues.create("steps.fifo")
    rows = session.range(0, 120, 1, 2).selectExpr("concat('b', id) body", "'g' group")

    for _ in range(2):
        write(rows, queues, queue="steps.fifo", writeId="2026-03-02")
    assert queues.count("steps.fifo") == 120

    write(rows, queues, queue="steps.fifo")
    assert queues.count("steps.fifo") == 240


def test_a_column_for_the_deduplication_id_must_be_filled(session: SparkSession, queues: Queues):
    queues.create("steps.fifo")
    rows = session.range(0, 3, 1, 1).selectExpr("'x' body", "'g' group", "nullif(id, 1) id")

    with pytest.raises(Exception, match="id is null, and is to be the deduplication id"):
        write(rows, queues, queue="steps.fifo", deduplicationColumn="id")


@pytest.mark.parametrize(
    ("options", "mode", "expected"),
    [
        ({"queue": "nowhere"}, "append", "option queue='nowhere': expected a queue that exists at"),
        ({"queue": "orders"}, "overwrite", "option mode='overwrite': expected append"),
        ({"queue": "orders", "deduplicationColumn": "body"}, "append", "orders deduplicates nothing"),
    ],
)
def test_a_mistake_is_told_before_anything_is_sent(
    session: SparkSession, queues: Queues, options: dict[str, str], mode: str, expected: str
):
    queues.create("orders")
    rows = session.sql("select 'x' body")

    with pytest.raises(Exception, match="OptionError") as refused:
        rows.write.format("veil").options(**service(queues), **options).mode(mode).save()

    assert expected in told(refused)
    assert queues.count("orders") == 0
