"""`veil msg`: send, receive, peek at, follow, show, delete, extend and release messages."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from veil.cli.app import group
from veil.cli.failures import CommandFailed, in_words
from veil.cli.options import (
    AsJson,
    QueueName,
    argument,
    flag,
    given,
    how_often,
    length,
    option,
    whole_number,
    with_client,
    wrong,
)
from veil.cli.output import (
    echo,
    echo_err,
    echo_json,
    echo_object,
    is_terminal,
    one_line,
    progress_bar,
    show_list,
)
from veil.client.api import ApiError
from veil.core import limits
from veil.words import iso, plural

if TYPE_CHECKING:
    from veil.client.blocking import Answer, BlockingClient

msg_app = group("msg", "Send, receive, inspect, follow, extend, release and delete messages.")

Message = dict[str, Any]
Receipt = Annotated[str, argument("RECEIPT", "The receipt that `veil msg receive` printed.")]

_PAGE = 100
_BODY_CHARS_MAX = 1_000
_STATES = ("visible", "in_flight", "delayed")

# ---- reading bodies and attributes


def read_body(text: str) -> str:
    """The body that BODY means: itself, `-` for stdin, `@FILE` for a file; to the last byte, newlines too."""
    body = _text_of(text.removeprefix("@"), "BODY") if text == "-" or text.startswith("@") else text
    if not body:
        raise wrong("BODY", f"{text!r}: expected at least one character, as SQS demands")
    return body


def read_attributes(options: Sequence[str]) -> dict[str, dict[str, str]]:
    """Message attributes from NAME=VALUE (a String), NAME:Number=5 and NAME:Binary=@FILE."""
    attributes: dict[str, dict[str, str]] = {}
    for text in options:
        left, equals, value = text.partition("=")
        name, _, data_type = left.partition(":")
        data_type = data_type or "String"
        kind = data_type.partition(".")[0]
        if not name or not equals or kind not in ("String", "Number", "Binary"):
            expected = "expected NAME=VALUE, NAME:Number=VALUE or NAME:Binary=@FILE"
            raise wrong("--attribute", f"{text!r}: {expected}")
        if name in attributes:
            raise wrong("--attribute", f"{name!r}: given twice, expected once")
        if kind == "Binary":
            content = _file(value[1:], "--attribute") if value.startswith("@") else value.encode()
            attributes[name] = {"DataType": data_type, "BinaryValue": base64.b64encode(content).decode()}
        else:
            attributes[name] = {"DataType": data_type, "StringValue": value}
    return attributes


def _text_of(name: str, parameter: str) -> str:
    """What is in the file of that name, or comes from stdin for `-`."""
    content = sys.stdin.buffer.read() if name == "-" else _file(name, parameter)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        source = "stdin" if name == "-" else name
        raise wrong(parameter, f"{source}: expected UTF-8, byte {error.start} is not") from None


def _file(name: str, parameter: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise wrong(parameter, f"{name!r}: expected a file that can be read ({error.strerror})") from None


# ---- showing messages

# What a message's object has for scripts: where it stands in SQS's own, and what it is.
_FIELDS: Final = {
    "message_id": ("MessageId", str),
    "receipt": ("ReceiptHandle", str),
    "body": ("Body", str),
    "body_md5": ("MD5OfBody", str),
    "state": ("State", str),
    "visible_at_ms": ("VisibleAt", int),
    "receive_count": ("ApproximateReceiveCount", int),
    "sent_at_ms": ("SentTimestamp", int),
    "first_received_at_ms": ("ApproximateFirstReceiveTimestamp", int),
    "group": ("MessageGroupId", str),
    "deduplication_id": ("MessageDeduplicationId", str),
    "sequence_number": ("SequenceNumber", str),
    "dead_letter_source": ("DeadLetterQueueSourceArn", str),
}
# The parts of a message's first line, and what it says of each.
_HEAD: Final = {
    "message_id": "message {}",
    "state": "{}",
    "receive_count": "receive count {}",
    "sent_at_ms": "sent {}",
    "visible_at_ms": "visible {}",
    "group": "group {}",
}


def as_object(message: Message) -> Message:
    """The message with plain names, numbers as numbers, absent things left out."""
    known = {**message, **(message.get("Attributes") or {})}
    found = {name: kind(known[key]) for name, (key, kind) in _FIELDS.items() if known.get(key) is not None}
    attributes = {}
    for name, value in (message.get("MessageAttributes") or {}).items():
        form = "value" if value.get("StringValue") is not None else "base64"
        held = value["StringValue"] if form == "value" else value.get("BinaryValue", "")
        attributes[name] = {"type": value["DataType"], form: held}
    return {**found, "attributes": attributes} if attributes else found


def as_lines(message: Message) -> list[str]:
    """The message for people: who and when, its receipt, its attributes, then its body, indented."""
    facts = as_object(message)
    shown = {
        name: iso(value, " ", "seconds") if name.endswith("_ms") else value for name, value in facts.items()
    }
    lines = ["  ".join(words.format(shown[name]) for name, words in _HEAD.items() if name in shown)]
    if "receipt" in facts:
        lines.append(f"receipt {facts['receipt']}")
    for name, value in facts.get("attributes", {}).items():
        lines.append(f"attribute {name}:{value['type']}={value.get('value', value.get('base64'))}")
    return [*lines, *(f"  {line}" for line in facts["body"].split("\n"))]


def _show(message: Message, *, as_json: bool) -> None:
    if as_json:
        echo_json(as_object(message))
    else:
        for line in as_lines(message):
            echo(line, keep="\t")


# ---- peek and tail


def read_state(text: str) -> str:
    if text not in _STATES:
        raise typer.BadParameter(f"{text!r}: expected {', '.join(_STATES[:-1])} or {_STATES[-1]}")
    return text


def _contains(message: Message, text: str) -> bool:
    attributes = (message.get("MessageAttributes") or {}).values()
    texts = [message["Body"], *(each.get("StringValue") or "" for each in attributes)]
    return any(text.lower() in each.lower() for each in texts)


def follow(
    client: BlockingClient, queue: str, pause: Callable[[], object], *, from_start: bool = False
) -> Iterator[Message]:
    """Messages as they arrive, for ever; `pause` is called between two looks."""
    token: str | None = None
    known: set[str] = set()  # the ids on the last page, which is looked at again until a next one follows
    quiet = not from_start
    while True:
        answer = client.on_queue("PeekMessages", queue, given(MaxResults=_PAGE, NextToken=token))
        messages, following = answer.get("Messages") or (), answer.get("NextToken")
        for message in messages:
            if not quiet and message["MessageId"] not in known:
                yield message
        if following is not None:
            token, known = following, set()
            continue
        known = {str(message["MessageId"]) for message in messages}
        quiet = False
        pause()


# ---- the commands


@msg_app.command(
    "send",
    epilog="Examples: veil msg send orders '{\"id\": 1}' --attribute kind=new --attribute tries:Number=1 · "
    "veil msg send orders @order.json · printf hello | veil msg send orders - · veil msg send orders --lines orders.jsonl",
)
@with_client
def send(
    client: BlockingClient,
    queue: QueueName,
    body: str | None = argument("[BODY]", "The message body; - reads it from stdin, @FILE from a file."),
    lines: str | None = option(
        "--lines FILE", "Send each line of a file as a separate message; - reads stdin."
    ),
    delay: int | None = option(
        "--delay LENGTH",
        "How long the message waits before it becomes visible.",
        length(0, limits.DELAY_MAX_S),
    ),
    group: str | None = option("--group ID", "The message group. FIFO queues need one."),
    dedup_id: str | None = option("--dedup-id ID", "The deduplication id, for FIFO queues."),
    attribute: list[str] | None = option(
        "--attribute NAME=VALUE",
        "A message attribute: NAME=VALUE, NAME:Number=5 or NAME:Binary=@FILE. Can be repeated.",
    ),
    as_json: AsJson = False,
) -> None:
    """Send one message and print its id, or send each line of a file.

    When the id is printed, the message is on disk.
    """
    if (body is None) == (lines is None):
        raise wrong("BODY", "expected a body, or a file of bodies with --lines")
    if lines is not None and dedup_id is not None:
        raise wrong(
            "--dedup-id", "expected none with --lines: only the first of the messages would be stored"
        )
    if queue.endswith(".fifo") and group is None:
        raise wrong("--group", f"{queue} is a FIFO queue: expected the group of the message")
    if queue.endswith(".fifo") and delay is not None:
        advice = f"veil queue edit {queue} --delay LENGTH"
        raise wrong("--delay", f"{queue} is a FIFO queue, where only the whole queue has a delay: {advice}")
    parameters = given(
        MessageAttributes=read_attributes(attribute or []) or None,
        DelaySeconds=delay,
        MessageGroupId=group,
        MessageDeduplicationId=dedup_id,
    )
    if body is None:
        _send_lines(client, queue, str(lines), parameters, as_json=as_json)
        return
    answer = client.on_queue("SendMessage", queue, {"MessageBody": read_body(body), **parameters})
    sent = {"message_id": answer["MessageId"], "body_md5": answer["MD5OfMessageBody"]}
    facts = sent | given(sequence_number=answer.get("SequenceNumber"))
    echo_object(facts, answer["MessageId"], as_json=as_json)


def _send_lines(client: BlockingClient, queue: str, name: str, parameters: Message, *, as_json: bool) -> None:
    """Send each line that is not blank, as many to a request as it takes; raises CommandFailed with how many went before a
    failure."""
    lines = enumerate(_text_of(name, "--lines").split("\n"), 1)
    bodies = [(number, line.removesuffix("\r")) for number, line in lines if line.strip()]
    url, done, sent, refused = client.queue_url(queue), 0, 0, list[str]()
    with progress_bar(f"send to {queue}") as bar:
        for batch in _batches(bodies, len(json.dumps(parameters))):
            entries = [{"Id": str(number), "MessageBody": body, **parameters} for number, body in batch]
            try:
                answer = client.call("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
            except ApiError as failure:
                raise CommandFailed(
                    f"{in_words(failure)}; {sent:,} of {len(bodies):,} messages were sent before"
                ) from None
            done, sent = done + len(entries), sent + len(answer.get("Successful") or ())
            refused += [
                f"line {each['Id']}: {each.get('Message') or each['Code']}"
                for each in answer.get("Failed") or ()
            ]
            bar(done, len(bodies))
    if as_json:
        echo_json({"sent": sent, "refused": len(refused)})
    echo_err(f"{queue}: {sent:,} of {len(bodies):,} messages sent")
    if refused:
        raise CommandFailed(
            f"{plural(len(refused), 'message was', 'messages were')} refused; the first is {refused[0]}"
        )


def _batches(bodies: Sequence[tuple[int, str]], beside_bytes: int) -> Iterator[list[tuple[int, str]]]:
    """The bodies cut into requests: at most ten each, and no more bytes than SQS takes; `beside_bytes` go along with each."""
    batch: list[tuple[int, str]] = []
    size = 0
    for number, body in bodies:
        own = len(body.encode()) + beside_bytes
        if batch and (len(batch) == limits.BATCH_ENTRIES_MAX or size + own > limits.BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append((number, body))
        size += own
    if batch:
        yield batch


@msg_app.command("receive", epilog="Example: veil msg receive orders --max 10 --wait 20 --json")
@with_client
def receive(
    client: BlockingClient,
    queue: QueueName,
    max_messages: int = option(
        "--max N", "How many messages to receive at most.", whole_number(1, limits.RECEIVE_MAX), default=1
    ),
    visibility_timeout: int | None = option(
        "--visibility-timeout LENGTH",
        "How long the messages stay invisible to other receivers. Default: the queue's timeout.",
        length(0, limits.VISIBILITY_MAX_S),
    ),
    wait: int | None = option(
        "--wait LENGTH",
        "How long to wait for a message, up to 20s. Default: the queue's own wait.",
        length(0, limits.WAIT_MAX_S),
    ),
    delete: bool = flag("--delete", "Delete each message after printing it."),
    as_json: AsJson = False,
) -> None:
    """Receive messages and print them.

    Each message is invisible to everybody else until its deadline, and its receive count goes up.
    """
    parameters = given(
        MaxNumberOfMessages=max_messages,
        MessageSystemAttributeNames=["All"],
        MessageAttributeNames=["All"],
        VisibilityTimeout=visibility_timeout,
        WaitTimeSeconds=wait,
    )
    messages = client.on_queue("ReceiveMessage", queue, parameters, wait_s=limits.WAIT_MAX_S).get(
        "Messages", []
    )
    for message in messages:
        _show(message, as_json=as_json)
        if delete:  # only now: a message that could not be printed must come back
            client.on_queue("DeleteMessage", queue, {"ReceiptHandle": message["ReceiptHandle"]})
    if not messages:
        echo_err(f"{queue}: no messages are visible")


@msg_app.command("peek", epilog="Example: veil msg peek orders --state in_flight --max 50")
@with_client
def peek(
    client: BlockingClient,
    queue: QueueName,
    max_messages: int = option(
        "--max N", "How many messages to show at most, oldest first.", whole_number(1), default=10
    ),
    state: str | None = option(
        "--state STATE", "Only show messages in this state: visible, in_flight or delayed.", read_state
    ),
    contains: str | None = option(
        "--contains TEXT", "Only messages with this text in the body or an attribute."
    ),
    as_json: AsJson = False,
) -> None:
    """Show messages in any state without receiving them.

    No message becomes invisible, and no receive count goes up.
    """
    held = client.peeked(queue, _PAGE, **given(State=state))
    found = (each for each in held if contains is None or _contains(each, contains))
    messages = [as_object(each) for each in islice(found, max_messages)]
    otherwise = f"{queue}: {'empty' if state is None and contains is None else 'no messages match'}"
    columns = ["state", "receives", "message", "body"]
    show_list(messages, columns, _row, as_json=as_json, right=["receives"], otherwise=otherwise)


def _row(facts: Message) -> list[str]:
    # A terminal's table folds a body that is too long for its column.
    width = 2 * get_terminal_size().columns if is_terminal(sys.stdout) else _BODY_CHARS_MAX
    body = one_line(facts["body"], width)
    return [str(facts.get("state", "")), str(facts.get("receive_count", "")), facts["message_id"], body]


@msg_app.command("show", epilog="Example: veil msg show 3f0c1a52-8f3e-4d0e-9a51-6a3f1c2b4d5e")
@with_client
def show(
    client: BlockingClient, message_id: str = argument("ID", "The message's id."), as_json: AsJson = False
) -> None:
    """Show a message's history: the queues it was in, and each attempt with its outcome and error.

    The history comes from the journal, so deleted messages are shown too.
    """
    stays = client.call("DescribeMessage", {"MessageId": message_id}).get("Stays")
    if not stays:
        raise CommandFailed(f"message {message_id} is not in the server's journal")
    if as_json:
        echo_json({"message_id": message_id, "stays": stays})
        return
    for stay in stays:
        say_stay(stay)


def say_stay(stay: Answer) -> None:
    """A message's time in one queue, attempt by attempt."""
    left = "here now" if stay.get("Until") is None else f"{_words(stay['Went'])} {iso(stay['Until'], ' ')}"
    echo(f"{stay['QueueName']}: {_words(stay['Came'])} {iso(stay['Since'], ' ')}, {left}")
    for attempt in stay.get("Attempts", ()):
        say_attempt(attempt)


