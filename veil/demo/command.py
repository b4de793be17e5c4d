"""`veil demo`: the product in a minute. A real server, real work, real crashes; then what the timeouts should have been."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from veil import words
from veil.cli.app import Commands
from veil.cli.failures import CommandFailed, plainly
from veil.cli.options import AsJson
from veil.cli.output import is_terminal, say, say_json, show_table, talk
from veil.demo.life import life
from veil.demo.pipeline import PipelineRun, Told
from veil.demo.processes import Children, DemoServer, child_environ, ended_by_signals
from veil.demo.shop import FULL_S, SECONDS_VARIABLE, DemoQueue, the_queues
from veil.demo.workload import WORKERS, Happened, Stage, Workload, check_claims, create_queues

_MARK: Final = ".veil-demo"  # in a directory that a demo made, so that the next one may replace what is below
_MADE: Final = ("data", "report.html", "summary.json", "server.log", "workers.log", "pipeline.log", "spark")


def demo_folder(out: Path | None) -> Path:
    """The directory, made, without what an earlier demo left in it; without a name a new one for temporary files, which stays."""
    if out is None:
        folder = Path(tempfile.mkdtemp(prefix="veil-demo-"))
        (folder / _MARK).touch()
        return folder
    folder = out.expanduser().resolve()
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


# ---- --keep: the same server and workers on the same data, at a gentle rate

_CONSOLE: Final = "/console"


def keep_running(server: DemoServer, workload: Workload, folder: Path) -> None:
    """Start everything again on the same data, at a gentle rate, and let it run until somebody has had enough."""
    server.start()
    workload.start_workers()
    workload.start_producers(gently=True)
    talk()
    say(f"api      {server.endpoint}")
    if console := console_address(server.endpoint):
        say(f"console  {console}")
    talk("Server, producers and workers are running; Ctrl-C ends them. Try, in another terminal:")
    talk(f"  export AWS_ENDPOINT_URL_SQS={server.endpoint}")
    talk("  veil queue ls")
    talk("  veil msg tail thumbnails")
    talk(f"  veil timeouts apply --data {shlex.quote(str(folder / 'data'))}")
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()
    workload.stop()
    talk("stopped")


def console_address(endpoint: str) -> str | None:
    """Where the server's web pages are; None if it has none."""
    parts = urlsplit(endpoint)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=5)
    try:
        connection.request("GET", _CONSOLE)
        return f"{endpoint}{_CONSOLE}" if connection.getresponse().status < 400 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


# ---- act by act

_TARGET: Final = 0.001
_TARGET_SHORTENED: Final = 0.01  # a shortened demo has too few messages to speak of one in a thousand
_JOURNAL: Final = ("--journal-interval-s", "1")


def play(folder: Path, seconds: float, *, keep: bool, as_json: bool) -> Stage:
    """The whole demo, act by act; none of its processes outlives it."""
    stage, queues = Stage(), the_queues(seconds)
    server = DemoServer(folder / "data", options=_JOURNAL)
    environ = child_environ(
        server.endpoint, **{SECONDS_VARIABLE: f"{seconds:g}", "TMPDIR": str(_scratch(folder))}
    )
    try:
        with Children(folder, environ) as children:
            workload = Workload(children, queues, seconds, os.getpid())
            _a_shop(stage, server, queues)
            pipeline = _work(stage, server, workload, children, folder, queues, seconds)
            found = _what_happened(stage, pipeline)
            shutil.rmtree(_scratch(folder), ignore_errors=True)
            _what_it_should_be(stage, folder, queues, workload.happened, found, as_json=as_json)
            if keep:
                keep_running(server, workload, folder)
    finally:
        server.stop()
    return stage


def _a_shop(stage: Stage, server: DemoServer, queues: tuple[DemoQueue, ...]) -> None:
    stage.act(
        "A shop with four queues",
        "A message that is received becomes invisible to everybody else for the queue's visibility timeout, and comes back "
        "unless it is deleted by then. Too short, and work is done twice; too long, and a crash hides messages for as "
        "long. Usually somebody guesses:",
    )
    started_s = server.start()
    with server.client() as client:
        create_queues(client, queues)
    for queue in queues:
        stage.note(f"{queue.name:<10}  {queue.timeout_s:>2} s  {queue.guess}")
    stage.note(f"the server: {server.endpoint}, process {server.pid}, ready after {started_s:.1f} s")


def _work(
    stage: Stage, server: DemoServer, workload: Workload, children: Children, folder: Path,
    queues: tuple[DemoQueue, ...], seconds: float,
) -> PipelineRun:  # fmt: skip
    rate = sum(queue.per_second for queue in queues)
    stage.act(
        "Real work, real crashes",
        f"{len(queues)} producers send {rate:,.0f} messages a second to {len(queues) * WORKERS} worker processes for "
        f"{seconds:.0f} seconds. Some workers are killed, some messages cannot be read by anybody.",
    )
    with server.client() as client:
        workload.start_workers()
        workload.start_producers()
        workload.run(client, stage)
        happened = workload.happened
        stage.note(f"{sum(happened.sent.values()):,} messages sent, {happened.killed} workers killed")
        # Spark takes seconds to start. Meanwhile the last hidden messages come back, which takes nobody's time.
        pipeline = PipelineRun(children, folder, _TARGET if seconds >= FULL_S else _TARGET_SHORTENED)
        waited_s = workload.drain(client, stage)
    stage.note(
        f"all of them done {waited_s:.1f} s after the last was sent: those that dead workers held came back by themselves"
    )
    workload.stop()
    stage.lateness.ask(server)
    code = server.stop()  # it exports what is left of the journal before it ends
    if code != 0:
        raise CommandFailed(f"the server ended with exit code {code}; see {folder / 'server.log'}")
    pipeline.go()
    return pipeline


