"""The report as data: what a program wants of it."""

from __future__ import annotations

from typing import Any

from veil.core.findings import Finding, Findings
from veil.pipeline.report.facts import Overview
from veil.pipeline.report.verdict import by_cost, cost_s, hidden_hours, verdict


def summary(findings: Findings, overview: Overview | None = None) -> dict[str, Any]:
    """The findings by queue, dearest first, and the totals where the tables were looked at."""
    queues = [
        {
            "name": queue.whole.queue,
            "region": queue.whole.region,
            "account": queue.whole.account,
            **_told(queue.whole),
            "message_types": [{"message_type": each.message_type, **_told(each)} for each in queue.types],
        }
        for queue in by_cost(findings)
    ]
    told: dict[str, Any] = {
        "made_at": findings.made_at,
        "target_duplicates": findings.target_duplicates,
        "queues": queues,
    }
    if overview is not None:
        totals = overview.totals
        told["since"] = overview.since.isoformat() if overview.since else None
        told["until"] = overview.until.isoformat() if overview.until else None
        told["totals"] = {
            "sent": totals.sent,
            "leases": totals.leases,
            "extensions": totals.extensions,
            "overrun": totals.overrun,
            "duplicates": totals.duplicates,
            "held_s": totals.held_ms / 1000,
            "wasted_s": totals.wasted_ms / 1000,
            "leases_by_how": dict(totals.how),
            "messages_by_outcome": dict(totals.outcome),
        }
    return told


def _told(finding: Finding) -> dict[str, Any]:
    replay = finding.replay
    return {
        "visibility_timeout_s": finding.present_timeout_s,
        "recommended_timeout_s": finding.recommended_timeout_s,
        "verdict": verdict(finding),
        "policy": finding.policy,
        "certainty": finding.certainty,
        "reason": finding.reason,
        "missing": finding.missing,
        "leases": finding.leases,
        "completed": finding.completed,
        "censored": finding.censored,
        "crashes": finding.crashes,
        "duplicates": finding.duplicates,
        "duplicates_with_recommended": replay.duplicates_with_recommended if replay else None,
        "hidden_hours": hidden_hours(finding),
        "hidden_hours_with_recommended": replay.hidden_hours_with_recommended if replay else None,
        "cost_s": cost_s(finding),
        "mean_s": finding.mean_s,
        "p50_s": finding.p50_s,
        "p90_s": finding.p90_s,
        "p99_s": finding.p99_s,
        "p999_s": finding.p999_s,
        "since": finding.since,
        "until": finding.until,
    }
