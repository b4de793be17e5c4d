"""What happens to leases: kept through long batches, lost to rivals only when they cannot be kept, never by two queries."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.faults.server_process import ServerProcess, free_port
from tests.pipeline.source_kit import WAYS, Place, ServerAt, fill, left, reading
from veil.pipeline import register
from veil.pipeline.source.arrow_schema import arrow_schema
from veil.pipeline.source.columns import schema_of
from veil.pipeline.source.open_queue import open_queue, open_stream
from veil.pipeline.source.options import SourceOptions
from veil.pipeline.source.stream import Offset, Stream, StreamTaken
from veil.pipeline.source.tally import Tally
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


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_of_three_windows_keeps_its_messages_from_a_rival(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    ids = fill(server, f"kept-{way}", [f"m{n}" for n in range(50)], visibility_s=WINDOW_S)
    seen: list[str] = []
    rivals: list[list[str]] = []

    def slow(batch: DataFrame, number: int) -> None:
        seen.extend(row.message_id for row in batch.collect())
        with Rival(server, f"kept-{way}") as rival:
            time.sleep(3 * WINDOW_S)
        rivals.append(rival.got)

    query = reading(spark, server, f"kept-{way}", way, place).writeStream.foreachBatch(slow)
    query = query.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()
    assert rivals == [[]]
    assert Counter(seen) == Counter(ids)
    assert left(server, f"kept-{way}") == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_rival_got_while_nobody_held_it_comes_again_with_the_same_id(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    ids = fill(server, f"lost-{way}", ["a", "b", "c"], visibility_s=WINDOW_S)

    def failing(batch: DataFrame, number: int) -> None:
        batch.count()
        raise RuntimeError("down")

    query = reading(spark, server, f"lost-{way}", way, place).writeStream.foreachBatch(failing)
    with pytest.raises(StreamingQueryException, match="down"):
        query.option("checkpointLocation", str(place.checkpoint)).start().awaitTermination()
    # Nobody runs, the windows end, and a rival receives one of them.
    sqs = server.client()
    url = sqs.get_queue_url(QueueName=f"lost-{way}")["QueueUrl"]
    got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, VisibilityTimeout=600)["Messages"][0]
    seen: list[list[str]] = []

    def working(batch: DataFrame, number: int) -> None:
        seen.append([row.message_id for row in batch.collect()])

    def run() -> None:
        query = reading(spark, server, f"lost-{way}", way, place).writeStream.foreachBatch(working)
        query = query.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination()

    run()
    # From segments it is replayed though somebody else has it; a hold leaves it to who has it.
    expected = Counter(ids) if way == "sqs" else Counter(ids) - Counter([got["MessageId"]])
    assert sum((Counter(batch) for batch in seen), Counter()) == expected
    # Nothing of the rival's is deleted: it gives the message back, and it comes, known by its id.
    assert left(server, f"lost-{way}") == (0, 1)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    run()
    assert seen[-1] == [got["MessageId"]]
    assert left(server, f"lost-{way}") == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_restarts_during_a_batch_changes_nothing(
    spark: SparkSession, place: Place, tmp_path: Path, way: str
):
    with ServerProcess(tmp_path / "data", tmp_path) as process:
        at = ServerAt(f"http://127.0.0.1:{process.port}")
        ids = fill(at, "restarted", [f"m{n}" for n in range(300)], visibility_s=20)
        seen: list[str] = []

        def restarting(batch: DataFrame, number: int) -> None:
            if number == 0:
                process.kill()
                threading.Timer(2.0, process.start).start()
            seen.extend(row.message_id for row in batch.collect())

        rows = reading(spark, at, "restarted", way, place, maxMessagesPerTrigger=200)
        query = rows.writeStream.foreachBatch(restarting).option("checkpointLocation", str(place.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()
        assert Counter(seen) == Counter(ids)
        assert left(at, "restarted") == (0, 0)


@contextmanager
def streams(
    spark: SparkSession, server: VeilServer, queue: str, way: str, place: Place
) -> Iterator[Callable[[Offset], Stream]]:
    """Opens streams as drivers of one checkpoint do, begun at an offset of its log; all of them end with the block."""
    given = {"queue": queue, "endpoint": server.endpoint_url, "region": server.region}
    options = SourceOptions.read(given | {"segments": str(place.segments)})
    schema = arrow_schema(reading(spark, server, queue, way, place).schema)
    with open_queue(options) as client, ExitStack() as stack:

        def opened(at: Offset) -> Stream:
            stream = open_stream(client, options, at, Tally(queue), schema)
            stack.callback(stream.stop)
            return stream

        yield opened


def rows_of(stream: Stream, start: Offset, end: Offset, spark: SparkSession) -> int:
    schema = arrow_schema(spark.createDataFrame([], schema_of(None)).schema)
    return sum(batch.num_rows for part in stream.parts(start, end) for batch in part.batches(schema))


@pytest.mark.parametrize("way", WAYS)
def test_the_older_of_two_queries_on_one_checkpoint_is_refused(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    """Spark itself lets no session do this; two drivers can."""
    fill(server, f"two-{way}", [f"m{n}" for n in range(30)])
    at: Offset = {"epoch": "two", "n": 0, "by": way}
    with streams(spark, server, f"two-{way}", way, place) as opened:
        older = opened(at)
        first = older.next_offset(at, 10)
        assert first["n"] == 1
        newer = opened(at)
        with pytest.raises(StreamTaken, match="two queries must not share a checkpoint"):
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
    fill(server, queue, [f"m{n}" for n in range(200)], visibility_s=WINDOW_S)
    at: Offset = {"epoch": "finished", "n": 0, "by": way}
    with streams(spark, server, queue, way, place) as opened:
        dead = opened(at)
        end = dead.next_offset(at, 1_000)
        assert rows_of(dead, at, end, spark) == 200
        dead.stop()
        while left(server, queue) != (200, 0):
            time.sleep(0.1)
        assert opened(end).next_offset(end, 1_000) == end
    assert left(server, queue) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_an_unfinished_batch_whose_windows_ended_is_held_again(
    spark: SparkSession, server: VeilServer, place: Place, way: str
):
    """The driver died in the batch, and was away for longer than a window: the batch comes again, and only once."""
    queue = f"unfinished-{way}"
    fill(server, queue, [f"m{n}" for n in range(200)], visibility_s=WINDOW_S)
    at: Offset = {"epoch": "unfinished", "n": 0, "by": way}
    with streams(spark, server, queue, way, place) as opened:
        dead = opened(at)
        end = dead.next_offset(at, 1_000)
        assert rows_of(dead, at, end, spark) == 200
        dead.stop()
        while left(server, queue) != (200, 0):
            time.sleep(0.1)
        again = opened(end)
        assert rows_of(again, at, end, spark) == 200
        assert again.next_offset(end, 1_000) == end
    assert left(server, queue) == (0, 0)


def test_metrics_are_served_while_the_query_runs(spark: SparkSession, server: VeilServer, place: Place):
    fill(server, "measured", ["a", "b", "c"])
    port = free_port()
    said: list[str] = []

    def look(batch: DataFrame, number: int) -> None:
        batch.count()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            said.append(answer.read().decode())

    rows = reading(spark, server, "measured", "sqs", place, metricsPort=port)
    query = rows.writeStream.foreachBatch(look).option("checkpointLocation", str(place.checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    assert 'veil_source_received_total{queue="measured"} 3.0' in said[0]
    assert "veil_source_oldest_age_seconds" in said[0]


def test_the_recipe_gives_once_what_comes_again(spark: SparkSession, server: VeilServer, place: Place):
    """What docs/spark-source.md recommends where leases cannot always be kept."""
    ids = fill(server, "recipe", ["a", "b"], visibility_s=WINDOW_S)
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
    sqs = server.client()
    url = sqs.get_queue_url(QueueName="recipe")["QueueUrl"]
    got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20, VisibilityTimeout=600)["Messages"][0]
    run()
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    run()
    assert Counter(came) == Counter(ids)
    assert left(server, "recipe") == (0, 0)
