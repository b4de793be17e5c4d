"""How often the truth is told about attempts: a shop whose workers know what really became of each.

    python -m bench.attempts [--messages 400] [--seed 1] [--without-spark]

Six shops, each with workers of one kind, a queue with a window of 30 s and dead letters after five receives: Veil's consumer;
loops over boto3 that back off with ChangeMessageVisibility; the same as processes that are restarted on one host, under one
address and user agent, without and with an application id of their own (`AWS_SDK_UA_APP_ID`); workers like Celery's, which
receive several at a time, work on them one after the other and back off by a policy; and pollers like Powertools' on Lambda,
which delete what succeeded and leave the rest to lapse. Each message carries a plan for its attempts: completed, failed (with a
backoff shorter and longer than what is left of the window), given back, overran, crashed. A worker that crashes stops in the
middle, with all that it holds, and another process takes its place. What really became of each attempt is noted beside the queue.

Requests go through the server's own front end, service and journal, on a clock that is moved by hand, so that hours pass in
seconds; Veil's consumer is the real one with its own client. The journal is then judged, by the rule that console and command
use and, through Parquet and Spark, by the tables. Where a client cannot say that it failed, a message that it gave back
in the middle of its work counts as told rightly when it is told as given back. Unknown is never right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from veil import Consumer, Message, NoRenewal, RetryAfter, RetryNow
from veil.client.client import SqsClient
from veil.client.connection import HttpAnswer
from veil.client.credentials import Credentials
from veil.consumer.outcomes import Outcome
from veil.consumer.renewal.keeper import LeaseKeeper
from veil.consumer.runner import Dependencies, worker_agent
from veil.core.queue import QueueKey
from veil.journal.attempts import tell
from veil.journal.lives import EVERY_ROW, LifeEvent, from_packed
from veil.journal.storage import Storage
from veil.service.service import Service
from veil.stores.memory import MemoryStore
from veil.stores.store import ExportPlan
from veil.testing.in_process import ManualTime
from veil.wire.exchange import Request
from veil.wire.front_end import SqsFrontEnd

WINDOW_S: Final = 30
WORKERS: Final = 4
LONG_BACKOFF_S: Final = 90
SHORT_BACKOFF_S: Final = 5
# What an attempt comes to, and how often.
PLAN: Final = {
    "completed": 0.64,
    "short": 0.12,
    "long": 0.08,
    "returned": 0.08,
    "overran": 0.06,
    "crashed": 0.02,
}
TRUTH: Final = {"completed": "completed", "short": "failed", "long": "failed", "returned": "given_back",
                "overran": "overran", "crashed": "crashed"}  # fmt: skip
_QUIET_TURNS: Final = 30
Attempt = tuple[str, int]  # message id and number of the receive


class Failed(Exception):
    """What a handler raises that was planned to."""


@dataclass
class Shop:
    """One server with one queue, its clock, and what really happened."""

    kind: str
    clock: ManualTime
    service: Service
    front: SqsFrontEnd
    random: random.Random
    truth: dict[Attempt, str] = field(default_factory=dict)
    calls: int = 0
    pids: Iterable[int] = field(default_factory=lambda: count(1_000))

    @property
    def url(self) -> str:
        return "http://127.0.0.1:9324/000000000000/orders"

    def note(self, message_id: str, receives: int, truth: str) -> None:
        self.truth[message_id, receives] = truth

    def step(self, body: str, receives: int) -> str:
        """What the message's plan says of this attempt."""
        plan = json.loads(body)["plan"]
        return str(plan[min(receives, len(plan)) - 1])

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self.clock.call_at(self.clock.now_ms() + round(seconds * 1000), over.set)
        await over.wait()


