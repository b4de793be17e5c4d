"""One engine's run over one journal, in a process of its own: `python -m bench.lifecycles_run ENGINE JOURNAL TABLES`.

Prints one line of JSON: time and CPU time after the engine is up, the time until then, and the most memory that the process
and its children had. Every engine gets two threads and, where it has such a setting, 4 GB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.load import process_cpu_s

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


def cpu_s() -> float:
    """The CPU seconds of this process and its children: what stays comparable while others use the machine."""
    return sum(process_cpu_s(pid) for pid in family(os.getpid()))


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


def run_spark(journal: Path, tables: Path) -> dict[str, Any]:
    """`veil pipeline lifecycles --master local[2]` without its command line: Spark does it all, however little is new."""
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.run import run_lifecycles
    from veil.pipeline.spark.session import SparkSettings, session

    begun_s = time.monotonic()
    settings = SparkSettings(
        master=f"local[{THREADS}]",
        conf={"spark.driver.memory": MEMORY, "spark.ui.enabled": "false"},
        title="bench lifecycles",
        brief=True,
    )
    with session(settings) as spark:
        up_s = time.monotonic() - begun_s
        watch = Stopwatch()
        done = run_lifecycles(spark, Storage.at(journal), Storage.at(tables), bytes_here_max=0)
        if done.broken:
            raise RuntimeError(f"broken segments: {done.broken}")
        return {"up_s": up_s, **watch.figures(), "events": done.events, "hours": done.partitions}


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
    engine, journal, tables = arguments
    if engine not in (*ENGINES, "command"):
        raise SystemExit(f"engine={engine!r}: expected one of {', '.join((*ENGINES, 'command'))}")
    places = Path(journal), Path(tables)
    own = {"spark": run_spark, "command": run_command}
    print(json.dumps(own[engine](*places) if engine in own else run_peer(engine, *places)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