def _what_happened(stage: Stage, pipeline: PipelineRun) -> Told:
    stage.act(
        "What really happened",
        "Every change of a message was recorded together with the change, in a journal of Parquet files. Spark makes of it the "
        "life of each message, and of all lives together how long work takes and what each timeout costs.",
    )
    started = pipeline.awaited("session", stage, "starting Spark")
    stage.note(f"Spark ready, after {started['seconds']:.1f} s")
    lives = pipeline.awaited("lifecycles", stage, "journal → tables")
    stage.note(
        f"lifecycles: {lives['events']:,} events in {lives['segments']} segments, {lives['seconds']:.1f} s"
    )
    timeouts = pipeline.awaited("timeouts", stage, "tables → timeouts")
    stage.note(f"timeouts: {timeouts['seconds']:.1f} s")
    report = pipeline.awaited("report", stage, "tables → report")
    stage.note(f"report: {report['seconds']:.1f} s")
    pipeline.ended()
    return {"outcomes": lives["outcomes"], "summary": report["summary"]}


def _what_it_should_be(
    stage: Stage,
    folder: Path,
    queues: tuple[DemoQueue, ...],
    happened: Happened,
    found: Told,
    *,
    as_json: bool,
) -> None:
    stage.act(
        "What each timeout costs, and what it should be",
        f"Wanted: work done twice in at most {words.chance(found['summary']['target_duplicates'])} of all cases, and then the "
        "shortest wait after a crash.",
    )
    if not as_json:
        _show_findings(folder)
    check_claims(stage, queues, happened, found["outcomes"], found["summary"])
    summary = {
        **found["summary"],
        "messages": found["outcomes"],
        "demo": {
            "sent": happened.sent,
            "workers_killed": happened.killed,
            "seconds": round(stage.seconds, 1),
            "held": stage.held,
            "broken": stage.broken,
            "not_shown": stage.not_shown,
        },
    }
    (folder / "summary.json").write_text(
        json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    talk()
    if as_json:
        say_json(summary)
    else:
        say(f"report   {folder / 'report.html'}")
        say(f"summary  {folder / 'summary.json'}")
        talk(
            f"{stage.seconds:.0f} s. The server's data and the tables are in {folder / 'data'}; look further with:"
        )
        talk(f"  veil timeouts show --data {shlex.quote(str(folder / 'data'))}")


def _show_findings(folder: Path) -> None:
    from veil.journal.storage import Storage
    from veil.pipeline.report import read_findings
    from veil.pipeline.report.summary import headline

    width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
    table = headline(read_findings(Storage.at(folder / "data" / "tables")), width)
    talk()
    show_table(table.columns, table.rows, right=table.right)
    talk()


def _scratch(folder: Path) -> Path:
    """What Spark writes while it runs; nothing of it is left elsewhere when it is interrupted."""
    scratch = folder / "spark"
    scratch.mkdir(exist_ok=True)
    return scratch


# ---- the command

_WITHOUT: Final = "without it there is: veil demo life"
_WITHOUT_SPARK: Final = f'the demo needs Spark: pip install "veilmq[spark]"; {_WITHOUT}'

demo_app = Commands(invoke_without_command=True, no_args_is_help=False)


@demo_app.callback(epilog="Example: veil demo --out shop")
@plainly
def demo(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Leave report.html, summary.json and the data there; else in a new temporary directory.",
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="At the end, keep server, producers and workers running until Ctrl-C."),
    ] = False,
    as_json: AsJson = False,
    seconds: Annotated[float, typer.Option(hidden=True, min=1.0)] = FULL_S,
) -> None:
    """Show in a minute what Veil is for.

    A real server, producers and workers, some of them killed, on queues whose visibility timeouts are too short, too long
    and right; then Spark finds from the journal what each timeout costs and what it should be. Exit code 1 if anything is
    not as claimed; what could not be shown because this machine was late is told, and no error.
    """
    if context.invoked_subcommand is not None:
        return
    _need_spark()

    with ended_by_signals():
        folder = demo_folder(out)
        try:
            stage = play(folder, seconds, keep=keep, as_json=as_json)
        except KeyboardInterrupt:
            talk(f"stopped; what there was is in {folder}")
            raise
    if stage.broken:
        raise CommandFailed(f"{len(stage.broken)} of the demo's claims did not hold")


def _need_spark() -> None:
    """Say what is missing before half a minute is spent."""
    if find_spec("pyspark") is None:
        raise CommandFailed(_WITHOUT_SPARK)
    from veil.pipeline.spark.java import JavaMissing, find_java

    try:
        find_java(os.environ)
    except JavaMissing as missing:
        raise CommandFailed(f"{missing}; {_WITHOUT}") from None


demo_app.command("life", epilog="Example: veil demo life")(life)


def register(app: typer.Typer) -> None:
    """Add `veil demo` and `veil demo life` to the command."""
    app.add_typer(demo_app, name="demo")
