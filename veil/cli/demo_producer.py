"""A producer of the demo: sends messages at a steady rate and says after each second how many were acknowledged."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Final

from veil.cli.client import Client
from veil.cli.credentials import find_place
from veil.cli.demo_child import leave_with_the_demo
from veil.cli.output import say

_BATCH: Final = 10
_TELL_EVERY_S: Final = 0.5


def bodies(poison_every: int) -> Iterator[str]:
    """What is sent: numbered work, and now and then something that nobody can read."""
    for number in count(1):
        poisonous = poison_every and number % poison_every == 0
        yield f"unreadable {number}" if poisonous else json.dumps({"number": number})


def produce(queue: str, per_second: float, seconds: float, poison_every: int) -> None:
    """Send for so many seconds (0: for ever), each batch at its time however long the one before took."""
    begun_s = told_s = time.monotonic()
    messages, sent = bodies(poison_every), 0
    batch = max(1, min(_BATCH, round(per_second)))
    with Client(find_place()) as client:
        for turn in count():
            due_s = turn * batch / per_second
            if seconds and due_s >= seconds:
                break
            time.sleep(max(0.0, begun_s + due_s - time.monotonic()))
            entries = [{"Id": str(at), "MessageBody": next(messages)} for at in range(batch)]
            sent += len(client.on_queue("SendMessageBatch", queue, {"Entries": entries})["Successful"])
            if time.monotonic() - told_s > _TELL_EVERY_S:
                told_s = time.monotonic()
                say(str(sent))
    say(str(sent))


if __name__ == "__main__":
    leave_with_the_demo()
    produce(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
