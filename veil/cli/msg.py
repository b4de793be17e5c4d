"""`veil msg`: send, receive, look, follow, delete, extend."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from veil.cli.app import group
from veil.cli.client import Answer, Client
from veil.cli.failures import CommandFailed
from veil.cli.options import (
    AsJson,
    QueueName,
    argument,
    how_often,
    length,
    option,
    whole_number,
    with_client,
)
from veil.cli.output import inert, one_line, progress_bar, say, say_json, show_table, talk

# ---- reading bodies and attributes

AttributeValue = dict[str, str]


def read_body(text: str) -> str:
    """The body that BODY means: itself, `-` for stdin, `@FILE` for a file; to the last byte, newlines too."""
    if text == "-":
        return _decoded(sys.stdin.buffer.read(), "BODY", "stdin")
    if text.startswith("@"):
        return _decoded(_file(text[1:], "BODY"), "BODY", text[1:])
    return text


def read_attributes(options: Sequence[str]) -> dict[str, AttributeValue]:
    """Message attributes from NAME=VALUE (a String), NAME:Number=5 and NAME:Binary=@FILE."""
    attributes: dict[str, AttributeValue] = {}
    for text in options:
        left, equals, value = text.partition("=")
        name, _, data_type = left.partition(":")
        data_type = data_type or "String"
        kind = data_type.partition(".")[0]
        if not name or not equals or kind not in ("String", "Number", "Binary"):
            raise typer.BadParameter(
                f"{text!r}: expected NAME=VALUE, NAME:Number=VALUE or NAME:Binary=@FILE",
                param_hint="--attribute",
            )
        if name in attributes:
            raise typer.BadParameter(f"{name!r}: given twice, expected once", param_hint="--attribute")
        attributes[name] = {"DataType": data_type, **_value(kind, value)}
    return attributes


def _value(kind: str, value: str) -> AttributeValue:
    if kind == "Binary":
        content = _file(value[1:], "--attribute") if value.startswith("@") else value.encode()
        return {"BinaryValue": base64.b64encode(content).decode()}
    return {"StringValue": value}


def _file(name: str, parameter: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise typer.BadParameter(
            f"{name!r}: expected a file that can be read ({error.strerror})", param_hint=parameter
        ) from None


def _decoded(content: bytes, parameter: str, source: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"{source}: expected UTF-8, byte {error.start} is not", param_hint=parameter
        ) from None


# ---- showing messages

Message = dict[str, Any]


def as_object(message: Message) -> Message:
    """The message with plain names, numbers as numbers, absent things left out."""
    system = message.get("Attributes") or {}
    found: dict[str, Any] = {
        "message_id": message["MessageId"],
        "receipt": message.get("ReceiptHandle"),
        "body": message["Body"],
        "body_md5": message.get("MD5OfBody"),
        "state": message.get("State"),
        "visible_at_ms": message.get("VisibleAt"),
        "receive_count": _number(system.get("ApproximateReceiveCount")),
        "sent_at_ms": _number(system.get("SentTimestamp")),
        "first_received_at_ms": _number(system.get("ApproximateFirstReceiveTimestamp")),
        "group": system.get("MessageGroupId"),
        "deduplication_id": system.get("MessageDeduplicationId"),
        "sequence_number": system.get("SequenceNumber"),
        "dead_letter_source": system.get("DeadLetterQueueSourceArn"),
        "attributes": _attributes(message),
    }
    return {name: value for name, value in found.items() if value is not None}


def as_lines(message: Message) -> list[str]:
    """The message for people: who and when, its receipt, its attributes, then its body, indented."""
    facts = as_object(message)
    head = [f"message {facts['message_id']}"]
    if "state" in facts:
        head.append(str(facts["state"]))
    if "receive_count" in facts:
        head.append(f"receive count {facts['receive_count']}")
    if "sent_at_ms" in facts:
        head.append(f"sent {clock_text(facts['sent_at_ms'])}")
    if "visible_at_ms" in facts:
        head.append(f"visible {clock_text(facts['visible_at_ms'])}")
    if "group" in facts:
        head.append(f"group {facts['group']}")
    lines = ["  ".join(inert(part, keep="") for part in head)]
    if "receipt" in facts:
        lines.append(f"receipt {inert(facts['receipt'], keep='')}")
    for name, value in facts.get("attributes", {}).items():
        shown = value.get("value", value.get("base64"))
        text = f"{name}:{value['type']}={shown}"
        lines.append(f"attribute {inert(text, keep='')}")
    lines += [f"  {line}" for line in inert(facts["body"]).split("\n")]
    return lines


def clock_text(wall_ms: int) -> str:
    """A wall-clock instant for people, in UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _attributes(message: Message) -> dict[str, dict[str, str]] | None:
    given = message.get("MessageAttributes")
    if not given:
        return None
    return {
        name: {"type": value["DataType"], "value": value["StringValue"]}
        if value.get("StringValue") is not None
        else {"type": value["DataType"], "base64": value.get("BinaryValue", "")}
        for name, value in given.items()
    }


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


