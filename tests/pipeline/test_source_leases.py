"""What happens to leases: kept through long batches, lost to rivals only when they cannot be kept, never by two queries."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.faults.server_process import ServerProcess
from tests.pipeline.source_kit import (
    FORBIDDEN,
    LOST,
    REFUSED,
    UNHURRIED,
    WAYS,
    BadWay,
    Place,
    ServerAt,
    by_both_ways,
    dead_letters_of,
    end_windows,
    fill,
    ids_of,
    left,
    offset_in,
    reading,
    rows_of,
    streams,
)
from tests.ports import free_port
from veil.client.api import ApiError
from veil.pipeline import register
from veil.pipeline.options import OptionError
from veil.pipeline.queues import QueueAddress, QueueClient
from veil.pipeline.source.columns import schema_of
from veil.pipeline.source.options import SourceOptions
from veil.pipeline.source.readers import QueueStreamReader
from veil.pipeline.source.stream import CheckpointTaken, Offset
from veil.testing.process import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW_S = 4


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[VeilServer]:
    register(spark)
    with VeilServer() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class Rival:
    """Another consumer of the queue, which asks again and again."""

    def __init__(self, server: VeilServer, queue: str) -> None:
        self._sqs = server.client()
        self._url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        self._over = threading.Event()
        self.got: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            answer = self._sqs.receive_message(QueueUrl=self._url, WaitTimeSeconds=1, VisibilityTimeout=600)
            self.got += [message["MessageId"] for message in answer.get("Messages", [])]

    def __enter__(self) -> Rival:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def test_a_batch_of_two_windows_keeps_its_messages_from_a_rival(
    spark: SparkSession, server: VeilServer, tmp_path: Path
):
    window_s = 2 * WINDOW_S

    def keeps(way: str) -> None:
        queue = f"kept-{way}"
        ids = fill(server, queue, [f"m{n}" for n in range(50)], visibility_s=window_s)
        at: Offset = {"epoch": queue, "n": 0, "by": way}
        with streams(spark, server, queue, Place(tmp_path / way)) as opened:
            stream = opened(at)
            end = stream.next_offset(at, 100)
            seen = ids_of(stream, at, end, spark)
            with Rival(server, queue) as rival:
                time.sleep(2 * window_s)
            assert rival.got == [], f"{way}: of the batch {set(rival.got) & set(seen)}"
            assert Counter(seen) == Counter(ids)
            assert stream.next_offset(end, 100) == end
        assert left(server, queue) == (0, 0)

    by_both_ways(keeps)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_rival_got_while_nobody_held_it_comes_again_with_the_same_id(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    queue = f"lost-{way}"
    ids = fill(server, queue, ["a", "b", "c"])
    at: Offset = {"epoch": queue, "n": 0, "by": way}
    with streams(spark, server, queue, place) as opened:
        dead = opened(at)
        end = dead.next_offset(at, 10)
        assert len(rows_of(dead, at, end, spark)) == 3
        dead.stop()
        # Nobody runs, the windows end, and a rival receives one of them.
        end_windows(server, queue, end, place)
        sqs = server.client()
        url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, VisibilityTimeout=600)["Messages"][0]
        again = opened(end)
        # From segments it is replayed though somebody else has it; a hold leaves it to who has it.
        expected = Counter(ids) if way == "sqs" else Counter(ids) - Counter([got["MessageId"]])
        assert Counter(ids_of(again, at, end, spark)) == expected
        assert again.next_offset(end, 10) == end
        # Nothing of the rival's is deleted: it gives the message back, and it comes, known by its id.
        assert left(server, queue) == (0, 1)
        again.stop()
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
        last = opened(end)
        then = last.next_offset(end, 10)
        assert ids_of(last, end, then, spark) == [got["MessageId"]]
        assert last.next_offset(then, 10) == then
    assert left(server, queue) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_restarts_during_a_batch_changes_nothing(
    spark: SparkSession, place: Place, tmp_path: Path, way: str
):
    at: Offset = {"epoch": "restarted", "n": 0, "by": way}
    seen: list[str] = []
    with ServerProcess(tmp_path / "data", tmp_path) as process:
        there = ServerAt(f"http://127.0.0.1:{process.port}")
        ids = fill(there, "restarted", [f"m{n}" for n in range(300)], visibility_s=20)
        with streams(spark, there, "restarted", place) as opened:
            stream = opened(at)
            stream.limit_to_backlog()
            while (end := stream.next_offset(at, 200)) != at:
                if not seen:
                    process.kill()
                    threading.Timer(2.0, process.start).start()
                seen += ids_of(stream, at, end, spark)
                at = end
        assert Counter(seen) == Counter(ids)
        assert left(there, "restarted") == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_the_older_of_two_queries_on_one_checkpoint_is_refused(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    """Spark itself lets no session do this; two drivers can."""
    fill(server, f"two-{way}", [f"m{n}" for n in range(30)])
    at: Offset = {"epoch": "two", "n": 0, "by": way}
    with streams(spark, server, f"two-{way}", place) as opened:
        older = opened(at)
        first = older.next_offset(at, 10)
        assert first["n"] == 1
        newer = opened(at)
        with pytest.raises(CheckpointTaken, match="two queries must not share a checkpoint"):
            # An acknowledgement may be told of at the step after it.
            older.next_offset(older.next_offset(first, 10), 10)
        # The newer one finds what the older had begun, and goes on.
        end = newer.next_offset(at, 10)
        assert newer.size(end) == 10
        if way == "sqs":
            assert end == first
        assert newer.next_offset(end, 100)["n"] == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_finished_batch_whose_windows_ended_is_deleted_and_not_received_again(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    """The driver died after Spark's commit and before the acknowledgement, and was away for longer than a window."""
    queue = f"finished-{way}"
    fill(server, queue, [f"m{n}" for n in range(200)])
    at: Offset = {"epoch": "finished", "n": 0, "by": way}
    with streams(spark, server, queue, place) as opened:
        dead = opened(at)
        end = dead.next_offset(at, 1_000)
        assert len(rows_of(dead, at, end, spark)) == 200
        dead.stop()
        end_windows(server, queue, end, place)
        assert left(server, queue) == (200, 0)
        assert opened(end).next_offset(end, 1_000) == end
    assert left(server, queue) == (0, 0)


