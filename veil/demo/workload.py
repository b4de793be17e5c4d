"""Half a minute in a shop: producers send, workers work, some are killed; then what is claimed about it is checked."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from veil import words
from veil.cli.client import Client
from veil.cli.failures import CommandFailed
from veil.cli.output import has_colour, inert, is_terminal, talk
from veil.cli.queue_settings import redrive_policy
from veil.demo.processes import Child, Children, Lateness
from veil.demo.shop import DEAD, DemoQueue

_WIDTH: Final = 110
_LINE_EVERY_S: Final = 10.0

Moved = Callable[[float, str], None]  # how far, of the total; and what is seen


@dataclass
class Stage:
    """Shows the acts on stderr: with bars on a terminal, in plain lines elsewhere."""

    acts: int = 0
    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=list)  # since the machine was late
    lateness: Lateness = field(default_factory=Lateness)

    def __post_init__(self) -> None:
        self._coloured = has_colour(sys.stderr)
        self._begun_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the demo has lasted."""
        return time.monotonic() - self._begun_s

    def act(self, title: str, sentence: str) -> None:
        """Begin an act."""
        self.acts += 1
        talk()
        talk(self._styled(f"{self.acts}  {title}", "1"))
        for line in textwrap.wrap(sentence, _width() - 4):
            talk(f"   {line}")

    def note(self, text: str) -> None:
        """One fact of the act."""
        talk(self._styled(f"   · {inert(text, keep='')}", "2"))

    def claim(self, text: str, holds: bool, *, is_timed: bool = False) -> None:
        """A sentence that must be true now. One about times cannot be shown on a machine that was late: then that is told,
        and what was seen."""
        if not holds and is_timed and (late := str(self.lateness)):
            text = f"{text}. The machine was late: {late}"
            self.not_shown.append(text)
            mark = self._styled("? could not be shown:", "33")
        else:
            (self.held if holds else self.broken).append(text)
            mark = self._styled("✓", "32") if holds else self._styled("✗ NOT SO:", "1;31")
        first, *more = textwrap.wrap(inert(text, keep=""), _width() - 6)
        talk(f"   {mark} {first}")
        for line in more:
            talk(f"     {line}")

    @contextmanager
    def progress(self, title: str, total: float | None = None) -> Iterator[Moved]:
        """While the block runs, how far it is; without a total, only that it goes on."""
        if is_terminal(sys.stderr):
            with self._bar(title, total) as bar:
                yield bar
            return
        begun_s = time.monotonic()
        told = 0

        def moved(done: float, seen: str) -> None:
            nonlocal told
            lasted_s = time.monotonic() - begun_s
            if lasted_s >= (told + 1) * _LINE_EVERY_S:
                told = int(lasted_s / _LINE_EVERY_S)
                talk(f"   {title}, {lasted_s:.0f} s" + (f": {seen}" if seen else ""))

        yield moved

    @contextmanager
    def _bar(self, title: str, total: float | None) -> Iterator[Moved]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.text import Text

        columns = (
            TextColumn("  "),
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[seen]}"),
        )
        console = Console(stderr=True, highlight=False, no_color=not self._coloured)
        with Progress(*columns, console=console, transient=True) as bar:
            line = bar.add_task(title, total=total, seen="")
            yield lambda done, seen: bar.update(line, completed=done, seen=Text(inert(seen, keep="")))

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDTH)


# ---- the work

