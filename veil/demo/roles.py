"""What the demo's processes do: produce, work, encode videos, and run the pipeline over what happened.

A plain worker is as one finds it everywhere: receive, work, delete. It renews nothing, so the queue's timeout must do. The
consumer of videos is Veil's own, which renews its leases; `veil run veil.demo.roles:videos` starts it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from veil import Adaptive, Consumer, Message
from veil.cli.output import echo, echo_json
from veil.client.api import ApiError, RawMessage
from veil.client.blocking import BlockingClient, find_target
from veil.client.client import SqsClient
from veil.core.errors import VeilError
from veil.demo.processes import leave_with_the_demo
from veil.demo.shop import DemoQueue, queue_named

_SLOTS: Final = 200  # asleep most of the time
_WAIT_S: Final = 20


async def work(queue: DemoQueue) -> None:
    """Work on as many messages at a time as there are slots, until SIGTERM; then finish what was begun."""
    api = SqsClient(user_agent_extra="demo-worker")
    at_work: set[asyncio.Task[None]] = set()
    url = await api.queue_url(queue.name)

    async def handle(message: RawMessage) -> None:
        try:
            number = int(json.loads(message.body)["number"])
        except ValueError:  # poison: given back at once, until it has been received too often
            await api.extend(url, [(message.receipt, 0)])
            return
        await asyncio.sleep(queue.work_s(number, message.receive_count))
        # Perhaps the visibility has lapsed by now and somebody else is at the same work. Nothing here would notice.
        await api.delete(url, [message.receipt])

    async def receive() -> None:
        while True:
            while len(at_work) >= _SLOTS:
                await asyncio.wait(at_work, return_when=asyncio.FIRST_COMPLETED)
            for message in await api.receive(url, count=10, wait_s=_WAIT_S):
                task = asyncio.create_task(handle(message))
                at_work.add(task)
                task.add_done_callback(at_work.discard)

    receiving = asyncio.create_task(receive())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, receiving.cancel)
    echo("ready")
    try:
        with suppress(asyncio.CancelledError):
            await receiving
        if at_work:
            await asyncio.wait(at_work)
    finally:
        await api.close()


_BATCH: Final = 10
_TELL_EVERY_S: Final = 0.5


def bodies(poison_every: int) -> Iterator[str]:
    """What is sent: numbered work, and now and then something that nobody can read."""
    for number in count(1):
        poisonous = poison_every and number % poison_every == 0
        yield f"unreadable {number}" if poisonous else json.dumps({"number": number})


def produce(queue: str, per_second: float, seconds: float, poison_every: int) -> None:
    """Send for so many seconds (0: for ever) at a steady rate, and say now and then how many were acknowledged."""
    begun_s = told_s = time.monotonic()
    messages, sent = bodies(poison_every), 0
    batch = max(1, min(_BATCH, round(per_second)))
    with BlockingClient(find_target()) as client:
        for turn in count():
            due_s = turn * batch / per_second
            if seconds and due_s >= seconds:
                break
            time.sleep(max(0.0, begun_s + due_s - time.monotonic()))
            entries = [{"Id": str(at), "MessageBody": next(messages)} for at in range(batch)]
            sent += len(client.on_queue("SendMessageBatch", queue, {"Entries": entries})["Successful"])
            if time.monotonic() - told_s > _TELL_EVERY_S:
                told_s = time.monotonic()
                echo(str(sent))
    echo(str(sent))


_queue = queue_named("videos")

# Windows as short as the queue's timeout: a worker that is killed is missed within three seconds, however long a video takes.
videos = Consumer(
    _queue.name,
    concurrency=60,
    prefetch=0,
    renewal=Adaptive(window_min=_queue.timeout_s, window_max=_queue.timeout_s),
)


@videos.handler
async def encode(video: dict[str, int], message: Message) -> None:
    """Take as long as encoding this video would."""
    await asyncio.sleep(_queue.work_s(video["number"], message.receive_count))


# A few thousand rows on two cores: what Spark does for large data would only take time here.
_SMALL: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def run_pipeline(folder: Path, target: float, go: threading.Event) -> None:
    """Start Spark at once; when the demo says so, run lifecycles, timeouts and report, and tell what each came to."""
    from veil.cli.pipeline.timeouts import SCHEDULES
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.run import run_lifecycles
    from veil.pipeline.lifecycles.store import read_table
    from veil.pipeline.report.overview import collect_overview
    from veil.pipeline.report.page import render_html
    from veil.pipeline.report.summary import summary
    from veil.pipeline.spark.session import SparkSettings, session
    from veil.pipeline.timeouts.run import run_timeouts

    begun_s = time.monotonic()

    def told(step: str, **facts: Any) -> None:
        nonlocal begun_s
        echo_json({"step": step, "seconds": round(time.monotonic() - begun_s, 1), **facts})
        begun_s = time.monotonic()

    journal, tables = Storage.at(folder / "data" / "journal"), Storage.at(folder / "data" / "tables")
    conf = {**_SMALL, "spark.local.dir": str(folder / "spark")}
    with session(SparkSettings(conf=conf, title="veil demo")) as spark:
        told("session")
        go.wait()
        begun_s = time.monotonic()
        # So little this process would do by itself; but the demo is to show it on Spark.
        ran = run_lifecycles(spark, journal, tables, bytes_here_max=0)
        outcomes: dict[str, dict[str, int]] = {}
        for row in read_table(spark, tables, "messages").groupBy("queue", "outcome").count().collect():
            outcomes.setdefault(row["queue"], {})[row["outcome"]] = row["count"]
        told("lifecycles", events=ran.events, segments=ran.segments, outcomes=outcomes)
        findings = run_timeouts(tables, target=target, policies=SCHEDULES)
        told("timeouts")
        overview = collect_overview(tables)
        (folder / "report.html").write_text(render_html(findings, overview), encoding="utf-8")
        told("report", summary=summary(findings, overview))


if __name__ == "__main__":
    told = leave_with_the_demo()
    role, *given = sys.argv[1:]
    try:
        if role == "producer":
            produce(given[0], float(given[1]), float(given[2]), int(given[3]))
        elif role == "pipeline":
            run_pipeline(Path(given[0]), float(given[1]), told)
        else:
            asyncio.run(work(queue_named(given[0])))
    except (ApiError, VeilError) as error:
        sys.exit(f"{role}: {error}")