def test_a_finished_batch_that_cannot_be_held_is_deleted_before_anything_is_received(
    spark: SparkSession, server: VeilServer, place: Place
):
    """SQS: as above, but the service is too busy for extensions, so that the messages are there for whoever asks.

    One receive is all that a message of this queue survives: received again, however briefly, it would be a dead letter.
    """
    fill(server, "first", [f"m{n}" for n in range(200)], visibility_s=WINDOW_S)
    dead_letters_of(server, "first", receives=1)
    at: Offset = {"epoch": "first", "n": 0, "by": "sqs"}
    with streams(spark, server, "first", place) as opened:
        dead = opened(at)
        end = dead.next_offset(at, 1_000)
        dead.stop()
        end_windows(server, "first", end, place)
    busy = BadWay(server, "ChangeMessageVisibilityBatch", REFUSED, range(1_000_000))
    with busy, streams(spark, busy, "first", place) as opened:
        assert opened(end).next_offset(end, 1_000) == end
        assert busy.count > 0
    assert left(server, "first") == left(server, "first-dead") == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_an_unfinished_batch_whose_windows_ended_is_held_again(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    """The driver died in the batch, and was away for longer than a window: the batch comes again, and only once."""
    queue = f"unfinished-{way}"
    fill(server, queue, [f"m{n}" for n in range(200)])
    at: Offset = {"epoch": "unfinished", "n": 0, "by": way}
    with streams(spark, server, queue, place) as opened:
        dead = opened(at)
        end = dead.next_offset(at, 1_000)
        first = rows_of(dead, at, end, spark)
        dead.stop()
        end_windows(server, queue, end, place)
        assert left(server, queue) == (200, 0)
        again = opened(end)
        # To the last column, the instant of the receive included.
        assert rows_of(again, at, end, spark) == first
        assert len(first) == 200
        assert again.next_offset(end, 1_000) == end
    assert left(server, queue) == (0, 0)


def test_what_a_finished_batch_gave_is_not_given_again_by_the_next(
    spark: SparkSession, server: VeilServer, place: Place
):
    """SQS: between a batch's end and its acknowledgement somebody else had its messages, and gave them back."""
    fill(server, "given", [f"m{n}" for n in range(20)])
    at: Offset = {"epoch": "given", "n": 0, "by": "sqs"}
    with streams(spark, server, "given", place) as opened:
        stream = opened(at)
        end = stream.next_offset(at, 100)
        assert len(rows_of(stream, at, end, spark)) == 20
        end_windows(server, "given", end, place)
        with QueueClient(QueueAddress("given", server.endpoint_url, server.region)) as rival:
            got = rival.receive(20, bytes_max=1 << 20, seconds=10, visibility_s=60)
            assert len(got) == 20
            rival.extend([message.receipt for message in got], 0)
        # Its receipts are good for nothing now, so to acknowledge does not help: the next receive finds them all.
        assert stream.next_offset(end, 100) == end
    assert left(server, "given") == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_two_attempts_at_one_task_read_the_same_rows_at_the_same_time(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    """As speculation has it: neither waits for the other, and neither gets what the other does not."""
    queue = f"twice-{way}"
    fill(server, queue, [f"m{n}" for n in range(1_500)])
    at: Offset = {"epoch": "twice", "n": 0, "by": way}
    with streams(spark, server, queue, place, **UNHURRIED) as opened, ThreadPoolExecutor(2) as both:
        stream = opened(at)
        end = stream.next_offset(at, 1_200)
        one, other = both.map(lambda _: rows_of(stream, at, end, spark), range(2))
        assert one == other
        assert len({row["message_id"] for row in one}) == 1_200
        assert left(server, queue) == (300, 1_200)


def test_an_answer_that_got_lost_does_not_end_available_now_before_the_end(
    spark: SparkSession, server: VeilServer, place: Place
):
    """Asked again, the server has nothing more to delete: that is no sign that a batch found nothing."""
    ids = fill(server, "unanswered", [f"m{n}" for n in range(300)])
    at: Offset = {"epoch": "unanswered", "n": 0, "by": "veil"}
    came: list[str] = []
    # The first is for what was before the first batch.
    with (
        BadWay(server, "DeleteHolds", LOST, [2]) as way,
        streams(spark, way, "unanswered", place) as opened,
    ):
        stream = opened(at)
        stream.limit_to_backlog()
        while (end := stream.next_offset(at, 100)) != at:
            came += [row["message_id"] for row in rows_of(stream, at, end, spark)]
            at = end
        assert way.count > 3
    assert Counter(came) == Counter(ids)
    assert left(server, "unanswered") == (0, 0)


def test_metrics_are_served_while_the_query_runs(spark: SparkSession, server: VeilServer, place: Place):
    fill(server, "measured", ["a", "b", "c"])
    port = free_port()
    given = {"queue": "measured", "endpoint": server.endpoint_url, "region": server.region, "protocol": "sqs"}
    options = SourceOptions.read(given | {"segments": str(place.segments), "metricsPort": str(port)})
    reader = QueueStreamReader(options, spark.createDataFrame([], schema_of(None)).schema)
    try:
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            said = answer.read().decode()
    finally:
        reader.stop()
    assert 'veil_source_received_total{queue="measured"} 3.0' in said
    assert "veil_source_oldest_age_seconds" in said


@pytest.mark.soak  # what comes again has the same id (above); the rest is Spark's own
def test_the_recipe_gives_once_what_comes_again(spark: SparkSession, server: VeilServer, place: Place):
    """What docs/spark-source.md recommends where leases cannot always be kept."""
    ids = fill(server, "recipe", ["a", "b"])
    came: list[str] = []

    def run(*, failing: bool = False) -> None:
        def work(batch: DataFrame, number: int) -> None:
            found = [row.message_id for row in batch.collect()]
            if failing:
                raise RuntimeError("down")
            came.extend(found)

        rows = reading(spark, server, "recipe", "sqs", place)
        once = rows.withWatermark("received_at", "1 day").dropDuplicatesWithinWatermark(["message_id"])
        query = once.writeStream.foreachBatch(work).option("checkpointLocation", str(place.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="down"):
        run(failing=True)
    # Its windows end, a rival receives one, which the segment gives all the same, and gives it back.
    end_windows(server, "recipe", offset_in(place), place)
    sqs = server.client()
    url = sqs.get_queue_url(QueueName="recipe")["QueueUrl"]
    got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, VisibilityTimeout=600)["Messages"][0]
    run()
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    run()
    assert Counter(came) == Counter(ids)
    assert left(server, "recipe") == (0, 0)


def test_what_could_not_be_deleted_is_tried_again_though_a_later_batch_was_deleted(
    spark: SparkSession, server: VeilServer, place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(QueueClient, "delete", partialmethod(QueueClient.delete, retry_s=0.0))
    fill(server, "stubborn", ["a", "b"])
    at: Offset = {"epoch": "stubborn", "n": 0, "by": "sqs"}
    busy = BadWay(server, "DeleteMessageBatch", REFUSED, (1, 2))  # both times those of the first batch
    with busy, streams(spark, busy, "stubborn", place) as opened:
        stream = opened(at)
        first = stream.next_offset(at, 1)
        second = stream.next_offset(first, 1)
        assert stream.next_offset(second, 1) == stream.next_offset(second, 1) == second
    assert busy.count == 4
    assert left(server, "stubborn") == (0, 0)


def test_a_query_that_may_not_delete_ends_instead_of_giving_everything_twice(
    spark: SparkSession, server: VeilServer, place: Place
):
    fill(server, "guarded", ["a", "b"])
    at: Offset = {"epoch": "guarded", "n": 0, "by": "sqs"}
    guarded = BadWay(server, "DeleteMessageBatch", FORBIDDEN, range(1_000_000))
    with guarded, streams(spark, guarded, "guarded", place) as opened:
        stream = opened(at)
        end = stream.next_offset(at, 10)
        with pytest.raises(ApiError, match="AccessDenied"):
            stream.next_offset(end, 10)


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_belongs_to_one_queue(spark: SparkSession, server: VeilServer, place: Place, way: str):
    fill(server, f"mine-{way}", ["a"])
    fill(server, f"other-{way}", ["b"])
    at: Offset = {"epoch": f"one-{way}", "n": 0, "by": way}
    with streams(spark, server, f"mine-{way}", place) as opened:
        end = opened(at).next_offset(at, 10)
    told = f"option queue='other-{way}': expected arn:.*:mine-{way}, the queue of this checkpoint"
    with streams(spark, server, f"other-{way}", place) as opened, pytest.raises(OptionError, match=told):
        opened(end)


def test_a_checkpoint_of_another_source_is_refused(spark: SparkSession, server: VeilServer):
    options = SourceOptions.read({"queue": "orders", "endpoint": server.endpoint_url})
    reader = QueueStreamReader(options, spark.createDataFrame([], schema_of(None)).schema)
    for foreign in (5, {"topic": {"0": 17}}):
        with pytest.raises(
            OptionError, match="option checkpointLocation: expected the checkpoint of a query"
        ):
            reader.partitions(foreign, foreign)  # type: ignore[arg-type]
