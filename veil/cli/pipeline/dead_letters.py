"""`veil pipeline dead-letters` and `redrive`: what rests among the dead letters and why, and the way back for what is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from veil.cli.failures import CommandFailed, ServiceError, confirm
from veil.cli.options import (
    AsJson,
    Endpoint,
    Region,
    Yes,
    argument,
    complete_queue,
    connect,
    option,
    whole_number,
)
from veil.cli.output import one_line, progress_bar, say_json, show_table, talk
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import Conf, Data, Master, TablesPlace, places, spark_session
from veil.cli.queue_settings import dead_letter_queues

if TYPE_CHECKING:
    from veil.journal.storage import Storage
    from veil.pipeline.dead_letters.analysis import DeadLetterGroup
    from veil.pipeline.dead_letters.runs import RedriveProgress, RedriveRun


_GROUPS = (
    "group", "messages", "source", "type", "error", "what", "first seen", "last seen", "receives", "leases",
)  # fmt: skip
_RIGHT = ("messages", "receives")
_WHAT_CHARS, _NAME_CHARS = 80, 48


@pipeline_app.command("dead-letters", epilog="Example: veil pipeline dead-letters orders-dead --top 10")
def dead_letters(
    queues: Annotated[
        list[str] | None,
        argument(
            "[QUEUE]...",
            "Queues of dead letters; else all that are dead letters of others.",
            autocompletion=complete_queue,
        ),
    ] = None,
    top: Annotated[int, option("--top N", "Groups to print, the largest.", whole_number(1))] = 30,
    type_attribute: Annotated[
        list[str] | None,
        option(
            "--type-attribute NAME",
            "The message attribute that tells the type; may be repeated, the first that a message has counts.",
        ),
    ] = None,
    data: Data = None,
    tables: TablesPlace = None,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Group dead letters by source, type and error, and tell since when, how often received, how their leases ended.

    Nothing is received. The groups are left as the table dead_letters.parquet beside the other tables; --json prints all
    of them. The group's id selects its messages: veil pipeline redrive QUEUE --where "group_id = '…'".
    """
    _, place = places(data, None, tables)
    names = list(dict.fromkeys(queues or _all_dead_letter_queues(endpoint, region)))
    if not names:
        talk("no queue has dead letters; see: veil queue create --help")
        return
    from veil.pipeline.dead_letters.analysis import analyse, read_groups
    from veil.pipeline.dead_letters.queue import opened
    from veil.pipeline.queues import QueueAddress
    from veil.pipeline.sql import TYPE_ATTRIBUTES

    for name in names:  # before Spark is started for nothing
        where = QueueAddress(name, *found_queues(endpoint, region, {"QUEUE": name}))
        opened(where, name).close()
    with spark_session(master, conf, "dead letters", quiet=as_json, brief=True) as spark:
        analyse(spark, where, names, place, type_attributes=type_attribute or TYPE_ATTRIBUTES)
    groups = read_groups(place)
    if as_json:
        for group in groups:
            say_json(_as_object(group))
        return
    _show(groups, names, top)
    talk(f"the table is {place.uri}/dead_letters.parquet")


def _all_dead_letter_queues(endpoint: str | None, region: str | None) -> list[str]:
    with connect(endpoint, region) as client:
        return sorted(set(dead_letter_queues(client)) & set(client.queue_names()))


def found_queues(endpoint: str | None, region: str | None, queues: Mapping[str, str]) -> tuple[str, str]:
    """The service's address and region, once it has said that it has the queues, given by what each is for."""
    with connect(endpoint, region) as client:
        for what, name in queues.items():
            try:
                client.queue_url(name)
            except ServiceError as error:
                if not error.is_missing_queue:
                    raise
                raise CommandFailed(
                    f"{what} {name!r}: expected a queue at {client.target.endpoint}"
                ) from None
        return client.target.endpoint, client.target.region


