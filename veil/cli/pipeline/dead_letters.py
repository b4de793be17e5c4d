"""`veil pipeline dead-letters` and `redrive`: group dead letters by their cause, and send selected ones back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from veil.cli.failures import ArgumentWrong, CommandFailed, confirm
from veil.cli.options import (
    AsJson,
    DryRun,
    Endpoint,
    Region,
    Yes,
    argument,
    complete_queue,
    connect,
    option,
    whole_number,
)
from veil.cli.output import echo_err, echo_json, one_line, progress_bar, show_table
from veil.cli.pipeline import pipeline_app
from veil.cli.pipeline.options import service_of, spark_session, with_spark, with_tables
from veil.cli.queue import dead_letter_queues
from veil.words import plural

if TYPE_CHECKING:
    from veil.journal.storage import Storage
    from veil.pipeline.dead_letters.analysis import DeadLetterGroup
    from veil.pipeline.dead_letters.runs import RedriveProgress, RedriveRun
    from veil.pipeline.spark.session import SparkSettings

EXAMPLES = 5
_CHARS, _WHAT_CHARS, _NAME_CHARS = 60, 80, 48
_GROUPS = ("group", "messages", "source", "type", "error", "what", "first seen", "last seen", "receives", "leases")  # fmt: skip
_MESSAGES = ("message", "source", "type", "error", "what", "before", "body")


@pipeline_app.command("dead-letters", epilog="Example: veil pipeline dead-letters orders-dead --top 10")
@with_spark
@with_tables
def dead_letters(
    tables: Storage,
    spark: SparkSettings,
    queues: list[str] | None = argument(
        "[QUEUE]...",
        "The dead-letter queues to analyse. Default: all dead-letter queues.",
        autocompletion=complete_queue,
    ),
    top: int = option("--top N", "How many of the largest groups to print.", whole_number(1), 30),
    type_attribute: list[str] | None = option(
        "--type-attribute NAME",
        "The message attribute that holds the type. Can be repeated; the first that a message has counts.",
    ),
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Group dead letters by source, type and error, with dates, receive counts and how their leases ended.

    No message is received. The groups are saved as the table dead_letters.parquet next to the other tables; --json prints
    all of them. A group's id selects its messages: veil pipeline redrive QUEUE --where "group_id = '…'".
    """
    names = list(dict.fromkeys(queues or _all_dead_letter_queues(endpoint, region)))
    if not names:
        echo_err("no queue has a dead-letter queue; see: veil queue create --help")
        return
    from veil.pipeline.dead_letters.analysis import analyse, read_groups
    from veil.pipeline.dead_letters.queue import opened
    from veil.pipeline.queues import QueueAddress
    from veil.pipeline.sql import TYPE_ATTRIBUTES

    where = QueueAddress(names[0], *service_of(names, endpoint, region))
    for name in names:  # before Spark is started for nothing
        opened(where, name).close()
    with spark_session(spark, "dead letters", quiet=as_json) as session:
        analyse(session, where, names, tables, type_attributes=type_attribute or TYPE_ATTRIBUTES)
    groups = read_groups(tables)
    if as_json:
        for group in groups:
            echo_json(_as_object(group))
        return
    _show_groups(groups, names, top)
    echo_err(f"the table is {tables.uri}/dead_letters.parquet")


def _all_dead_letter_queues(endpoint: str | None, region: str | None) -> list[str]:
    with connect(endpoint, region) as client:
        return sorted(set(dead_letter_queues(client)) & set(client.queue_names()))


def _show_groups(groups: Sequence[DeadLetterGroup], queues: Sequence[str], top: int) -> None:
    if not groups:
        echo_err(f"no dead letters in {', '.join(queues)}")
        return
    several = len({group.queue for group in groups}) > 1
    rows = [_group_row(group, several=several) for group in groups[:top]]
    columns = (*_GROUPS[:2], *(("queue",) if several else ()), *_GROUPS[2:])
    show_table(columns, rows, right=("messages", "receives"))
    messages = sum(group.messages for group in groups)
    before = sum(group.redriven_before for group in groups)
    told = f"{plural(messages, 'dead letter')} in {plural(len(groups), 'group')}"
    if len(groups) > top:
        told += f", of which the {top} largest are shown; see --top and --json"
    echo_err(told + (f"; {before:,} were redriven before" if before else ""))


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


# ---- redrive


def question(run: RedriveRun) -> str:
    where = f"to {run.to}" if run.to else "to where they came from"
    changed = " with another content" if run.set_body is not None or run.set_attributes else ""
    return f"Redrive {plural(run.messages, 'dead letter')} {where}{changed}?"


def show_selection(run: RedriveRun, tables: Storage, *, as_json: bool) -> None:
    """How many there are, and the first of them as they would go."""
    from veil.pipeline.dead_letters.runs import sample

    rows = sample(tables, run, EXAMPLES)
    if as_json:
        echo_json({"selected": run.messages, "sample": msgspec.to_builtins(rows)})
        return
    echo_err(plural(run.messages, "dead letter is selected", "dead letters are selected"))
    if rows:
        show_table(_MESSAGES, [_message_row(row) for row in rows])


def _message_row(row: Mapping[str, Any]) -> list[str]:
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
        echo_err(
            f"run {run.id} of {run.queue.rpartition('/')[2]} was stopped after {progress.settled:,} of {run.messages:,}: "
            f"{_resume_command(run, tables)}"
        )


def _resume_command(run: RedriveRun, tables: Storage) -> str:
    return f"veil pipeline redrive --resume {run.id} --tables {shlex.quote(tables.uri)}"


