"""`veil pipeline timeouts`: find from the tables which timeout each queue should have."""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum
from typing import Annotated

import typer

from veil.cli.failures import CommandFailed, plainly
from veil.cli.options import AsJson
from veil.cli.output import talk
from veil.cli.pipeline_options import Conf, Data, Master, TablesPlace, places, spark_session
from veil.cli.timeouts_text import show_findings
from veil.core.errors import VeilError


class Policy(StrEnum):
    """How consumers renew, as the recommendation assumes."""

    NONE = "none"
    BUFFERED = "buffered"
    HEARTBEAT = "heartbeat"
    ADAPTIVE = "adaptive"


def read_target(text: str | float) -> float:
    """A share of duplicates, as per cent or as a number."""
    given = str(text).strip()
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) ?(%?)", given)
    value = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0.000_001 <= value <= 0.5:
        raise typer.BadParameter(f"{given!r}: expected a share from 0.0001% to 50%, such as 0.1% or 0.001")
    return value


def read_date(text: str | date) -> date:
    """A day, as YYYY-MM-DD."""
    if isinstance(text, date):
        return text
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected a date such as 2026-01-31") from None


@plainly
def timeouts(
    target: Annotated[
        float,
        typer.Option("--target", metavar="SHARE", parser=read_target, help="Duplicates that are acceptable."),
    ] = "0.1%",  # type: ignore[assignment]
    since: Annotated[
        date | None,
        typer.Option(
            "--since", metavar="DATE", parser=read_date, help="Only messages sent on that day (UTC) or later."
        ),
    ] = None,
    policy: Annotated[
        Policy, typer.Option("--policy", help="The renewal that the recommendation is for.")
    ] = Policy.NONE,
    queue: Annotated[
        list[str] | None, typer.Option("--queue", metavar="NAME", help="Only this queue; may be repeated.")
    ] = None,
    data: Data = None,
    tables: TablesPlace = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Find the timeout that each queue should have, and how sure that is.

    Reads the tables that `veil pipeline lifecycles` keeps, leaves timeouts.json beside them, and prints a line per
    queue and message type. `veil timeouts show QUEUE` then tells the reasons, `veil timeouts apply` sets them. With
    --queue the file is left as it is: it is for all queues.
    """
    _, place = places(data, None, tables)
    with spark_session(master, conf, "timeouts", quiet=as_json, brief=True) as spark:
        from veil.cli.renewal_schedules import SCHEDULES
        from veil.pipeline.timeouts import run_timeouts

        try:
            findings = run_timeouts(
                spark,
                place,
                target=target,
                since=since,
                policies=SCHEDULES,
                policy=policy.value,
                queues=queue or (),
                save=not queue,
            )
        except VeilError as refused:
            raise CommandFailed(str(refused)) from None
    if not findings.findings:
        which = f" of {', '.join(queue)}" if queue else ""
        talk(f"no leases{which} in {place.uri}; make the tables with: veil pipeline lifecycles")
    show_findings(findings, as_json=as_json)


def register(group: typer.Typer) -> None:
    """Add `timeouts` to `veil pipeline`."""
    group.command("timeouts", epilog="Example: veil pipeline timeouts --target 0.5% --since 2026-01-01")(
        timeouts
    )