def _show(groups: Sequence[DeadLetterGroup], queues: Sequence[str], top: int) -> None:
    if not groups:
        talk(f"no dead letters in {', '.join(queues)}")
        return
    several = len({group.queue for group in groups}) > 1
    rows = [_group_row(group, several=several) for group in groups[:top]]
    columns = (*_GROUPS[:2], *(("queue",) if several else ()), *_GROUPS[2:])
    show_table(columns, rows, right=_RIGHT)
    messages = sum(group.messages for group in groups)
    before = sum(group.redriven_before for group in groups)
    told = f"{messages:,} dead letters in {len(groups):,} groups"
    if len(groups) > top:
        told += f", of which the {top} largest are shown; see --top and --json"
    talk(told + (f"; {before:,} were redriven before" if before else ""))


def _group_row(group: DeadLetterGroup, *, several: bool) -> list[str]:
    return [
        group.group_id,
        f"{group.messages:,}",
        *([group.queue] if several else []),
        group.source or "-",
        one_line(group.message_type or "-", _NAME_CHARS),
        one_line(" at ".join(filter(None, (group.error_type, group.place))) or "-", _NAME_CHARS),
        one_line(group.fingerprint or "no reason was recorded", _WHAT_CHARS),
        _instant(group.first_seen),
        _instant(group.last_seen),
        _range(group.receive_count_min, group.receive_count_median, group.receive_count_max),
        group.leases[0].leases if group.leases else "-",
    ]


def _range(low: int | None, middle: int | None, high: int | None) -> str:
    if low is None or low == high:
        return "-" if low is None else str(low)
    return f"{low}–{high} ({middle})"


def _instant(at: datetime | None) -> str:
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M}"


def _as_object(group: DeadLetterGroup) -> dict[str, Any]:
    told = msgspec.to_builtins(group)
    del told["analysed_at"]
    counts = {name: told.pop(f"receive_count_{name}") for name in ("min", "median", "max")}
    return {"group": told.pop("group_id"), **told, "receive_count": counts}


# ---- redrive: the selection before it is asked about, a bar while it runs, and what it came to

EXAMPLES = 5
_CHARS = 60
_SELECTED = ("message", "source", "type", "error", "what", "before", "body")


def question(run: RedriveRun) -> str:
    """What is asked before anything is done."""
    where = f"to {run.to}" if run.to else "to where they came from"
    changed = " with another content" if run.set_body is not None or run.set_attributes else ""
    return f"Redrive {run.messages:,} dead letters {where}{changed}?"


def show_selection(run: RedriveRun, tables: Storage, *, as_json: bool) -> None:
    """How many there are, and the first of them as they would go."""
    from veil.pipeline.dead_letters.runs import sample

    rows = sample(tables, run, EXAMPLES)
    if as_json:
        say_json({"selected": run.messages, "sample": msgspec.to_builtins(rows)})
        return
    talk(f"{run.messages:,} dead letters are selected")
    if rows:
        show_table(_SELECTED, [_selected_row(row) for row in rows])


def _selected_row(row: Mapping[str, Any]) -> list[str]:
    texts = [row["source"], row["message_type"], row["error_type"], row["fingerprint"]]
    return [
        row["message_id"],
        *(one_line(text or "-", _CHARS) for text in texts),
        "redriven" if row["redriven_before"] else "-",
        one_line(row["body"] or "", _CHARS),
    ]


def tell_unfinished(tables: Storage) -> None:
    """Name the runs that were stopped, and how to go on with them."""
    from veil.pipeline.dead_letters.runs import unfinished

    for run, progress in unfinished(tables):
        talk(
            f"run {run.id} of {run.queue.rpartition('/')[2]} was stopped after {progress.settled:,} of {run.messages:,}: "
            f"veil pipeline redrive --resume {run.id}"
        )


def tell_end(run: RedriveRun, progress: RedriveProgress, *, as_json: bool) -> None:
    if as_json:
        counts = {name: getattr(progress, name) for name in ("moved", "gone", "left")}
        say_json({"run": run.id, "selected": run.messages, **counts})
    gone = f", {progress.gone:,} were gone already" if progress.gone else ""
    talk(f"{progress.moved:,} of {run.messages:,} redriven{gone}")
    for example in progress.examples[:EXAMPLES]:
        talk(f"left: {one_line(f'{example.message_id}: {example.reason or example.code}', 200)}")