def tell_end(run: RedriveRun, progress: RedriveProgress, *, as_json: bool) -> None:
    if as_json:
        counts = {name: getattr(progress, name) for name in ("moved", "gone", "left")}
        echo_json({"run": run.id, "selected": run.messages, **counts})
    gone = f", {progress.gone:,} were gone already" if progress.gone else ""
    echo_err(f"{progress.moved:,} of {run.messages:,} redriven{gone}")
    for example in progress.examples[:EXAMPLES]:
        echo_err(f"left: {one_line(f'{example.message_id}: {example.reason or example.code}', 200)}")


def read_rate(text: str | float) -> float:
    """Messages a second, from text such as 500, 500/s or 30/min."""
    if isinstance(text, float):
        return text
    found = re.fullmatch(r"([0-9]{1,9})(?:/(s|min))?", text.strip().replace(" ", ""))
    if found is None or int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r}: expected a rate such as 500, 500/s or 30/min")
    return int(found[1]) / (60 if found[2] == "min" else 1)


def read_attributes(given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given or []:
        name, equals, sql = each.partition("=")
        if not (name.strip() and equals and sql.strip()):
            raise ArgumentWrong(
                f"--set-attribute {each!r}: expected NAME=SQL, such as tries='0' or note=NULL"
            )
        # As SQS has them: the rest of its rules (prefixes, dots) the server says in its own words.
        if re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", name.strip()) is None:
            raise ArgumentWrong(
                f"--set-attribute {each!r}: expected a name of letters, digits, '_', '-' and '.', of up to 256 characters"
            )
        found[name.strip()] = sql.strip()
    return found


@pipeline_app.command(
    "redrive",
    epilog="Example: veil pipeline redrive orders-dead --where \"error_type = 'TimeoutError'\" --rate 100/s --dry-run",
)
@with_spark
@with_tables
def redrive(
    tables: Storage,
    spark: SparkSettings,
    queue: str | None = argument("[QUEUE]", "The dead-letter queue.", autocompletion=complete_queue),
    where: str | None = option(
        "--where SQL", "Which messages, as an SQL condition on their columns. Default: all."
    ),
    to: str | None = option(
        "--to QUEUE", "Send all messages to this queue. Default: each goes back to the queue it came from."
    ),
    rate: float | None = option(
        "--rate N/s",
        "Move at most this many messages per second, or per minute with N/min. A resumed run keeps its rate.",
        read_rate,
    ),
    set_body: str | None = option(
        "--set-body SQL", "The new body, as an SQL expression; null keeps the old one."
    ),
    set_attribute: list[str] | None = option(
        "--set-attribute NAME=SQL", "A new attribute, as an SQL expression; null removes it. Can be repeated."
    ),
    resume: str | None = option("--resume ID", "Continue a run that was stopped."),
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Send selected dead letters back, each exactly once, whatever is killed on the way.

    Shows how many messages are selected and some of them, asks for confirmation, and moves them in calls of up to a thousand,
    each one transaction of the server. If it is stopped or killed, continue with --resume ID. Each arrives as a new
    message with a receive count of zero and the attribute Veil.RedrivenFrom.
    """
    if resume is not None:
        given = {
            "QUEUE": queue,
            "--where": where,
            "--to": to,
            "--set-body": set_body,
            "--set-attribute": set_attribute,
            "--region": region,
            "--dry-run": dry_run or None,
        }
        wrong = [name for name, value in given.items() if value is not None]
        if wrong:
            raise ArgumentWrong(
                f"--resume {resume}: the run already has its selection, so {', '.join(wrong)} cannot be given"
            )
        from veil.pipeline.dead_letters.runs import load_run

        _go(load_run(tables, resume), tables, rate, endpoint, as_json=as_json)
        return
    if queue is None:
        raise ArgumentWrong("QUEUE: expected the name of a dead-letter queue, or --resume ID")
    from veil.pipeline.dead_letters.queue import opened
    from veil.pipeline.dead_letters.runs import forget, place_of, save_run
    from veil.pipeline.dead_letters.selection import Selection, choose
    from veil.pipeline.queues import QueueAddress

    choice = Selection(where, set_body, read_attributes(set_attribute))
    tell_unfinished(tables)
    service = QueueAddress(queue, *service_of([queue] if to is None else [queue, to], endpoint, region))
    opened(service, queue).close()  # before Spark is started for nothing
    with spark_session(spark, "redrive", quiet=as_json) as session:
        run = choose(session, service, tables, choice, to=to, rate_s=rate)
    is_wanted = False
    try:
        show_selection(run, tables, as_json=as_json and dry_run)
        if not dry_run and run.messages:
            confirm(question(run), yes=yes)
            is_wanted = True
    finally:
        if not is_wanted:
            forget(tables, run.id)
    if is_wanted:
        save_run(place_of(tables, run.id), run)
        _go(run, tables, rate, endpoint, as_json=as_json)


def _go(run: RedriveRun, tables: Storage, rate: float | None, endpoint: str | None, *, as_json: bool) -> None:
    from veil.pipeline.dead_letters.queue import opened
    from veil.pipeline.dead_letters.runs import redrive
    from veil.pipeline.queues import QueueAddress

    echo_err(f"run {run.id}; if it is stopped, continue with: {_resume_command(run, tables)}")
    where = QueueAddress(run.queue, endpoint=endpoint or run.endpoint, region=run.region)
    with opened(where, run.queue) as queue, progress_bar("redrive") as bar:
        progress = redrive(run, tables, queue, rate_s=rate, told=lambda each: bar(each.settled, run.messages))
    tell_end(run, progress, as_json=as_json)
    if progress.left:
        codes = ", ".join(f"{count:,} × {code}" for code, count in sorted(progress.left.items()))
        were_not = plural(
            sum(progress.left.values()), "dead letter was not moved", "dead letters were not moved"
        )
        raise CommandFailed(f"{were_not}: {codes}")
