"""One trial of a consumer: a full queue, a process that empties it, and what both it and the server used meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench.load import process_cpu_s

_BATCH: Final = 10
_LOOK_EVERY_S: Final = 0.02
_STARTED_SHARE: Final = (
    0.1  # of the messages: interpreters that start and connections that open are not compared
)
_TIMEOUT_S: Final = 180.0
_STOP_TIMEOUT_S: Final = 30.0


class TrialFailed(Exception):
    """The figures would mean nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one consumer made of one queue. A message counts when it is out of the queue."""

    messages_per_s: float
    consumer_us: float  # CPU per message
    server_us: float
    consumer_cores: float
    server_cores: float


def fill(client: Any, url: str, messages: int, body: str) -> None:
    """Send that many."""
    for start in range(0, messages, _BATCH):
        entries = [{"Id": str(at), "MessageBody": body} for at in range(min(_BATCH, messages - start))]
        client.send_message_batch(QueueUrl=url, Entries=entries)


def left_in(client: Any, url: str) -> int:
    """How many messages the queue has, received ones too."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def trial(client: Any, url: str, command: Sequence[str], messages: int, server_pid: int) -> Trial:
    """Let the command empty the queue of so many messages; raises TrialFailed unless each was handled exactly once."""
    looks: list[
        tuple[float, float, float, int]
    ] = []  # when, CPU of the consumer and of the server, messages gone
    with _consuming(command) as process:
        give_up_s = time.monotonic() + _TIMEOUT_S
        gone = 0
        while gone < messages:
            gone = messages - left_in(client, url)
            if process.poll() is not None:
                raise TrialFailed(
                    f"it ended with code {process.returncode} and {messages - gone} messages left"
                )
            # Not the look that finds the queue empty: the time from the last message to it would count as work.
            if messages * _STARTED_SHARE <= gone < messages:
                look = (time.perf_counter(), process_cpu_s(process.pid), process_cpu_s(server_pid), gone)
                looks = [looks[0], look] if looks else [look]
            if time.monotonic() > give_up_s:
                raise TrialFailed(f"{messages - gone} messages left after {_TIMEOUT_S:g} s")
            time.sleep(_LOOK_EVERY_S)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=_STOP_TIMEOUT_S)[0]
    counts = re.findall(r"^handled (\d+)$", said, re.MULTILINE)  # whatever else it may have to say
    if counts != [str(messages)]:
        raise TrialFailed(f"it says that it handled {counts}, expected {messages}: not exactly once each")
    if len(looks) < 2 or looks[1][3] == looks[0][3]:
        raise TrialFailed("it was over between two looks; more messages are needed")
    (begun_s, cpu_s, server_s, already), (ended_s, cpu_end_s, server_end_s, gone) = looks
    seconds, counted = ended_s - begun_s, gone - already
    return Trial(
        messages_per_s=counted / seconds,
        consumer_us=(cpu_end_s - cpu_s) / counted * 1e6,
        server_us=(server_end_s - server_s) / counted * 1e6,
        consumer_cores=(cpu_end_s - cpu_s) / seconds,
        server_cores=(server_end_s - server_s) / seconds,
    )


@contextmanager
def _consuming(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    # Keys for those who find their own; no other setting of the caller has a say.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "VEIL_"))}
    keys = {"AWS_ACCESS_KEY_ID": "veil", "AWS_SECRET_ACCESS_KEY": "veil", "AWS_DEFAULT_REGION": "us-east-1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**environ, **keys}
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
