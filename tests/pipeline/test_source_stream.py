"""A queue as a stream: every message once, acknowledged when its batch is done, by either way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.pipeline.source_kit import (
    WAYS,
    Place,
    drained,
    end_windows,
    fill,
    ids_in,
    left,
    offset_in,
    reading,
)
from veil.pipeline import register
from veil.testing.process import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[VeilServer]:
    register(spark)
    with VeilServer() as running:
        yield running


# A round of receiving ends after some seconds. Where the size of a batch is looked at, a busy machine must
# not end it before the batch is full.
UNHURRIED = {"visibilityTimeout": 600, "receiveTime": 100}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_available_now_gives_each_message_once_and_acknowledges_all(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    ids = fill(server, f"all-{way}", [f"m{n}" for n in range(2_500)])
    rows = reading(spark, server, f"all-{way}", way, place, maxMessagesPerTrigger=1_000, **UNHURRIED)
    query = drained(rows, place)
    assert ids_in(spark, place) == Counter(ids)
    assert left(server, f"all-{way}") == (0, 0)
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [1_000, 1_000, 500]
    if way == "sqs":
        assert not list(place.segments.glob("*/*/*"))  # what is acknowledged is cleaned up


@pytest.mark.parametrize("way", WAYS)
def test_a_second_run_goes_on_where_the_first_ended(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    first = fill(server, f"on-{way}", ["a", "b", "c"])
    drained(reading(spark, server, f"on-{way}", way, place), place)
    second = fill(server, f"on-{way}", ["d", "e"])
    drained(reading(spark, server, f"on-{way}", way, place), place)
    assert ids_in(spark, place) == Counter(first + second)
    assert left(server, f"on-{way}") == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_the_columns_say_what_the_service_said(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    sqs = server.client()
    url = sqs.create_queue(QueueName=f"columns-{way}")["QueueUrl"]
    attributes = {
        "type": {"DataType": "String.kind", "StringValue": "order"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    began = datetime.now(UTC).replace(tzinfo=None)
    sent = sqs.send_message(QueueUrl=url, MessageBody="für dich", MessageAttributes=attributes)
    drained(reading(spark, server, f"columns-{way}", way, place), place)
    (row,) = spark.read.parquet(str(place.out)).collect()
    assert row.message_id == sent["MessageId"]
    assert row.body == "für dich"
    assert row.queue == f"columns-{way}"
    assert row.receive_count == 1
    assert row.attributes["type"].asDict() == {
        "data_type": "String.kind",
        "string_value": "order",
        "binary_value": None,
    }
    assert row.attributes["raw"].binary_value == b"\x00\xff"
    assert {"SentTimestamp", "ApproximateReceiveCount"} <= row.system_attributes.keys()
    assert abs((row.sent_at - began).total_seconds()) < 60
    assert row.received_at >= row.sent_at


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_failed_is_replayed_with_the_same_messages(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    ids = fill(server, f"again-{way}", [f"m{n}" for n in range(300)])
    seen: list[Counter[str]] = []

    def failing(batch: DataFrame, number: int) -> None:
        seen.append(Counter(row.message_id for row in batch.select("message_id").collect()))
        seen.append(Counter(row.message_id for row in batch.select("message_id").collect()))
        if len(seen) == 2:
            raise RuntimeError("the sink is away")

    def run() -> None:
        rows = reading(spark, server, f"again-{way}", way, place, maxMessagesPerTrigger=200, **UNHURRIED)
        query = rows.writeStream.foreachBatch(failing).option("checkpointLocation", str(place.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        run()
    assert left(server, f"again-{way}") == (100, 200)
    # One more is there now: a replay must not take it in.
    more = fill(server, f"again-{way}", ["late"])
    run()
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert seen[0] + seen[4] == Counter(ids + more)
    assert left(server, f"again-{way}") == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_new_checkpoint_never_meets_what_an_old_one_left(
    spark: SparkSession, server: VeilServer, place: Place, way: str, tmp_path: Path
):
    def failing(batch: DataFrame, number: int) -> None:
        batch.count()
        raise RuntimeError("never done")

    ids = fill(server, f"anew-{way}", ["a", "b", "c"])
    query = reading(spark, server, f"anew-{way}", way, place).writeStream.foreachBatch(failing)
    with pytest.raises(StreamingQueryException):
        query.option("checkpointLocation", str(tmp_path / "old" / "checkpoint")).start().awaitTermination()
    # The windows end: whoever comes next receives them, and not from an old segment or hold.
    old = Place(tmp_path / "old")
    end_windows(server, f"anew-{way}", offset_in(old), place)
    sqs = server.client()
    url = sqs.get_queue_url(QueueName=f"anew-{way}")["QueueUrl"]
    back: list[Any] = []
    while len(back) < 3:
        back += sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5).get(
            "Messages", []
        )
    for message in back:
        sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    drained(reading(spark, server, f"anew-{way}", way, place), place)
    assert ids_in(spark, place) == Counter(ids)
    counts = {row.receive_count for row in spark.read.parquet(str(place.out)).collect()}
    assert counts == {3}


@pytest.mark.parametrize("way", ["veil"])
def test_progress_shows_the_backlog_and_the_counts(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    fill(server, f"progress-{way}", [f"m{n}" for n in range(30)])
    query = drained(reading(spark, server, f"progress-{way}", way, place, maxMessagesPerTrigger=10), place)
    told = [json.loads(p["sources"][0]["latestOffset"]) for p in query.recentProgress]
    assert told[0]["backlog"] == 20
    assert told[-1]["backlog"] == 0
    assert told[-1]["deleted"] >= 10


def test_a_group_that_is_busy_is_drained_batch_by_batch(
    spark: SparkSession, server: VeilServer, place: Place
):
    """One group: the second part of each batch gets nothing, and yet AvailableNow does not stop before the end."""
    sqs = server.client()
    url = sqs.create_queue(
        QueueName="group.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    )["QueueUrl"]
    for at in range(0, 300, 10):
        entries = [{"Id": str(n), "MessageBody": f"m{at + n}", "MessageGroupId": "one"} for n in range(10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    drained(reading(spark, server, "group.fifo", "veil", place, maxMessagesPerTrigger=200), place)
    assert sum(ids_in(spark, place).values()) == len(ids_in(spark, place)) == 300
    assert left(server, "group.fifo") == (0, 0)


def test_bodies_are_parsed_by_a_schema_and_those_that_cannot_be_are_null(
    spark: SparkSession, server: VeilServer, place: Place
):
    bodies = [
        '{"id": 1, "at": "2026-01-31T12:00:00Z", "tags": {"a": [1]}, "new": 0}',
        "{not json",
        '{"id": "x"}',
    ]
    fill(server, "parsed", bodies)
    schema = "id int, at timestamp, tags map<string, array<int>>"
    drained(reading(spark, server, "parsed", "sqs", place, bodySchema=schema), place)
    rows = {row.body_text: row.body for row in spark.read.parquet(str(place.out)).collect()}
    assert rows.keys() == set(bodies)
    assert rows[bodies[0]].asDict() == {"id": 1, "at": datetime(2026, 1, 31, 12), "tags": {"a": [1]}}
    assert rows[bodies[1]] is None
    assert rows[bodies[2]] is None
