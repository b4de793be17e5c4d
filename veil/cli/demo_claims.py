"""What the demo claims about its queues, checked against what the pipeline found."""

from __future__ import annotations

from typing import Any, Final

from veil.cli.demo_queues import DemoQueue
from veil.cli.demo_stage import Stage
from veil.cli.demo_workload import Happened
from veil.pipeline import words

Outcomes = dict[str, dict[str, int]]  # messages by queue and what became of them
Found = dict[str, Any]  # one queue of the summary

_NEAR_S: Final = 1  # timeouts are whole seconds: one beside the recommended one is no mistake


def check_claims(
    stage: Stage,
    queues: tuple[DemoQueue, ...],
    happened: Happened,
    outcomes: Outcomes,
    summary: dict[str, Any],
) -> None:
    """Tell and check every claim."""
    _nothing_lost(stage, queues, happened, outcomes)
    found = {each["name"]: each for each in summary["queues"]}
    for queue in queues:
        if queue.name not in found:
            stage.claim(f"{queue.name}: the pipeline knows the queue", False)
        else:
            _CLAIMS[queue.name](stage, queue, found[queue.name])


def _nothing_lost(
    stage: Stage, queues: tuple[DemoQueue, ...], happened: Happened, outcomes: Outcomes
) -> None:
    ends = [outcomes.get(queue.name, {}) for queue in queues]
    sent = sum(happened.sent.values())
    deleted, dead = (sum(each.get(end, 0) for each in ends) for end in ("deleted", "dead_lettered"))
    known = sum(sum(each.values()) for each in ends)
    stage.claim(
        f"nothing is lost: of {sent:,} messages sent {deleted:,} were handled and deleted, and the {dead} that "
        "nobody could read are dead letters",
        known == sent and deleted + dead == sent and dead == happened.poison,
    )


def _too_short(stage: Stage, queue: DemoQueue, found: Found) -> None:
    duplicates, wanted_s = found["duplicates"], found["recommended_timeout_s"]
    stage.claim(
        f"{queue.name}: {queue.timeout_s} s is too short: in {duplicates:,} of {found['leases']:,} cases a second worker began "
        f"before the first had ended; it should be {_seconds(wanted_s)}",
        duplicates > 0 and wanted_s is not None and wanted_s > queue.timeout_s,
    )


def _too_long(stage: Stage, queue: DemoQueue, found: Found) -> None:
    wanted_s, hidden_s = found["recommended_timeout_s"], 3600 * (found["hidden_hours"] or 0.0)
    stage.claim(
        f"{queue.name}: {queue.timeout_s} s is too long: what killed workers held stayed hidden, {found['crashes']:,} messages "
        f"for {words.length(hidden_s)} in all; {_seconds(wanted_s)} would do",
        found["crashes"] > 0 and wanted_s is not None and wanted_s < queue.timeout_s,
    )


def _right(stage: Stage, queue: DemoQueue, found: Found) -> None:
    wanted_s = found["recommended_timeout_s"]
    stage.claim(
        f"{queue.name}: {queue.timeout_s} s is about right: the data say {_seconds(wanted_s)}",
        wanted_s is not None and abs(wanted_s - queue.timeout_s) <= _NEAR_S,
    )


def _renewed(stage: Stage, queue: DemoQueue, found: Found) -> None:
    p90_s = found["p90_s"]
    # None: fewer than nine in ten were seen to end at all, since the killed workers' leases say only "longer than this".
    long = "what was seen to end" if p90_s is None else words.length(p90_s)
    stage.claim(
        f"{queue.name}: one in ten takes longer than {long} under a timeout of {queue.timeout_s} s, and "
        "nothing was done twice: Veil's consumer renews its leases",
        found["duplicates"] == 0 and (p90_s is None or p90_s > queue.timeout_s),
    )


def _seconds(wanted_s: int | None) -> str:
    return "unknown" if wanted_s is None else f"{wanted_s} s"


_CLAIMS: Final = {"thumbnails": _too_short, "invoices": _too_long, "orders": _right, "videos": _renewed}
