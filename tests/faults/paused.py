"""A consumer that is stopped for longer than its window and goes on as if nothing had happened.

Its messages go to somebody else meanwhile. Its late deletes must be answered and change nothing, and its late extension
must be refused; the other holder's lease stays what it was.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from typing import Any

from tests.faults.client import Client, Refused, Unknown, queue_counts
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerGone, ServerProcess

ROUNDS = 1
_QUEUE = "paused"
_MESSAGES = 10
_PATIENCE_S = 120.0
_NO_GRACE = ("--no-lease-grace",)  # which a machine that stands still would give the stopped consumer

# Receives, tells what it has, and deletes when it is told to.
_CONSUMER = """
import json, sys, urllib.request
def call(action, **given):
    request = urllib.request.Request(sys.argv[1], json.dumps(given).encode(),
        {"X-Amz-Target": "AmazonSQS." + action, "Content-Type": "application/x-amz-json-1.0"})
    return json.loads(urllib.request.urlopen(request).read() or b"{}")
got = call("ReceiveMessage", QueueUrl=sys.argv[2], MaxNumberOfMessages=10, VisibilityTimeout=1)["Messages"]
print(json.dumps(got), flush=True)
sys.stdin.readline()
entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(got)]
changes = [each | {"VisibilityTimeout": 600} for each in entries]
refused = call("ChangeMessageVisibilityBatch", QueueUrl=sys.argv[2], Entries=changes).get("Failed", [])
done = call("DeleteMessageBatch", QueueUrl=sys.argv[2], Entries=entries).get("Successful", [])
print(json.dumps([len(refused), len(done)]), flush=True)
"""


def run_pauses(cycles: int = ROUNDS, seed: int = 1) -> Outcome:
    """Stop and continue a consumer of ten messages so many times."""
    outcome = Outcome("paused", seed)
    began_s = time.monotonic()
    with scratch(outcome) as place, ServerProcess(place / "data", place, arguments=_NO_GRACE) as server:
        try:
            for _ in range(cycles):
                asyncio.run(_one_pause(server, outcome))
        except (Refused, Unknown, ServerGone) as problem:
            outcome.add("server", repr(problem))
        outcome.done = (
            f"{cycles} pauses in {time.monotonic() - began_s:.0f} s, {cycles * _MESSAGES} stale deletes"
        )
    return outcome


async def _one_pause(server: ServerProcess, outcome: Outcome) -> None:
    client = Client(server.port)
    await client.call("CreateQueue", QueueName=_QUEUE)
    entries = [{"Id": str(n), "MessageBody": f"body {n}"} for n in range(_MESSAGES)]
    await client.call("SendMessageBatch", QueueUrl=_QUEUE, Entries=entries)
    command = [sys.executable, "-c", _CONSUMER, f"http://localhost:{server.port}/", _QUEUE]
    consumer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert consumer.stdin is not None and consumer.stdout is not None
    try:
        held: list[Any] = json.loads(await asyncio.to_thread(consumer.stdout.readline))
        consumer.send_signal(signal.SIGSTOP)
        taken = await _receive(client, len(held))
        consumer.send_signal(signal.SIGCONT)
        consumer.stdin.write(b"\n")
        consumer.stdin.flush()
        refused, answered = json.loads(await asyncio.to_thread(consumer.stdout.readline))
    finally:
        consumer.kill()
        consumer.wait()
        consumer.stdin.close()
        consumer.stdout.close()
    if {each["MessageId"] for each in taken} != {each["MessageId"] for each in held}:
        outcome.add("stuck", f"{len(taken)} of {len(held)} messages of the stopped consumer were redelivered")
    if refused != len(held):
        outcome.add("revived", f"{len(held) - refused} stale extensions were accepted")
    if answered != len(held):
        outcome.add("answer", f"{len(held) - answered} stale deletes were not answered with success")
    _, in_flight, _ = await queue_counts(client, _QUEUE)
    if in_flight != _MESSAGES:
        outcome.add("lost", f"{_MESSAGES - in_flight} messages were taken from their holder by stale deletes")
    back = [
        {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 0}
        for n, each in enumerate(taken)
    ]
    await client.call("ChangeMessageVisibilityBatch", QueueUrl=_QUEUE, Entries=back)
    again = await _receive(client, in_flight)
    counts = {each["Attributes"]["ApproximateReceiveCount"] for each in again}
    if len(again) != in_flight or counts != {"3"}:
        outcome.add(
            "lost", f"{len(again)} of {in_flight} came back at the end, receive counts {sorted(counts)}"
        )
    done = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(again)]
    await client.call("DeleteMessageBatch", QueueUrl=_QUEUE, Entries=done)
    client.close()


async def _receive(client: Client, count: int) -> list[Any]:
    """As many messages, as they come, and for good."""
    messages: list[Any] = []
    deadline_s = time.monotonic() + _PATIENCE_S
    while len(messages) < count and time.monotonic() < deadline_s:
        answer = await client.call(
            "ReceiveMessage",
            QueueUrl=_QUEUE,
            MaxNumberOfMessages=10,
            VisibilityTimeout=600,
            WaitTimeSeconds=1,
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
        )
        messages += answer.get("Messages", ())
    return messages
