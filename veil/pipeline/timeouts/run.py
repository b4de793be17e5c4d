"""`veil pipeline timeouts`: the tables in, the timeout of each queue out.

The estimates are plain Python over sums that Spark made: no Spark is needed for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from veil.core.findings import FILE, NO_RENEWAL, VERSION, CurvePoint, Finding, Findings, encode
from veil.pipeline.lifecycles.store import load_manifest
from veil.pipeline.lifecycles.tables import instant_of
from veil.pipeline.timeouts.history import History, Work, files_since, merged, read_histories
from veil.pipeline.timeouts.recommendation import (
    Evidence,
    Schedule,
    Timelines,
    candidates,
    crash_share,
    curve_of,
    recommend,
    replay,
    shown_timeouts,
    sort_lapses,
)
from veil.pipeline.timeouts.survival import Survival

if TYPE_CHECKING:
    from veil.journal.storage import Storage

TARGET_DEFAULT: Final = 0.001
_POINTS_MAX: Final = 120


class Goal(NamedTuple):
    """What is asked for: a share of the work that may be done twice, and how consumers renew. Where it is the least cost, the
    share is only a bound (1: none)."""

    target: float = TARGET_DEFAULT
    policy: str = NO_RENEWAL
    least_cost: bool = False


def run_timeouts(
    tables: Storage,
    *,
    target: float = TARGET_DEFAULT,
    since: date | None = None,
    policies: Mapping[str, Schedule] | None = None,
    policy: str = NO_RENEWAL,
    queues: Sequence[str] = (),
    goals: Mapping[Work, Goal] | None = None,
    now: datetime | None = None,
    save: bool = True,
) -> Findings:
    """Find the timeout of every queue and message type in the tables, and leave the findings beside them; where there are none,
    what was found before stays."""
    histories = past(tables, since=since, queues=queues)
    made_at = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    found = find_all(histories, target=target, policies=policies, policy=policy, goals=goals)
    findings = Findings(VERSION, made_at, target, found, policy)
    if save and found:
        tables.write(FILE, encode(findings))
    return findings


def past(tables: Storage, *, since: date | None = None, queues: Sequence[str] = ()) -> dict[Work, History]:
    """The history of every queue and type that the tables tell of, from the day given on."""
    manifest = load_manifest(tables)
    files = files_since(manifest, since)
    if not files:
        return {}
    histories = read_histories(tables, files, queues=queues)
    first = instant_of(min(manifest.days))
    for history in histories.values():
        if history.since is not None:
            history.since = max(history.since, first)  # a month begins before the tables do
    return histories


def find_all(
    histories: Mapping[Work, History],
    *,
    target: float = TARGET_DEFAULT,
    policies: Mapping[str, Schedule] | None = None,
    policy: str = NO_RENEWAL,
    goals: Mapping[Work, Goal] | None = None,
) -> list[Finding]:
    """Each queue as a whole, then its message types where it has more than one; `goals` are for single queues, each a
    Work without a type."""
    timelines = Timelines(policies)
    if policy != NO_RENEWAL and policy not in timelines.names:
        raise ValueError(f"policy={policy!r}: expected {NO_RENEWAL} or one of {', '.join(timelines.names)}")
    if not 0 < target < 1:
        raise ValueError(f"target={target!r}: expected a share between 0 and 1")
    found = []
    wholes = merged(histories, lambda work: work.whole_queue)
    for queue, works in groupby(sorted(histories), key=lambda work: work.whole_queue):
        types = {work: histories[work] for work in works}
        goal = (goals or {}).get(queue, Goal(target, policy))
        found.append(find(queue, None, wholes[queue], timelines, goal))
        if len(types) > 1:
            found += [
                find(work, work.message_type, history, timelines, goal) for work, history in types.items()
            ]
    return found


def find(
    work: Work,
    message_type: str | None,
    history: History,
    timelines: Timelines,
    goal: Goal,
    *,
    also_s: Sequence[int] = (),
) -> Finding:
    """What one history says; `also_s` are timeouts that the finding is to have among its candidates."""
    lapses = sort_lapses(history)
    curve = curve_of(history, lapses)
    evidence = Evidence(history, lapses, curve, timelines, *goal)
    answer = recommend(evidence)
    shown = sorted({*shown_timeouts(curve, history.present_s, answer.timeout_s), *also_s})
    return Finding(
        region=work.region,
        account=work.account,
        queue=work.queue,
        message_type=message_type,
        since=None if history.since is None else history.since.isoformat(),
        until=None if history.until is None else history.until.isoformat(),
        leases=history.leases,
        completed=history.completed,
        censored=history.lapses.total() + history.censored.total(),
        duplicates=history.duplicates,
        crashes=history.crashed,
        present_timeout_s=history.present_s,
        recommended_timeout_s=answer.timeout_s,
        policy=goal.policy,
        certainty=answer.certainty,
        reason=answer.reason,
        missing=answer.missing,
        mean_s=history.mean_s,
        p50_s=curve.quantile_s(0.5),
        p90_s=curve.quantile_s(0.9),
        p99_s=curve.quantile_s(0.99),
        p999_s=curve.quantile_s(0.999),
        curve=_points(curve),
        candidates=candidates(curve, timelines, shown),
        replay=None if answer.timeout_s is None else replay(evidence, answer.timeout_s),
        failed=history.failed,
        given_back=history.given_back,
        unknown=history.unknown,
        failed_s=history.failed_ms / 1000,
        messages_completed=history.messages_deleted,
        crash_share=crash_share(history),
    )


def _points(curve: Survival) -> list[CurvePoint]:
    """The curve as far as it is worth drawing: its ends, and what lies between, thinned out evenly."""
    chosen = np.unique(
        np.linspace(0, len(curve.after_s) - 1, min(len(curve.after_s), _POINTS_MAX)).astype(int)
    )
    columns = (curve.after_s, curve.chance, curve.low, curve.high, np.rint(curve.at_risk).astype(int))
    return [CurvePoint(*values) for values in zip(*(each[chosen].tolist() for each in columns), strict=True)]
