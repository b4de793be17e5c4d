"""`veil demo`: the product in a minute. A real server, real work, real crashes; then what the timeouts should have been."""

from __future__ import annotations

import json
import math
import os
import queue as queues_of_python
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from veil import words
from veil.cli.app import group
from veil.cli.failures import CommandFailed
from veil.cli.options import AsJson, flag, option
from veil.cli.output import echo, echo_err, echo_json
from veil.cli.queue import redrive_policy
from veil.demo.life import life
from veil.demo.processes import Child, Children, ended_by_signals
from veil.demo.shop import DEAD, FULL_S, SECONDS_VARIABLE, DemoQueue, check_claims, the_queues
from veil.demo.stage import Stage

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient

_MARK: Final = ".veil-demo"  # in a directory that a demo made, so that the next one may replace what is below
_MADE: Final = ("data", "report.html", "summary.json", "server.log", "workers.log", "pipeline.log", "spark")
_TARGET: Final = 0.001
_TARGET_SHORTENED: Final = 0.01  # a shortened demo has too few messages to speak of one in a thousand
_JOURNAL: Final = ("--journal-interval-s", "1")
_PIPELINE_TIMEOUT_S: Final = 180.0
_LOOK_EVERY_S: Final = 0.2

# ---- the directory


def demo_folder(out: Path | None) -> Path:
    """The directory, without what an earlier demo left in it; without a name a new one for temporary files, which stays."""
    folder = Path(tempfile.mkdtemp(prefix="veil-demo-")) if out is None else out.expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _MARK).exists() and any(folder.iterdir()):
            raise CommandFailed(f"--out {out}: expected a new or empty directory, or one of an earlier demo")
        (folder / _MARK).touch()
        for name in _MADE:
            made = folder / name
            if made.is_dir() and not made.is_symlink():
                shutil.rmtree(made)
            else:
                made.unlink(missing_ok=True)
    except OSError as problem:
        raise CommandFailed(f"--out {out}: expected a directory to write to ({problem.strerror})") from None
    return folder


# ---- the workload: producers send, workers work, and some of them are killed

WORKERS: Final = 2  # of each queue
GENTLY: Final = 0.02  # of the rates, for a demo that is kept running
LOG: Final = "workers.log"
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
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    found = client.attributes(queue, *names)
    return int(found[names[0]]), int(found[names[1]])


# ---- the play


def play(folder: Path, seconds: float, *, keep: bool, as_json: bool) -> Stage:
    """The whole demo, act by act; none of its processes outlives it."""
    from veil.cli.timeouts import read_findings, show_findings
    from veil.journal.storage import Storage

    stage, queues = Stage(), the_queues(seconds)
    scratch, data = folder / "spark", shlex.quote(str(folder / "data"))
    scratch.mkdir(exist_ok=True)  # what Spark writes while it runs; nothing of it is left elsewhere
    with Children(folder, **{SECONDS_VARIABLE: f"{seconds:g}", "TMPDIR": str(scratch)}) as children:
        workload = Workload(children, queues, seconds)
        stage.act(
            "A shop with four queues",
            "A message that is received becomes invisible to everybody else for the queue's visibility timeout, and comes "
            "back unless it is deleted by then. Too short, and work is done twice; too long, and a crash hides messages for "
            "as long. Usually somebody guesses:",
        )
        server, started_s = children.start_server(*_JOURNAL)
        with children.client() as client:
            create_queues(client, queues)
            for queue in queues:
                stage.note(f"{queue.name:<10}  {queue.timeout_s:>2} s  {queue.guess}")
            stage.note(
                f"the server: {children.endpoint}, process {server.pid}, ready after {started_s:.1f} s"
            )
            stage.act(
                "Real work, real crashes",
                f"{len(queues)} producers send {sum(queue.per_second for queue in queues):,.0f} messages a second to "
                f"{len(queues) * WORKERS} worker processes for {seconds:.0f} seconds. Some workers are killed, some messages "
                "cannot be read by anybody.",
            )
            workload.start()
            workload.run(client, stage)
            stage.note(f"{sum(workload.sent.values()):,} messages sent, {workload.killed} workers killed")
            # Spark takes seconds to start. Meanwhile the last hidden messages come back, which takes nobody's time.
            pipeline = PipelineRun(children, _TARGET if seconds >= FULL_S else _TARGET_SHORTENED)
            waited_s = workload.drain(client, stage)
        stage.note(
            f"all of them done {waited_s:.1f} s after the last was sent: those that dead workers held came back by themselves"
        )
        workload.stop()
        stage.lateness.ask(children.endpoint)
        (code,) = children.end([server])  # it exports what is left of the journal before it ends
        if code != 0:
            raise CommandFailed(f"the server ended with exit code {code}: {server.last_words()}")
        outcomes, summary = _what_happened(stage, pipeline)
        shutil.rmtree(scratch, ignore_errors=True)
        stage.act(
            "What each timeout costs, and what it should be",
            f"The target: at most {words.chance(summary['target_duplicates'])} of the work is done twice, and within that the "
            "shortest wait after a crash.",
        )
        if not as_json:
            echo_err()
            show_findings(read_findings(Storage.at(folder / "data" / "tables")))
            echo_err()
        check_claims(stage, queues, workload.sent, outcomes, summary)
        facts = {"sent": workload.sent, "workers_killed": workload.killed, **stage.told}
        summary = {**summary, "messages": outcomes, "demo": facts}
        text = json.dumps(summary, indent=2, ensure_ascii=False)
        (folder / "summary.json").write_text(f"{text}\n", encoding="utf-8")
        echo_err()
        if as_json:
            echo_json(summary)
        else:
            echo(f"report   {folder / 'report.html'}")
            echo(f"summary  {folder / 'summary.json'}")
            echo_err(
                f"{facts['seconds']:.0f} s. The server's data and the tables are in {folder / 'data'}; for details, run:"
            )
            echo_err(f"  veil timeouts show --data {data}")
        if keep:
            children.start_server(*_JOURNAL)
            workload.start(gently=True)
            echo_err()
            echo(f"api      {children.endpoint}")
            echo(f"console  {children.endpoint}/console")
            echo_err("Server, producers and workers are running; Ctrl-C ends them. Try, in another terminal:")
            echo_err(f"  export AWS_ENDPOINT_URL_SQS={children.endpoint}")
            for command in ("queue ls", "msg tail thumbnails", f"timeouts apply --data {data}"):
                echo_err(f"  veil {command}")
            with suppress(KeyboardInterrupt):
                while True:
                    signal.pause()
            echo_err("stopped")
    return stage


