"""The demo, act by act: the queues, the work, what the pipeline makes of it, and what is claimed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from veil.cli.demo_claims import check_claims
from veil.cli.demo_crew import Crew, child_environ
from veil.cli.demo_findings import PipelineRun, Told
from veil.cli.demo_keep import keep_running
from veil.cli.demo_queues import FULL_S, SECONDS_VARIABLE, DemoQueue, the_queues
from veil.cli.demo_server import DemoServer
from veil.cli.demo_stage import Stage
from veil.cli.demo_workload import WORKERS, Happened, Workload, create_queues
from veil.cli.failures import CommandFailed
from veil.cli.output import is_terminal, say, say_json, show_table, talk
from veil.pipeline import words

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
        with Crew(folder, environ) as crew:
            workload = Workload(crew, queues, seconds, os.getpid())
            _a_shop(stage, server, queues)
            pipeline = _work(stage, server, workload, crew, folder, queues, seconds)
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
    stage: Stage, server: DemoServer, workload: Workload, crew: Crew, folder: Path,
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
        pipeline = PipelineRun(crew, folder, _TARGET if seconds >= FULL_S else _TARGET_SHORTENED)
        waited_s = workload.drain(client, stage)
    stage.note(
        f"all of them done {waited_s:.1f} s after the last was sent: those that dead workers held came back by themselves"
    )
    workload.stop()
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
    from veil.journal.place import Place
    from veil.pipeline.report import read_findings
    from veil.pipeline.report.terminal import headline

    width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
    table = headline(read_findings(Place.at(folder / "data" / "tables")), width)
    talk()
    show_table(table.columns, table.rows, right=table.right)
    talk()


def _scratch(folder: Path) -> Path:
    """What Spark writes while it runs; nothing of it is left elsewhere when it is interrupted."""
    scratch = folder / "spark"
    scratch.mkdir(exist_ok=True)
    return scratch
