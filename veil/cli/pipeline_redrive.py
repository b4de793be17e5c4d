"""`veil pipeline redrive`: choose dead letters, change them if need be, and send them back exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from veil.cli.confirm import confirm
from veil.cli.failures import CommandFailed, plainly
from veil.cli.options import AsJson, Endpoint, Region, Yes, complete_queue
from veil.cli.output import talk
from veil.cli.pipeline_dead_letters import failures_told, found_queues
from veil.cli.pipeline_options import Conf, Data, Master, TablesPlace, places, spark_session
from veil.cli.pipeline_redrive_text import question, show_selection, shown_progress, tell_end, tell_unfinished

if TYPE_CHECKING:
    from veil.journal.place import Place
    from veil.pipeline.dead_letters.runs import Run


def read_rate(text: str | float) -> float:
    """Messages a second."""
    from veil.pipeline.dead_letters.pace import read_rate

    if isinstance(text, float):
        return text
    try:
        return read_rate(text)
    except ValueError as expected:
        raise typer.BadParameter(f"{text!r}: expected {expected}") from None


def read_attributes(given: list[str] | None) -> dict[str, str]:
    """Names and expressions of --set-attribute."""
    found: dict[str, str] = {}
    for each in given or []:
        name, equals, sql = each.partition("=")
        if not (name.strip() and equals and sql.strip()):
            raise CommandFailed(
                f"--set-attribute {each!r}: expected NAME=SQL, such as tries='0' or note=NULL"
            )
        found[name.strip()] = sql.strip()
    return found


@plainly
def redrive(
    queue: Annotated[
        str | None,
        typer.Argument(metavar="[QUEUE]", help="The dead letters.", autocompletion=complete_queue),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="Which: a condition over their columns; else all."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="QUEUE", help="All to this queue; else each to where it came from."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N/s", parser=read_rate, help="At most so many a second (or N/min)."),
    ] = None,
    set_body: Annotated[
        str | None, typer.Option("--set-body", metavar="SQL", help="Another body; null keeps the old one.")
    ] = None,
    set_attribute: Annotated[
        list[str] | None,
        typer.Option(
            "--set-attribute", metavar="NAME=SQL", help="Another attribute; null removes it. May be repeated."
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="ID", help="Go on with a run that was stopped.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be redriven, and do nothing.")
    ] = False,
    yes: Yes = False,
    data: Data = None,
    tables: TablesPlace = None,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Send chosen dead letters back, each exactly once, whatever is killed on the way.

    Shows how many are selected and some of them, asks, and redrives them in calls of up to a thousand, each one transaction
    of the server. Stopped or killed, it goes on with --resume ID. Each arrives as a new message, receive count from zero,
    with the attribute Veil.RedrivenFrom.
    """
    _, place = places(data, None, tables)
    if resume is not None:
        given = {
            "QUEUE": queue,
            "--where": where,
            "--to": to,
            "--set-body": set_body,
            "--set-attribute": set_attribute,
            "--dry-run": dry_run or None,
        }
        wrong = [name for name, value in given.items() if value is not None]
        if wrong:
            raise CommandFailed(
                f"--resume {resume}: the run has its selection already; {', '.join(wrong)} cannot be given"
            )
        with failures_told():
            from veil.pipeline.dead_letters.runs import load_run

            _go(load_run(place, resume), place, rate, endpoint, as_json=as_json)
        return
    if queue is None:
        raise CommandFailed("QUEUE: expected the name of a queue of dead letters, or --resume ID")
    with failures_told():
        from veil.pipeline.dead_letters.calls import opened
        from veil.pipeline.dead_letters.choosing import choose
        from veil.pipeline.dead_letters.pace import messages_a_call
        from veil.pipeline.dead_letters.runs import forget, place_of, save_run
        from veil.pipeline.dead_letters.selection import Choice
        from veil.pipeline.queues.queue_place import QueuePlace

        choice = Choice(where, set_body, read_attributes(set_attribute))
        tell_unfinished(place)
        needed = {"QUEUE": queue, **({"--to": to} if to is not None else {})}
        service = QueuePlace(queue, *found_queues(endpoint, region, needed))
        opened(service, queue).close()  # before Spark is started for nothing
        with spark_session(master, conf, "redrive", quiet=as_json) as spark:
            run = choose(spark, service, place, choice, to=to, a_call=messages_a_call(rate))
        is_wanted = False
        try:
            show_selection(run, place, as_json=as_json and dry_run)
            if not dry_run and run.messages:
                confirm(question(run), yes=yes)
                is_wanted = True
        finally:
            if not is_wanted:
                forget(place, run.id)
        if is_wanted:
            save_run(place_of(place, run.id), run)
            _go(run, place, rate, endpoint, as_json=as_json)


def _go(run: Run, tables: Place, rate: float | None, endpoint: str | None, *, as_json: bool) -> None:
    from veil.pipeline.dead_letters.calls import opened
    from veil.pipeline.dead_letters.pace import Pace
    from veil.pipeline.dead_letters.redriving import redrive
    from veil.pipeline.queues.queue_place import QueuePlace

    talk(f"run {run.id}; if it is stopped, go on with: veil pipeline redrive --resume {run.id}")
    where = QueuePlace(run.queue, endpoint=endpoint or run.endpoint, region=run.region)
    with opened(where, run.queue) as queue, shown_progress(run) as told:
        progress = redrive(run, tables, queue, pace=Pace(rate), told=told)
    tell_end(run, progress, as_json=as_json)
    if progress.left:
        codes = ", ".join(f"{count:,} × {code}" for code, count in sorted(progress.left.items()))
        raise CommandFailed(f"{sum(progress.left.values()):,} dead letters stayed where they are: {codes}")


def register(group: typer.Typer) -> None:
    """Add `redrive` to `veil pipeline`."""
    example = (
        "veil pipeline redrive orders-dead --where \"error_type = 'TimeoutError'\" --rate 100/s --dry-run"
    )
    group.command("redrive", epilog=f"Example: {example}")(redrive)
