"""How many rows a second go through the Spark sink into one server, and what the same costs without Spark.

    python -m bench.spark_sink [--rows 100000] [--bytes 200]

In one run, on one server on disk: a plain boto3 loop (a tenth of the rows, it is slow), the sink's sender alone, and the sink
with 1, 2 and 4 partitions, to a standard and to a FIFO queue. Each figure is the better of two; the session is warm. On a
machine that others use too, look at the CPU a row (server, JVM and every Python together) rather than at the rates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.lifecycles_run import cpu_s
from veil.core.message_rules import Draft
from veil.pipeline import register
from veil.pipeline.queues import QueueAddress
from veil.pipeline.sink.sender import RowBatcher, Sender, SinkRow, why_refused
from veil.pipeline.spark.session import SparkSettings, session
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def by_boto3(server: VeilServer, rows: int, size: int) -> None:
    sqs = server.client()
    url = sqs.get_queue_url(QueueName="plain")["QueueUrl"]
    body = "x" * size
    for _ in range(rows // 10):
        sqs.send_message_batch(
            QueueUrl=url, Entries=[{"Id": str(number), "MessageBody": body} for number in range(10)]
        )


def by_sender(server: VeilServer, rows: int, size: int, name: str) -> None:
    sender = Sender(QueueAddress("", server.endpoint_url, server.region))
    sender.url("plain", 10.0)
    cutter = RowBatcher(8, sender.entries_max)
    for ordinal in range(rows):
        row = SinkRow(ordinal, "plain", Draft("x" * size))
        why_refused(row)
        cutter.add(row)
        if ordinal % 2_000 == 1_999:
            sender.begin(cutter.full(), name, 8, 30.0).result()
    sender.begin(cutter.rest(), name, 8, 30.0).result()
    sender.close()


def rows_of(spark: SparkSession, rows: int, size: int, partitions: int) -> DataFrame:
    # Spark's lpad copies one character at a time, which took 10 µs a row of what was to be the sink's.
    return spark.range(0, rows, 1, partitions).selectExpr(
        f"concat('{'x' * (size - 9)}', cast(100000000 + id as string)) body", "concat('g', id % 1000) group"
    )


def by_sink(server: VeilServer, frame: DataFrame, queue: str) -> None:
    frame.write.format("veil").option("queue", queue).option("endpoint", server.endpoint_url).option(
        "region", server.region
    ).mode("append").save()


def figures(rows: int, work: Callable[[], None]) -> dict[str, int]:
    """Rows a second and the CPU of everything together for one row, of the better of two."""
    tries = []
    for _ in range(2):
        begin_s, begin_cpu_s = time.perf_counter(), cpu_s()
        work()
        tries.append((time.perf_counter() - begin_s, cpu_s() - begin_cpu_s))
    return {
        "per_s": round(rows / min(seconds for seconds, _ in tries)),
        "cpu_us": round(min(used_s for _, used_s in tries) / rows * 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=200)
    given = parser.parse_args()
    rows, size = given.rows, given.bytes
    with (
        tempfile.TemporaryDirectory() as folder,
        VeilServer("--data", str(Path(folder) / "data")) as server,
        session(SparkSettings(master="local[4]", conf={"spark.ui.enabled": "false"}, title="bench")) as spark,
    ):
        register(spark)
        sqs = server.client()
        sqs.create_queue(QueueName="plain")
        sqs.create_queue(QueueName="exact.fifo", Attributes={"FifoQueue": "true"})
        found = {"boto3 loop": figures(rows // 10, lambda: by_boto3(server, rows // 10, size))}
        names = iter(range(1000))
        found["sender, 8 calls in flight"] = figures(
            rows, lambda: by_sender(server, rows, size, f"bench-{next(names)}")
        )
        for queue in ("plain", "exact.fifo"):
            for partitions in (1, 2, 4):
                frame = rows_of(spark, rows, size, partitions)
                found[f"sink to {queue}, {partitions} partitions"] = figures(
                    rows, partial(by_sink, server, frame, queue)
                )
    for name, each in found.items():
        times = each["per_s"] / found["boto3 loop"]["per_s"]
        print(f"{name:34} {each['per_s']:>9,} rows/s {times:5.1f} × {each['cpu_us']:>5} µs of CPU a row")
    print(json.dumps({"rows": rows, "bytes": size, "figures": found}))


if __name__ == "__main__":
    main()
