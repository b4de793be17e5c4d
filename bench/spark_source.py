"""Rows a second from a queue into Spark, receive and delete included, beside consumers without Spark on the same server.

    python -m bench.spark_source [--messages N] [--rounds N] [--batch N] [--contenders NAME ...] [--out FILE]
    python -m bench.spark_source --profile {sqs,veil} [--messages N]

Each contender empties a queue of the same length on the same `veil serve`, in turns: a plain boto3 loop of four threads,
Veil's consumer, and the source by SQS's calls (sqs) and by Veil's own with 1, 2 and 4 partitions (veil-1 …), into a sink that
drops the rows. Rates count from when a tenth of the messages is out of the queue until the query has ended, its last delete done;
Spark is up by then, and has emptied a queue each way before anything counts. Fewer messages than a few batches tell little.
On a machine that others use too, look at the CPU a row (server, JVM and every Python together) rather than at the rates.
`--profile` shows where the time of the source's own code goes: the driver's for sqs, an executor's for veil.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench import wire_requests as wire
from bench.consumer_peers import BOTO3, VEIL, peer
from bench.consumer_trial import TrialFailed, left_in, trial
from bench.contenders import running, scratch, veil_command
from bench.load import process_cpu_s
from bench.processes import HOST, await_rest, free_port
from veil.pipeline.queues import QueueAddress, QueueClient
from veil.pipeline.source.options import BATCH_ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veil.pipeline.source.stream import Offset, Stream

BUILD: Final = Path("build")
SPARK: Final = ("sqs", "veil-1", "veil-2", "veil-4")
NAMES: Final = ("boto3", "consumer", *SPARK)
_REGION: Final = "us-east-1"
_STARTED_SHARE: Final = 0.1
_LOOK_EVERY_S: Final = 0.2
_TIMEOUT_S: Final = 300.0
_PARTS: Final = ("server", "jvm", "python")  # whose CPU it is
Figures = dict[str, Any]


class Queues:
    """A server, and queues to be emptied."""

    def __init__(self, port: int, server_pid: int, messages: int) -> None:
        import boto3

        self.endpoint, self.server_pid, self._messages = f"http://{HOST}:{port}", server_pid, messages
        self.client: Any = boto3.client(
            "sqs",
            endpoint_url=self.endpoint,
            region_name=_REGION,
            aws_access_key_id="veil",
            aws_secret_access_key="veil",
        )
        self._count = 0

    def full(self) -> str:
        """The URL of a new queue with all the messages in it, the server at rest."""
        self._count += 1
        given = {"VisibilityTimeout": "120"}
        url = str(self.client.create_queue(QueueName=f"spark-{self._count}", Attributes=given)["QueueUrl"])
        with QueueClient(QueueAddress(url, self.endpoint, _REGION)) as queue:
            sent = queue.send([{"MessageBody": wire.BODY}] * self._messages)
        if not all(isinstance(each, str) for each in sent):
            raise TrialFailed("not all messages could be sent")
        await_rest(self.server_pid)
        return url


def plain(queues: Queues, name: str, messages: int) -> Figures:
    """A consumer without Spark."""
    who, concurrency = (BOTO3, 4) if name == "boto3" else (VEIL, 100)
    url = queues.full()
    command = peer(who, BUILD).command(queues.endpoint, url, concurrency)
    found = trial(queues.client, url, command, messages, queues.server_pid)
    return {"per_s": found.messages_per_s, "server_us": found.server_us}


def spark_source(
    spark: SparkSession, queues: Queues, name: str, messages: int, batch: int, place: Path
) -> Figures:
    """The source, until the queue is empty."""
    from pyspark.errors import StreamingQueryException

    way, _, partitions = name.partition("-")
    url = queues.full()
    given = {
        "queue": url,
        "endpoint": queues.endpoint,
        "region": _REGION,
        "protocol": way,
        "segments": str(place / "segments"),
        "partitions": partitions or "2",
        "maxMessagesPerTrigger": str(batch),
    }
    rows = spark.readStream.format("veil").options(**given).load()
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(place / f"checkpoint-{time.time_ns()}"))
        .trigger(availableNow=True)
    )
    begun_s = time.perf_counter()
    running_query = query.start()
    while (already := messages - left_in(queues.client, url)) < messages * _STARTED_SHARE:
        problem = running_query.exception()
        if problem is not None or time.perf_counter() - begun_s > _TIMEOUT_S:
            raise TrialFailed(f"{name}: {messages - already} left; {problem}")
        time.sleep(_LOOK_EVERY_S)
    first_s, before_s = time.perf_counter(), _cpu_s_by_part(queues.server_pid)
    try:
        is_over = running_query.awaitTermination(int(_TIMEOUT_S))
    except StreamingQueryException as error:
        raise TrialFailed(f"{name}: {error}") from error
    last_s, after_s = time.perf_counter(), _cpu_s_by_part(queues.server_pid)
    if not is_over or left_in(queues.client, url):
        raise TrialFailed(f"{name}: the queue is not empty")
    whole_s = last_s - begun_s
    progress = [dict(each) for each in running_query.recentProgress if each["numInputRows"]]
    if sum(each["numInputRows"] for each in progress) != messages:
        raise TrialFailed(f"{name}: Spark saw another number of rows than the queue had")
    counted = messages - already
    used_us = {part: (after_s[part] - before_s[part]) / counted * 1e6 for part in _PARTS}
    durations = {
        part: median(each["durationMs"].get(part, 0) for each in progress)
        for part in (
            "latestOffset",
            "queryPlanning",
            "addBatch",
            "walCommit",
            "commitOffsets",
            "triggerExecution",
        )
    }
    return {
        "per_s": counted / (last_s - first_s),
        "server_us": used_us["server"],
        "jvm_us": used_us["jvm"],
        "python_us": used_us["python"],
        "all_us": sum(used_us.values()),
        "whole_per_s": messages / whole_s,
        "batch_ms": durations,
    }


def _tried(trial_: Callable[[], Figures]) -> Figures:
    """The trial; again where the machine was too busy for Spark to start a Python within its ten seconds."""
    for _ in range(5):
        try:
            return trial_()
        except TrialFailed as failed:
            if "failed to connect back" not in str(failed):
                raise
    return trial_()


def _cpu_s_by_part(server_pid: int) -> dict[str, float]:
    """CPU time of everything below this process, what has ended included; itself is not."""
    found: dict[
        int, tuple[int, str, int, int]
    ] = {}  # by process: parent, name, ticks, ticks of its ended children
    for entry in Path("/proc").iterdir():
        with suppress(ValueError, OSError):
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            found[int(entry.name)] = (
                int(fields[1]),
                name,
                sum(map(int, fields[11:13])),
                sum(map(int, fields[13:15])),
            )
    below, ticks = {os.getpid()}, dict.fromkeys(_PARTS, 0)
    while True:
        children = {pid for pid, (parent, *_) in found.items() if parent in below and pid not in below}
        if not children:
            return {part: count / os.sysconf("SC_CLK_TCK") for part, count in ticks.items()}
        below |= children
        for pid in children:
            parent, name, used, by_ended = found[pid]
            is_server = server_pid in (pid, parent)  # with the helper that writes its journal
            ticks["server" if is_server else "jvm" if name == "java" else "python"] += used
            ticks["server" if is_server else "python"] += by_ended  # whatever the JVM starts is a Python


def measure(given: argparse.Namespace, queues: Queues, place: Path) -> dict[str, list[Figures]]:
    """So many rounds, in each of which everyone has a turn."""
    from veil.pipeline import register
    from veil.pipeline.spark.session import SparkSettings, close_session, open_session

    figures: dict[str, list[Figures]] = {name: [] for name in given.contenders}
    spark = open_session(SparkSettings(master="local[2]", conf={"spark.ui.enabled": "false"}, title="bench"))
    register(spark)
    try:
        # The first round does not count: Java compiles what runs often, which goes on for some seconds.
        for turn in range(given.rounds + 1):
            for name in given.contenders:
                if name in SPARK:
                    found = _tried(
                        partial(spark_source, spark, queues, name, given.messages, given.batch, place)
                    )
                elif turn:
                    found = plain(queues, name, given.messages)
                else:
                    continue
                if turn:
                    figures[name].append(found)
                print(f"round {turn}: {name} {found['per_s']:,.0f}/s", file=sys.stderr)
    finally:
        close_session(spark)
    return figures


def table(figures: dict[str, list[Figures]]) -> str:
    """A row for each, by the median of its rounds."""
    lines = [
        f"{'contender':<10} {'rows/s':>9} {'of sqs':>7} {'whole run':>10} {'server µs/row':>14} {'JVM':>5} {'Python':>7}"
        f" {'all':>5}  ms of a batch"
    ]
    rates = {name: median(each["per_s"] for each in found) for name, found in figures.items() if found}
    for name, rate in rates.items():
        found = figures[name]
        of_sqs = f"{rate / rates['sqs']:.2f}" if "sqs" in rates else "-"
        whole = f"{median(each['whole_per_s'] for each in found):,.0f}" if "whole_per_s" in found[0] else "-"
        batch = found[-1].get("batch_ms", {})
        parts = ", ".join(f"{part} {ms:,.0f}" for part, ms in batch.items() if ms)
        server_us, jvm_us, python_us, all_us = (
            f"{median(each[what] for each in found):,.0f}" if what in found[0] else "-"
            for what in ("server_us", "jvm_us", "python_us", "all_us")
        )
        line = f"{name:<10} {rate:9,.0f} {of_sqs:>7} {whole:>10} {server_us:>14} {jvm_us:>5} {python_us:>7} {all_us:>5}  {parts}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def profile(way: str, queues: Queues, batch: int, messages: int, place: Path) -> None:
    """Empty a queue without Spark around the source, and print where its own time goes."""
    from veil.pipeline.source.options import SourceOptions
    from veil.pipeline.source.readers import open_queue, open_stream
    from veil.pipeline.source.stream import Tally
    from veil.pipeline.sql import arrow_schema

    given = {"queue": queues.full(), "endpoint": queues.endpoint, "region": _REGION, "segments": str(place)}
    options = SourceOptions.read(given)
    schema = arrow_schema(_columns())
    with open_queue(options) as client:
        at: Offset = {"epoch": "profile", "n": 0, "by": way}
        stream = open_stream(client, options, at, Tally("profile"), schema)
        watched = cProfile.Profile()
        server_s, cpu_s, begun_s = process_cpu_s(queues.server_pid), time.process_time(), time.perf_counter()
        rows = watched.runcall(_empty, stream, at, batch, schema)
        seconds = time.perf_counter() - begun_s
        server_us = (process_cpu_s(queues.server_pid) - server_s) / rows * 1e6
        own_us = (time.process_time() - cpu_s) / rows * 1e6
        stream.stop()
    print(
        f"{way}: {rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f}/s under the profiler; CPU a row: {own_us:.0f} µs"
        f" here, {server_us:.0f} µs in the server"
    )
    pstats.Stats(watched).strip_dirs().sort_stats("tottime").print_stats(25)


def _empty(stream: Stream, at: Offset, batch: int, schema: Any) -> int:
    stream.limit_to_backlog()
    rows = 0
    while True:
        end = stream.next_offset(at, batch)
        if end == at:
            return rows
        rows += sum(each.num_rows for part in stream.parts(at, end) for each in part.batches(schema))
        at = end


def _columns() -> Any:
    from pyspark.sql import types as t

    value = t.StructType(
        [
            t.StructField("data_type", t.StringType()),
            t.StructField("string_value", t.StringType()),
            t.StructField("binary_value", t.BinaryType()),
        ]
    )
    return t.StructType(
        [
            t.StructField("message_id", t.StringType(), nullable=False),
            t.StructField("body", t.StringType()),
            t.StructField("attributes", t.MapType(t.StringType(), value)),
            t.StructField("system_attributes", t.MapType(t.StringType(), t.StringType())),
            t.StructField("sent_at", t.TimestampType()),
            t.StructField("received_at", t.TimestampType()),
            t.StructField("receive_count", t.IntegerType()),
            t.StructField("queue", t.StringType()),
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_source",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=200_000, help="in the queue of each trial (200000)")
    parser.add_argument("--rounds", type=int, default=3, help="the table shows their median (3)")
    parser.add_argument(
        "--batch",
        type=int,
        default=BATCH_ROWS,
        help=f"messages of a micro-batch (the source's own, {BATCH_ROWS})",
    )
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument("--profile", choices=("sqs", "veil"), help="profile one way instead")
    parser.add_argument("--out", type=Path, default=BUILD / "spark_source.json", metavar="FILE")
    given = parser.parse_args(arguments)
    os.environ |= {"AWS_ACCESS_KEY_ID": "veil", "AWS_SECRET_ACCESS_KEY": "veil"}
    port = free_port()
    with (
        scratch(BUILD) as data,
        tempfile.TemporaryDirectory(prefix="spark-source-", dir=BUILD) as work,
        running(veil_command(data, port), port, BUILD / "spark-source-server.log") as pid,
    ):
        queues, place = Queues(port, pid, given.messages), Path(work).resolve()
        if given.profile:
            profile(given.profile, queues, given.batch, given.messages, place)
            return 0
        figures = measure(given, queues, place)
    facts = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "messages": given.messages,
        "batch": given.batch,
        "rounds": given.rounds,
    }
    given.out.write_text(json.dumps({"facts": facts, "figures": figures}, indent=1) + "\n")
    print(
        f"{facts['cores']} cores for server and readers together, {facts['machine']}, Python {facts['python']}, Spark"
        f" {facts['pyspark']}; {given.messages:,} messages of {wire.BODY_BYTES} bytes, batches of {given.batch:,}, median of"
        f" {given.rounds} rounds\n"
    )
    print(table(figures))
    print(f"all figures: {given.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