def read_rate(text: str | float) -> float:
    """Messages a second."""
    from veil.pipeline.dead_letters.runs import read_rate

    if isinstance(text, float):
        return text
    try:
        return read_rate(text)
    except ValueError as expected:
        raise typer.BadParameter(f"{text!r}: expected {expected}") from None


def read_attributes(given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given or []:
        name, equals, sql = each.partition("=")
        if not (name.strip() and equals and sql.strip()):
            raise CommandFailed(
                f"--set-attribute {each!r}: expected NAME=SQL, such as tries='0' or note=NULL"
            )
        found[name.strip()] = sql.strip()
    return found


@pipeline_app.command(
    "redrive",
    epilog="Example: veil pipeline redrive orders-dead --where \"error_type = 'TimeoutError'\" --rate 100/s --dry-run",
)
def redrive(
    queue: Annotated[
        str | None, argument("[QUEUE]", "The dead letters.", autocompletion=complete_queue)
    ] = None,
    where: Annotated[
        str | None, option("--where SQL", "Which: a condition over their columns; else all.")
    ] = None,
    to: Annotated[
        str | None, option("--to QUEUE", "All to this queue; else each to where it came from.")
    ] = None,
    rate: Annotated[
        float | None,
        option(
            "--rate N/s",
            "At most this many a second, or a minute with N/min. A resumed run keeps the rate it began with.",
            read_rate,
        ),
    ] = None,
    set_body: Annotated[str | None, option("--set-body SQL", "Another body; null keeps the old one.")] = None,
    set_attribute: Annotated[
        list[str] | None,
        option("--set-attribute NAME=SQL", "Another attribute; null removes it. May be repeated."),
    ] = None,
    resume: Annotated[str | None, option("--resume ID", "Go on with a run that was stopped.")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Show what would be redriven, and do nothing.")] = False,
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
        from veil.pipeline.dead_letters.runs import load_run

        _go(load_run(place, resume), place, rate, endpoint, as_json=as_json)
        return
    if queue is None:
        raise CommandFailed("QUEUE: expected the name of a queue of dead letters, or --resume ID")
    from veil.pipeline.dead_letters.queue import opened
    from veil.pipeline.dead_letters.runs import forget, place_of, save_run
    from veil.pipeline.dead_letters.selection import Selection, choose
    from veil.pipeline.queues import QueueAddress

    choice = Selection(where, set_body, read_attributes(set_attribute))
    tell_unfinished(place)
    needed = {"QUEUE": queue, **({"--to": to} if to is not None else {})}
    service = QueueAddress(queue, *found_queues(endpoint, region, needed))
    opened(service, queue).close()  # before Spark is started for nothing
    with spark_session(master, conf, "redrive", quiet=as_json) as spark:
        run = choose(spark, service, place, choice, to=to, rate_s=rate)
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


def _go(run: RedriveRun, tables: Storage, rate: float | None, endpoint: str | None, *, as_json: bool) -> None:
    from veil.pipeline.dead_letters.queue import opened
    from veil.pipeline.dead_letters.runs import RateLimit, redrive
    from veil.pipeline.queues import QueueAddress

    talk(f"run {run.id}; if it is stopped, go on with: veil pipeline redrive --resume {run.id}")
    where = QueueAddress(run.queue, endpoint=endpoint or run.endpoint, region=run.region)
    pace = None if rate is None else RateLimit(rate)
    with opened(where, run.queue) as queue, progress_bar("redrive") as bar:
        progress = redrive(run, tables, queue, pace=pace, told=lambda each: bar(each.settled, run.messages))
    tell_end(run, progress, as_json=as_json)
    if progress.left:
        codes = ", ".join(f"{count:,} × {code}" for code, count in sorted(progress.left.items()))
        raise CommandFailed(f"{sum(progress.left.values()):,} dead letters stayed where they are: {codes}")
