"""`veil msg`: send, receive, look, follow, delete, extend."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from veil.cli.failures import plainly
from veil.cli.message_input import read_attributes, read_body
from veil.cli.message_text import Message, as_lines, as_object
from veil.cli.options import AsJson, Endpoint, QueueName, Region, connect, whole_number
from veil.cli.output import one_line, say, say_json, show_table, talk
from veil.cli.peek import follow, peek_messages

msg_app = typer.Typer(
    no_args_is_help=True, help="Send, receive, look at, follow, delete and extend messages."
)

Receipt = Annotated[str, typer.Argument(metavar="RECEIPT", help="The receipt that a receive gave.")]
BODY_WIDTH = 60


@msg_app.command(
    "send",
    epilog="Examples: veil msg send orders '{\"id\": 1}' --attribute kind=new --attribute tries:Number=1 · "
    "veil msg send orders @order.json · printf hello | veil msg send orders -",
)
@plainly
def send(
    queue: QueueName,
    body: Annotated[str, typer.Argument(metavar="BODY", help="The body; - reads stdin, @FILE a file.")],
    delay: Annotated[
        int | None,
        typer.Option("--delay", metavar="SECONDS", parser=whole_number(0, 900), help="Visible only then."),
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="ID", help="The message group.")] = None,
    dedup_id: Annotated[
        str | None, typer.Option("--dedup-id", metavar="ID", help="FIFO: the deduplication id.")
    ] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="NAME=VALUE",
            help="An attribute: NAME=VALUE, NAME:Number=5, NAME:Binary=@FILE; may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Send one message and print its id; when the id is there, the message is on disk."""
    parameters: dict[str, Any] = {"MessageBody": read_body(body)}
    attributes = read_attributes(attribute or [])
    if attributes:
        parameters["MessageAttributes"] = attributes
    for name, value in (
        ("DelaySeconds", delay),
        ("MessageGroupId", group),
        ("MessageDeduplicationId", dedup_id),
    ):
        if value is not None:
            parameters[name] = value
    with connect(endpoint, region) as client:
        answer = client.on_queue("SendMessage", queue, parameters)
    if as_json:
        sent = {"message_id": answer["MessageId"], "body_md5": answer["MD5OfMessageBody"]}
        if "SequenceNumber" in answer:
            sent["sequence_number"] = answer["SequenceNumber"]
        say_json(sent)
    else:
        say(answer["MessageId"])


@msg_app.command("receive", epilog="Example: veil msg receive orders --max 10 --wait 20 --json")
@plainly
def receive(
    queue: QueueName,
    max_messages: Annotated[
        int, typer.Option("--max", metavar="N", parser=whole_number(1, 10), help="At most so many.")
    ] = 1,
    visibility_timeout: Annotated[
        int | None,
        typer.Option(
            "--visibility-timeout",
            metavar="SECONDS",
            parser=whole_number(0, 43_200),
            help="Invisible to others for so long; else the queue's own.",
        ),
    ] = None,
    wait: Annotated[
        int | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            parser=whole_number(0, 20),
            help="Wait for a message; else the queue's own.",
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete each message once it is printed.")] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Receive messages: each is hidden from everybody else until its deadline, and counts as received."""
    parameters: dict[str, Any] = {
        "MaxNumberOfMessages": max_messages,
        "MessageSystemAttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
    }
    if visibility_timeout is not None:
        parameters["VisibilityTimeout"] = visibility_timeout
    if wait is not None:
        parameters["WaitTimeSeconds"] = wait
    with connect(endpoint, region) as client:
        messages = client.on_queue("ReceiveMessage", queue, parameters, wait_s=20).get("Messages", [])
        for message in messages:
            _show(message, as_json=as_json)
            if delete:  # only now: a message that could not be printed must come back
                client.on_queue("DeleteMessage", queue, {"ReceiptHandle": message["ReceiptHandle"]})
    if not messages:
        talk(f"{queue}: no message is visible")


@msg_app.command("peek", epilog="Example: veil msg peek orders --max 50 --json | jq .state")
@plainly
def peek(
    queue: QueueName,
    max_messages: Annotated[
        int, typer.Option("--max", metavar="N", parser=whole_number(1), help="At most so many, oldest first.")
    ] = 10,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Look at messages in whatever state without receiving them: nothing is hidden, nothing counted."""
    with connect(endpoint, region) as client:
        messages = list(peek_messages(client, queue, max_messages))
    if as_json:
        for message in messages:
            say_json(as_object(message))
    elif messages:
        columns = ["state", "receives", "message", "body"]
        show_table(columns, [_row(message) for message in messages], right=["receives"])
    else:
        talk(f"{queue}: empty")


def _row(message: Message) -> list[str]:
    facts = as_object(message)
    body = one_line(facts["body"], BODY_WIDTH)
    return [str(facts.get("state", "")), str(facts.get("receive_count", "")), facts["message_id"], body]


@msg_app.command("tail", epilog="Example: veil msg tail orders --json | jq -r .body")
@plainly
def tail(
    queue: QueueName,
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", parser=whole_number(1), help="Stop after so many messages."),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the messages already there.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.05, help="How often to look.")
    ] = 0.5,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Follow new messages by peeking, until Ctrl-C; never receives, so consumers notice nothing.

    A message that is sent and deleted between two looks is not seen.
    """
    shown = 0
    with connect(endpoint, region) as client:
        talk(f"following {queue}; stop with Ctrl-C")
        for message in follow(client, queue, lambda: time.sleep(interval), from_start=from_start):
            _show(message, as_json=as_json)
            shown += 1
            if shown == count:
                return


@msg_app.command("delete", epilog='Example: veil msg delete orders "$receipt"')
@plainly
def delete(queue: QueueName, receipt: Receipt, endpoint: Endpoint = None, region: Region = None) -> None:
    """Delete the message that the receipt holds; one that a later receive has replaced changes nothing."""
    with connect(endpoint, region) as client:
        client.on_queue("DeleteMessage", queue, {"ReceiptHandle": receipt})


@msg_app.command("extend", epilog='Example: veil msg extend orders "$receipt" 120')
@plainly
def extend(
    queue: QueueName,
    receipt: Receipt,
    visibility_s: Annotated[
        int,
        typer.Argument(
            metavar="SECONDS", parser=whole_number(0, 43_200), help="From now; 0 makes it visible at once."
        ),
    ],
    endpoint: Endpoint = None,
    region: Region = None,
) -> None:
    """Give the holder of a message more time, or give the message back with 0."""
    with connect(endpoint, region) as client:
        parameters = {"ReceiptHandle": receipt, "VisibilityTimeout": visibility_s}
        client.on_queue("ChangeMessageVisibility", queue, parameters)


def _show(message: Message, *, as_json: bool) -> None:
    if as_json:
        say_json(as_object(message))
    else:
        for line in as_lines(message):
            say(line)


def register(app: typer.Typer) -> None:
    """Add `veil msg` to the command."""
    app.add_typer(msg_app, name="msg")
