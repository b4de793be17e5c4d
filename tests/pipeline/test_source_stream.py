"""A queue as a stream: every message once, acknowledged when its batch is done, by either way."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from pyspark.errors import StreamingQueryException

from tests.pipeline.source_kit import (
    UNHURRIED,
    WAYS,
    Place,
    columns,
    drained,
    end_windows,
    fill,
    ids_in,
    ids_of,
    left,
    reading,
    rows_of,
    streams,
)
from veil.pipeline import register
from veil.pipeline.queues import CALLS_AT_ONCE
from veil.pipeline.source.columns import schema_of
from veil.pipeline.source.options import SourceOptions
from veil.pipeline.source.readers import QueueStreamReader
from veil.pipeline.source.stream import Offset
from veil.testing.process import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[VeilServer]:
    register(spark)
    with VeilServer() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_available_now_gives_each_message_once_and_a_second_run_goes_on(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    ids = fill(server, f"all-{way}", [f"m{n}" for n in range(1_250)])

    def run() -> StreamingQuery:
        return drained(
            reading(spark, server, f"all-{way}", way, place, maxMessagesPerTrigger=500, **UNHURRIED), place
        )

    query = run()
    assert ids_in(spark, place) == Counter(ids)
    assert left(server, f"all-{way}") == (0, 0)
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [500, 500, 250]
    told = [json.loads(p["sources"][0]["latestOffset"]) for p in query.recentProgress]
    assert (told[0]["backlog"], told[-1]["backlog"]) == (750, 0)
    assert told[-1]["deleted"] >= 500
    if way == "sqs":
        assert not list(place.segments.glob("*/*/*"))  # what is acknowledged is cleaned up
    more = fill(server, f"all-{way}", ["a", "b"])
    run()
    assert ids_in(spark, place) == Counter(ids + more)
    assert left(server, f"all-{way}") == (0, 0)


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
    began = datetime.now(UTC)
    sent = sqs.send_message(QueueUrl=url, MessageBody="für dich", MessageAttributes=attributes)
    at: Offset = {"epoch": "columns", "n": 0, "by": way}
    with streams(spark, server, f"columns-{way}", place) as opened:
        stream = opened(at)
        (row,) = rows_of(stream, at, stream.next_offset(at, 10), spark)
    assert row["message_id"] == sent["MessageId"]
    assert row["body"] == "für dich"
    assert row["queue"] == f"columns-{way}"
    assert row["receive_count"] == 1
    given = dict(row["attributes"])
    assert given["type"] == {"data_type": "String.kind", "string_value": "order", "binary_value": None}
    assert given["raw"]["binary_value"] == b"\x00\xff"
    assert {"SentTimestamp", "ApproximateReceiveCount"} <= dict(row["system_attributes"]).keys()
    assert abs((row["sent_at"] - began).total_seconds()) < 60
    assert row["received_at"] >= row["sent_at"]


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_failed_is_replayed_with_the_same_messages(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    ids = fill(server, f"again-{way}", [f"m{n}" for n in range(300)])
    seen: list[Counter[str]] = []

    def failing(batch: DataFrame, number: int) -> None:
        seen.append(Counter(row.message_id for row in batch.select("message_id").collect()))
        if len(seen) == 1:
            raise RuntimeError("the sink is away")
        if len(seen) == 3:
            fill(server, f"again-{way}", ["sent while the run was under way"])

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
    assert seen[0] == seen[1]
    assert seen[1] + seen[2] == Counter(ids + more)
    # What came after the run had begun is not what is available now, also where it began with a replay.
    assert (len(seen), left(server, f"again-{way}")) == (3, (1, 0))


@pytest.mark.parametrize("way", WAYS)
def test_a_new_checkpoint_never_meets_what_an_old_one_left(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    queue = f"anew-{way}"
    ids = fill(server, queue, ["a", "b", "c"])
    given = {"queue": queue, "endpoint": server.endpoint_url, "region": server.region, "protocol": way}
    schema = spark.createDataFrame([], schema_of(None)).schema

    def begun() -> Offset:  # as a query with an empty checkpoint begins
        reader = QueueStreamReader(SourceOptions.read(given | {"segments": str(place.segments)}), schema)
        try:
            return cast(Offset, reader.initialOffset())
        finally:
            reader.stop()

    old, new = begun(), begun()
    with streams(spark, server, queue, place) as opened:
        dead = opened(old)
        end = dead.next_offset(old, 10)
        assert Counter(ids_of(dead, old, end, spark)) == Counter(ids)
        dead.stop()
        # The windows end: whoever comes next receives them, and not from an old segment or hold.
        end_windows(server, queue, end, place)
        stream = opened(new)
        end = stream.next_offset(new, 10)
        rows = rows_of(stream, new, end, spark)
        assert Counter(row["message_id"] for row in rows) == Counter(ids)
        assert {row["receive_count"] for row in rows} == {2}
        assert stream.next_offset(end, 10) == end
    assert left(server, queue) == (0, 0)


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
    begin: Offset = {"epoch": "group", "n": 0, "by": "veil"}
    came: list[str] = []
    with streams(spark, server, "group.fifo", place) as opened:
        stream = opened(begin)
        stream.limit_to_backlog()
        while (end := stream.next_offset(begin, 200)) != begin:
            came += ids_of(stream, begin, end, spark)
            begin = end
    assert len(came) == len(set(came)) == 300
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
    at: Offset = {"epoch": "parsed", "n": 0, "by": "sqs"}
    with streams(spark, server, "parsed", place, bodySchema=schema) as opened:
        stream = opened(at)
        found = rows_of(stream, at, stream.next_offset(at, 10), spark, schema)
    rows = {row["body_text"]: row["body"] for row in found}
    assert rows.keys() == set(bodies)
    assert rows[bodies[0]] == {"id": 1, "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "tags": [("a", [1])]}
    assert rows[bodies[1]] is None
    assert rows[bodies[2]] is None


@pytest.mark.parametrize("calls", [{}, {"piece": 500, "ahead": 2}], ids=["as-before", "ahead"])
def test_a_part_that_found_the_end_of_the_queue_is_the_same_when_it_is_read_again(
    spark: SparkSession, server: VeilServer, place: Place, calls: dict[str, int]
):
    queue = f"short-{len(calls)}"
    ids = fill(server, queue, ["m"] * 1_500)
    first: Offset = {"epoch": queue, "n": 0, "by": "veil"}
    end = cast(Offset, {**first, "n": 1, "rows": 9_000, "parts": 1, "at_ms": 1, **calls})
    with streams(spark, server, queue, place, protocol="veil") as opened:
        stream = opened(first)
        [part] = stream.parts(first, end)
        schema = columns(spark, None)

        def given() -> Counter[str]:
            return Counter(each for batch in part.batches(schema) for each in batch["message_id"].to_pylist())

        assert given() == Counter(ids)
        fill(server, queue, ["later"] * 5_000)
        assert given() == Counter(ids)
        stream.acknowledge(end)
    assert left(server, queue) == (5_000, 0)


def test_a_batch_that_the_driver_receives_ends_at_its_bytes(
    spark: SparkSession, server: VeilServer, place: Place, monkeypatch: pytest.MonkeyPatch
):
    """What the driver has in memory at a time does not grow with the messages; what is left comes with the next batch."""
    monkeypatch.setattr("veil.pipeline.source.segments.BATCH_BYTES", 2_000)
    ids = fill(server, "large", ["m" * 100] * 300)
    at: Offset = {"epoch": "large", "n": 0, "by": "sqs"}
    given: list[str] = []
    with streams(spark, server, "large", place, protocol="sqs") as opened:
        stream = opened(at)
        while (end := stream.next_offset(at, 1_000)) != at:
            rows = rows_of(stream, at, end, spark)
            # Calls that were under way when it was enough bring ten each.
            assert len(rows) <= 20 + CALLS_AT_ONCE * 10
            given += [row["message_id"] for row in rows]
            at = end
    assert Counter(given) == Counter(ids)


@pytest.mark.parametrize("way", WAYS)
def test_a_task_leaves_what_it_imported_out_of_garbage_collection(
    spark: SparkSession, server: VeilServer, place: Place, way: str, monkeypatch: pytest.MonkeyPatch
):
    """Spark collects after every task of a worker, which takes longer than a small task does where every module is looked at."""
    queue = f"frozen-{way}"
    ids = fill(server, queue, ["m"] * 3)
    given = {"queue": queue, "endpoint": server.endpoint_url, "region": server.region, "protocol": way}
    schema = spark.createDataFrame([], schema_of(None)).schema
    reader = QueueStreamReader(
        SourceOptions.read(given | {"segments": str(place.segments), "partitions": "1"}), schema
    )
    monkeypatch.setattr("veil.pipeline.spark._frozen", False)
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        [part], before = reader.partitions(start, end), gc.get_freeze_count()
        assert sum(batch.num_rows for batch in reader.read(part)) == len(ids)
        assert gc.get_freeze_count() > before
    finally:
        reader.stop()