WORKERS: Final = 2  # of each queue
GENTLY: Final = 0.02  # of the rates, for a demo that is kept running
_LOOK_EVERY_S: Final = 0.1
_COUNT_EVERY_S: Final = 0.5
_START_PATIENCE_S: Final = 120.0
_DRAIN_PATIENCE_S: Final = 30.0  # without a message less
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

    def __init__(
        self, children: Children, queues: tuple[DemoQueue, ...], seconds: float, parent: int
    ) -> None:
        self._children, self._queues, self._seconds, self._parent = children, queues, seconds, parent
        self._workers: dict[str, list[Child]] = {}
        self._producers: dict[str, Child] = {}
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
                    f"the producer of {name} failed; its words are in {self._children.folder / LOG}"
                )
        self.happened.poison = sum(
            self.happened.sent[queue.name] // queue.poison_every
            for queue in self._queues
            if queue.poison_every
        )

    def drain(self, client: Client, stage: Stage) -> float:
        """Wait until nothing is left in any queue but the dead letters; how long that took, in seconds."""
        retry_s = max(queue.timeout_s for queue in self._queues) + _DRAIN_PATIENCE_S
        begun_s = moved_s = time.monotonic()
        fewest = math.inf
        with stage.progress("waiting for what dead workers hold") as moved:
            while (left := sum(_counts(client, queue.name) for queue in self._queues)) > 0:
                now_s = time.monotonic()
                waited_s = now_s - begun_s
                if left < fewest:
                    fewest, moved_s = left, now_s
                if now_s - moved_s > retry_s:
                    raise CommandFailed(f"{left} messages are still there after {waited_s:.0f} s")
                moved(waited_s, f"{left} messages left")
                time.sleep(_LOOK_EVERY_S)
        return time.monotonic() - begun_s

    def stop(self) -> None:
        """Stop everybody properly."""
        self._children.stop(
            [*self._producers.values(), *(child for team in self._workers.values() for child in team)]
        )
        self._producers, self._workers = {}, {}

    # ---- within

    def _worker(self, queue: DemoQueue) -> Child:
        if queue.renewed:
            app = f"veil.demo.workers:{queue.name}"
            options = ("--log-level", "error", "--parent", str(self._parent))
            return self._children.start(LOG, "-m", "veil.cli.main", "run", app, *options)
        return self._children.start(
            LOG, "-m", "veil.demo.workers", "worker", queue.name, heard=self._is_ready
        )

    def _is_ready(self, line: str) -> None:
        with self._counting:
            self._ready += 1

    def _until(self, happened: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + _START_PATIENCE_S
        while not happened():
            if time.monotonic() > deadline_s:
                raise CommandFailed(f"{otherwise}; their words are in {self._children.folder / LOG}")
            time.sleep(_LOOK_EVERY_S)

    def _producer(self, queue: DemoQueue, rate: float, seconds: float) -> Child:
        self.happened.sent.setdefault(queue.name, 0)

        def heard(line: str) -> None:
            self.happened.sent[queue.name] = int(line)

        numbers = (f"{rate:g}", f"{seconds:g}", str(queue.poison_every))
        return self._children.start(
            LOG, "-m", "veil.demo.workers", "producer", queue.name, *numbers, heard=heard
        )

    def _kill_one(self, name: str, stage: Stage) -> None:
        team = self._workers[name]
        victim = team.pop(0)
        self._children.kill(victim)
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


# ---- the claims

Outcomes = dict[str, dict[str, int]]  # messages by queue and what became of them
Found = dict[str, Any]  # one queue of the summary

_NEAR_S: Final = 1  # timeouts are whole seconds: one beside the recommended one is no mistake


def check_claims(
    stage: Stage,
    queues: tuple[DemoQueue, ...],
    happened: Happened,
    outcomes: Outcomes,
    summary: dict[str, Any],
) -> None:
    """Tell and check every claim."""
    _nothing_lost(stage, queues, happened, outcomes)
    found = {each["name"]: each for each in summary["queues"]}
    for queue in queues:
        if queue.name not in found:
            stage.claim(f"{queue.name}: the pipeline knows the queue", False)
        else:
            _CLAIMS[queue.name](stage, queue, found[queue.name])


def _nothing_lost(
    stage: Stage, queues: tuple[DemoQueue, ...], happened: Happened, outcomes: Outcomes
) -> None:
    ends = [outcomes.get(queue.name, {}) for queue in queues]
    sent = sum(happened.sent.values())
    deleted, dead = (sum(each.get(end, 0) for each in ends) for end in ("deleted", "dead_lettered"))
    known = sum(sum(each.values()) for each in ends)
    stage.claim(
        f"nothing is lost: of {sent:,} messages sent {deleted:,} were handled and deleted, and the {dead} that "
        "nobody could read are dead letters",
        known == sent and deleted + dead == sent and dead == happened.poison,
    )


def _too_short(stage: Stage, queue: DemoQueue, found: Found) -> None:
    duplicates, wanted_s = found["duplicates"], found["recommended_timeout_s"]
    stage.claim(
        f"{queue.name}: {queue.timeout_s} s is too short: in {duplicates:,} of {found['leases']:,} cases a second worker began "
        f"before the first had ended; it should be {_seconds(wanted_s)}",
        duplicates > 0 and wanted_s is not None and wanted_s > queue.timeout_s,
        is_timed=True,
    )


def _too_long(stage: Stage, queue: DemoQueue, found: Found) -> None:
    wanted_s, hidden_s = found["recommended_timeout_s"], 3600 * (found["hidden_hours"] or 0.0)
    # Whether a silent holder is gone the server only says after a minute, and the demo is over by then.
    lost = found["crashes"] + found["unknown"]
    stage.claim(
        f"{queue.name}: {queue.timeout_s} s is too long: what killed workers held stayed hidden, {lost:,} messages "
        f"for {words.length(hidden_s)} in all; {_seconds(wanted_s)} would do",
        lost > 0 and wanted_s is not None and wanted_s < queue.timeout_s,
        is_timed=True,
    )


def _right(stage: Stage, queue: DemoQueue, found: Found) -> None:
    wanted_s = found["recommended_timeout_s"]
    stage.claim(
        f"{queue.name}: {queue.timeout_s} s is about right: the data say {_seconds(wanted_s)}",
        wanted_s is not None and abs(wanted_s - queue.timeout_s) <= _NEAR_S,
        is_timed=True,
    )


def _renewed(stage: Stage, queue: DemoQueue, found: Found) -> None:
    p90_s = found["p90_s"]
    # None: fewer than nine in ten were seen to end at all, since the killed workers' leases say only "longer than this".
    long = "what was seen to end" if p90_s is None else words.length(p90_s)
    twice = found["duplicates"]
    seen = "nothing was" if twice == 0 else f"{twice:,} messages were"
    stage.claim(
        f"{queue.name}: one in ten takes longer than {long} under a timeout of {queue.timeout_s} s, and "
        f"{seen} done twice: Veil's consumer renews its leases",
        twice == 0 and (p90_s is None or p90_s > queue.timeout_s),
        is_timed=True,
    )


def _seconds(wanted_s: int | None) -> str:
    return "unknown" if wanted_s is None else f"{wanted_s} s"


_CLAIMS: Final = {"thumbnails": _too_short, "invoices": _too_long, "orders": _right, "videos": _renewed}
