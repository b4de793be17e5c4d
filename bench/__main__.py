"""Veil's throughput beside the limit of its HTTP layer and beside its peers.

    python -m bench [--quick] [--only PART ...] [--contenders NAME ...] [--rounds N] [--seconds S] [--out FILE]

The table goes to stdout, progress to stderr, and all figures to a JSON file. Other questions have commands of
their own: bench.growth, bench.long_polls, bench.tail, bench.profile, bench.http_stacks; bench.walk and, against another
checkout, bench.beside.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from bench import contenders
from bench.contenders import scratch
from bench.generator import PARTS
from bench.processes import sync_us
from bench.table import table
from bench.throughput import Plan, measure


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for; 1 if the generator was too slow for the figures to mean anything."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of half a second, 32 connections only"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument(
        "--contenders", nargs="+", choices=contenders.NAMES, metavar="NAME",
        default=[contenders.VEIL, contenders.NOOP, contenders.ELASTICMQ, contenders.MOTO],
        help=", ".join(contenders.NAMES),
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help="the table shows their median (3)")
    parser.add_argument("--seconds", type=float, help="of each timed part (2)")
    parser.add_argument("--connections", nargs="+", type=int, metavar="N", help="1 32 128")
    parser.add_argument("--batches", nargs="+", type=int, metavar="N", help="messages per request: 1 10")
    parser.add_argument(
        "--build", type=Path, default=Path("build"), metavar="DIR",
        help="where the servers' data and logs are (build); in memory, such as /dev/shm/bench, a sync takes no time",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    plan = Plan(
        contenders=given.contenders,
        parts=tuple(part for part in PARTS if part in given.only),
        batches=given.batches or (1, 10),
        connections=given.connections or ((32,) if given.quick else (1, 32, 128)),
        rounds=given.rounds or (1 if given.quick else 3),
        seconds=given.seconds or (0.5 if given.quick else 2.0),
        warm_up_factor=0.25 if given.quick else 1.0,
        build=given.build,
    )
    facts = _facts(plan)
    report = measure(plan)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"facts": facts, **report.as_json()}, indent=1) + "\n")
    print(
        f"{facts['cores']} cores, {facts['machine']}, Python {facts['python']}, 4 KiB to disk in {facts['sync_us']:,.0f} µs, "
        f"median of {plan.rounds} × {plan.seconds:g} s, bodies of 300 bytes, load average {facts['load_average']:.1f}\n"
    )
    print(table(report))
    print(f"all figures: {given.out}", file=sys.stderr)
    return 0 if report.check is None or report.check.passed else 1


def _facts(plan: Plan) -> dict[str, Any]:
    with scratch(plan.build) as directory:
        disk_us = sync_us(directory)
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "sync_us": round(disk_us, 1),
        "load_average": os.getloadavg()[0],
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "body_bytes": 300,
    }


if __name__ == "__main__":
    sys.exit(main())
