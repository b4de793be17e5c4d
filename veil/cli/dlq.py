"""`veil dlq`: see dead letters and send them back."""

from __future__ import annotations

import time
from itertools import islice
from typing import Annotated, Any

from veil.cli.app import group
from veil.cli.client import Client
from veil.cli.failures import CommandFailed, ServiceError
from veil.cli.msg import as_object, peek_messages, say_attempt
from veil.cli.options import AsJson, QueueName, option, whole_number, with_client
from veil.cli.output import inert, one_line, progress_bar, say, say_json, show_table, talk
from veil.cli.queue_settings import dead_letter_queues
from veil.core.message import MESSAGE_ID, REASON

dlq_app = group("dlq", "See dead letters and send them back.")

Task = dict[str, Any]
_LOOK_EVERY_S = 0.2


@dlq_app.command("ls", epilog="Example: veil dlq ls --json | jq 'select(.visible > 0)'")
@with_client
def ls(client: Client, as_json: AsJson = False) -> None:
    """List the dead-letter queues with their counts and sources."""
    rows = []
    for name, of in dead_letter_queues(client).items():
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
            facts = {"name": name, "visible": visible, "in_flight": in_flight}
            say_json({**facts, "sources": of, "last_redrive": status})
        rows.append([name, str(visible), str(in_flight), ", ".join(of), (status or "-").lower()])
    if rows and not as_json:
        columns = ["dead letters", "visible", "in flight", "of", "last redrive"]
        show_table(columns, rows, right=["visible", "in flight"])
    elif not rows:
        talk("no queue has dead letters; see: veil queue create --help")


@dlq_app.command("show", epilog="Example: veil dlq show orders-dead --max 5")
@with_client
def show(
    client: Client,
    dlq: QueueName,
    max_messages: Annotated[
        int, option("--max N", "How many, the oldest first.", whole_number(1, 1_000))
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Show why dead letters died: the attempts of each, with their errors.

    They come from the server's journal. Of a message that a consumer itself gave up, its attributes tell.
    """
    letters = list(islice(peek_messages(client, dlq), max_messages))
    for letter in letters:
        facts = as_object(letter)
        attributes = facts.get("attributes", {})
        first_id = attributes.get(MESSAGE_ID, {}).get("value", facts["message_id"])
        described = client.veils_own("DescribeMessage", None, {"MessageId": str(first_id)})
        stays = described.get("Stays") or []
        if as_json:
            say_json({**facts, "stays": stays})
            continue
        say(f"{facts['message_id']}  {one_line(facts['body'], 60)}")
        given_up = attributes.get(REASON, {}).get("value")
        if given_up:
            say(inert(f"  given up: {given_up}", keep=""))
        attempts = [attempt for stay in stays for attempt in stay.get("Attempts", ())]
        for attempt in attempts:
            say_attempt(attempt)
        if not attempts and not given_up:
            say(f"  received {facts.get('receive_count', '?')} times; the journal does not tell of it")
    if not letters and not as_json:
        talk(f"{dlq}: empty")


@dlq_app.command(
    "redrive",
    epilog="Examples: veil dlq redrive orders-dead --rate 50 · "
    "veil dlq redrive orders-dead --error TimeoutError --not-redriven",
)
@with_client
def redrive(
    client: Client,
    dlq: QueueName,
    to: Annotated[
        str | None, option("--to QUEUE", "Send all to this queue; else each to where it came from.")
    ] = None,
    rate: Annotated[
        int | None, option("--rate N", "At most this many messages a second.", whole_number(1, 500))
    ] = None,
    text: Annotated[
        str | None, option("--text TEXT", "Only messages with this text in body or attributes.")
    ] = None,
    source: Annotated[
        str | None, option("--source QUEUE", "Only messages that came from this queue.")
    ] = None,
    message_type: Annotated[str | None, option("--type TYPE", "Only messages of this type.")] = None,
    error: Annotated[
        str | None, option("--error TYPE", "Only messages that failed with this type of error.")
    ] = None,
    redriven: Annotated[
        bool | None,
        option("--redriven/--not-redriven", "Only messages that were redriven before, or that were not."),
    ] = None,
    no_wait: Annotated[bool, option("--no-wait", "Start the redrive and return.")] = False,
    yes: Annotated[bool, option("--yes -y", "As with other commands; a redrive does not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back, all of them or those that match.

    Waits for the end; the server goes on if this command is stopped. Each message arrives with a new id and a receive
    count of zero.
    """
    given = {
        "ContainedText": text,
        "SourceQueueName": source,
        "MessageType": message_type,
        "ErrorType": error,
        "RedrivenBefore": redriven,
    }
    letters = {name: value for name, value in given.items() if value is not None}
    arn = client.arn(dlq)
    parameters: dict[str, Any] = {"MaxNumberOfMessagesPerSecond": rate} if rate is not None else {}
    if letters:
        if to is not None:
            parameters["DestinationQueueUrl"] = client.queue_url(to)
        client.veils_own("StartRedrive", dlq, {**parameters, **letters})
    else:
        if to is not None:
            parameters["DestinationArn"] = client.arn(to)
        client.call("StartMessageMoveTask", {"SourceArn": arn, **parameters})
    if no_wait:
        talk(f"redrive of {dlq} started; see: veil dlq ls")
        return
    task = _watch(client, dlq, arn)
    if as_json:
        say_json(_as_object(dlq, task))
    moved = task["ApproximateNumberOfMessagesMoved"]
    talk(f"{dlq}: {moved} moved, {task['Status'].lower()}")
    if letters and task.get("FailureReason"):
        talk(f"{dlq}: {task['FailureReason']}")
    if task["Status"] != "COMPLETED":
        raise CommandFailed(
            f"redrive of {dlq} {task['Status'].lower()}: {task.get('FailureReason', 'not all moved')}"
        )


def _watch(client: Client, dlq: str, arn: str) -> Task:
    with progress_bar(f"redrive {dlq}") as bar:
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


@dlq_app.command("cancel", epilog="Example: veil dlq cancel orders-dead")
@with_client
def cancel(client: Client, dlq: QueueName) -> None:
    """Stop a running redrive; what has not moved stays."""
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
