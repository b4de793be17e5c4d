"""The pipeline over what happened, in a process of its own: lifecycles, timeouts and report in one Spark session.

It starts Spark at once and begins when the demo says so; what it finds it says line by line on stdout, as JSON.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from veil.cli.failures import CommandFailed
from veil.cli.output import say_json
from veil.core.errors import VeilError
from veil.demo.processes import Child, Children, leave_with_the_demo
from veil.demo.workload import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veil.journal.storage import Storage


# A few thousand rows on two cores: what Spark does for large data would only take time here.
_SMALL: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

# What is worked on after each step of lifecycles.
_NEXT: Final = {"looked through": "leases, messages, hours and days of the queues"}


def run_pipeline(spark: SparkSession, data: Path, report: Path, target: float) -> None:
    """Run the jobs one after the other, and tell what each came to."""
    from veil.cli.pipeline.timeouts import SCHEDULES
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.run import run_lifecycles
    from veil.pipeline.report import collect_overview, render_html, summary
    from veil.pipeline.timeouts.run import run_timeouts

    journal, tables = Storage.at(data / "journal"), Storage.at(data / "tables")
    begun_s = time.monotonic()
    # So little this process would do by itself; but the demo is to show it on Spark.
    ran = run_lifecycles(spark, journal, tables, bytes_here_max=0, on_step=_seen)
    outcomes = _outcomes(spark, tables)
    _told("lifecycles", begun_s, events=ran.events, segments=ran.segments, outcomes=outcomes)
    begun_s = time.monotonic()
    findings = run_timeouts(tables, target=target, policies=SCHEDULES)
    _told("timeouts", begun_s)
    begun_s = time.monotonic()
    overview = collect_overview(spark, tables)
    report.write_text(render_html(findings, overview), encoding="utf-8")
    _told("report", begun_s, summary=summary(findings, overview))


def _outcomes(spark: SparkSession, tables: Storage) -> dict[str, dict[str, int]]:
    """What became of the messages that were sent to each queue."""
    from veil.pipeline.lifecycles.store import read_table

    found: dict[str, dict[str, int]] = {}
    for row in read_table(spark, tables, "messages").groupBy("queue", "outcome").count().collect():
        found.setdefault(row["queue"], {})[row["outcome"]] = row["count"]
    return found


def _seen(step: str) -> None:
    if step in _NEXT:
        say_json({"seen": _NEXT[step]})


def _told(step: str, begun_s: float, **facts: Any) -> None:
    say_json({"step": step, "seconds": round(time.monotonic() - begun_s, 1), **facts})


def _main(data: Path, report: Path, target: float) -> int:
    go = leave_with_the_demo()
    begun_s = time.monotonic()
    try:
        from veil.pipeline.spark.session import SparkSettings, session

        conf = {**_SMALL, "spark.local.dir": str(data.parent / "spark")}
        with session(SparkSettings(conf=conf, title="veil demo")) as spark:
            _told("session", begun_s)
            go.wait()
            run_pipeline(spark, data, report, target)
    except VeilError as error:
        say_json({"failed": str(error)})
        return 1
    return 0


# ---- in the demo's own process: what it hears of the pipeline, and waits for

LOG: Final = "pipeline.log"
_LOOK_EVERY_S: Final = 0.2
_PATIENCE_S: Final = 180.0

Told = dict[str, Any]


class PipelineRun:
    """The pipeline's process: Spark starts with it, the jobs begin with `go`."""

    def __init__(self, children: Children, folder: Path, target: float) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._folder = folder
        data, report = folder / "data", folder / "report.html"
        arguments = ("-m", "veil.demo.pipeline", str(data), str(report), f"{target:g}")
        self._child: Child = children.start(LOG, *arguments, heard=self._lines.put)

    def go(self) -> None:
        """Everything that is to be read is there."""
        self._child.say("go")

    def awaited(self, step: str, stage: Stage, title: str) -> Told:
        """What it says about a step, once that is done; raises CommandFailed when it fails instead."""
        begun_s, seen = time.monotonic(), ""
        with stage.progress(title) as moved:
            while time.monotonic() - begun_s < _PATIENCE_S:
                try:
                    told: Told = json.loads(self._lines.get(timeout=_LOOK_EVERY_S))
                except queue.Empty:
                    moved(0.0, seen)
                    if self._child.code is not None and self._lines.empty():
                        raise CommandFailed(f"the pipeline failed: {self._last_words()}") from None
                    continue
                if "failed" in told:
                    raise CommandFailed(f"the pipeline failed: {told['failed']}")
                if told.get("step") == step:
                    return told
                seen = told.get("seen", seen)
        raise CommandFailed(f"the pipeline took longer than {_PATIENCE_S:.0f} s; see {self._folder / LOG}")

    def ended(self) -> None:
        """Wait until its process, and Spark's, are gone."""
        self._child.ended(_PATIENCE_S)

    def _last_words(self) -> str:
        log = self._folder / LOG
        lines = log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'no reason given'} (all of it is in {log})"


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
