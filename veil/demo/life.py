"""`veil demo life`: the life of one message on a real server, told step by step, each claim checked."""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from veil.cli.client import Answer, Client
from veil.cli.failures import CommandFailed, ServiceError, plainly
from veil.cli.options import AsJson
from veil.cli.output import has_colour, inert, say, say_json, talk
from veil.cli.queue_settings import redrive_policy
from veil.demo.processes import DemoServer, Lateness

_WIDTH = 96


@dataclass
class Story:
    """Prints the steps and remembers which claims did not hold."""

    quiet: bool = False
    steps: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=list)  # since the machine was late
    lateness: Lateness = field(default_factory=Lateness)

    def __post_init__(self) -> None:
        self._coloured = has_colour(sys.stdout)

    def step(self, title: str, why: str) -> None:
        """Begin a step: what happens, and why it matters."""
        self.steps.append(title)
        self._print()
        self._print(self._styled(f"{len(self.steps):>2}  {title}", "1"))
        for line in textwrap.wrap(why, _WIDTH - 4):
            self._print(f"    {line}")

    def show(self, what: str, answer: str | None = None) -> None:
        """A command as one would type it, and what came back; None where it prints nothing."""
        self._print(f"    {self._styled('$', '2')} {self._styled(what, '36')}")
        for line in [] if answer is None else inert(answer).splitlines() or ["(nothing)"]:
            self._print(self._styled(f"      {line}", "2"))

    def claim(self, text: str, holds: bool, *, is_timed: bool = False) -> None:
        """A sentence that must be true now. One that holds while a lease of seconds is open, or says when it lapses, cannot be
        shown on a machine that was late."""
        if not holds and is_timed and (late := str(self.lateness)):
            self.not_shown.append(text)
            self._print(f"    {self._styled('? could not be shown:', '33')} {text}")
            self._print(f"      the machine was late: {late}")
            return
        (self.held if holds else self.broken).append(text)
        mark = self._styled("✓", "32") if holds else self._styled("✗ NOT SO:", "1;31")
        self._print(f"    {mark} {text}")

    def end(self) -> None:
        """The last line: how many claims held."""
        self._print()
        if self.broken:
            self._print(
                self._styled(
                    f"{len(self.broken)} of {len(self.held) + len(self.broken)} claims broken:", "1;31"
                )
            )
            for text in self.broken:
                self._print(f"  ✗ {text}")
        elif self.not_shown:
            self._print(f"{len(self.held)} claims held, {len(self.not_shown)} could not be shown.")
        else:
            self._print(self._styled(f"All {len(self.held)} claims held.", "1;32"))

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text

    def _print(self, text: str = "") -> None:
        if not self.quiet:
            say(text)


# ---- the command

QUEUE, DEAD = "orders", "orders-dead"
VISIBILITY_S, EXTENDED_S, RECEIVES_MAX = 2, 3, 3
BATCH = 20


@plainly
def life(
    as_json: AsJson = False,
    store: Annotated[str | None, typer.Option("--store", hidden=True)] = None,
) -> None:
    """Show one message's life on a real server, in seconds; needs no Spark.

    The server is killed on the way. Exit code 1 if anything does not behave as told; what could not be shown because this
    machine was late is told, and no error.
    """
    story = Story(quiet=as_json)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="veil-demo-") as folder:
        server = DemoServer(Path(folder) / "data", store)
        try:
            _tell(story, server)
        except ServiceError as error:
            # Where the machine was late a lease has lapsed too soon for the story.
            story.claim(f"the server answers every request as told (it said {error})", False, is_timed=True)
        finally:
            server.stop()
    story.end()
    if as_json:
        seconds = round(time.monotonic() - begun, 1)
        told = {"held": story.held, "broken": story.broken, "not_shown": story.not_shown}
        say_json({**told, "steps": len(story.steps), "seconds": seconds})
    elif not story.broken:
        talk("Next: veil serve, then veil queue create NAME; or veil --help.")
    if story.broken:
        raise CommandFailed(f"{len(story.broken)} of the demo's claims did not hold")