class Wire:
    """The connections of one process to the server, without a socket between; `cut` is what a crash does to them."""

    def __init__(self, shop: Shop, address: str) -> None:
        self._shop, self._address, self._dead = shop, address, False
        self._under_way: set[asyncio.Task[Any]] = set()

    async def exchange(self, request: bytes, **_: Any) -> HttpAnswer:
        head, _blank, body = request.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        status, answer = await self.ask(headers, body)
        return HttpAnswer(status, [], answer)

    async def ask(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if self._dead:
            await asyncio.get_running_loop().create_future()
        self._shop.calls += 1
        request = Request("POST", "/", "", headers, body, f"{self._address}:40000")
        task = asyncio.ensure_future(self._shop.front.handle(request))
        self._under_way.add(task)
        try:
            response = await task
        except asyncio.CancelledError:
            await asyncio.get_running_loop().create_future()
            raise
        finally:
            self._under_way.discard(task)
            self._shop.calls += 1
        return response.status, response.body

    def cut(self) -> None:
        self._dead = True
        for task in self._under_way:
            task.cancel()

    async def abandon(self) -> None:
        self.cut()

    async def close(self) -> None:
        self.cut()


# ---- the workers; each is a coroutine that runs until its process crashes or the shop closes


async def veil_worker(shop: Shop, place: int) -> None:
    """Veil's own consumer; messages that are planned to overrun come without renewal."""
    crashed = asyncio.Event()
    address = f"10.0.0.{place}"
    agent = worker_agent(None).replace(f"pid/{_own_pid()}", f"pid/{next(iter(shop.pids))}")
    app = Consumer(
        "orders", concurrency=4, renewal=NoRenewal(), on_failure=lambda error, message: _backoff(error)
    )
    wires: list[Wire] = []

    def make_api() -> SqsClient:
        client = SqsClient(
            endpoint="http://127.0.0.1:9324",
            region="us-east-1",
            credentials=Credentials("shop", "secret"),
            user_agent_extra=agent,
            monotonic=shop.clock.monotonic_s,
            wall_ms=shop.clock.wall_ms,
        )
        wires.append(Wire(shop, address))
        client._pool = wires[-1]  # type: ignore[assignment]
        return client

    held: dict[int, Attempt] = {}

    @app.handler
    async def work(message: Message) -> None:
        held[id(message)] = (message.id, message.receive_count)
        try:
            await attempt(message)
        finally:
            del held[id(message)]

    async def attempt(message: Message) -> None:
        step = shop.step(message.body, message.receive_count)
        await shop.sleep(shop.random.uniform(0.2, 8))
        if step == "crashed":
            for each in held.values():
                shop.note(*each, "crashed")
            for wire in wires:
                wire.cut()
            crashed.set()
            await asyncio.get_running_loop().create_future()
        try:
            if step == "overran":  # until it is cancelled, its lease being lost
                await shop.sleep(2 * WINDOW_S)
        finally:
            if not crashed.is_set():
                shop.note(message.id, message.receive_count, TRUTH[step])
        if crashed.is_set():
            await asyncio.get_running_loop().create_future()
        if step == "returned":
            raise RetryNow
        if step in ("short", "long"):
            raise Failed(step)

    dependencies = Dependencies(
        make_api=make_api,
        make_keeper=lambda policy, events: LeaseKeeper(
            make_api,
            policy,
            monotonic=shop.clock.monotonic_s,
            events=events,
            call_later=shop.clock.call_later,
        ),
        monotonic=shop.clock.monotonic_s,
        wall=lambda: shop.clock.wall_ms() / 1000,
        sleep=shop.sleep,
        random=shop.random,
    )
    await app.start(dependencies)
    await crashed.wait()


def _own_pid() -> int:
    import os

    return os.getpid()


def _backoff(error: BaseException) -> Outcome:
    return RetryAfter(SHORT_BACKOFF_S if str(error) == "short" else LONG_BACKOFF_S)


class Caller:
    """A plain client: JSON requests under one user agent from one address."""

    def __init__(self, shop: Shop, place: int, agent: str) -> None:
        self.shop, self.wire = shop, Wire(shop, f"10.0.0.{place}")
        self._agent = agent

    async def __call__(self, action: str, **given: Any) -> dict[str, Any]:
        headers = {"x-amz-target": f"AmazonSQS.{action}", "user-agent": self._agent}
        _, body = await self.wire.ask(headers, json.dumps({"QueueUrl": self.shop.url, **given}).encode())
        return dict(json.loads(body)) if body else {}

    async def receive(self, most: int) -> list[dict[str, Any]]:
        asked = {"MaxNumberOfMessages": most, "WaitTimeSeconds": 20, "MessageSystemAttributeNames": ["All"]}
        found: list[dict[str, Any]] = (await self("ReceiveMessage", **asked)).get("Messages", [])
        return found


async def loop_worker(
    shop: Shop, place: int, *, most: int, agent: str, leaves: bool = False, stays: bool = False
) -> None:
    """Receives up to so many and works on them one after the other; what fails is given a backoff, or left to lapse."""
    pid = next(iter(shop.pids))
    # A container: another process has another address, unless it stays where it was.
    caller = Caller(shop, place if stays else pid % 250 + 1, agent.format(pid=pid))
    while True:
        messages = await caller.receive(most)
        done: list[dict[str, str]] = []
        for at, message in enumerate(messages):
            receives = int(message["Attributes"]["ApproximateReceiveCount"])
            step, receipt = shop.step(message["Body"], receives), message["ReceiptHandle"]
            await shop.sleep(shop.random.uniform(0.2, 2))
            if step == "crashed":
                left = [*messages[at:], *(each for each in messages[:at] if each["ReceiptHandle"] in
                        {entry["ReceiptHandle"] for entry in done})]  # fmt: skip
                for each in left:
                    shop.note(
                        each["MessageId"], int(each["Attributes"]["ApproximateReceiveCount"]), "crashed"
                    )
                caller.wire.cut()
                return
            if step == "overran":
                await shop.sleep(WINDOW_S + shop.random.uniform(2, 20))
            shop.note(message["MessageId"], receives, TRUTH[step])
            if step in ("completed", "overran"):
                done.append({"Id": str(at), "ReceiptHandle": receipt})
            elif leaves:
                if step == "returned":  # there is no such thing: whatever does not succeed has failed
                    shop.note(message["MessageId"], receives, "failed")
            else:
                seconds = {"returned": 0, "short": SHORT_BACKOFF_S, "long": LONG_BACKOFF_S}[step]
                await caller("ChangeMessageVisibility", ReceiptHandle=receipt, VisibilityTimeout=seconds)
            if done and not leaves:
                await caller("DeleteMessageBatch", Entries=done)
                done = []
        if done:
            await caller("DeleteMessageBatch", Entries=done)


BOTO3: Final = "Boto3/1.44.1 md/Botocore#1.44.1 ua/2.1 os/linux lang/python#3.11.7 Botocore/1.44.1"
WORKER: Final[dict[str, Callable[[Shop, int], Awaitable[None]]]] = {
    "Veil's consumer": veil_worker,
    "boto3 with backoff": lambda shop, place: loop_worker(shop, place, most=1, agent=BOTO3),
    "boto3, restarted": lambda shop, place: loop_worker(shop, place, most=1, agent=BOTO3, stays=True),
    "with its own app id": lambda shop, place: loop_worker(
        shop, place, most=1, agent=f"{BOTO3} app/worker-{{pid}}", stays=True
    ),
    "like Celery": lambda shop, place: loop_worker(shop, place, most=4, agent=f"{BOTO3} celery/5.6"),
    "like Powertools": lambda shop, place: loop_worker(shop, place, most=5, agent="AWS-Lambda", leaves=True),
}


# ---- a shop's day


async def a_day(kind: str, messages: int, seed: int) -> tuple[Shop, list[tuple[int, bytes]], int]:
    """Let a shop work until its queue is empty and every lapse is judged; its truth, the packed rows of its journal, and now."""
    clock = ManualTime()
    service = Service(MemoryStore(clock, journal=True), clock)
    shop = Shop(kind, clock, service, SqsFrontEnd(service, verifier=None), random.Random(seed))
    service.watch()
    await service.start()
    operator = Caller(shop, 254, "operator")
    policy = {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead", "maxReceiveCount": "5"}
    await operator("CreateQueue", QueueName="dead")
    attributes = {"VisibilityTimeout": str(WINDOW_S), "RedrivePolicy": json.dumps(policy)}
    await operator("CreateQueue", QueueName="orders", Attributes=attributes)
    sending = asyncio.ensure_future(_sent(shop, operator, messages))
    workers = {asyncio.ensure_future(WORKER[kind](shop, place)): place for place in range(1, WORKERS + 1)}
    quiet_since_ms = clock.now_ms()
    while clock.now_ms() - quiet_since_ms < 20 * 60_000:
        await _turn(shop)
        for worker in [each for each in workers if each.done()]:
            place = workers.pop(worker)
            worker.result()
            workers[asyncio.ensure_future(WORKER[kind](shop, place))] = place
            await _turn(shop)
        counts = await service.store.counts(await service.store.find_queue(_KEY))  # type: ignore[arg-type]
        if sum(counts) or not sending.done():
            quiet_since_ms = clock.now_ms()
        due_ms = clock.next_due_ms()
        clock.advance(max(1, (due_ms or clock.now_ms() + 1_000) - clock.now_ms()))
    waiting = await service.store.outbox_rows(_EVERY, after=0, limit=10**9)
    rows = [(row.number, row.packed) for row in waiting]
    return shop, rows, clock.now_ms()


async def _sent(shop: Shop, operator: Caller, messages: int) -> None:
    for _ in range(messages):
        # The last attempt of a message always succeeds, so that all of them end.
        plan = [*shop.random.choices(list(PLAN), list(PLAN.values()), k=3), "completed"]
        await operator("SendMessage", MessageBody=json.dumps({"plan": plan}))
        await shop.sleep(shop.random.expovariate(1 / 4))


async def _turn(shop: Shop) -> None:
    quiet, seen = 0, -1
    while quiet < _QUIET_TURNS:
        await asyncio.sleep(0)
        quiet, seen = (quiet + 1 if shop.calls == seen else 0), shop.calls


# ---- judging

_KEY: Final = QueueKey("us-east-1", "000000000000", "orders")
_EVERY: Final = ExportPlan(*EVERY_ROW)
Judged = dict[Attempt, str]


def by_the_rule(rows: list[tuple[int, bytes]], now_ms: int) -> Judged:
    """What console and command would say of each attempt."""
    lives: defaultdict[int, list[LifeEvent]] = defaultdict(list)
    for number, packed in rows:
        for event in from_packed(number, packed):
            lives[event.seq].append(event)
    judged: Judged = {}
    for events in lives.values():
        receives = {each.delivery: each.receive_count or 0 for each in events if each.kind == "received"}
        life = tell(events, now_ms)
        for stay in life.stays if life else ():
            for lease in stay.leases:
                judged[stay.message_id or "", receives.get(lease.delivery, 0)] = lease.outcome.value
    return judged


def by_the_tables(rows: list[tuple[int, bytes]], place: Path, spark: Any) -> Judged:
    """What the pipeline's tables say, over the journal's segments."""
    from pyarrow import parquet as pq

    from veil.journal.segment_writer import write_segment
    from veil.pipeline.lifecycles.run import run_lifecycles
    from veil.pipeline.lifecycles.store import load_manifest

    journal, tables = Storage.at(place / "journal"), Storage.at(place / "tables")
    write_segment(journal, ExportPlan("shop", rows[0][0], rows[-1][0], "2026-01-01"), rows)
    run_lifecycles(spark, journal, tables, bytes_here_max=0)
    judged: Judged = {}
    for hour in load_manifest(tables).hours.values():
        for name in hour.leases:
            with tables.open_input(name) as file:
                found = pq.ParquetFile(file).read(columns=["message_id", "receive_count", "outcome"])
            for row in found.to_pylist():
                judged[row["message_id"], row["receive_count"]] = row["outcome"]
    return judged


@dataclass(frozen=True)
class Score:
    """How often one way of judging was right about one shop."""

    attempts: int
    right: float
    unknown: float
    false_crashes: float  # of all attempts: claimed, and none
    wrong: Counter[tuple[str, str]]  # truth and what was said instead


def score(shop: Shop, judged: Judged) -> Score:
    """Hold what was said against what was so."""
    can_say = shop.kind == "Veil's consumer"
    wrong: Counter[tuple[str, str]] = Counter()
    for attempt, truth in shop.truth.items():
        said = judged.get(attempt, "missing")
        if said != truth and (can_say or (truth, said) != ("failed", "given_back")):
            wrong[truth, said] += 1
    total = len(shop.truth)
    unknown = sum(count for (_, said), count in wrong.items() if said == "unknown")
    crashes = sum(count for (_, said), count in wrong.items() if said == "crashed")
    return Score(total, 1 - wrong.total() / total, unknown / total, crashes / total, wrong)


def main() -> None:
    """Let the shops work, judge their journals, and say how often that was right."""
    arguments = argparse.ArgumentParser(prog="python -m bench.attempts", description=__doc__)
    arguments.add_argument("--messages", type=int, default=400, help="of each shop")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--without-spark", action="store_true")
    given = arguments.parse_args()
    spark = None
    if not given.without_spark:
        from veil.pipeline.spark.session import SparkSettings, open_session

        spark = open_session(SparkSettings())
    logging.getLogger("veil").setLevel(logging.CRITICAL)  # most of what these workers do is worth a warning
    print(f"{'shop':<20} {'judged by':<10} {'attempts':>8} {'right':>8} {'unknown':>8} {'false crashes':>14}")
    for kind in WORKER:
        began_s = time.monotonic()
        # Not asyncio.run, which would wait for crashed workers: they never end.
        shop, rows, now_ms = asyncio.new_event_loop().run_until_complete(
            a_day(kind, given.messages, given.seed)
        )
        ways = {"the rule": by_the_rule(rows, now_ms)}
        if spark is not None:
            with tempfile.TemporaryDirectory() as place:
                ways["Spark"] = by_the_tables(rows, Path(place), spark)
        for way, judged in ways.items():
            found = score(shop, judged)
            print(
                f"{kind:<20} {way:<10} {found.attempts:>8,} {found.right:>8.4f} {found.unknown:>8.4f} "
                f"{found.false_crashes:>14.4f}   {dict(found.wrong) or ''}"
            )
        print(f"{'':<20} {time.monotonic() - began_s:.1f} s", end="\n\n")


if __name__ == "__main__":
    main()
