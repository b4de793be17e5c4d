"""`veil dlq`: list dead letters, show why they died, and send them back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from veil.cli.app import group
from veil.cli.failures import CommandFailed
from veil.cli.msg import as_object, say_attempt
from veil.cli.options import AsJson, QueueName, flag, given, option, whole_number, with_client
from veil.cli.output import echo, echo_err, echo_json, one_line, progress_bar, show_list
from veil.cli.queue import dead_letter_queues
from veil.client.api import ApiError
from veil.core.limits import MOVE_RATE_MAX
from veil.core.message import MESSAGE_ID, REASON
from veil.words import plural

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient

dlq_app = group("dlq", "Show dead letters and send them back.")

Task = dict[str, Any]
_LOOK_EVERY_S = 0.2
# What a person can do where a redrive fails, by SQS's word for the reason.
_ADVICE = {
    "CouldNotDetermineMessageSource": "a message does not say which queue it came from: name one with --to QUEUE, or move "
    "only those that came from a queue with --source QUEUE",
    "AWS.SimpleQueueService.NonExistentQueue": "the queue to send to does not exist: name another with --to QUEUE",
}


@dlq_app.command("ls", epilog="Example: veil dlq ls --json | jq 'select(.visible > 0)'")
@with_client
def ls(client: BlockingClient, as_json: AsJson = False) -> None:
    """List the dead-letter queues with their counts and sources."""
    found = []
    for name, of in dead_letter_queues(client).items():
        try:
            counts = client.attributes(name)
            tasks = _tasks(client, counts["QueueArn"], 1)
        except ApiError as error:
            if not error.is_missing_queue:
                raise
            echo_err(f"{name}: the dead-letter queue of {', '.join(of)} does not exist")
            continue
        found.append(
            {
                "name": name,
                "visible": int(counts["ApproximateNumberOfMessages"]),
                "in_flight": int(counts["ApproximateNumberOfMessagesNotVisible"]),
                "sources": of,
                "last_redrive": tasks[0]["Status"] if tasks else None,
            }
        )
    columns = ["dead letters", "visible", "in flight", "of", "last redrive"]
    otherwise = "no queue has a dead-letter queue; see: veil queue create --help"
    show_list(found, columns, _row, as_json=as_json, right=columns[1:3], otherwise=otherwise)


def _row(dlq: Mapping[str, Any]) -> list[str]:
    status = (dlq["last_redrive"] or "-").lower()
    return [dlq["name"], str(dlq["visible"]), str(dlq["in_flight"]), ", ".join(dlq["sources"]), status]


@dlq_app.command("show", epilog="Example: veil dlq show orders-dead --max 5")
@with_client
def show(
    client: BlockingClient,
    dlq: QueueName,
    max_messages: int = option(
        "--max N", "How many messages to show, oldest first.", whole_number(1, 1_000), default=10
    ),
    as_json: AsJson = False,
) -> None:
    """Show why messages became dead letters: the attempts of each, with their errors.

    The attempts come from the server's journal. If a consumer gave up on a message, the reason comes from its attributes.
    """
    letters = list(islice(client.peeked(dlq, max_messages), max_messages))
    for letter in letters:
        facts = as_object(letter)
        attributes = facts.get("attributes", {})
        first_id = attributes.get(MESSAGE_ID, {}).get("value", facts["message_id"])
        described = client.call("DescribeMessage", {"MessageId": str(first_id)})
        stays = described.get("Stays") or []
        if as_json:
            echo_json({**facts, "stays": stays})
            continue
        echo(f"{facts['message_id']}  {one_line(facts['body'], 60)}")
        given_up = attributes.get(REASON, {}).get("value")
        if given_up:
            echo(f"  given up: {given_up}")
        attempts = [attempt for stay in stays for attempt in stay.get("Attempts", ())]
        for attempt in attempts:
            say_attempt(attempt)
        if not attempts and not given_up:
            received = plural(facts.get("receive_count", 0), "time")
            echo(f"  received {received}; the journal has no record of it")
    if not letters and not as_json:
        echo_err(f"{dlq}: empty")


@dlq_app.command(
    "redrive",
    epilog="Examples: veil dlq redrive orders-dead --rate 50 · "
    "veil dlq redrive orders-dead --error TimeoutError --not-redriven",
)
@with_client
def redrive(
    client: BlockingClient,
    dlq: QueueName,
    to: str | None = option(
        "--to QUEUE", "Send all messages to this queue. Default: each goes back to the queue it came from."
    ),
    rate: int | None = option(
        "--rate N", "Move at most this many messages per second.", whole_number(1, MOVE_RATE_MAX)
    ),
    contains: str | None = option(
        "--contains TEXT", "Only messages with this text in the body or an attribute."
    ),
    source: str | None = option("--source QUEUE", "Only messages that came from this queue."),
    message_type: str | None = option("--type TYPE", "Only messages of this type."),
    error: str | None = option("--error TYPE", "Only messages that failed with this type of error."),
    redriven: bool | None = option(
        "--redriven/--not-redriven", "Only messages that were redriven before, or that were not."
    ),
    no_wait: bool = flag("--no-wait", "Start the redrive and return."),
    yes: bool = flag("--yes -y", "Accepted as in other commands; a redrive never asks for confirmation."),
    as_json: AsJson = False,
) -> None:
    """Send dead letters back, all of them or those that match.

    The command waits until the redrive ends; if it is stopped, the server carries on. Each message arrives with a new id
    and a receive count of zero.
    """
    letters = given(
        ContainedText=contains,
        SourceQueueName=source,
        MessageType=message_type,
        ErrorType=error,
        RedrivenBefore=redriven,
    )
    arn = client.arn(dlq)
    parameters = given(MaxNumberOfMessagesPerSecond=rate)
    if letters:
        if to is not None:
            parameters["DestinationQueueUrl"] = client.queue_url(to)
        client.on_queue("StartRedrive", dlq, {**parameters, **letters})
    else:
        if to is not None:
            parameters["DestinationArn"] = client.arn(to)
        client.call("StartMessageMoveTask", {"SourceArn": arn, **parameters}, queue=dlq)
    if no_wait:
        if as_json:
            echo_json(_as_object(dlq, _tasks(client, arn, 1)[0]))
        echo_err(f"redrive of {dlq} started; see: veil dlq ls")
        return
    task = _watch(client, dlq, arn)
    if as_json:
        echo_json(_as_object(dlq, task))
    moved = task["ApproximateNumberOfMessagesMoved"]
    echo_err(f"{dlq}: {moved} moved, {task['Status'].lower()}")
    if letters and task.get("FailureReason"):
        echo_err(f"{dlq}: {task['FailureReason']}")
    if task["Status"] != "COMPLETED":
        reason = task.get("FailureReason", "not all moved")
        advice = f"; {_ADVICE[reason]}" if reason in _ADVICE else ""
        raise CommandFailed(f"redrive of {dlq} {task['Status'].lower()}: {reason}{advice}")


def _watch(client: BlockingClient, dlq: str, arn: str) -> Task:
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
                echo_err(f"the redrive continues on the server; stop it with: veil dlq cancel {dlq}")
                raise


@dlq_app.command("cancel", epilog="Example: veil dlq cancel orders-dead")
@with_client
def cancel(client: BlockingClient, dlq: QueueName) -> None:
    """Stop a running redrive. Messages that have not moved yet stay where they are."""
    handles = [task["TaskHandle"] for task in _tasks(client, client.arn(dlq), 10) if "TaskHandle" in task]
    if not handles:
        raise CommandFailed(f"no redrive of {dlq} is running")
    answer = client.call("CancelMessageMoveTask", {"TaskHandle": handles[0]})
    echo_err(f"{dlq}: cancelled after {answer['ApproximateNumberOfMessagesMoved']} moved")


def _tasks(client: BlockingClient, arn: str, limit: int) -> list[Task]:
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