def _tell(story: Story, server: DemoServer) -> None:
    started_s = server.start()
    with server.client() as client:
        _start(story, server, client, started_s)
        message_id = _send(story, client)
        first = _receive(story, client, message_id)
        _extend(story, client, first)
        second = _come_back(story, client, first)
        _late_receipt(story, client, first, second)
        _delete(story, client, second)
        _poison(story, client)
        _redrive(story, client)
        held, sent = _before_the_crash(story, client)
    _crash(story, server)
    with server.client() as client:
        _after_the_crash(story, client, held, sent)
    _stop(story, server)


def _start(story: Story, server: DemoServer, client: Client, started_s: float) -> None:
    story.step(
        "A queue server",
        "A real server process on a free port, with its data on disk. It speaks Amazon SQS's protocol: "
        "everything below could be boto3 or the aws command instead.",
    )
    story.show("veil serve", f"{server.endpoint}  pid {server.pid}  ready after {started_s:.1f} s")
    client.call("CreateQueue", {"QueueName": DEAD})
    policy = redrive_policy(client, DEAD, RECEIVES_MAX)
    attributes = {"VisibilityTimeout": str(VISIBILITY_S), "RedrivePolicy": policy}
    url = client.call("CreateQueue", {"QueueName": QUEUE, "Attributes": attributes})["QueueUrl"]
    story.show(
        f"veil queue create {QUEUE} --visibility-timeout {VISIBILITY_S} --dead-letter {DEAD} "
        f"--max-receives {RECEIVES_MAX}",
        str(url),
    )
    story.claim("the queue exists and is empty", _counts(client, QUEUE) == (0, 0, 0))


def _send(story: Story, client: Client) -> str:
    story.step(
        "Sent", "The answer comes after fsync: from here on the message survives kill -9 and power loss."
    )
    answer = client.on_queue("SendMessage", QUEUE, {"MessageBody": '{"order": 1}'})
    story.show(f"veil msg send {QUEUE} '{{\"order\": 1}}'", answer["MessageId"])
    story.claim("one message is visible", _counts(client, QUEUE) == (1, 0, 0))
    return str(answer["MessageId"])


def _receive(story: Story, client: Client, message_id: str) -> Answer:
    story.step(
        "Received, and so invisible",
        f"A receive does not remove the message. It hides it from everybody else for {VISIBILITY_S} seconds "
        "and gives this receiver a receipt: its lease.",
    )
    messages = _take(client)
    story.show(f"veil msg receive {QUEUE}", _told(messages))
    story.claim(
        "it is the message that was sent, received once",
        _ids(messages) == [message_id] and _count(messages) == 1,
    )
    if not messages:
        raise CommandFailed("the demo cannot go on without its message")
    again = _take(client)
    story.show(f"veil msg receive {QUEUE}   # a second worker", _told(again))
    story.claim("a second receive finds nothing", not again, is_timed=True)
    story.claim("it is not gone: one message in flight", _counts(client, QUEUE) == (0, 1, 0), is_timed=True)
    return messages[0]


def _extend(story: Story, client: Client, first: Answer) -> None:
    story.step(
        "Extended",
        f"The work takes longer than thought, so the holder asks for {EXTENDED_S} seconds more. They count from "
        "now, not from the old deadline; and never beyond 12 hours after the receive.",
    )
    client.on_queue(
        "ChangeMessageVisibility",
        QUEUE,
        {"ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": EXTENDED_S},
    )
    story.show(f"veil msg extend {QUEUE} {_short(first)} {EXTENDED_S}")
    story.claim("the message stays in flight", _counts(client, QUEUE) == (0, 1, 0), is_timed=True)


def _come_back(story: Story, client: Client, first: Answer) -> Answer:
    story.step(
        "The lease lapses, the message comes back",
        "The first worker never deletes it: crashed, or too slow. A second worker waits in a long poll and "
        "gets the message the moment the deadline passes.",
    )
    begun = time.monotonic()
    messages = _take(client, wait_s=20)
    waited_s = time.monotonic() - begun
    story.show(f"veil msg receive {QUEUE} --wait 20", f"{_told(messages)}   after {waited_s:.2f} s")
    if not messages:
        raise CommandFailed("the message did not come back within 20 s")
    story.claim(
        "it came back by itself, not early, within a second of its deadline",
        EXTENDED_S - 0.5 < waited_s < EXTENDED_S + 1,
        is_timed=True,
    )
    story.claim(
        "same message, receive count 2",
        _ids(messages) == [first["MessageId"]] and _count(messages) == 2,
        is_timed=True,
    )
    story.claim("with a new receipt", messages[0]["ReceiptHandle"] != first["ReceiptHandle"])
    return messages[0]


