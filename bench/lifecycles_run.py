"""One engine's run over one journal, in a process of its own: `python -m bench.lifecycles_run ENGINE JOURNAL TABLES`.

Prints one line of JSON: time and CPU time after the engine is up, the time until then, and the most memory that the process
and its children had. Every engine gets two threads and, where it has such a setting, 4 GB.
"""

from __future__ import annotations

import json
import os
import sys
import time
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
    """`veil pipeline lifecycles` without its command line."""
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.run import is_brief, run_lifecycles
    from veil.pipeline.spark.session import SparkSettings, session

    begun_s = time.monotonic()
    settings = SparkSettings(
        master=f"local[{THREADS}]",
        conf={"spark.driver.memory": MEMORY, "spark.ui.enabled": "false"},
        title="bench lifecycles",
        brief=is_brief(Storage.at(journal), Storage.at(tables)),
    )
    with session(settings) as spark:
        up_s = time.monotonic() - begun_s
        watch = Stopwatch()
        done = run_lifecycles(spark, Storage.at(journal), Storage.at(tables))
        if done.broken:
            raise RuntimeError(f"broken segments: {done.broken}")
        return {"up_s": up_s, **watch.figures(), "events": done.events, "hours": done.partitions}


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
    if engine not in ENGINES:
        raise SystemExit(f"engine={engine!r}: expected one of {', '.join(ENGINES)}")
    places = Path(journal), Path(tables)
    print(json.dumps(run_spark(*places) if engine == "spark" else run_peer(engine, *places)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
