"""How to read the report, and what it takes for granted."""

from __future__ import annotations

from veil.core.findings import Findings
from veil.pipeline import words
from veil.pipeline.report.facts import Overview
from veil.pipeline.report.markup import Child, Markup, el


def notes(findings: Findings, overview: Overview) -> Markup:
    """The notes."""
    target = words.chance(findings.target_duplicates)
    told = [
        (
            "The dilemma",
            "A timeout shorter than the work makes the message visible while somebody still works on it: the work is done "
            "twice. A long one makes everybody wait that long after a crash. Renewal softens it: windows are short, and "
            "are extended while the holder lives, at the price of calls.",
        ),
        (
            "How long the work takes",
            "The curve is the Kaplan–Meier estimate of the chance that work takes longer than a time. A lease that lapsed or "
            "was released tells only that the work took at least so long (it is cut off), and counts as that; to leave such "
            "leases out, or to take the mean of the rest, makes every timeout look safer than it is. The band holds the curve "
            "with 95 % confidence (Greenwood). Both axes are logarithmic.",
        ),
        (
            "The recommended timeout",
            f"The one of the quickest recovery among those whose chance of a duplicate is at most {target}. “Clear”: the "
            "upper end of the confidence interval included; “likely”: by the estimate alone, or under an assumption that is "
            "named. Where the curve does not reach down to the target there is no recommendation, but what is missing. "
            "No timeout goes beyond 12 hours.",
        ),
        (
            "Duplicates, hidden, held for nothing",
            "A duplicate is a lease whose holder showed life after its deadline while somebody else had received the message. "
            "Hidden is the time that messages waited for leases of holders that were never heard of again. Held for nothing "
            "is the time of all leases that did not end in the delete. The order of the queues adds duplicates, at the median "
            "time of the work, to the time hidden.",
        ),
        (
            "Taken for granted",
            "That the work to come is like the work seen; that a crash strikes at any moment of the work alike; that whoever "
            "deletes has finished. A holder that fails without deleting or releasing looks like a crash. The instants are "
            "those of the server's engine clock, in UTC.",
        ),
    ]  # fmt: skip
    parts: list[Child] = []
    for name, text in told:
        parts += [el("dt", name), el("dd", text)]
    apply = el(
        "p", "To set the timeouts: ", el("code", "veil timeouts apply"), ", which shows the difference first."
    )
    return el(
        "section",
        el("h2", "How to read this"),
        el("div", el("dl", *parts, class_="notes"), apply, class_="card"),
    )
