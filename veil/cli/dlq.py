"""`veil dlq`: see dead letters and send them back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import typer

from veil.cli.client import Client
from veil.cli.failures import CommandFailed, ServiceError, plainly
from veil.cli.options import AsJson, Endpoint, QueueName, Region, connect, whole_number
from veil.cli.output import has_colour, is_terminal, say_json, show_table, talk
from veil.cli.queue_settings import read_redrive

dlq_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="See dead letters and send them back."
)

Task = dict[str, Any]
_LOOK_EVERY_S = 0.2


@dlq_app.command("ls", epilog="Example: veil dlq ls --json | jq 'select(.visible > 0)'")
@plainly
def ls(as_json: AsJson = False, endpoint: Endpoint = None, region: Region = None) -> None:
    """List the queues that are dead letters of others, with their counts and sources."""
    sources: dict[str, list[str]] = {}
    rows = []
    with connect(endpoint, region) as client:
        for name in list(client.queue_names()):
            try:
                redrive = read_redrive(client.attributes(name))
            except ServiceError as error:
                if error.is_missing_queue:
                    continue
                raise
            if redrive is not None:
                sources.setdefault(redrive[0], []).append(name)
        for name, of in sorted(sources.items()):
            try:
                counts = client.attributes(name)
                tasks = _tasks(client, counts["QueueArn"], 1)
            except ServiceError as error:
                if error.is_missing_queue:
                    talk(f"{name}: named by {', '.join(of)}, but there is no such queue")
                    continue
                raise
            visible = int(counts["ApproximateNumberOfMessages"])
            in_flight = int(counts["ApproximateNumberOfMessagesNotVisible"])
            status = tasks[0]["Status"] if tasks else None
            if as_json:
                say_json(
                    {
                        "name": name,
                        "visible": visible,
                        "in_flight": in_flight,
                        "sources": of,
                        "last_redrive": status,
                    }
                )
            rows.append([name, str(visible), str(in_flight), ", ".join(of), (status or "-").lower()])
    if rows and not as_json:
        columns = ["dead letters", "visible", "in flight", "of", "last redrive"]
        show_table(columns, rows, right=["visible", "in flight"])
    elif not rows:
        talk("no queue has dead letters; see: veil queue create --help")


@dlq_app.command("redrive", epilog="Example: veil dlq redrive orders-dead --rate 50")
@plainly
def redrive(
    dlq: QueueName,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="QUEUE", help="All to this queue; else each to where it came from."),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option("--rate", metavar="N", parser=whole_number(1, 500), help="At most so many a second."),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start it and return.")] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Send dead letters back and wait until it is done; the server goes on if this command is stopped.

    Each arrives as a new message: new id, receive count from zero.
    """
    with connect(endpoint, region) as client:
        parameters: dict[str, Any] = {"SourceArn": client.arn(dlq)}
        if to is not None:
            parameters["DestinationArn"] = client.arn(to)
        if rate is not None:
            parameters["MaxNumberOfMessagesPerSecond"] = rate
        client.call("StartMessageMoveTask", parameters)
        if no_wait:
            talk(f"redrive of {dlq} started; see: veil dlq ls")
            return
        task = _watch(client, dlq, parameters["SourceArn"])
    if as_json:
        say_json(_as_object(dlq, task))
    moved = task["ApproximateNumberOfMessagesMoved"]
    talk(f"{dlq}: {moved} moved, {task['Status'].lower()}")
    if task["Status"] != "COMPLETED":
        raise CommandFailed(
            f"redrive of {dlq} {task['Status'].lower()}: {task.get('FailureReason', 'not all moved')}"
        )


def _watch(client: Client, dlq: str, arn: str) -> Task:
    with _progress(dlq) as bar:
        while True:
            try:
                task = _tasks(client, arn, 1)[0]
                bar(task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"])
                if task["Status"] not in ("RUNNING", "CANCELLING"):
                    return task
                time.sleep(_LOOK_EVERY_S)
            except KeyboardInterrupt:
                # The task is the server's: to stop watching must not leave half a redrive by accident.
                talk(f"the redrive goes on at the server; stop it with: veil dlq cancel {dlq}")
                raise


class _Bar(Protocol):
    def __call__(self, moved: int, to_move: int) -> None: ...


@contextmanager
def _progress(dlq: str) -> Iterator[_Bar]:
    if not is_terminal(sys.stderr):
        yield lambda moved, to_move: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=not has_colour(sys.stderr))
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        shown = progress.add_task(f"redrive {dlq}", total=None)
        yield lambda moved, to_move: progress.update(shown, completed=moved, total=max(moved, to_move))


@dlq_app.command("cancel", epilog="Example: veil dlq cancel orders-dead")
@plainly
def cancel(dlq: QueueName, endpoint: Endpoint = None, region: Region = None) -> None:
    """Stop a running redrive; what has not moved stays."""
    with connect(endpoint, region) as client:
        handles = [task["TaskHandle"] for task in _tasks(client, client.arn(dlq), 10) if "TaskHandle" in task]
        if not handles:
            raise CommandFailed(f"no redrive of {dlq} is running")
        answer = client.call("CancelMessageMoveTask", {"TaskHandle": handles[0]})
    talk(f"{dlq}: cancelled after {answer['ApproximateNumberOfMessagesMoved']} moved")


def _tasks(client: Client, arn: str, limit: int) -> list[Task]:
    return list(
        client.call("ListMessageMoveTasks", {"SourceArn": arn, "MaxResults": limit}).get("Results") or ()
    )


def _as_object(dlq: str, task: Task) -> dict[str, Any]:
    return {
        "name": dlq,
        "status": task["Status"],
        "moved": task["ApproximateNumberOfMessagesMoved"],
        "to_move": task["ApproximateNumberOfMessagesToMove"],
        "failure": task.get("FailureReason"),
    }


def register(app: typer.Typer) -> None:
    """Add `veil dlq` to the command."""
    app.add_typer(dlq_app, name="dlq")
