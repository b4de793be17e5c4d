"""What lifecycles cost as the journal grows, what an increment costs, and how that compares with DuckDB and Polars.

    python -m bench.lifecycles [--sizes MILLIONS ...] [--peers-at MILLIONS] [--work DIR] [--out FILE]

For each size a journal is generated (and kept in the work directory for the next time). Then three runs, each in a process of
its own: on Spark over all of it; then the command itself, from a cold process, over one per cent of new events, and over
nothing new. Time counts from when the engine is up, the command's from its start. At one of the sizes DuckDB and Polars make
the same tables from the same segments, and all three must agree.
"""

from __future__ import annotations

import argparse
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
from bench.lifecycles_run import ENGINES, MEMORY, THREADS

BUILD = Path("build")
MILLION = 1_000_000
GROWTH_MAX, INCREMENT_MAX = 10.5, 0.05  # what is aimed at
Figures = dict[str, Any]


class RunFailed(Exception):
    """An engine did not come to an end; its last words are the text."""


def run(engine: str, journal: Path, tables: Path) -> Figures:
    """One run in a process of its own."""
    command = [sys.executable, "-m", "bench.lifecycles_run", engine, str(journal), str(tables)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise RunFailed(f"{engine}: {found.stderr.strip()[-2000:]}")
    figures: Figures = json.loads(found.stdout.splitlines()[-1])
    print(
        f"{engine}: {figures['seconds']:.1f} s, CPU {figures['cpu_s']:.1f} s, {figures['peak_mb']:,.0f} MB",
        file=sys.stderr,
    )
    return figures


def link_segments(source: Path, journal: Path) -> None:
    """Put the segments into the journal, as the exporter would have; the bytes stay where they are."""
    for path in [*source.glob("day=*/*.parquet"), source / "_journal.json"]:
        target = journal / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            os.link(path, target)


def measure(millions: float, work: Path, *, peers: bool) -> Figures:
    """All runs of one size."""
    events = int(millions * MILLION)
    plan = JournalPlan(events, max(1, events // 100))
    made = work / f"journal-{events}"
    begun_s = time.monotonic()
    fresh = make_journal(plan, made)
    what = f"generated in {time.monotonic() - begun_s:.0f} s" if fresh else "there already"
    print(f"{events:,} events: {what}", file=sys.stderr)
    place = work / f"run-{events}"
    shutil.rmtree(place, ignore_errors=True)
    journal, tables = place / "journal", {engine: place / engine for engine in ENGINES}
    link_segments(made / "journal", journal)
    figures: Figures = {"events": events, "more": plan.more, "full": run("spark", journal, tables["spark"])}
    if peers:
        for engine in ENGINES[1:]:
            figures[engine] = run(engine, journal, tables[engine])
        digests = {engine: digest(table_files(engine, tables[engine])) for engine in ENGINES}
        figures["digest"] = digests["spark"]
        figures["differences"] = {
            engine: differences(digests["spark"], digests[engine]) for engine in ENGINES[1:]
        }
    link_segments(made / "later", journal)
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


def _verdicts(rows: list[Figures]) -> list[str]:
    lines = []
    for small, large in pairwise(rows):
        times = large["full"]["seconds"] / small["full"]["seconds"]
        allowed = GROWTH_MAX * large["events"] / small["events"] / 10
        verdict = "good" if times <= allowed else "TOO MUCH"
        lines.append(
            f"{small['events']:,} to {large['events']:,} events: {times:.1f} × the time (at most {allowed:g}): {verdict}"
        )
    if rows:
        largest = rows[-1]
        share = largest["increment"]["seconds"] / largest["full"]["seconds"]
        verdict = "good" if share <= INCREMENT_MAX else "TOO MUCH"
        lines.append(
            f"one per cent more at {largest['events']:,}: {share:.1%} of the full run (at most {INCREMENT_MAX:.0%}): {verdict}"
        )
    return lines


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
    parser.add_argument("--work", type=Path, default=BUILD / "lifecycles", metavar="DIR")
    parser.add_argument("--out", type=Path, default=BUILD / "lifecycles.json", metavar="FILE")
    given = parser.parse_args(arguments)
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
