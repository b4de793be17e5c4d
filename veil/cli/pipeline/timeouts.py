"""`veil pipeline timeouts` and `report`, and the renewal policies as they are simulated: what each does to a lease that is held
for ever."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from veil.cli.failures import ArgumentWrong, CommandFailed
from veil.cli.options import AsJson, option
from veil.cli.output import echo_err, echo_json
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import with_tables
from veil.cli.timeouts import read_findings, show_findings
from veil.consumer.renewal import Adaptive, Buffered, Heartbeat
from veil.consumer.renewal.policies import LIFETIME_S, RenewalPolicy, Window
from veil.core.findings import NO_RENEWAL, RENEWALS
from veil.words import parsed

if TYPE_CHECKING:
    from veil.core.findings import Findings
    from veil.journal.storage import Storage
    from veil.pipeline.timeouts.recommendation import Schedule, ScheduledRenewal

_LIFETIME_MARGIN_S: Final = 1  # as the keeper leaves it


def heartbeat(timeout_s: int) -> RenewalPolicy:
    """Heartbeat with that timeout, which it asks for itself; where its threshold of 5 s does not fit, half of the timeout."""
    threshold_s = min(5.0, timeout_s / 2)
    return Heartbeat(timeout=timeout_s, threshold=threshold_s, interval=min(1.0, threshold_s / 2))


# By the names that the findings use, each as it comes, on a queue of the timeout given.
POLICIES: Final[Mapping[str, Callable[[int], RenewalPolicy]]] = {
    "buffered": lambda timeout_s: Buffered(),
    "heartbeat": heartbeat,
    # Before it has learned how long its handlers take: later it calls less.
    "adaptive": lambda timeout_s: Adaptive(),
}


def played(name: str, timeout_s: int) -> Iterator[ScheduledRenewal]:
    """The renewals of one lease from its receive on, until the policy or the twelve hours end them: as a keeper plays it whose
    every call succeeds at once."""
    # Here: it needs numpy, and help is for those who lack it too.
    from veil.pipeline.timeouts.recommendation import ScheduledRenewal

    policy = POLICIES[name](timeout_s)
    window = Window(
        received_at_s=0.0,
        visibility_s=timeout_s,
        held_at_s=0.0,
        epoch_s=0.0,
        asked_at_s=0.0,
        deadline_s=timeout_s,
    )
    end_s = min(policy.maximum_s, LIFETIME_S - _LIFETIME_MARGIN_S)
    while True:
        now_s = policy.due_s(window)
        if now_s >= end_s:
            return
        left_s = math.floor(LIFETIME_S - _LIFETIME_MARGIN_S - now_s + 1e-6)
        ask_s = policy.ask_s(window, now_s)
        if ask_s == 0 or (ask_s > left_s and now_s + left_s <= window.deadline_s):
            return
        window.asked_at_s, window.deadline_s = now_s, now_s + min(ask_s, left_s)
        yield ScheduledRenewal(now_s, window.deadline_s)
        if ask_s > left_s:
            return


SCHEDULES: Final[Mapping[str, Schedule]] = {name: partial(played, name) for name in POLICIES}


def read_renewal(text: str) -> str:
    """The name of a renewal policy, or `none`."""
    if text not in RENEWALS:
        raise typer.BadParameter(f"{text!r}: expected one of {', '.join(RENEWALS)}")
    return text


def read_share(low: float, high: float, examples: str) -> Callable[[str | float], float]:
    """A parser of shares, given as per cent or as a number."""

    def read(text: str | float) -> float:
        given = str(text).strip()
        found = re.fullmatch(r"([0-9]{0,9}\.?[0-9]{1,18}) ?(%?)", given)
        value = float(found[1]) / (100 if found[2] else 1) if found else 0.0
        if not low <= value <= high:
            raise typer.BadParameter(
                f"{given!r}: expected a share from {low * 100:g}% to {high * 100:g}%, such as {examples}"
            )
        return value

    return read


def read_date(text: str | date) -> date:
    """A day, as YYYY-MM-DD."""
    if isinstance(text, date):
        return text
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected a date such as 2026-01-31") from None


@pipeline_app.command("timeouts", epilog="Example: veil pipeline timeouts --target 0.5% --since 2026-01-01")
@with_tables
def timeouts(
    tables: Storage,
    target: float = option(
        "--target SHARE",
        "The acceptable share of duplicates.",
        read_share(0.000_001, 0.5, "0.1% or 0.001"),
        default="0.1%",
    ),
    since: date | None = option(
        "--since DATE", "Only count messages sent on this day (UTC) or later.", read_date
    ),
    policy: str = option(
        "--policy NAME",
        f"How the consumers renew their leases: {', '.join(RENEWALS)}.",
        read_renewal,
        default=NO_RENEWAL,
    ),
    queue: list[str] | None = option("--queue NAME", "Only this queue. Can be repeated."),
    as_json: AsJson = False,
) -> None:
    """Work out which timeout each queue should have, and how certain that is.

    Reads the tables that `veil pipeline lifecycles` keeps, writes timeouts.json next to them, and prints a line per queue
    and message type. Then `veil timeouts show QUEUE` gives the reasons, and `veil timeouts apply` sets the timeouts. With
    --queue, the file is not changed, since it covers all queues.
    """
    from veil.pipeline.timeouts.run import run_timeouts

    findings = run_timeouts(
        tables,
        target=target,
        since=since,
        policies=SCHEDULES,
        policy=policy,
        queues=queue or (),
        save=not queue,
    )
    if not findings.findings:
        which = (f" of {', '.join(queue)}" if queue else "") + (f" since {since}" if since else "")
        echo_err(f"no leases{which} in {tables.uri}; make the tables with: veil pipeline lifecycles")
    show_findings(findings, as_json=as_json)


@pipeline_app.command("report", epilog="Example: veil pipeline report --out report.html")
@with_tables
def report(
    tables: Storage,
    out: Path = option(
        "--out FILE",
        "Where to write the report: one self-contained HTML file.",
        default=Path("veil-report.html"),
    ),
    as_json: AsJson = False,
) -> None:
    """Report what each queue's timeout costs and what it should be, as an HTML file and as a table."""
    from veil.pipeline.report.overview import collect_overview
    from veil.pipeline.report.page import render_html
    from veil.pipeline.report.summary import summary

    _check_writable(out)
    findings = read_findings(tables)
    overview = collect_overview(tables, since=_begin(findings))
    _write(out, render_html(findings, overview))
    if as_json:
        echo_json({**summary(findings, overview), "report": str(out.resolve())})
        return
    if not findings.findings:
        echo_err("no messages have been received from any queue yet")
    show_findings(findings)
    echo_err(f"the report is in {out.resolve()}")


def _begin(findings: Findings) -> datetime | None:
    """Where the findings begin: the report tells the same time."""
    begins = [at for finding in findings.findings if (at := parsed(finding.since)) is not None]
    return min(begins, default=None)


def _check_writable(out: Path) -> None:
    if out.is_dir():
        raise ArgumentWrong(f"--out {out}: expected a file, and this is a directory")
    if not out.absolute().parent.is_dir():
        raise ArgumentWrong(f"--out {out}: the directory {out.absolute().parent} does not exist")


def _write(out: Path, page: str) -> None:
    """The page appears whole or not at all: somebody may be looking at the last one."""
    from veil.journal.storage import Storage

    try:
        Storage.at(out.absolute().parent).write(out.name, page.encode())
    except OSError as error:
        raise CommandFailed(f"--out {out}: {error.strerror}") from None