def say_attempt(attempt: Answer) -> None:
    """What came of one attempt: when, by whom, and with which error."""
    ended_at = attempt.get("EndedAt")
    held = "" if ended_at is None else f" after {(ended_at - attempt['ReceivedAt']) / 1000:g} s"
    by = f", by {attempt['Holder']}" if attempt.get("Holder") else ""
    echo(
        f"  attempt {attempt['Attempt']} {iso(attempt['ReceivedAt'], ' ')}: {_words(attempt['Outcome'])}{held}{by}"
    )
    if attempt.get("ErrorType"):
        echo(f"    {attempt['ErrorType']}: {attempt.get('ErrorText') or ''}")
        for each in (attempt.get("Traceback") or "").splitlines():
            echo(f"    {each}")


def _words(word: str) -> str:
    return word.replace("_", " ").replace("dead lettered", "dead-lettered")


@msg_app.command("tail", epilog="Example: veil msg tail orders --json | jq -r .body")
@with_client
def tail(
    client: BlockingClient,
    queue: QueueName,
    count: int | None = option("--count N", "Stop after this many messages.", whole_number(1)),
    from_start: bool = flag("--from-start", "Start with the messages that are already in the queue."),
    interval: float = how_often("--interval", "How often to poll. Default: 0.5s.", default=0.5),
    as_json: AsJson = False,
) -> None:
    """Follow new messages without receiving them, until Ctrl-C.

    Consumers are not affected. A message that is sent and deleted between two polls is not shown.
    """
    client.queue_url(queue)  # a queue that is not there is told before anything is said to be followed
    echo_err(f"following {queue}; stop with Ctrl-C")
    messages = follow(client, queue, lambda: time.sleep(interval), from_start=from_start)
    for message in islice(messages, count):
        _show(message, as_json=as_json)


