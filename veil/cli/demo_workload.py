"""Half a minute in a shop: producers send, workers work, some are killed; then what is left is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from veil.cli.client import Client
from veil.cli.demo_crew import Crew, Hand
from veil.cli.demo_queues import DEAD, DemoQueue
from veil.cli.demo_stage import Stage
from veil.cli.failures import CommandFailed
from veil.cli.queue_settings import redrive_policy

WORKERS: Final = 2  # of each queue
GENTLY: Final = 0.02  # of the rates, for a demo that is kept running
_LOOK_EVERY_S: Final = 0.1
_COUNT_EVERY_S: Final = 0.5
_START_PATIENCE_S: Final = 30.0
_DRAIN_PATIENCE_S: Final = 30.0
LOG: Final = "workers.log"


@dataclass
class Happened:
    """What the demo itself did and saw; what the pipeline finds must agree with it."""

    sent: dict[str, int] = field(default_factory=dict)  # acknowledged, by queue
    poison: int = 0
    killed: int = 0


def create_queues(client: Client, queues: tuple[DemoQueue, ...]) -> None:
    """The queues, each with the timeout that somebody guessed, and one for the dead letters of all."""
    client.call("CreateQueue", {"QueueName": DEAD})
    for queue in queues:
        attributes = {
            "VisibilityTimeout": str(queue.timeout_s),
            "RedrivePolicy": redrive_policy(client, DEAD, queue.receives_max),
        }
        client.call("CreateQueue", {"QueueName": queue.name, "Attributes": attributes})


class Workload:
    """The producers and workers of all queues."""

    def __init__(self, crew: Crew, queues: tuple[DemoQueue, ...], seconds: float, parent: int) -> None:
        self._crew, self._queues, self._seconds, self._parent = crew, queues, seconds, parent
        self._workers: dict[str, list[Hand]] = {}
        self._producers: dict[str, Hand] = {}
        self._counting = threading.Lock()
        self._ready = 0  # plain workers, from the first on
        self.happened = Happened()

    def start_workers(self) -> None:
        """Start the workers of every queue; returns when they wait for messages."""
        for queue in self._queues:
            self._workers[queue.name] = [self._worker(queue) for _ in range(WORKERS)]
        plain = sum(WORKERS for queue in self._queues if not queue.renewed)
        self._until(lambda: self._ready >= plain, "the workers did not start")

    def start_producers(self, *, gently: bool = False) -> None:
        """Start a producer for every queue; gently: slowly, and until it is stopped."""
        for queue in self._queues:
            rate = max(1.0, queue.per_second * GENTLY) if gently else queue.per_second
            seconds = 0.0 if gently else self._seconds * queue.share
            self._producers[queue.name] = self._producer(queue, rate, seconds)

    def run(self, client: Client, stage: Stage) -> None:
        """Send, work and kill until everything has been sent."""
        self._until(lambda: all(self.happened.sent.values()), "the producers did not start")
        begun_s = time.monotonic()
        kills = sorted((at_s, queue.name) for queue in self._queues for at_s in queue.kills_at_s)
        counts = self._counted(client)
        with stage.progress("at work", self._seconds) as moved:
            while any(producer.code is None for producer in self._producers.values()):
                now_s = time.monotonic() - begun_s
                while kills and kills[0][0] <= now_s:
                    self._kill_one(kills.pop(0)[1], stage)
                moved(now_s, self._seen(next(counts)))
                time.sleep(_LOOK_EVERY_S)
        for name, producer in self._producers.items():
            if producer.ended(_DRAIN_PATIENCE_S) != 0:
                raise CommandFailed(
                    f"the producer of {name} failed; its words are in {self._crew.folder / LOG}"
                )
        self.happened.poison = sum(
            self.happened.sent[queue.name] // queue.poison_every
            for queue in self._queues
            if queue.poison_every
        )

    def drain(self, client: Client, stage: Stage) -> float:
        """Wait until nothing is left in any queue but the dead letters; how long that took, in seconds."""
        patience_s = max(queue.timeout_s for queue in self._queues) + _DRAIN_PATIENCE_S
        begun_s = time.monotonic()
        with stage.progress("waiting for what dead workers hold") as moved:
            while (left := sum(_counts(client, queue.name) for queue in self._queues)) > 0:
                waited_s = time.monotonic() - begun_s
                if waited_s > patience_s:
                    raise CommandFailed(f"{left} messages are still there after {patience_s:.0f} s")
                moved(waited_s, f"{left} messages left")
                time.sleep(_LOOK_EVERY_S)
        return time.monotonic() - begun_s

    def stop(self) -> None:
        """Stop everybody properly."""
        self._crew.stop(
            [*self._producers.values(), *(hand for team in self._workers.values() for hand in team)]
        )
        self._producers, self._workers = {}, {}

    # ---- within

    def _worker(self, queue: DemoQueue) -> Hand:
        if queue.renewed:
            app = f"veil.cli.demo_consumer:{queue.name}"
            options = ("--log-level", "error", "--parent", str(self._parent))
            return self._crew.start(LOG, "-m", "veil.cli.main", "run", app, *options)
        return self._crew.start(LOG, "-m", "veil.cli.demo_worker", queue.name, heard=self._is_ready)

    def _is_ready(self, line: str) -> None:
        with self._counting:
            self._ready += 1

    def _until(self, happened: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + _START_PATIENCE_S
        while not happened():
            if time.monotonic() > deadline_s:
                raise CommandFailed(f"{otherwise}; their words are in {self._crew.folder / LOG}")
            time.sleep(_LOOK_EVERY_S)

    def _producer(self, queue: DemoQueue, rate: float, seconds: float) -> Hand:
        self.happened.sent.setdefault(queue.name, 0)

        def heard(line: str) -> None:
            self.happened.sent[queue.name] = int(line)

        numbers = (f"{rate:g}", f"{seconds:g}", str(queue.poison_every))
        return self._crew.start(LOG, "-m", "veil.cli.demo_producer", queue.name, *numbers, heard=heard)

    def _kill_one(self, name: str, stage: Stage) -> None:
        team = self._workers[name]
        victim = team.pop(0)
        self._crew.kill(victim)
        self.happened.killed += 1
        stage.note(
            f"kill -9 {victim.pid}: a worker of {name}, in the middle of its work; another one is started"
        )
        team.append(self._worker(next(queue for queue in self._queues if queue.name == name)))

    def _counted(self, client: Client) -> Iterator[tuple[int, int]]:
        """Messages in flight and dead letters, asked for now and then."""
        while True:
            asked_s = time.monotonic()
            found = (
                sum(_in_flight(client, queue.name) for queue in self._queues),
                _counts(client, DEAD),
            )
            while time.monotonic() - asked_s < _COUNT_EVERY_S:
                yield found

    def _seen(self, counts: tuple[int, int]) -> str:
        in_flight, dead = counts
        return f"{sum(self.happened.sent.values()):,} sent, {in_flight:,} in flight, {dead} dead"


def _counts(client: Client, queue: str) -> int:
    found = client.attributes(queue, "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    return sum(int(value) for value in found.values())


def _in_flight(client: Client, queue: str) -> int:
    return int(client.attributes(queue, "ApproximateNumberOfMessagesNotVisible").popitem()[1])
