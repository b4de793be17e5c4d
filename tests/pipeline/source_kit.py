"""What the tests of the source share: a server, full queues, a query that drains one, and what came out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from veil.pipeline.queues.client import QueueClient
from veil.pipeline.queues.queue_place import QueuePlace
from veil.testing.process import KEY_ID, SECRET, VeilServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

WAYS = ("sqs", "veil")


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


def by_tens(items: Sequence[Any]) -> list[list[int]]:
    return [list(range(at, min(at + 10, len(items)))) for at in range(0, len(items), 10)]


def fill(
    server: VeilServer | ServerAt, queue: str, bodies: Sequence[str], *, visibility_s: int = 30
) -> list[str]:
    """A queue with these messages; their ids."""
    sqs = server.client()
    sqs.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": str(visibility_s)})
    with QueueClient(QueuePlace(queue, server.endpoint_url, server.region)) as client:
        ids = client.send([{"MessageBody": body} for body in bodies], split=by_tens)
    assert all(isinstance(each, str) for each in ids)
    return [str(each) for each in ids]


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
