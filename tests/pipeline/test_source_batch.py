"""A queue as a batch: looked at without receiving, or taken in a block that deletes when it ends well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from tests.pipeline.source_kit import (
    FORBIDDEN,
    REFUSED,
    WAYS,
    BadWay,
    Place,
    fill,
    ids_of,
    left,
    streams,
)
from tests.tls_kit import Authority
from veil.client.api import ApiError
from veil.pipeline import drain, register
from veil.pipeline.queues import QueueClient
from veil.pipeline.source.stream import Offset
from veil.testing.process import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[VeilServer]:
    register(spark)
    with VeilServer() as running:
        yield running


def browsed(spark: SparkSession, server: VeilServer, queue: str, **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    read = spark.read.format("veil").option("queue", queue).option("endpoint", server.endpoint_url)
    return read.option("region", server.region).option("mode", "browse").options(**given).load()


@pytest.mark.parametrize("way", WAYS)
def test_what_only_some_messages_have_is_not_in_the_rows_of_the_others(
    spark: SparkSession, server: VeilServer, way: str
):
    queue, sqs = f"some-{way}", server.client()
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793"
    traced = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    sqs.send_message(QueueUrl=url, MessageBody="traced", MessageSystemAttributes=traced)
    sqs.send_message(QueueUrl=url, MessageBody="plain")
    place = {"endpoint": server.endpoint_url, "region": server.region, "protocol": way}
    with drain(spark, queue=queue, partitions=1, **place) as messages:
        rows = {row.body: row for row in messages.collect()}

    system = {body: row.system_attributes for body, row in rows.items()}
    assert system["traced"].pop("AWSTraceHeader") == trace
    assert system["plain"].keys() == system["traced"].keys()
    assert "SentTimestamp" in system["plain"]
    assert [row.attributes for row in rows.values()] == [{}, {}]


@pytest.mark.parametrize("way", WAYS)
def test_a_block_that_ends_well_deletes_what_it_took(spark: SparkSession, server: VeilServer, way: str):
    ids = fill(server, f"well-{way}", [f"m{n}" for n in range(2_300)])
    place = {"endpoint": server.endpoint_url, "region": server.region, "protocol": way}
    with drain(spark, queue=f"well-{way}", partitions=3, **place) as messages:
        seen = Counter(row.message_id for row in messages.select("message_id").collect())
        assert messages.count() == 2_300  # a second action sees the same
        assert left(server, f"well-{way}") == (0, 2_300)
    assert seen == Counter(ids)
    assert left(server, f"well-{way}") == (0, 0)


def test_a_queue_behind_tls_is_read_by_the_authority_that_aws_ca_bundle_names(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
    at: Offset = {"epoch": "private", "n": 0, "by": "veil"}  # what its executors do too
    with VeilServer("--store", "memory", *authority.issue().flags) as secured:
        ids = fill(secured, "private", [f"m{n}" for n in range(30)])
        with streams(spark, secured, "private", Place(tmp_path)) as opened:
            stream = opened(at)
            end = stream.next_offset(at, 100)
            assert Counter(ids_of(stream, at, end, spark)) == Counter(ids)
            assert stream.next_offset(end, 100) == end
        assert left(secured, "private") == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_block_that_fails_deletes_nothing(spark: SparkSession, server: VeilServer, way: str):
    fill(server, f"ill-{way}", ["a", "b", "c"], visibility_s=4)
    place = {"endpoint": server.endpoint_url, "region": server.region, "protocol": way}
    with (
        pytest.raises(RuntimeError, match="halfway"),
        drain(spark, queue=f"ill-{way}", maxMessages=2, **place) as messages,
    ):
        assert messages.count() == 2
        raise RuntimeError("halfway")
    assert left(server, f"ill-{way}") == (1, 2)
    sqs = server.client()
    url = sqs.get_queue_url(QueueName=f"ill-{way}")["QueueUrl"]
    back = set()
    while len(back) < 3:
        got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5).get("Messages", [])
        back |= {message["Body"] for message in got}
    assert back == {"a", "b", "c"}


def test_a_block_whose_messages_cannot_be_deleted_fails(
    spark: SparkSession, server: VeilServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(QueueClient, "delete", partialmethod(QueueClient.delete, retry_s=0.0))
    for fate, told in ((REFUSED, "some messages could not be deleted"), (FORBIDDEN, "AccessDenied")):
        fill(server, fate, ["a", "b"])
        bad = BadWay(server, "DeleteMessageBatch", fate, range(1_000_000))
        with bad, pytest.raises((RuntimeError, ApiError), match=told):
            place = {"endpoint": bad.endpoint_url, "region": bad.region, "protocol": "sqs"}
            with drain(spark, queue=fate, **place) as messages:
                assert messages.count() == 2


def test_an_empty_queue_drains_to_no_rows(spark: SparkSession, server: VeilServer):
    fill(server, "empty", [])
    with drain(spark, queue="empty", endpoint=server.endpoint_url, region=server.region) as messages:
        assert messages.collect() == []
        assert "message_id" in messages.columns


def test_browsing_shows_every_state_and_receives_nothing(spark: SparkSession, server: VeilServer):
    ids = fill(server, "shown", [f"m{n}" for n in range(1_500)])
    sqs = server.client()
    url = sqs.get_queue_url(QueueName="shown")["QueueUrl"]
    (held,) = sqs.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    late = sqs.send_message(QueueUrl=url, MessageBody="late", DelaySeconds=600)["MessageId"]
    rows = browsed(spark, server, "shown", partitions=3).collect()
    assert Counter(row.message_id for row in rows) == Counter([*ids, late])
    states = {row.message_id: row.state for row in rows}
    assert states.pop(held["MessageId"]) == "in_flight"
    assert states.pop(late) == "delayed"
    assert set(states.values()) == {"visible"}
    (one,) = [row for row in rows if row.message_id == held["MessageId"]]
    assert one.visible_at > one.sent_at
    assert one.received_at is None
    assert left(server, "shown") == (1_499, 1)


def test_browsing_by_time_and_attributes_finds_only_those(spark: SparkSession, server: VeilServer):
    sqs = server.client()
    url = sqs.create_queue(QueueName="found")["QueueUrl"]
    for kind in ("order", "refund", "order"):
        value = {"DataType": "String", "StringValue": kind}
        sqs.send_message(QueueUrl=url, MessageBody=kind, MessageAttributes={"type": value})
    assert browsed(spark, server, "found", attributes='{"type": "order"}').count() == 2
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert browsed(spark, server, "found", sentAfter=soon.isoformat()).count() == 0
    assert browsed(spark, server, "found", sentBefore=soon.isoformat()).count() == 3


def test_a_plain_read_that_would_receive_is_refused(spark: SparkSession, server: VeilServer):
    fill(server, "plain", ["a"])
    read = spark.read.format("veil").option("queue", "plain").option("endpoint", server.endpoint_url)
    with pytest.raises(AnalysisException, match="option mode is not given: expected browse"):
        read.load().count()
    assert left(server, "plain") == (1, 0)
