"""Half a minute in the shop: producers send, workers work, and some of them are killed."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from veil.cli.failures import CommandFailed
from veil.cli.queue import redrive_policy
from veil.demo.processes import Child, Children
from veil.demo.shop import DEAD, DemoQueue
from veil.demo.stage import Stage

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient

WORKERS: Final = 2  # of each queue
GENTLY: Final = 0.02  # of the rates, for a demo that is kept running
LOG: Final = "workers.log"
_LOOK_EVERY_S: Final = 0.2
_START_TIMEOUT_S: Final = 120.0
_DRAIN_TIMEOUT_S: Final = 30.0  # without a message less


def create_queues(client: BlockingClient, queues: tuple[DemoQueue, ...]) -> None:
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

    def __init__(self, children: Children, queues: tuple[DemoQueue, ...], seconds: float) -> None:
        self._children, self._queues, self._seconds = children, queues, seconds
        self._workers: dict[str, list[Child]] = {}
        self._producers: dict[str, Child] = {}
        self._ready: list[str] = []  # what plain workers said at their start
        self.sent: dict[str, int] = {}  # acknowledged, by queue
        self.killed = 0

    def start(self, *, gently: bool = False) -> None:
        """Start the workers, and once they wait for messages the producers; gently: slowly, and until they are stopped."""
        for queue in self._queues:
            self._workers[queue.name] = [self._worker(queue) for _ in range(WORKERS)]
        plain = len(self._ready) + sum(WORKERS for queue in self._queues if not queue.renewed)
        self._until(lambda: len(self._ready) >= plain, "the workers did not start")
        for queue in self._queues:
            rate = max(1.0, queue.per_second * GENTLY) if gently else queue.per_second
            seconds = 0.0 if gently else self._seconds * queue.share
            self._producers[queue.name] = self._producer(queue, rate, seconds)

    def run(self, client: BlockingClient, stage: Stage) -> None:
        """Work and kill until everything has been sent."""
        self._until(lambda: all(self.sent.values()), "the producers did not start")
        begun_s = time.monotonic()
        kills = sorted((at_s, queue.name) for queue in self._queues for at_s in queue.kills_at_s)
        with stage.progress("at work") as moved:
            while any(producer.code is None for producer in self._producers.values()):
                while kills and kills[0][0] <= time.monotonic() - begun_s:
                    self._kill_one(kills.pop(0)[1], stage)
                held = sum(_counts(client, queue.name)[1] for queue in self._queues)
                moved(
                    f"{sum(self.sent.values()):,} sent, {held:,} in flight, {sum(_counts(client, DEAD))} dead letters"
                )
                time.sleep(_LOOK_EVERY_S)
        for name, producer in self._producers.items():
            if producer.ended() != 0:
                raise CommandFailed(f"the producer of {name} failed; see {producer.log}")

    def drain(self, client: BlockingClient, stage: Stage) -> float:
        """Wait until nothing is left in any queue but the dead letters; how long that took, in seconds."""
        fewer_within_s = max(queue.timeout_s for queue in self._queues) + _DRAIN_TIMEOUT_S
        begun_s = fewer_s = time.monotonic()
        fewest = math.inf
        with stage.progress("waiting for what dead workers hold") as moved:
            while left := sum(sum(_counts(client, queue.name)) for queue in self._queues):
                if left < fewest:
                    fewest, fewer_s = left, time.monotonic()
                if time.monotonic() - fewer_s > fewer_within_s:
                    raise CommandFailed(
                        f"{left} messages are still there after {time.monotonic() - begun_s:.0f} s"
                    )
                moved(f"{left} messages left")
                time.sleep(_LOOK_EVERY_S)
        return time.monotonic() - begun_s

    def stop(self) -> None:
        """Stop everybody properly."""
        self._children.end(
            [*self._producers.values(), *(child for team in self._workers.values() for child in team)]
        )
        self._producers, self._workers = {}, {}

    def _worker(self, queue: DemoQueue) -> Child:
        if queue.renewed:
            options = ("--log-level", "error", "--parent", str(os.getpid()))
            return self._children.start(
                LOG, "veil.cli.main", "run", f"veil.demo.roles:{queue.name}", *options
            )
        return self._children.start(LOG, "veil.demo.roles", "worker", queue.name, heard=self._ready.append)

    def _producer(self, queue: DemoQueue, rate: float, seconds: float) -> Child:
        self.sent.setdefault(queue.name, 0)

        def heard(line: str) -> None:
            self.sent[queue.name] = int(line)

        numbers = (f"{rate:g}", f"{seconds:g}", str(queue.poison_every))
        return self._children.start(LOG, "veil.demo.roles", "producer", queue.name, *numbers, heard=heard)

    def _kill_one(self, name: str, stage: Stage) -> None:
        team = self._workers[name]
        victim = team.pop(0)
        self._children.end([victim], signal.SIGKILL)
        self.killed += 1
        stage.note(
            f"kill -9 {victim.pid}: a worker of {name}, in the middle of its work; another one is started"
        )
        team.append(self._worker(next(queue for queue in self._queues if queue.name == name)))

    def _until(self, happened: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not happened():
            if time.monotonic() > deadline_s:
                raise CommandFailed(f"{otherwise}; see {self._children.folder / LOG}")
            time.sleep(_LOOK_EVERY_S / 2)


def _counts(client: BlockingClient, queue: str) -> tuple[int, int]:
    """Messages visible and in flight."""
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    found = client.attributes(queue, *names)
    return int(found[names[0]]), int(found[names[1]])
