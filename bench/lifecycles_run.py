"""One engine's run over one journal, in a process of its own: `python -m bench.lifecycles_run ENGINE JOURNAL TABLES [MORE …]`.

Prints one line of JSON: time and CPU time after the engine is up, the time until then, and the most memory that the process
and its children had. Every engine gets two threads and, where it has such a setting, 4 GB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.load import process_cpu_s

if TYPE_CHECKING:
    from veil.pipeline.lifecycles.run import LifecyclesRun
    from veil.pipeline.spark.session import SparkSettings

ENGINES: Final = ("spark", "duckdb", "polars")
THREADS: Final = 2
MEMORY: Final = "4g"


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            for child in (task / "children").read_text().split():
                found += family(int(child))
    return found


def cpu_s(pid: int | None = None) -> float:
    """The CPU seconds of a process (this one) and its children: what stays comparable while others use the machine."""
    found = 0.0
    for each in family(pid or os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
            found += process_cpu_s(each)
    return found


def peak_mb() -> float:
    """The most resident memory that this process and its children had, each at its own peak."""
    total = 0.0
    for pid in family(os.getpid()):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) / 1024
    return total


class Stopwatch:
    """Time and CPU time since it was made."""

    def __init__(self) -> None:
        self._begun_s, self._cpu_s = time.monotonic(), cpu_s()

    def figures(self) -> dict[str, float]:
        """What was used until now."""
        return {
            "seconds": time.monotonic() - self._begun_s,
            "cpu_s": cpu_s() - self._cpu_s,
            "peak_mb": peak_mb(),
        }


def _settings(master: str = f"local[{THREADS}]", more: Mapping[str, str] | None = None) -> SparkSettings:
    from veil.pipeline.spark.session import SparkSettings

    conf = {"spark.driver.memory": MEMORY, "spark.ui.enabled": "false", **(more or {})}
    return SparkSettings(master=master, conf=conf, title="bench lifecycles")


def _check(done: LifecyclesRun) -> None:
    if done.broken or not done.events:
        raise RuntimeError(f"{done.events} events; broken segments: {done.broken}")


def run_spark(journal: Path, tables: Path) -> dict[str, Any]:
    """`veil pipeline lifecycles --master local[2]` without its command line: Spark does it all, however little is new."""
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.run import run_lifecycles
    from veil.pipeline.spark.session import session

    begun_s = time.monotonic()
    with session(_settings()) as spark:
        up_s = time.monotonic() - begun_s
        watch = Stopwatch()
        done = run_lifecycles(spark, Storage.at(journal), Storage.at(tables), bytes_here_max=0)
        _check(done)
        return {"up_s": up_s, **watch.figures(), "events": done.events, "hours": done.partitions}


def link_segments(source: Path, journal: Path) -> None:
    """Put the segments into the journal, as the exporter would have; the bytes stay where they are."""
    for path in [*source.glob("day=*/*.parquet"), source / "_journal.json"]:
        target = journal / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            os.link(path, target)


def run_session(journal: Path, tables: Path, later: str) -> dict[str, Any]:
    """What `--follow` does with a few new segments: in a process that is up, where nothing else was to be done before. Then the
    same twice on a Spark that is up, each time from copies of the tables as they were."""
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.generation import BYTES_HERE_MAX
    from veil.pipeline.lifecycles.run import run_lifecycles
    from veil.pipeline.spark.session import session

    ways = [tables.with_name(f"{tables.name}-{way}") for way in ("up", "spark-1", "spark-2")]
    for copy in ways:
        shutil.copytree(tables, copy)
    begun_s = time.monotonic()
    with session(_settings()) as spark:
        figures: dict[str, Any] = {"up_s": time.monotonic() - begun_s}
        for copy in ways:
            run_lifecycles(spark, Storage.at(journal), Storage.at(copy))  # nothing new yet
        link_segments(Path(later), journal)
        for way, copy in zip(("here", "first", "spark"), ways, strict=True):
            watch = Stopwatch()
            here_max = BYTES_HERE_MAX if way == "here" else 0
            done = run_lifecycles(spark, Storage.at(journal), Storage.at(copy), bytes_here_max=here_max)
            _check(done)
            figures[way] = {**watch.figures(), "events": done.events}
    return {**figures["here"], **figures}


def run_cluster(journal: Path, tables: Path, master: str, *workers: str) -> dict[str, Any]:
    """The run on a cluster; the CPU seconds of the driver, and of what runs below each of the workers' processes."""
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.run import run_lifecycles
    from veil.pipeline.spark.session import session

    cores = str(len(workers))
    conf = {
        "spark.cores.max": cores, "spark.executor.cores": "1", "spark.executor.memory": "1g",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
        # Not a task before all workers have joined.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    }  # fmt: skip
    begun_s = time.monotonic()
    with session(_settings(master, conf)) as spark:
        spark.range(100).repartition(len(workers)).count()
        up_s = time.monotonic() - begun_s
        watch, before = Stopwatch(), [cpu_s(int(pid)) for pid in workers]
        done = run_lifecycles(spark, Storage.at(journal), Storage.at(tables), bytes_here_max=0)
        _check(done)
        figures = watch.figures()
        used = [cpu_s(int(pid)) - was for pid, was in zip(workers, before, strict=True)]
        driver_s = figures.pop("cpu_s")
        return {
            "up_s": up_s, **figures, "cpu_s": driver_s + sum(used), "driver_cpu_s": driver_s, "workers_cpu_s": used,
            "events": done.events, "hours": done.partitions,
        }  # fmt: skip


def run_command(journal: Path, tables: Path) -> dict[str, Any]:
    """`veil pipeline lifecycles` as a person runs it: from a cold process, with Spark where it is worth its start."""
    watch = Stopwatch()
    start = "import sys; from veil.cli.main import run; sys.exit(run(sys.argv[1:]))"
    words = ["pipeline", "lifecycles", "--journal", str(journal), "--tables", str(tables), "--json"]
    ran = subprocess.run([sys.executable, "-c", start, *words], capture_output=True, text=True, check=True)
    done = json.loads(ran.stdout)
    used = os.times()
    return {
        "up_s": 0.0, **watch.figures(), "cpu_s": used.children_user + used.children_system,
        "events": done["events"], "hours": done["partitions"],
    }  # fmt: skip


def run_peer(engine: str, journal: Path, tables: Path) -> dict[str, Any]:
    """The same transformation by another engine."""
    begun_s = time.monotonic()
    os.environ["POLARS_MAX_THREADS"] = str(THREADS)
    tables.mkdir(parents=True, exist_ok=True)
    files = sorted(str(path) for path in journal.glob("day=*/*.parquet"))
    peer = import_module(f"bench.lifecycles_{engine}")
    up_s = time.monotonic() - begun_s
    watch = Stopwatch()
    peer.make_tables(files, tables, THREADS)
    return {"up_s": up_s, **watch.figures()}


def main(arguments: list[str]) -> int:
    """Run and print."""
    engine, journal, tables, *more = arguments
    own: dict[str, Callable[..., dict[str, Any]]] = {
        "spark": run_spark, "command": run_command, "session": run_session, "cluster": run_cluster,
    }  # fmt: skip
    if engine not in (*ENGINES, *own):
        raise SystemExit(f"engine={engine!r}: expected one of {', '.join({*ENGINES, *own})}")
    places = Path(journal), Path(tables)
    found = own[engine](*places, *more) if engine in own else run_peer(engine, *places)
    print(json.dumps({**found, "load": os.getloadavg()[0]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
