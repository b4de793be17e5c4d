"""What lifecycles cost as the journal grows, what an increment costs, and how that compares with DuckDB and Polars.

    python -m bench.lifecycles [--sizes MILLIONS ...] [--peers-at MILLIONS] [--work DIR] [--out FILE]
    python -m bench.lifecycles --cluster [--sizes MILLIONS] [--work DIR]

For each size a journal is generated (and kept in the work directory for the next time). Then the runs, each in a process of
its own: on Spark over all of it; over one per cent of new events in a process that is up, as `--follow` is, and on a Spark
that is up; then the command itself, from a cold process, over the same, and over nothing new. Time counts from when the engine
is up, the command's from its start. At one of the sizes DuckDB and Polars make the same tables from the same segments, and all
three must agree.

`--cluster` measures a standalone cluster on this machine instead: one worker with one core, two of them, and two with a journal
of which nine tenths are of one queue. Each worker is held to a core of its own: else the Java of a single one would run on the
core that the second has in the other run. The driver shares the machine's cores with them; "by CPU" is what the time would come
to if each had its own: the driver's CPU seconds and those of the busiest worker.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.journal_events import JournalPlan, make_journal
from bench.lifecycles_check import differences, digest, table_files
from bench.lifecycles_run import ENGINES, MEMORY, THREADS, link_segments

BUILD = Path("build")
MILLION = 1_000_000
# What is aimed at.
GROWTH_MAX, PEER_MAX, INCREMENT_MAX, SESSION_MAX_S = 10.5, 1.5, 0.05, 2.0
SECOND_WORKER_MAX, SKEW_MAX, HOT = 0.65, 1.3, 0.9
Figures = dict[str, Any]


class RunFailed(Exception):
    """An engine did not come to an end; its last words are the text."""


def run(engine: str, journal: Path, tables: Path, *more: str) -> Figures:
    """One run in a process of its own."""
    command = [sys.executable, "-m", "bench.lifecycles_run", engine, str(journal), str(tables), *more]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise RunFailed(f"{engine}: {found.stderr.strip()[-2000:]}")
    figures: Figures = json.loads(found.stdout.splitlines()[-1])
    print(
        f"{engine}: {figures['seconds']:.1f} s, CPU {figures['cpu_s']:.1f} s, {figures['peak_mb']:,.0f} MB; the machine's"
        f" load is {figures['load']:.1f}",
        file=sys.stderr,
    )
    return figures


def _journal(work: Path, events: int, hot: float = 0.0) -> Path:
    """The folder with the journal of so many events, and what follows it."""
    made = work / (f"journal-{events}" + ("-hot" if hot else ""))
    begun_s = time.monotonic()
    fresh = make_journal(JournalPlan(events, max(1, events // 100), hot=hot), made)
    what = f"generated in {time.monotonic() - begun_s:.0f} s" if fresh else "there already"
    print(f"{events:,} events{', one queue hot' if hot else ''}: {what}", file=sys.stderr)
    return made


def measure(millions: float, work: Path, *, peers: bool) -> Figures:
    """All runs of one size."""
    events = int(millions * MILLION)
    made = _journal(work, events)
    place = work / f"run-{events}"
    shutil.rmtree(place, ignore_errors=True)
    journal, tables = place / "journal", {engine: place / engine for engine in ENGINES}
    link_segments(made / "journal", journal)
    figures: Figures = {"events": events, "full": run("spark", journal, tables["spark"])}
    if peers:
        for engine in ENGINES[1:]:
            figures[engine] = run(engine, journal, tables[engine])
        digests = {engine: digest(table_files(engine, tables[engine])) for engine in ENGINES}
        figures["digest"] = digests["spark"]
        figures["differences"] = {
            engine: differences(digests["spark"], digests[engine]) for engine in ENGINES[1:]
        }
    figures["session"] = run("session", journal, tables["spark"], str(made / "later"))
    figures["increment"] = run("command", journal, tables["spark"])
    figures["nothing"] = run("command", journal, tables["spark"])
    if peers:
        # What an increment comes to must be what a run over everything comes to.
        run("duckdb", journal, tables["duckdb"])
        after = {engine: digest(table_files(engine, tables[engine])) for engine in ("spark", "duckdb")}
        figures["differences"]["increment"] = differences(after["spark"], after["duckdb"])
    shutil.rmtree(place)
    return figures


def table(rows: list[Figures]) -> str:
    """The sizes, the ratios between them, and the engines beside each other."""
    lines = [
        f"{'events':>12}  {'full s':>8} {'CPU s':>8} {'events/s':>9} {'peak MB':>8} {'growth':>7} {'CPU':>7}"
        f"  {'+1 % s':>7} {'of full':>8} {'CPU':>7} {'hours':>8}  {'nothing new s':>13} {'start s':>8}"
    ]
    before: Figures | None = None
    for row in rows:
        full, more = row["full"], row["increment"]
        growth = [
            f"{full[what] / before['full'][what]:.1f} ×" if before else "-" for what in ("seconds", "cpu_s")
        ]
        lines.append(
            f"{row['events']:>12,}  {full['seconds']:8.1f} {full['cpu_s']:8.1f} {row['events'] / full['seconds']:9,.0f}"
            f" {full['peak_mb']:8,.0f} {growth[0]:>7} {growth[1]:>7}"
            f"  {more['seconds']:7.1f} {more['seconds'] / full['seconds']:8.1%} {more['cpu_s'] / full['cpu_s']:7.1%}"
            f" {more['hours']:>3} of {full['hours']:<3} {row['nothing']['seconds']:13.1f} {full['up_s']:8.1f}"
        )
        before = row
    for row in rows:
        if "differences" not in row:
            continue
        lines += [
            "",
            f"{row['events']:,} events",
            f"{'engine':<8} {'s':>8} {'CPU s':>8} {'events/s':>10} {'peak MB':>8} {'Spark takes':>12} {'CPU':>7}",
        ]
        for engine in ENGINES:
            full, each = row["full"], row["full" if engine == "spark" else engine]
            lines.append(
                f"{engine:<8} {each['seconds']:8.1f} {each['cpu_s']:8.1f} {row['events'] / each['seconds']:10,.0f}"
                f" {each['peak_mb']:8,.0f} {full['seconds'] / each['seconds']:10.1f} × {full['cpu_s'] / each['cpu_s']:5.1f} ×"
            )
        for what, found in row["differences"].items():
            name = "spark after the increment and duckdb" if what == "increment" else f"spark and {what}"
            lines.append(
                f"{name}: {'the same tables' if not found else 'DIFFERENT: ' + '; '.join(found[:8])}"
            )
    lines += ["", *_verdicts(rows)]
    return "\n".join(lines)


def _verdict(what: str, found: float, most: float, form: str) -> str:
    verdict = "good" if found <= most else "TOO MUCH"
    return f"{what}: {format(found, form)} (at most {format(most, form)}): {verdict}"


def _verdicts(rows: list[Figures]) -> list[str]:
    lines = []
    for row in rows:
        for word, what in (("time", "seconds"), ("CPU", "cpu_s")) if "duckdb" in row else ():
            ratio = row["full"][what] / row["duckdb"][what]
            lines.append(_verdict(f"{word} by DuckDB's at {row['events']:,}", ratio, PEER_MAX, ".2f"))
    for small, large in pairwise(rows):
        allowed = GROWTH_MAX * large["events"] / small["events"] / 10
        for word, what in (("time", "seconds"), ("CPU", "cpu_s")):
            times = large["full"][what] / small["full"][what]
            lines.append(
                _verdict(f"{word} of {large['events']:,} by {small['events']:,}", times, allowed, ".1f")
            )
    for row in rows:
        at, session = f"one per cent more at {row['events']:,}", row["session"]
        share = row["increment"]["seconds"] / row["full"]["seconds"]
        lines += [
            _verdict(f"{at}, cold, of the full run", share, INCREMENT_MAX, ".1%"),
            _verdict(f"{at}, in seconds, in a process that is up", session["seconds"], SESSION_MAX_S, ".1f"),
            f"the same on a Spark that is up: {session['spark']['seconds']:.1f} s, CPU {session['spark']['cpu_s']:.1f} s"
            f" (its first job: {session['first']['seconds']:.1f} s)",
        ]
    return lines


def on_cluster(millions: float, work: Path) -> str:
    """One worker beside two, and an even journal beside one with a hot queue."""
    from tests.pipeline.cluster_kit import cluster

    events, found = int(millions * MILLION), {}
    for name, workers, hot in (("one", 1, 0.0), ("two", 2, 0.0), ("hot", 2, HOT)):
        made, place = _journal(work, events, hot), work / f"cluster-{events}"
        shutil.rmtree(place, ignore_errors=True)
        journal = place / "journal"
        link_segments(made / "journal", journal)
        with cluster(place, workers, "1536m", held=True) as there:
            pids = map(str, there.workers)
            found[name] = run("cluster", journal, place / "tables", there.master, *pids)
        shutil.rmtree(place)
    lines = [f"{events:,} events", f"{'':<24} {'s':>7} {'CPU s':>7} {'driver':>7}  workers"]
    by_cpu = {name: each["driver_cpu_s"] + max(each["workers_cpu_s"]) for name, each in found.items()}
    for name, title in (("one", "one worker"), ("two", "two workers"), ("hot", "two, one queue hot")):
        each = found[name]
        own = ", ".join(f"{cpu_s:.1f}" for cpu_s in each["workers_cpu_s"])
        lines.append(
            f"{title:<24} {each['seconds']:7.1f} {each['cpu_s']:7.1f} {each['driver_cpu_s']:7.1f}  {own}"
        )
    for what, one, other, most in (
        ("two workers by one", "two", "one", SECOND_WORKER_MAX),
        ("a hot queue by an even journal", "hot", "two", SKEW_MAX),
    ):
        ratio = found[one]["seconds"] / found[other]["seconds"]
        lines.append(f"{_verdict(what, ratio, most, '.2f')}; by CPU {by_cpu[one] / by_cpu[other]:.2f}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 when the engines disagree."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.lifecycles",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", nargs="+", type=float, default=[1, 10], metavar="MILLIONS", help="1 10")
    parser.add_argument(
        "--peers-at",
        type=float,
        default=10,
        metavar="MILLIONS",
        help="the size at which DuckDB and Polars run too (10)",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="one worker and two on a standalone cluster, at the largest size",
    )
    parser.add_argument("--work", type=Path, default=BUILD / "lifecycles", metavar="DIR")
    parser.add_argument("--out", type=Path, default=BUILD / "lifecycles.json", metavar="FILE")
    given = parser.parse_args(arguments)
    compileall.compile_dir("veil", quiet=1)  # as its installation does; a checkout may never have been
    if given.cluster:
        print(on_cluster(max(given.sizes), given.work.resolve()))
        return 0
    rows = []
    for millions in sorted(given.sizes):
        rows.append(measure(millions, given.work.resolve(), peers=millions == given.peers_at))
        facts = {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyspark", "duckdb", "polars")},
        }
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1, default=str) + "\n")
    print(
        f"{facts['cores']} cores, {facts['machine']}, Python {facts['python']}, Spark {facts['pyspark']}, DuckDB"
        f" {facts['duckdb']}, Polars {facts['polars']}; {THREADS} threads each, {MEMORY} for Spark's driver and for DuckDB\n"
    )
    print(table(rows))
    print(f"all figures: {given.out}", file=sys.stderr)
    return 1 if any(found for row in rows for found in row.get("differences", {}).values()) else 0


if __name__ == "__main__":
    sys.exit(main())
