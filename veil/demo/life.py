"""`veil demo life`: the life of one message on a real server, told step by step, each claim checked."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

from veil.cli.client import Answer, Client
from veil.cli.failures import CommandFailed, ServiceError
from veil.cli.options import AsJson, option
from veil.cli.output import say, say_json, talk
from veil.cli.queue_settings import redrive_policy
from veil.demo.processes import Children
from veil.demo.stage import Stage

QUEUE, DEAD = "orders", "orders-dead"
VISIBILITY_S, EXTENDED_S, RECEIVES_MAX = 2, 3, 3
BATCH: Final = 20


def life(
    as_json: AsJson = False,
    store: Annotated[str | None, option("--store", "", hidden=True)] = None,
) -> None:
    """Show one message's life on a real server, in seconds; needs no Spark.

    The server is killed on the way. Exit code 1 if anything does not behave as claimed. A claim that could not be shown
    because this machine was too slow is reported, and is not an error.
    """
    stage = Stage(None if as_json else sys.stdout)
    options = () if store is None else ("--store", store)
    with tempfile.TemporaryDirectory(prefix="veil-demo-") as folder, Children(Path(folder)) as children:
        try:
            _tell(stage, children, options)
        except ServiceError as error:
            stage.claim(f"the server answers every request as told (it said {error})", False)
    if as_json:
        say_json({**stage.told, "steps": stage.acts})
    elif stage.broken:
        say(f"\n{len(stage.broken)} of {len(stage.held) + len(stage.broken)} claims broken.")
    elif stage.not_shown:
        say(f"\n{len(stage.held)} claims held, {len(stage.not_shown)} could not be shown.")
    else:
        say(f"\nAll {len(stage.held)} claims held.")
        talk("Next: veil serve, then veil queue create NAME; or veil --help.")
    if stage.broken:
        raise CommandFailed(f"{len(stage.broken)} of the demo's claims did not hold")


def _tell(stage: Stage, children: Children, options: tuple[str, ...]) -> None:
    stage.act(
        "A queue server",
        "A real server process on a free port, with its data on disk. It speaks Amazon SQS's protocol: everything below could "
        "be boto3 or the aws command instead.",
    )
    server, started_s = children.start_server(*options)
    stage.show("veil serve", f"{children.endpoint}  pid {server.pid}  ready after {started_s:.1f} s")
    with children.client() as client:
        queue = _Orders(client)
        stage.show(
            f"veil queue create {QUEUE} --visibility-timeout {VISIBILITY_S} --dead-letter {DEAD} "
            f"--max-receives {RECEIVES_MAX}",
            queue.create(),
        )
        stage.claim("the queue exists and is empty", queue.counts() == (0, 0, 0))
        try:
            _one_message(stage, queue)
        except ServiceError as error:
            # Where the machine was late a lease has lapsed too soon for the story.
            stage.claim(f"the server answers every request as told (it said {error})", False, is_timed=True)
            return
        _poison(stage, queue)
        stage.act(
            "kill -9",
            f"{BATCH} more orders; a worker holds one of them for a minute. Then the server dies without warning and is "
            "started again on the same data.",
        )
        sent = queue.send_many(BATCH)
        stage.show(f"veil msg send {QUEUE} …   # {BATCH} times", f"{len(sent)} acknowledged")
        held = _only(queue.take(visibility_s=60), "a held message")
        stage.show(f"veil msg receive {QUEUE} --visibility-timeout 60", _told([held]))
    children.end([server], signal.SIGKILL)
    stage.show(f"kill -9 {server.pid}", "killed")
    server, started_s = children.start_server(*options)
    stage.show("veil serve", f"{children.endpoint}  pid {server.pid}  ready after {started_s:.1f} s")
    with children.client() as client:
        _after_the_crash(stage, _Orders(client), held, sent)
    stage.act(
        "Server down", "SIGTERM: waiting polls are answered, what is under way is finished, then it exits."
    )
    (code,) = children.end([server])
    stage.show(f"kill {server.pid}", f"exit code {code}")
    stage.claim("it stopped cleanly", code == 0)


def _one_message(stage: Stage, queue: _Orders) -> None:
    stage.act(
        "Sent", "The answer comes after fsync: from here on the message survives kill -9 and power loss."
    )
    message_id = queue.send('{"order": 1}')
    stage.show(f"veil msg send {QUEUE} '{{\"order\": 1}}'", message_id)
    stage.claim("one message is visible", queue.counts() == (1, 0, 0))

    stage.act(
        "Received, and so invisible",
        f"A receive does not remove the message. It hides it from everybody else for {VISIBILITY_S} seconds and gives this "
        "receiver a receipt: its lease.",
    )
    first = _only(queue.take(), "its message")
    stage.show(f"veil msg receive {QUEUE}", _told([first]))
    stage.claim("it is the message that was sent, received once", _id_and_count([first]) == (message_id, 1))
    again = queue.take()
    stage.show(f"veil msg receive {QUEUE}   # a second worker", _told(again))
    stage.claim("a second receive finds nothing", not again, is_timed=True)
    stage.claim("it is not gone: one message in flight", queue.counts() == (0, 1, 0), is_timed=True)

    stage.act(
        "Extended",
        f"The work takes longer than thought, so the holder asks for {EXTENDED_S} seconds more. They count from now, not from "
        "the old deadline; and never beyond 12 hours after the receive.",
    )
    queue.extend(first, EXTENDED_S)
    stage.show(f"veil msg extend {QUEUE} {_short(first)} {EXTENDED_S}")
    stage.claim("the message stays in flight", queue.counts() == (0, 1, 0), is_timed=True)

    stage.act(
        "The lease lapses, the message comes back",
        "The first worker never deletes it: crashed, or too slow. A second worker waits in a long poll and gets the message "
        "the moment the deadline passes.",
    )
    begun_s = time.monotonic()
    second = _only(queue.take(wait_s=20), "its message, which did not come back within 20 s")
    waited_s = time.monotonic() - begun_s
    stage.show(f"veil msg receive {QUEUE} --wait 20", f"{_told([second])}   after {waited_s:.2f} s")
    in_time = EXTENDED_S - 0.5 < waited_s < EXTENDED_S + 1
    stage.claim("it came back by itself, not early, within a second of its deadline", in_time, is_timed=True)
    stage.claim("same message, receive count 2", _id_and_count([second]) == (message_id, 2), is_timed=True)
    stage.claim("with a new receipt", second["ReceiptHandle"] != first["ReceiptHandle"])

    stage.act(
        "The late receipt changes nothing",
        "Now the first worker wakes up and deletes. Its lease is over and somebody else holds the message: a receipt that does "
        "not hold the open lease never touches it.",
    )
    queue.delete(first)
    stage.show(f"veil msg delete {QUEUE} {_short(first)}")
    stage.claim("answered kindly, and nothing was deleted", queue.counts() == (0, 1, 0), is_timed=True)
    refusal = ""
    try:
        queue.extend(first, 0)
    except ServiceError as error:
        refusal = str(error).replace(first["ReceiptHandle"], _short(first))
    stage.show(f"veil msg extend {QUEUE} {_short(first)} 0", refusal)
    stage.claim("it cannot take the lease away from its holder either", bool(refusal), is_timed=True)
    queue.extend(second, 60)  # the rest of the story needs it open, however slow this machine is

    stage.act("Deleted", "The holder is done. Once this is answered the message never comes back.")
    queue.delete(second)
    stage.show(f"veil msg delete {QUEUE} {_short(second)}")
    stage.claim("the queue is empty", queue.counts() == (0, 0, 0))


def _poison(stage: Stage, queue: _Orders) -> None:
    stage.act(
        "Poison goes to the dead letters",
        f"A message no worker can handle: each gives it back at once (timeout 0). After {RECEIVES_MAX} receives the next one "
        "moves it to the dead letters in the same transaction, and returns without it.",
    )
    body = "not json at all"
    sent = queue.send(body)
    for turn in range(1, RECEIVES_MAX + 1):
        messages = queue.take(visibility_s=0)
        stage.show(f"veil msg receive {QUEUE} --visibility-timeout 0", _told(messages))
        stage.claim(f"receive {turn} is counted", _id_and_count(messages)[1] == turn)
    stage.claim("the next receive returns nothing", not queue.take())
    dead = queue.client.on_queue("PeekMessages", DEAD, {"MaxResults": 10}).get("Messages", [])
    stage.show(f"veil msg peek {DEAD}   # looks, does not receive", _told(dead))
    stage.claim(
        "it lies in the dead letters, same id, its count kept", _id_and_count(dead) == (sent, RECEIVES_MAX)
    )
    stage.claim("and nowhere else", queue.counts() == (0, 0, 0))

    stage.act(
        "Redriven", "The bug is fixed; the dead letters go back to where they came from, as new messages."
    )
    task = queue.redrive()
    moved = f"{task['ApproximateNumberOfMessagesMoved']} moved, {task['Status'].lower()}"
    stage.show(f"veil dlq redrive {DEAD}", moved)
    stage.claim("the task completed", task["Status"] == "COMPLETED")
    messages = queue.take()
    is_back = _id_and_count(messages)[1] == 1 and messages[0]["Body"] == body
    stage.claim("the message is back, receive count 1", is_back)
    for message in messages:
        queue.delete(message)
    both = queue.counts() == queue.counts(DEAD) == (0, 0, 0)
    stage.claim("handled and deleted; both queues are empty", both)


def _after_the_crash(stage: Stage, queue: _Orders, held: Answer, sent: set[str]) -> None:
    visible, in_flight, delayed = counts = queue.counts()
    stage.show(f"veil queue show {QUEUE}", f"visible {visible}  in flight {in_flight}  delayed {delayed}")
    stage.claim("nothing lost, and the window is still open", counts == (BATCH - 1, 1, 0))
    found: list[str] = []
    while batch := queue.take(count=10, visibility_s=60):
        found += [message["MessageId"] for message in batch]
    stage.claim(
        "every other message is there once; the held one was given to nobody",
        sorted(found) == sorted(sent - {held["MessageId"]}),
    )
    queue.delete(held)
    stage.show(f"veil msg delete {QUEUE} {_short(held)}   # the receipt from before the crash")
    is_deleted = queue.counts() == (0, BATCH - 1, 0)
    stage.claim("the worker's receipt still works: its message is deleted", is_deleted)


class _Orders:
    """The queue of the story, and its dead letters."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def create(self) -> str:
        self.client.call("CreateQueue", {"QueueName": DEAD})
        policy = redrive_policy(self.client, DEAD, RECEIVES_MAX)
        attributes = {"VisibilityTimeout": str(VISIBILITY_S), "RedrivePolicy": policy}
        return str(
            self.client.call("CreateQueue", {"QueueName": QUEUE, "Attributes": attributes})["QueueUrl"]
        )

    def send(self, body: str) -> str:
        return str(self.client.on_queue("SendMessage", QUEUE, {"MessageBody": body})["MessageId"])

    def send_many(self, count: int) -> set[str]:
        sent: set[str] = set()
        for first in range(0, count, 10):
            numbers = range(first, first + 10)
            entries = [{"Id": str(n), "MessageBody": json.dumps({"order": n})} for n in numbers]
            answer = self.client.on_queue("SendMessageBatch", QUEUE, {"Entries": entries})
            sent |= {entry["MessageId"] for entry in answer["Successful"]}
        return sent

    def take(self, *, count: int = 1, visibility_s: int = VISIBILITY_S, wait_s: int = 0) -> list[Answer]:
        parameters: dict[str, Any] = {
            "MaxNumberOfMessages": count,
            "WaitTimeSeconds": wait_s,
            "VisibilityTimeout": visibility_s,
            "MessageSystemAttributeNames": ["All"],
        }
        return list(
            self.client.on_queue("ReceiveMessage", QUEUE, parameters, wait_s=wait_s).get("Messages", [])
        )

    def extend(self, message: Answer, visibility_s: int) -> None:
        change = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": visibility_s}
        self.client.on_queue("ChangeMessageVisibility", QUEUE, change)

    def delete(self, message: Answer) -> None:
        self.client.on_queue("DeleteMessage", QUEUE, {"ReceiptHandle": message["ReceiptHandle"]})

    def redrive(self) -> Answer:
        arn = self.client.arn(DEAD)
        self.client.call("StartMessageMoveTask", {"SourceArn": arn})
        deadline_s = time.monotonic() + 10
        while True:
            task = dict(self.client.call("ListMessageMoveTasks", {"SourceArn": arn})["Results"][0])
            if task["Status"] not in ("RUNNING", "CANCELLING") or time.monotonic() > deadline_s:
                return task
            time.sleep(0.05)

    def counts(self, queue: str = QUEUE) -> tuple[int, int, int]:
        found = self.client.attributes(queue)
        names = ("", "NotVisible", "Delayed")
        visible, in_flight, delayed = (int(found[f"ApproximateNumberOfMessages{name}"]) for name in names)
        return visible, in_flight, delayed


def _only(messages: list[Answer], what: str) -> Answer:
    if not messages:
        raise CommandFailed(f"the demo cannot go on without {what}")
    return messages[0]


def _told(messages: list[Answer]) -> str:
    return "\n".join(
        f"{message['MessageId']}  receive count {message['Attributes']['ApproximateReceiveCount']}"
        + (f"  receipt {_short(message)}" if "ReceiptHandle" in message else f"  {message['State']}")
        + f"  {message['Body']}"
        for message in messages
    )


def _id_and_count(messages: list[Answer]) -> tuple[str, int] | tuple[None, None]:
    """Of the only message."""
    if len(messages) != 1:
        return None, None
    return messages[0]["MessageId"], int(messages[0]["Attributes"]["ApproximateReceiveCount"])


def _short(message: Answer) -> str:
    return f"…{message['ReceiptHandle'][-8:]}"
