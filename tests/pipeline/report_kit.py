"""Invented findings and lives for the report: queues whose timeouts are too short, too long, right, and not known well."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from veil.core.clock import Trouble
from veil.core.findings import NO_RENEWAL, Candidate, CurvePoint, Finding, Findings, Replay, WithPolicy
from veil.core.queue import QueueKey
from veil.pipeline.report.overview import SERIES, Example, ExampleLease, Overview, QueueLife, QueueTimeline

BEGIN = datetime(2026, 11, 9, 0, 0, tzinfo=UTC)
END = BEGIN + timedelta(days=6)
TIMEOUTS = (
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    45,
    60,
    90,
    120,
    180,
    240,
    300,
    450,
    600,
    900,
    1800,
    3600,
    7200,
    14400,
    43200,
)


def a_survival(median_s: float, spread: float, after_s: float) -> float:
    """Of a log-normal processing time."""
    return 0.5 * math.erfc(math.log(after_s / median_s) / (spread * math.sqrt(2)))


def a_finding(queue: str = "orders", **changed: Any) -> Finding:
    """A finding of log-normal work; `median_s`, `spread`, `present_s`, `leases` shape it, any field may be given."""
    median_s = changed.pop("median_s", 8.0)
    spread = changed.pop("spread", 0.8)
    leases = changed.pop("leases", 12_000)
    present_s = changed.pop("present_s", 30)
    crash_rate = changed.pop("crash_rate", 0.01)
    target = 0.001

    def survival(after_s: float) -> float:
        return a_survival(median_s, spread, after_s)

    curve = []
    after_s = median_s / math.exp(3.2 * spread)
    while (alive := survival(after_s)) * leases > 0.7:
        error = 1.96 * math.sqrt(max(alive * (1 - alive), 1e-12) / leases)
        risk = round(alive * leases)
        curve.append(CurvePoint(after_s, alive, max(0.0, alive - error), min(1.0, alive + error * 1.3), risk))
        after_s *= 2 ** (1 / 16)
    candidates = [_candidate(each, survival(each), median_s, leases) for each in TIMEOUTS]
    recommended = next((each for each in TIMEOUTS if survival(each) <= target), None)
    enough = leases >= 3000 and recommended is not None
    crashes = round(leases * crash_rate)
    duplicates = round(leases * survival(present_s))
    replay = None
    if enough and recommended is not None:
        hidden, better = (crashes * max(0.0, each - median_s / 2) / 3600 for each in (present_s, recommended))
        replay = Replay(duplicates, leases * survival(recommended), hidden, better, hidden)
    fields: dict[str, Any] = {
        "region": "eu-central-1",
        "account": "000000000000",
        "queue": queue,
        "message_type": None,
        "since": BEGIN.isoformat(),
        "until": (END - timedelta(days=1)).isoformat(),
        "leases": leases,
        "completed": leases - duplicates // 3 - crashes,
        "censored": duplicates // 3 + crashes,
        "duplicates": duplicates,
        "crashes": crashes,
        "present_timeout_s": present_s,
        "recommended_timeout_s": recommended if enough else None,
        "policy": NO_RENEWAL,
        "certainty": ("clear" if leases > 9000 else "likely") if enough else "not enough evidence",
        "reason": f"With {recommended} s one lease in {round(1 / max(survival(recommended or 1), 1e-9)):,} is overrun."
        if enough
        else "The curve does not reach down to the target.",
        "missing": None
        if enough
        else f"{3000 - leases:,} more leases whose work ends, for a target of 0.1 %.",
        "mean_s": median_s * math.exp(spread**2 / 2) * 0.93,
        "p50_s": median_s,
        "p90_s": median_s * math.exp(1.2816 * spread),
        "p99_s": median_s * math.exp(2.3263 * spread) if leases > 300 else None,
        "p999_s": median_s * math.exp(3.0902 * spread) if enough else None,
        "curve": curve,
        "candidates": candidates,
        "replay": replay,
    }
    return Finding(**{**fields, **changed})


def _candidate(timeout_s: int, alive: float, median_s: float, leases: int) -> Candidate:
    high = alive + 1.96 * math.sqrt(max(alive * (1 - alive), 1e-9) / max(leases, 1))
    plain = WithPolicy(
        NO_RENEWAL, alive, min(1.0, high), max(timeout_s - median_s / 2, timeout_s * 0.55), 0.0
    )
    calls = median_s / timeout_s
    return Candidate(
        timeout_s,
        [
            plain,
            WithPolicy("adaptive", alive * 0.012, min(1.0, high * 0.02), timeout_s * 0.78, calls * 0.4),
            WithPolicy("buffered", alive * 0.02, min(1.0, high * 0.03), timeout_s * 0.95, calls * 2.4),
            WithPolicy("heartbeat", alive * 0.03, min(1.0, high * 0.05), timeout_s * 0.88, calls * 1.2),
        ],
    )


def a_life(
    queue: str, *, slots: int = 144, rate: int = 80, trouble: float = 0.03, seed: int = 7
) -> QueueLife:
    """A queue's hours with a daily rhythm."""
    chance = random.Random(f"{queue!a}{seed}")
    sent = [
        round(rate * (1.1 + math.sin(hour / 24 * math.tau)) * chance.uniform(0.8, 1.2))
        for hour in range(slots)
    ]
    counts: dict[str, tuple[int, ...]] = {"sent": tuple(sent)}
    counts["deleted"] = tuple(round(each * chance.uniform(0.93, 1)) for each in sent)
    for name, part in (("lapses", trouble), ("duplicates", trouble * 0.6), ("dead_lettered", trouble * 0.04)):
        counts[name] = tuple(sum(chance.random() < part for _ in range(each)) for each in sent)
    assert set(counts) == set(SERIES)
    sums = {name: sum(each) for name, each in counts.items()}
    leases = sums["sent"] + sums["lapses"]
    lapses = sums["lapses"]
    totals = Counter(
        sent=sums["sent"],
        leases=leases,
        overrun=sums["duplicates"] + 3,
        duplicates=sums["duplicates"],
        extensions=leases // 9,
        held_ms=leases * 9_300,
        wasted_ms=lapses * 31_000,
        # How leases ended, and what came of the attempts.
        deleted=sums["deleted"],
        released=sums["sent"] // 50,
        expired=lapses // 9,
        superseded=lapses - lapses // 9,
        dead_lettered=sums["dead_lettered"],
        open=3,
        completed=sums["deleted"],
        failed=sums["sent"] // 80,
        given_back=sums["sent"] // 50 - sums["sent"] // 80,
        overran=lapses // 2,
        crashed=lapses // 3,
        unknown=lapses - lapses // 2 - lapses // 3 + sums["dead_lettered"],
        # What became of messages.
        messages_deleted=sums["deleted"],
        messages_dead=sums["dead_lettered"],
        messages_open=sums["sent"] - sums["deleted"] - sums["dead_lettered"],
    )
    timeline = QueueTimeline(BEGIN, timedelta(hours=1), counts)
    return QueueLife(QueueKey("eu-central-1", "000000000000", queue), totals, timeline)