def _what_happened(stage: Stage, pipeline: PipelineRun) -> tuple[dict[str, Any], dict[str, Any]]:
    stage.act(
        "What really happened",
        "Veil has recorded every change of a message in a journal of Parquet files. Spark turns the journal into the life of "
        "each message, and learns from all of them how long the work takes and what each timeout costs.",
    )
    pipeline.child.say("go")
    stage.note(f"Spark ready, after {pipeline.awaited('session', stage, 'starting Spark')['seconds']:.1f} s")
    lives = pipeline.awaited("lifecycles", stage, "journal → tables")
    stage.note(
        f"lifecycles: {lives['events']:,} events in {lives['segments']} segments, {lives['seconds']:.1f} s"
    )
    stage.note(f"timeouts: {pipeline.awaited('timeouts', stage, 'tables → timeouts')['seconds']:.1f} s")
    report = pipeline.awaited("report", stage, "tables → report")
    stage.note(f"report: {report['seconds']:.1f} s")
    pipeline.child.ended(_PIPELINE_TIMEOUT_S)
    return lives["outcomes"], report["summary"]


class PipelineRun:
    """The pipeline's process: Spark starts with it, the jobs begin once it is told `go`."""

    def __init__(self, children: Children, target: float) -> None:
        self._lines: queues_of_python.Queue[str] = queues_of_python.Queue()
        given = ("pipeline", str(children.folder), f"{target:g}")
        self.child: Child = children.start("pipeline.log", "veil.demo.roles", *given, heard=self._lines.put)

    def awaited(self, step: str, stage: Stage, title: str) -> dict[str, Any]:
        """What it says about a step, once that is done; raises CommandFailed when it fails instead."""
        begun_s = time.monotonic()
        with stage.progress(title) as moved:
            while time.monotonic() - begun_s < _PIPELINE_TIMEOUT_S:
                try:
                    told: dict[str, Any] = json.loads(self._lines.get(timeout=_LOOK_EVERY_S))
                except queues_of_python.Empty:
                    moved("")
                    if self.child.code is not None and self._lines.empty():
                        break
                    continue
                if told["step"] == step:
                    return told
        raise CommandFailed(f"the pipeline failed: {self.child.last_words()}")


_WITHOUT: Final = "without it there is: veil demo life"

demo_app = group("demo", invoke_without_command=True, no_args_is_help=False)
demo_app.command("life", epilog="Example: veil demo life")(life)


@demo_app.callback(epilog="Example: veil demo --out shop")
def demo(
    context: typer.Context,
    out: Path | None = option(
        "--out DIR",
        "Where to put report.html, summary.json and the data. Default: a new temporary directory.",
    ),
    keep: bool = flag("--keep", "At the end, keep the server, producers and workers running until Ctrl-C."),
    as_json: AsJson = False,
    seconds: float = option("--seconds", "", default=FULL_S, hidden=True, min=1.0),
) -> None:
    """Show in a minute what Veil is for.

    Runs a real server with producers and workers, some of which are killed, on queues whose visibility timeouts are too
    short, too long and right. Then Spark works out from the journal what each timeout costs and what it should be. The
    exit code is 1 if a claim does not hold. A claim that could not be shown because this machine was too slow is reported,
    but is not an error.
    """
    if context.invoked_subcommand is not None:
        return
    _need_spark()
    with ended_by_signals():
        folder = demo_folder(out)
        try:
            stage = play(folder, seconds, keep=keep, as_json=as_json)
        except KeyboardInterrupt:
            echo_err(f"stopped; what there was is in {folder}")
            raise
    if stage.broken:
        raise CommandFailed(f"{len(stage.broken)} of the demo's claims did not hold")


def _need_spark() -> None:
    """Say what is missing before half a minute is spent."""
    if find_spec("pyspark") is None:
        raise CommandFailed(f'the demo needs Spark: pip install "veilmq[spark]"; {_WITHOUT}')
    from veil.pipeline.spark.java import JavaMissing, find_java

    try:
        find_java(os.environ)
    except JavaMissing as missing:
        raise CommandFailed(f"{missing}; {_WITHOUT}") from None
