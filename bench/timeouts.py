"""How long `veil pipeline timeouts` takes over a year of 1,000 queues.

    python -m bench.timeouts [--queues 1000] [--days 365] [--keep DIR]

Every queue is active every hour: some 120 leases, 20 to 40 non-zero buckets in each hour's histogram of processing times. The
hours are added up to `queue_days` and these to `queue_months`, as lifecycles does; the hours themselves are not written.
Printed are the seconds from the session being up to the findings lying beside the tables, first in a session that has run
nothing yet, then once more, then since the second day, so that the first month is read as days.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.queue_days import SCHEMA, histogram_column, write_tables
from veil.journal.storage import Storage

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
LEASES_AN_HOUR = 120
SPAN = 160  # buckets, ten octaves around the middle
SPREAD = 9.0  # buckets: the standard deviation of log-normal work


def year(place: Storage, queues: int, days: int, seed: int = 1) -> dict[str, float]:
    """Make the tables; say how full they are."""
    random = np.random.default_rng(seed)
    middles = random.integers(110, 290, queues)  # from 0.1 s to 5 min
    offsets = np.arange(SPAN) - SPAN // 2
    shape = np.exp(-0.5 * (offsets / SPREAD) ** 2)
    expected = np.outer(random.uniform(0.5, 1.5, queues) * LEASES_AN_HOUR, shape / shape.sum())
    buckets = np.clip(middles[:, None] + offsets, 0, 511)
    tables, full_hours, full_days = {}, 0.0, 0.0
    months: dict[datetime, Any] = {}
    for number in range(days):
        hours = random.poisson(expected, (24, queues, SPAN))
        day = hours.sum(axis=0)
        full_hours += float((hours > 0).sum()) / (24 * queues * days)
        full_days += float((day > 0).sum()) / (queues * days)
        at = BEGIN + timedelta(days=number)
        lapsed = random.poisson(day.sum(axis=1) * 0.002)
        waiting = random.poisson(day.sum(axis=1)[:, None] / 20, (queues, 20))
        tables[at] = _rows(at, at, buckets, day, lapsed, waiting)
        month = months.setdefault(at.replace(day=1), [at, 0, 0, 0])
        months[at.replace(day=1)] = [at, month[1] + day, month[2] + lapsed, month[3] + waiting]
    full_months = np.mean([(counts > 0).sum() / queues for _, counts, _, _ in months.values()])
    write_tables(
        place,
        tables,
        months={begin: _rows(begin, last, buckets, *sums) for begin, (last, *sums) in months.items()},
    )
    return {
        "buckets_an_hour": round(full_hours, 1),
        "buckets_a_day": round(full_days, 1),
        "buckets_a_month": round(float(full_months), 1),
    }


def _rows(at: datetime, last: datetime, buckets: Any, counts: Any, lapsed: Any, waiting: Any) -> Any:
    queues = len(counts)
    done = counts.sum(axis=1)
    windows_ms = np.exp2((buckets[:, SPAN // 2] + 48) // 16).astype(np.int64)
    at_deadline = np.floor(np.log2(windows_ms) * 16).astype(np.int32)
    none = np.zeros(queues, dtype=np.int64)
    columns: dict[str, Any] = {
        "hour": pa.array([at] * queues, SCHEMA.field("hour").type),
        "region": pa.array(["us-east-1"] * queues),
        "account": pa.array(["000000000000"] * queues),
        "queue": pa.array([f"queue-{number:04}" for number in range(queues)]),
        "message_type": pa.array([""] * queues),
        "sent": done,
        "leases": done + lapsed,
        "deleted": done,
        "superseded": lapsed,
        "messages_deleted": done,
        "window_ms": windows_ms,
        "window_at": pa.array([last + timedelta(hours=23)] * queues, SCHEMA.field("window_at").type),
        "processing": _histograms(buckets, counts),
        "processing_lapsed": _histograms(at_deadline[:, None], lapsed[:, None]),
        "processing_censored": _histograms(none[:, None], none[:, None]),
        "waiting": _histograms(np.tile(np.arange(100, 120), (queues, 1)), waiting),
        "recovery": _histograms(at_deadline[:, None], lapsed[:, None]),
    }
    return pa.table([pa.array(columns.get(name, none)) for name in SCHEMA.names], schema=SCHEMA)


def _histograms(buckets: Any, counts: Any) -> Any:
    there = counts > 0
    offsets = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
    return histogram_column(buckets[there], counts[there], offsets)


def measure(place: Storage) -> dict[str, object]:
    """The job, again, and over what is not whole months."""
    from veil.cli.pipeline.timeouts import SCHEDULES
    from veil.pipeline.timeouts.run import run_timeouts

    taken, cpu = [], []
    for since in (None, None, (BEGIN + timedelta(days=1)).date()):
        begun, cpu_begun = time.monotonic(), time.process_time()
        findings = run_timeouts(place, policies=SCHEDULES, since=since)
        taken.append(round(time.monotonic() - begun, 2))
        cpu.append(round(time.process_time() - cpu_begun, 2))
    return {
        "first_s": taken[0],
        "first_cpu_s": cpu[0],  # on a machine that others use, the fairer figure
        "again_s": taken[1],
        "again_cpu_s": cpu[1],
        "since_s": taken[2],
        "since_cpu_s": cpu[2],
        "findings": len(findings.findings),
        "leases": sum(each.leases for each in findings.findings),
        "clear": sum(each.certainty == "clear" for each in findings.findings),
    }


def main() -> None:
    """Make the year, time the job, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument(
        "--keep", type=Path, help="make the tables here and leave them; use them if they are there"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        place = Storage.at(given.keep or passing)
        filled = {} if place.exists("manifest.json") else year(place, given.queues, given.days)
        print(json.dumps({"queues": given.queues, "days": given.days, **filled, **measure(place)}))


if __name__ == "__main__":
    main()
