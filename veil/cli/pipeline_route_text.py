"""What `veil pipeline route` tells: its rules, why a class is where it is, and the counts of each route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from veil.cli import output
from veil.cli.output import say_json, seconds, talk

if TYPE_CHECKING:
    from veil.pipeline.routing.learning import Verdict
    from veil.pipeline.routing.route_table import RouteTable
    from veil.pipeline.routing.router import Routed
    from veil.pipeline.routing.targets import Prepared


def show_verdicts(verdicts: Sequence[Verdict], *, as_json: bool) -> None:
    """Each class with its band and the reason."""
    for each in verdicts:
        if as_json:
            say_json(
                {
                    "class": each.message_class,
                    "band": each.band.name,
                    "moved_from": None if each.moved_from is None else each.moved_from.name,
                    "observed": each.observed,
                    "quantile_s": each.quantile_s,
                    "reason": each.reason,
                }
            )
        else:
            moved = "" if each.moved_from is None else f", moved from {each.moved_from.name}"
            talk(
                output.inert(
                    f"class {each.message_class or '(none)'}: {each.band.name}{moved}; {each.reason}", keep=""
                )
            )


def show_table(table: RouteTable, *, as_json: bool) -> None:
    """The rules in their order, the default last."""
    timeouts = {target.queue: target.timeout_s for target in table.targets}
    rules = [*((str(rule), rule.queue) for rule in table.rules), ("everything else", table.default)]
    for when, queue in rules:
        timeout_s = timeouts[queue]
        if as_json:
            say_json({"rule": when, "queue": queue, "timeout_s": timeout_s})
        else:
            shown = "" if timeout_s is None else f" ({seconds(timeout_s)})"
            talk(output.inert(f"rule: {when} -> {queue}{shown}", keep=""))


def show_prepared(prepared: Sequence[Prepared]) -> None:
    """Which queues were created, and which have another timeout than the rules mean."""
    for each in prepared:
        meant_s = each.target.timeout_s
        if each.created:
            dead = f", dead letters in {each.dead_letters}" if each.dead_letters else ""
            talk(f"created {each.target.queue} with a timeout of {seconds(each.timeout_s)}{dead}")
        elif meant_s is not None and meant_s != each.timeout_s:
            talk(
                f"{each.target.queue} has a timeout of {seconds(each.timeout_s)}, not {seconds(meant_s)}; change it with: "
                f"veil queue edit {each.target.queue} --visibility-timeout {meant_s}"
            )


class Counts:
    """Messages by route, told as they go."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._total: Counter[str] = Counter()
        self._batches = 0

    def add(self, routed: Routed) -> None:
        """Count a batch, and tell it."""
        self._batches += 1
        self._total.update(routed.counts)
        if self._as_json:
            say_json({"batch": routed.batch, "again": routed.again, "routed": routed.counts})
        else:
            again = ", done again" if routed.again else ""
            shown = ", ".join(f"{count:,} to {queue}" for queue, count in routed.counts.items() if count)
            talk(f"batch {routed.batch}{again}: {shown or 'nothing'}")

    def show(self) -> None:
        """All that was routed by this run."""
        if self._as_json:
            say_json({"batches": self._batches, "total": dict(self._total)})
        else:
            rows = [[queue, f"{count:,}"] for queue, count in self._total.items()]
            output.show_table(["queue", "messages"], rows, right=["messages"])