def _late_receipt(story: Story, client: Client, first: Answer, second: Answer) -> None:
    story.step(
        "The late receipt changes nothing",
        "Now the first worker wakes up and deletes. Its lease is over and somebody else holds the message: a "
        "receipt that does not hold the open lease never touches it.",
    )
    client.on_queue("DeleteMessage", QUEUE, {"ReceiptHandle": first["ReceiptHandle"]})
    story.show(f"veil msg delete {QUEUE} {_short(first)}")
    story.claim(
        "answered kindly, and nothing was deleted", _counts(client, QUEUE) == (0, 1, 0), is_timed=True
    )
    try:
        change = {"ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 0}
        client.on_queue("ChangeMessageVisibility", QUEUE, change)
        refusal = ""
    except ServiceError as error:
        refusal = str(error).replace(first["ReceiptHandle"], _short(first))
    story.show(f"veil msg extend {QUEUE} {_short(first)} 0", refusal)
    story.claim("it cannot take the lease away from its holder either", bool(refusal), is_timed=True)
    # The rest of the story needs the second lease open, however slow this machine is.
    client.on_queue(
        "ChangeMessageVisibility", QUEUE, {"ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 60}
    )


def _delete(story: Story, client: Client, second: Answer) -> None:
    story.step("Deleted", "The holder is done. Once this is answered the message never comes back.")
    client.on_queue("DeleteMessage", QUEUE, {"ReceiptHandle": second["ReceiptHandle"]})
    story.show(f"veil msg delete {QUEUE} {_short(second)}")
    story.claim("the queue is empty", _counts(client, QUEUE) == (0, 0, 0))


def _poison(story: Story, client: Client) -> None:
    story.step(
        "Poison goes to the dead letters",
        f"A message no worker can handle: each gives it back at once (timeout 0). After {RECEIVES_MAX} "
        "receives the next one moves it to the dead letters in the same transaction, and returns without it.",
    )
    sent = client.on_queue("SendMessage", QUEUE, {"MessageBody": "not json at all"})
    for turn in range(1, RECEIVES_MAX + 1):
        messages = _take(client, visibility_s=0)
        story.show(f"veil msg receive {QUEUE} --visibility-timeout 0", _told(messages))
        story.claim(f"receive {turn} is counted", _count(messages) == turn)
    story.claim("the next receive returns nothing", not _take(client))
    dead = client.on_queue("PeekMessages", DEAD, {"MaxResults": 10}).get("Messages", [])
    story.show(f"veil msg peek {DEAD}   # looks, does not receive", _told(dead))
    story.claim(
        "it lies in the dead letters, same id, its count kept",
        _ids(dead) == [sent["MessageId"]] and _count(dead) == RECEIVES_MAX,
    )
    story.claim("and nowhere else", _counts(client, QUEUE) == (0, 0, 0))


def _redrive(story: Story, client: Client) -> None:
    story.step(
        "Redriven", "The bug is fixed; the dead letters go back to where they came from, as new messages."
    )
    arn = client.arn(DEAD)
    client.call("StartMessageMoveTask", {"SourceArn": arn})
    done = _until(lambda: _task(client, arn)["Status"] not in ("RUNNING", "CANCELLING"), 10)
    task = _task(client, arn)
    story.show(
        f"veil dlq redrive {DEAD}",
        f"{task['ApproximateNumberOfMessagesMoved']} moved, {task['Status'].lower()}",
    )
    story.claim("the task completed", done and task["Status"] == "COMPLETED")
    messages = _take(client)
    story.claim(
        "the message is back, receive count 1",
        _count(messages) == 1 and messages[0]["Body"] == "not json at all",
    )
    for message in messages:
        client.on_queue("DeleteMessage", QUEUE, {"ReceiptHandle": message["ReceiptHandle"]})
    story.claim(
        "handled and deleted; both queues are empty",
        _counts(client, QUEUE) == _counts(client, DEAD) == (0, 0, 0),
    )


def _before_the_crash(story: Story, client: Client) -> tuple[Answer, set[str]]:
    story.step(
        "kill -9",
        f"{BATCH} more orders; a worker holds one of them for a minute. Then the server dies without warning and "
        "is started again on the same data.",
    )
    sent: set[str] = set()
    for start in range(0, BATCH, 10):
        entries = [{"Id": str(n), "MessageBody": json.dumps({"order": n})} for n in range(start, start + 10)]
        answer = client.on_queue("SendMessageBatch", QUEUE, {"Entries": entries})
        sent |= {entry["MessageId"] for entry in answer["Successful"]}
    story.show(f"veil msg send {QUEUE} …   # {BATCH} times", f"{len(sent)} acknowledged")
    messages = _take(client, visibility_s=60)
    story.show(f"veil msg receive {QUEUE} --visibility-timeout 60", _told(messages))
    if not messages:
        raise CommandFailed("the demo cannot go on without a held message")
    return messages[0], sent


def _crash(story: Story, server: DemoServer) -> None:
    pid = server.pid
    server.kill()
    story.show(f"kill -9 {pid}", "killed")
    started_s = server.start()
    story.show("veil serve", f"{server.endpoint}  pid {server.pid}  ready after {started_s:.1f} s")


def _after_the_crash(story: Story, client: Client, held: Answer, sent: set[str]) -> None:
    counts = _counts(client, QUEUE)
    story.show(f"veil queue show {QUEUE}", f"visible {counts[0]}  in flight {counts[1]}  delayed {counts[2]}")
    story.claim("nothing lost, and the window is still open", counts == (BATCH - 1, 1, 0))
    found: list[Answer] = []
    while batch := _take(client, count=10, visibility_s=60):
        found += batch
    others = sent - {held["MessageId"]}
    story.claim(
        "every other message is there once; the held one was given to nobody",
        sorted(_ids(found)) == sorted(others),
    )
    client.on_queue("DeleteMessage", QUEUE, {"ReceiptHandle": held["ReceiptHandle"]})
    story.show(f"veil msg delete {QUEUE} {_short(held)}   # the receipt from before the crash")
    story.claim(
        "the worker's receipt still works: its message is deleted",
        _counts(client, QUEUE) == (0, BATCH - 1, 0),
    )


def _stop(story: Story, server: DemoServer) -> None:
    story.step(
        "Server down", "SIGTERM: waiting polls are answered, what is under way is finished, then it exits."
    )
    pid, code = server.pid, server.stop()
    story.show(f"kill {pid}", f"exit code {code}")
    story.claim("it stopped cleanly", code == 0)


# ---- small words of the story


def _take(
    client: Client, *, count: int = 1, visibility_s: int | None = None, wait_s: int = 0
) -> list[Answer]:
    parameters: dict[str, Any] = {
        "MaxNumberOfMessages": count,
        "WaitTimeSeconds": wait_s,
        "MessageSystemAttributeNames": ["All"],
    }
    if visibility_s is not None:
        parameters["VisibilityTimeout"] = visibility_s
    return list(client.on_queue("ReceiveMessage", QUEUE, parameters, wait_s=wait_s).get("Messages", []))


def _counts(client: Client, queue: str) -> tuple[int, int, int]:
    found = client.attributes(queue)
    return (
        int(found["ApproximateNumberOfMessages"]),
        int(found["ApproximateNumberOfMessagesNotVisible"]),
        int(found["ApproximateNumberOfMessagesDelayed"]),
    )


def _task(client: Client, arn: str) -> Answer:
    return dict(client.call("ListMessageMoveTasks", {"SourceArn": arn})["Results"][0])


def _until(happened: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.05)
    return False


def _told(messages: list[Answer]) -> str:
    return "\n".join(
        f"{message['MessageId']}  receive count {message['Attributes']['ApproximateReceiveCount']}"
        + (f"  receipt {_short(message)}" if "ReceiptHandle" in message else f"  {message['State']}")
        + f"  {message['Body']}"
        for message in messages
    )


def _ids(messages: list[Answer]) -> list[str]:
    return [str(message["MessageId"]) for message in messages]


def _count(messages: list[Answer]) -> int | None:
    return int(messages[0]["Attributes"]["ApproximateReceiveCount"]) if messages else None


def _short(message: Answer) -> str:
    receipt = str(message["ReceiptHandle"])
    return f"…{receipt[-8:]}"