# ---- peek and tail

_PAGE = 100
_BATCH = 10
_STATES = ("visible", "in_flight", "delayed")


def peek_messages(client: Client, queue: str) -> Iterator[Message]:
    """The messages of the queue, oldest first, read a page at a time."""
    token: str | None = None
    while True:
        messages, token = _page(client, queue, token, _PAGE)
        yield from messages
        if token is None:
            return


def read_state(text: str) -> str:
    """The state that messages must have."""
    if text not in _STATES:
        raise typer.BadParameter(f"{text!r}: expected {', '.join(_STATES[:-1])} or {_STATES[-1]}")
    return text


def _matches(message: Message, state: str | None, contains: str | None) -> bool:
    if state is not None and message.get("State") != state:
        return False
    if contains is None:
        return True
    attributes = (message.get("MessageAttributes") or {}).values()
    texts = [message["Body"], *(each.get("StringValue") or "" for each in attributes)]
    return any(contains.lower() in text.lower() for text in texts)


def follow(
    client: Client, queue: str, pause: Callable[[], object], *, from_start: bool = False
) -> Iterator[Message]:
    """Messages as they arrive, for ever; `pause` is called between two looks."""
    token: str | None = None
    known: set[str] = set()  # the ids on the last page, which is looked at again until a next one follows
    quiet = not from_start
    while True:
        messages, following = _page(client, queue, token, _PAGE)
        for message in messages:
            if not quiet and message["MessageId"] not in known:
                yield message
        if following is not None:
            token, known = following, set()
            continue
        known = {str(message["MessageId"]) for message in messages}
        quiet = False
        pause()


def _page(client: Client, queue: str, token: str | None, size: int) -> tuple[list[Message], str | None]:
    parameters: dict[str, Any] = {"MaxResults": size}
    if token is not None:
        parameters["NextToken"] = token
    answer = client.veils_own("PeekMessages", queue, parameters)
    return list(answer.get("Messages") or ()), answer.get("NextToken")


msg_app = group("msg", "Send, receive, look at, follow, extend, release and delete messages.")

Receipt = Annotated[str, argument("RECEIPT", "The receipt that a receive gave.")]
_BODY_CHARS_MAX = 1_000