def a_lease(delivery: int = 1, **changed: Any) -> ExampleLease:
    """A lease of thirty seconds, deleted after eight."""
    received_at = changed.pop("received_at", BEGIN + timedelta(seconds=2))
    fields: dict[str, Any] = {
        "queue": "orders",
        "delivery": delivery,
        "received_at": received_at,
        "first_deadline": received_at + timedelta(seconds=30),
        "deadline": received_at + timedelta(seconds=30),
        "extensions": 0,
        "last_extended_at": None,
        "ended_at": received_at + timedelta(seconds=8),
        "how": "deleted",
        "outcome": "completed",
        "error_type": None,
        "held_ms": 8000,
        "processing_ms": 8000,
        "overrun": False,
        "user_agent": "worker/2.1",
    }
    return ExampleLease(**{**fields, **changed})


def a_lapsed_lease(delivery: int, received_at: datetime, **changed: Any) -> ExampleLease:
    """A lease whose deadline passed after thirty seconds."""
    deadline = received_at + timedelta(seconds=30)
    lapsed: dict[str, Any] = {
        "received_at": received_at,
        "deadline": deadline,
        "ended_at": deadline,
        "how": "superseded",
        "outcome": "crashed",
        "held_ms": 30_000,
        "processing_ms": 30_000,
    }
    return a_lease(delivery, **{**lapsed, **changed})