@msg_app.command("delete", epilog='Example: veil msg delete orders "$receipt"')
@with_client
def delete(client: BlockingClient, queue: QueueName, receipt: Receipt) -> None:
    """Delete the message that a receipt holds.

    A receipt that a later receive has replaced deletes nothing.
    """
    client.on_queue("DeleteMessage", queue, {"ReceiptHandle": receipt})


@msg_app.command("extend", epilog='Example: veil msg extend orders "$receipt" 2m')
@with_client
def extend(
    client: BlockingClient,
    queue: QueueName,
    receipt: Receipt,
    visibility_s: int = argument(
        "LENGTH",
        "How long the message stays invisible from now on; 0 releases it.",
        length(0, limits.VISIBILITY_MAX_S),
    ),
) -> None:
    """Give the holder of a message more time."""
    parameters = {"ReceiptHandle": receipt, "VisibilityTimeout": visibility_s}
    client.on_queue("ChangeMessageVisibility", queue, parameters)


@msg_app.command("release", epilog='Example: veil msg release orders "$receipt"')
@with_client
def release(client: BlockingClient, queue: QueueName, receipt: Receipt) -> None:
    """Give a message back: it becomes visible at once."""
    client.on_queue("ChangeMessageVisibility", queue, {"ReceiptHandle": receipt, "VisibilityTimeout": 0})