@msg_app.command(
    "send",
    epilog="Examples: veil msg send orders '{\"id\": 1}' --attribute kind=new --attribute tries:Number=1 · "
    "veil msg send orders @order.json · printf hello | veil msg send orders - · veil msg send orders --lines orders.jsonl",
)
@with_client
def send(
    client: Client,
    queue: QueueName,
    body: Annotated[
        str | None, argument("[BODY]", "The body; - reads it from stdin, @FILE from a file.")
    ] = None,
    lines: Annotated[
        str | None, option("--lines FILE", "Send each line of a file as a message of its own; - reads stdin.")
    ] = None,
    delay: Annotated[
        int | None,
        option("--delay LENGTH", "How long the message waits until it is visible.", length(0, 900)),
    ] = None,
    group: Annotated[str | None, option("--group ID", "The message group; a FIFO queue needs one.")] = None,
    dedup_id: Annotated[str | None, option("--dedup-id ID", "For FIFO queues: the deduplication id.")] = None,
    attribute: Annotated[
        list[str] | None,
        option(
            "--attribute NAME=VALUE",
            "An attribute: NAME=VALUE, NAME:Number=5, NAME:Binary=@FILE; may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send one message and print its id, or send each line of a file.

    When the id is printed, the message is on disk.
    """
    if (body is None) == (lines is None):
        raise typer.BadParameter("expected a body, or a file of bodies with --lines", param_hint="BODY")
    if group is None and queue.endswith(".fifo"):
        raise typer.BadParameter(
            f"{queue} is a FIFO queue: expected the group of the message", param_hint="--group"
        )
    if delay is not None and queue.endswith(".fifo"):
        raise typer.BadParameter(
            f"{queue} is a FIFO queue, which delays all its messages alike: veil queue edit {queue} --delay LENGTH",
            param_hint="--delay",
        )
    parameters: dict[str, Any] = {}
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
    if body is None:
        _send_lines(client, queue, str(lines), parameters, as_json=as_json)
        return
    answer = client.on_queue("SendMessage", queue, {"MessageBody": read_body(body), **parameters})
    if as_json:
        sent = {"message_id": answer["MessageId"], "body_md5": answer["MD5OfMessageBody"]}
        if "SequenceNumber" in answer:
            sent["sequence_number"] = answer["SequenceNumber"]
        say_json(sent)
    else:
        say(answer["MessageId"])


def _send_lines(client: Client, queue: str, name: str, parameters: Message, *, as_json: bool) -> None:
    """Send each line that is not blank, ten to a request; raises CommandFailed with how many went before a failure."""
    content = sys.stdin.buffer.read() if name == "-" else _file(name, "--lines")
    bodies = [line for line in _decoded(content, "--lines", name).split("\n") if line.strip()]
    url, sent, refused = client.queue_url(queue), 0, list[str]()
    with progress_bar(f"send to {queue}") as bar:
        for first in range(0, len(bodies), _BATCH):
            entries = [
                {"Id": str(first + number), "MessageBody": body.removesuffix("\r"), **parameters}
                for number, body in enumerate(bodies[first : first + _BATCH])
            ]
            try:
                answer = client.call("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
            except CommandFailed as failure:
                raise CommandFailed(
                    f"{failure}; {sent:,} of {len(bodies):,} messages were sent before"
                ) from None
            sent += len(answer.get("Successful") or ())
            refused += [
                f"line {int(each['Id']) + 1}: {each['Message']}" for each in answer.get("Failed") or ()
            ]
            bar(first + len(entries), len(bodies))
    if as_json:
        say_json({"sent": sent, "refused": len(refused)})
    talk(f"{queue}: {sent:,} of {len(bodies):,} messages sent")
    if refused:
        raise CommandFailed(f"{len(refused):,} messages were refused; the first is {refused[0]}")


@msg_app.command("receive", epilog="Example: veil msg receive orders --max 10 --wait 20 --json")
@with_client
def receive(
    client: Client,
    queue: QueueName,
    max_messages: Annotated[
        int, option("--max N", "How many messages to receive at most.", whole_number(1, 10))
    ] = 1,
    visibility_timeout: Annotated[
        int | None,
        option(
            "--visibility-timeout LENGTH",
            "How long the messages stay invisible to others; else the queue's own timeout.",
            length(0, 43_200),
        ),
    ] = None,
    wait: Annotated[
        int | None,
        option(
            "--wait LENGTH",
            "How long to wait for a message, up to 20s; else the queue's own wait.",
            length(0, 20),
        ),
    ] = None,
    delete: Annotated[bool, option("--delete", "Delete each message once it is printed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Receive messages and print them.

    Each message is invisible to everybody else until its deadline, and its receive count goes up.
    """
    parameters: dict[str, Any] = {
        "MaxNumberOfMessages": max_messages,
        "MessageSystemAttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
    }
    if visibility_timeout is not None:
        parameters["VisibilityTimeout"] = visibility_timeout
    if wait is not None:
        parameters["WaitTimeSeconds"] = wait
    messages = client.on_queue("ReceiveMessage", queue, parameters, wait_s=20).get("Messages", [])
    for message in messages:
        _show(message, as_json=as_json)
        if delete:  # only now: a message that could not be printed must come back
            client.on_queue("DeleteMessage", queue, {"ReceiptHandle": message["ReceiptHandle"]})
    if not messages:
        talk(f"{queue}: no message is visible")


@msg_app.command("peek", epilog="Example: veil msg peek orders --state in_flight --max 50")
@with_client
def peek(
    client: Client,
    queue: QueueName,
    max_messages: Annotated[
        int, option("--max N", "How many messages to show at most, oldest first.", whole_number(1))
    ] = 10,
    state: Annotated[
        str | None, option("--state STATE", "Only visible, in_flight or delayed messages.", read_state)
    ] = None,
    contains: Annotated[
        str | None, option("--contains TEXT", "Only messages with this text in body or attributes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show messages in any state without receiving them.

    No message becomes invisible, and no receive count goes up.
    """
    found = (each for each in peek_messages(client, queue) if _matches(each, state, contains))
    messages = list(islice(found, max_messages))
    if as_json:
        for message in messages:
            say_json(as_object(message))
    elif messages:
        columns = ["state", "receives", "message", "body"]
        show_table(columns, [_row(message) for message in messages], right=["receives"])
    else:
        talk(f"{queue}: {'empty' if state is None and contains is None else 'no messages match'}")


def _row(message: Message) -> list[str]:
    facts = as_object(message)
    # A terminal's table folds what is too long for it; into a pipe a line of this many characters is enough.
    body = one_line(facts["body"], _BODY_CHARS_MAX)
    return [str(facts.get("state", "")), str(facts.get("receive_count", "")), facts["message_id"], body]


@msg_app.command("show", epilog="Example: veil msg show 3f0c1a52-8f3e-4d0e-9a51-6a3f1c2b4d5e")
@with_client
def show(
    client: Client,
    message_id: Annotated[str, argument("ID", "The message's id.")],
    as_json: AsJson = False,
) -> None:
    """Show a message's life: where it stayed, and what came of each attempt, with its error.

    It comes from the journal, so messages that are gone are shown too.
    """
    stays = client.veils_own("DescribeMessage", None, {"MessageId": message_id}).get("Stays")
    if not stays:
        raise CommandFailed(f"message {message_id} is not in the server's journal")
    if as_json:
        say_json({"message_id": message_id, "stays": stays})
        return
    for stay in stays:
        say_stay(stay)


def say_stay(stay: Answer) -> None:
    """A message's time in one queue, attempt by attempt."""
    left = "here now" if stay.get("Until") is None else f"{_words(stay['Went'])} {_instant(stay['Until'])}"
    say(f"{inert(stay['QueueName'], keep='')}: {_words(stay['Came'])} {_instant(stay['Since'])}, {left}")
    for attempt in stay.get("Attempts", ()):
        say_attempt(attempt)


def say_attempt(attempt: Answer) -> None:
    """What came of one attempt: when, by whom, and with which error."""
    ended_at = attempt.get("EndedAt")
    held = "" if ended_at is None else f" after {(ended_at - attempt['ReceivedAt']) / 1000:g} s"
    by = f", by {attempt['Holder']}" if attempt.get("Holder") else ""
    line = f"  attempt {attempt['Attempt']} {_instant(attempt['ReceivedAt'])}: {_words(attempt['Outcome'])}{held}{by}"
    say(inert(line, keep=""))
    if attempt.get("ErrorType"):
        say(inert(f"    {attempt['ErrorType']}: {attempt.get('ErrorText') or ''}", keep=""))
        for each in (attempt.get("Traceback") or "").splitlines():
            say(inert(f"    {each}", keep=""))


def _words(word: str) -> str:
    return word.replace("_", " ").replace("dead lettered", "dead-lettered")


def _instant(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


@msg_app.command("tail", epilog="Example: veil msg tail orders --json | jq -r .body")
@with_client
def tail(
    client: Client,
    queue: QueueName,
    count: Annotated[
        int | None, option("--count N", "Stop after this many messages.", whole_number(1))
    ] = None,
    from_start: Annotated[
        bool, option("--from-start", "Begin with the messages that are there already.")
    ] = False,
    interval: Annotated[float, how_often("--interval", "How often to look; else every 0.5s.")] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Follow new messages without receiving them, until Ctrl-C.

    Consumers notice nothing. A message that is sent and deleted between two looks is not seen.
    """
    talk(f"following {queue}; stop with Ctrl-C")
    messages = follow(client, queue, lambda: time.sleep(interval), from_start=from_start)
    for message in islice(messages, count):
        _show(message, as_json=as_json)


@msg_app.command("delete", epilog='Example: veil msg delete orders "$receipt"')
@with_client
def delete(client: Client, queue: QueueName, receipt: Receipt) -> None:
    """Delete the message that a receipt holds.

    A receipt that a later receive has replaced deletes nothing.
    """
    client.on_queue("DeleteMessage", queue, {"ReceiptHandle": receipt})


@msg_app.command("extend", epilog='Example: veil msg extend orders "$receipt" 2m')
@with_client
def extend(
    client: Client,
    queue: QueueName,
    receipt: Receipt,
    visibility_s: Annotated[
        int,
        argument(
            "LENGTH", "How long the message stays invisible from now on; 0 releases it.", length(0, 43_200)
        ),
    ],
) -> None:
    """Give the holder of a message more time."""
    parameters = {"ReceiptHandle": receipt, "VisibilityTimeout": visibility_s}
    client.on_queue("ChangeMessageVisibility", queue, parameters)


@msg_app.command("release", epilog='Example: veil msg release orders "$receipt"')
@with_client
def release(client: Client, queue: QueueName, receipt: Receipt) -> None:
    """Give a message back: it becomes visible at once."""
    client.on_queue("ChangeMessageVisibility", queue, {"ReceiptHandle": receipt, "VisibilityTimeout": 0})


def _show(message: Message, *, as_json: bool) -> None:
    if as_json:
        say_json(as_object(message))
    else:
        for line in as_lines(message):
            say(line)