def some_examples() -> tuple[Example, ...]:
    """One of each kind."""

    def example(kind: str, queue: str, leases: Sequence[ExampleLease], outcome: str = "deleted") -> Example:
        return Example(
            kind, queue, "5fea7756-0ea4-451a-a703-a558b933e274", "invoice", BEGIN, outcome, leases[-1].ended_at,
            tuple(leases),
        )  # fmt: skip

    def at(seconds: float) -> datetime:
        return BEGIN + timedelta(seconds=seconds)

    twice = [
        a_lapsed_lease(1, at(2), overrun=True, outcome="overran", processing_ms=48_000),
        a_lease(
            2, received_at=at(33), ended_at=at(74), held_ms=41_000, processing_ms=41_000, deadline=at(90)
        ),
    ]
    crash = [a_lapsed_lease(1, at(2)), a_lease(2, received_at=at(33))]
    dead = [a_lapsed_lease(number, at(2 + 35 * (number - 1)), outcome="unknown") for number in range(1, 3)]
    failed = {"how": "released", "outcome": "failed", "error_type": "shop.NoStock", "held_ms": 3_000}
    dead.append(a_lease(3, received_at=at(72), **failed))
    dead.append(a_lapsed_lease(4, at(110), how="dead_lettered"))
    renewed = [
        a_lease(
            1, deadline=at(642), ended_at=at(625), held_ms=623_000, processing_ms=623_000, extensions=20,
            last_extended_at=at(612),
        )
    ]  # fmt: skip
    return (
        example("duplicate", "thumbnails", twice),
        example("crash", "orders", crash),
        example("dead_letter", "webhooks", dead, "dead_lettered"),
        example("renewed", "video-transcode", renewed),
    )


def some_findings(extra: int = 0) -> Findings:
    """Queues of every verdict; `extra` more to fill the page."""
    found = [
        a_finding("thumbnails", median_s=12, spread=0.7, present_s=30, leases=41_230),
        a_finding("orders", median_s=2.2, spread=0.5, present_s=30, leases=88_120),
        a_finding("orders", median_s=1.4, spread=0.4, present_s=30, leases=60_020, message_type="placed"),
        a_finding("orders", median_s=5.2, spread=0.5, present_s=30, leases=28_100, message_type="cancelled"),
        a_finding("invoices.fifo", median_s=0.34, spread=0.6, present_s=2, leases=15_870, crash_rate=0.001),
        a_finding(
            "video-transcode", median_s=240, spread=0.9, present_s=43_200, leases=6_204, crash_rate=0.02, unknown=9
        ),
        a_finding("webhooks", median_s=0.8, spread=1.4, present_s=30, leases=412),
        a_finding("nightly-export-to-the-data-warehouse-of-the-northern-region", median_s=1900, spread=0.3,
                  present_s=1800, leases=4_033),
        a_finding("mail-out", leases=0, completed=0, censored=0, crashes=0, duplicates=0, curve=[], candidates=[],
                  present_timeout_s=None, p50_s=None, p90_s=None, p99_s=None, p999_s=None, mean_s=None),
    ]  # fmt: skip
    for number in range(extra):
        chance = random.Random(number)
        found.append(
            a_finding(
                f"service-{number:02d}-events",
                median_s=10 ** chance.uniform(-1.5, 3),
                spread=chance.uniform(0.2, 1.1),
                present_s=chance.choice([5, 30, 30, 60, 300, 3600]),
                leases=chance.choice([150, 4_000, 20_000, 90_000]),
            )
        )
    return Findings(1, "2026-11-15T06:12:44+00:00", 0.001, found)


def some_overview(findings: Findings) -> Overview:
    """The lives that go with the findings."""
    names = list(dict.fromkeys(finding.queue for finding in findings.findings))
    lives = tuple(
        a_life(name, rate=20 + 30 * (number % 5), trouble=0.05 / (1 + number))
        for number, name in enumerate(names)
    )
    at_ms = round(BEGIN.timestamp() * 1000) + 50 * 3_600_000
    troubles = (
        Trouble(at_ms, at_ms + 1_500, "disk"),
        Trouble(at_ms + 36_000_000, at_ms + 39_600_000, "database"),
    )
    made_at = datetime(2026, 11, 15, 6, 13, tzinfo=UTC)
    return Overview(made_at, BEGIN, END, lives, some_examples(), troubles=troubles)
