"""What the tests of the source share: a server, full queues, a query that drains one, and what came out of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tests.http_stub import StubAnswer, StubRequest, http_stub, passed_on
from veil.journal.storage import Storage as Folder
from veil.pipeline.queues import QueueAddress, QueueClient
from veil.pipeline.source.columns import schema_of
from veil.pipeline.source.options import SourceOptions
from veil.pipeline.source.readers import open_queue, open_stream
from veil.pipeline.source.segments import SealedSegments
from veil.pipeline.source.stream import Offset, Stream, Tally
from veil.pipeline.sql import arrow_schema
from veil.testing.process import KEY_ID, SECRET, VeilServer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

WAYS = ("sqs", "veil")
# A round of receiving ends after some seconds. Where the size of a batch is looked at, a busy machine must not end it before
# the batch is full.
UNHURRIED = {"visibilityTimeout": 600, "receiveTime": 100}


class ServerAt:
    """A server by its address alone."""

    def __init__(self, endpoint_url: str, region: str = "us-east-1") -> None:
        self.endpoint_url, self.region = endpoint_url, region

    def client(self) -> Any:
        import boto3

        return boto3.client(
            "sqs",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
        )


class Place(NamedTuple):
    """Where one query leaves its things."""

    folder: Path

    @property
    def segments(self) -> Path:
        return self.folder / "segments"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def out(self) -> Path:
        return self.folder / "out"


def by_both_ways(test: Callable[[str], None]) -> None:
    """The test by either way, both at the same time: where it is waiting that takes long, once is enough."""
    with ThreadPoolExecutor(len(WAYS)) as pool:
        list(pool.map(test, WAYS))


def fill(
    server: VeilServer | ServerAt, queue: str, bodies: Sequence[str], *, visibility_s: int = 30
) -> list[str]:
    """A queue with these messages; their ids."""
    sqs = server.client()
    sqs.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": str(visibility_s)})
    with QueueClient(QueueAddress(queue, server.endpoint_url, server.region)) as client:
        ids = client.send([{"MessageBody": body} for body in bodies])
    assert all(isinstance(each, str) for each in ids)
    return [str(each) for each in ids]


def dead_letters_of(server: VeilServer | ServerAt, queue: str, *, receives: int) -> None:
    """A queue beside it, named after it, for what was received so often and not deleted."""
    sqs = server.client()
    made = sqs.create_queue(QueueName=f"{queue}-dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=made, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})


def left(server: VeilServer | ServerAt, queue: str) -> tuple[int, int]:
    """How many messages are visible, and how many in flight."""
    sqs = server.client()
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return int(found["ApproximateNumberOfMessages"]), int(found["ApproximateNumberOfMessagesNotVisible"])


def reading(
    spark: SparkSession, server: VeilServer | ServerAt, queue: str, way: str, place: Place, **options: Any
) -> DataFrame:
    """The stream over the queue."""
    given = {
        "queue": queue,
        "endpoint": server.endpoint_url,
        "region": server.region,
        "protocol": way,
        "segments": str(place.segments),
        **{name: str(value) for name, value in options.items()},
    }
    return spark.readStream.format("veil").options(**given).load()


def drained(rows: DataFrame, place: Place) -> StreamingQuery:
    """The query that writes all that is there now as Parquet, at its end; raises what it failed with."""
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(place.out))
        .option("checkpointLocation", str(place.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def ids_in(spark: SparkSession, place: Place) -> Counter[str]:
    """How often each message id is in what was written."""
    if not place.out.exists():
        return Counter()
    rows = spark.read.parquet(str(place.out)).select("message_id").collect()
    return Counter(row.message_id for row in rows)


def offset_in(place: Place, batch: int = 0) -> Offset:
    """The end of a batch, by Spark's own log."""
    return cast(Offset, json.loads((place.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]))


def end_windows(server: VeilServer | ServerAt, queue: str, end: Offset, place: Place) -> None:
    """Let the windows of a batch end now, as they end when nobody extends them: by the receipts of the batch itself."""
    with QueueClient(QueueAddress(queue, server.endpoint_url, server.region)) as client:
        if end["by"] == "sqs":
            seal = SealedSegments(Folder.at(place.segments), end["epoch"], "test").find(end["segment"])
            receipts = seal.receipts if seal is not None else []
        else:
            receipts = []
            for part in range(end["parts"]):
                name = {"Stream": end["epoch"], "Batch": end["n"], "Part": part << 20}
                asked = {**name, "MaxNumberOfMessages": 1_000, "VisibilityTimeout": 60}
                found = client.own("ReceiveHold", asked, dict[str, Any])["Messages"]
                receipts += [message["ReceiptHandle"] for message in found]
        assert receipts
        assert client.extend(receipts, 0) == [None] * len(receipts)


# ---- a query without Spark: the stream that it keeps, asked as Spark asks it


def columns(spark: SparkSession, body_schema: str | None = None) -> pa.Schema:
    """The columns of the source for Arrow."""
    return arrow_schema(spark.createDataFrame([], schema_of(body_schema)).schema)


@contextmanager
def streams(
    spark: SparkSession, server: VeilServer | ServerAt | BadWay, queue: str, place: Place, **options: Any
) -> Iterator[Callable[[Offset], Stream]]:
    """Opens streams as drivers of one checkpoint do, begun at an offset of its log; all of them end with the block."""
    given = {name: str(value) for name, value in options.items()}
    given |= {"queue": queue, "endpoint": server.endpoint_url, "region": server.region}
    read = SourceOptions.read(given | {"segments": str(place.segments)})
    with open_queue(read) as client, ExitStack() as stack:

        def opened(at: Offset) -> Stream:
            stream = open_stream(client, read, at, Tally(queue), columns(spark, read.body_schema))
            stack.callback(stream.stop)
            return stream

        yield opened


def rows_of(
    stream: Stream, start: Offset, end: Offset, spark: SparkSession, body_schema: str | None = None
) -> list[dict[str, Any]]:
    """The rows of a batch, as its tasks would read them."""
    schema = columns(spark, body_schema)
    parts = stream.parts(start, end)
    return [row for part in parts for batch in part.batches(schema) for row in batch.to_pylist()]


def ids_of(stream: Stream, start: Offset, end: Offset, spark: SparkSession) -> list[str]:
    """The message ids of a batch."""
    return [row["message_id"] for row in rows_of(stream, start, end, spark)]


LOST, REFUSED, FORBIDDEN = "lost", "refused", "forbidden"


class BadWay:
    """A way to the server on which some calls of one action (by number, from 1) go wrong.

    Either their answers never arrive, though the server has done what was asked; or they do not reach it, and it is said
    to be busy, or to allow no such thing.
    """

    def __init__(self, server: VeilServer, action: str, fate: str, calls: Container[int]) -> None:
        self.region, self.count = server.region, 0
        self._server, self._action, self._fate, self._calls = server, action, fate, calls
        self._stack = ExitStack()

    def _answer(self, asked: StubRequest) -> StubAnswer | None:
        self.count += (meant := asked.action == self._action)
        is_bad = meant and self.count in self._calls
        if is_bad and self._fate == REFUSED:
            return StubAnswer(b'{"__type": "ServiceUnavailable"}', 503)
        if is_bad and self._fate == FORBIDDEN:
            return StubAnswer(b'{"__type": "AccessDeniedException", "message": "not yours"}', 403)
        answer = passed_on(asked, self._server.endpoint_url)
        return None if is_bad else answer

    def __enter__(self) -> BadWay:
        self.endpoint_url = self._stack.enter_context(http_stub(self._answer))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
