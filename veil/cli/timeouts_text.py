"""Findings about timeouts as a table, as JSON, and one queue's in words."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from veil.cli.output import inert, say, say_json, show_table, talk
from veil.core.findings import Candidate, Finding, Findings, WithPolicy
from veil.pipeline import words

_COLUMNS = ["queue", "type", "leases", "duplicates", "present", "recommended", "certainty", "p50", "p99"]


def show_findings(findings: Findings, *, as_json: bool) -> None:
    """A line for each queue and message type; all that is known of each as JSON."""
    if as_json:
        for finding in findings.findings:
            say_json(msgspec.to_builtins(finding))
    elif findings.findings:
        show_table(
            _COLUMNS, [_row(finding) for finding in findings.findings], right=_COLUMNS[2:6] + _COLUMNS[7:]
        )


def type_name(finding: Finding) -> str:
    """The message type for people."""
    return "all" if finding.message_type is None else finding.message_type or "(none)"


def _row(finding: Finding) -> list[str]:
    return [
        finding.queue,
        type_name(finding),
        f"{finding.leases:,}",
        f"{finding.duplicates:,}",
        _length(finding.present_timeout_s),
        _length(finding.recommended_timeout_s),
        finding.certainty,
        _length(finding.p50_s),
        _length(finding.p99_s),
    ]


def _length(seconds: float | None) -> str:
    return "-" if seconds is None else words.length(seconds)


def tell(finding: Finding) -> None:
    """One queue or type in words, and what each timeout that it could have would mean."""
    for line in _words(finding):
        say(inert(line, keep=""))
    say()
    policies = [each.policy for each in finding.candidates[0].policies] if finding.candidates else []
    columns = ["timeout", "duplicates", "at most", "after a crash", *policies[1:]]
    rows = []
    for candidate in _worth_showing(finding):
        none, *renewed = candidate.policies
        mark = " *" if candidate.timeout_s == finding.recommended_timeout_s else ""
        row = [f"{words.length(candidate.timeout_s)}{mark}", words.chance(none.duplicate_chance)]
        row += [
            words.chance(none.duplicate_chance_high),
            words.length(none.recovery_s),
            *(_renewed(each) for each in renewed),
        ]
        rows.append(row)
    show_table(columns, rows, right=columns)
    talk("* recommended; with renewal: duplicates, wait after a crash, calls per message")


def _renewed(means: WithPolicy) -> str:
    return f"{words.chance(means.duplicate_chance)}, {words.length(means.recovery_s)}, {means.calls_per_message:.2g}"


def _worth_showing(finding: Finding) -> list[Candidate]:
    """The candidates up to the first few beyond all that matters: longer ones only wait longer."""
    matters_s = max(finding.present_timeout_s or 0, finding.recommended_timeout_s or 0, finding.p999_s or 0)
    if finding.p999_s is None and finding.recommended_timeout_s is None:
        return finding.candidates
    return [each for each in finding.candidates if each.timeout_s <= max(4 * matters_s, 60)]


def _words(finding: Finding) -> Sequence[str]:
    whole = finding.message_type is None
    name = finding.queue if whole else f"{finding.queue}, type {type_name(finding)}"
    recommended = (
        "no recommendation"
        if finding.recommended_timeout_s is None
        else words.length(finding.recommended_timeout_s)
    )
    lines = [f"{name}: {recommended} ({finding.certainty})", f"  {finding.reason}."]
    if finding.missing is not None:
        lines.append(f"  missing: {finding.missing}.")
    lines.append(
        f"  seen: {finding.leases:,} leases, {finding.completed:,} of them to the end of the work, {finding.censored:,} cut "
        f"off, {finding.duplicates:,} duplicates, {finding.crashes:,} lapsed in silence; {finding.since or '?'} to "
        f"{finding.until or '?'}."
    )
    quantiles = [("half", finding.p50_s), ("99 %", finding.p99_s), ("99.9 %", finding.p999_s)]
    known = ", ".join(f"{of} within {words.length(at_s)}" for of, at_s in quantiles if at_s is not None)
    if known:
        lines.append(
            f"  the work: {known}; the mean of what completed, which misleads, is {_length(finding.mean_s)}."
        )
    if finding.replay is not None:
        replay = finding.replay
        lines.append(
            f"  the past again: {replay.duplicates_then:,} duplicates, with the recommended timeout "
            f"{replay.duplicates_with_recommended:,.0f}; {replay.hidden_hours_then:,.1f} h hidden after crashes, then "
            f"{replay.hidden_hours_with_recommended:,.1f} h."
        )
    return lines
