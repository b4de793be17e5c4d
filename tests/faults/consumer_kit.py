"""What the rigs for consumers share: a server on disk, its queues, and `veil run` of a small application that keeps a diary.

The diary's instants are those of the machine's monotonic clock, which the rig reads too, so that they can be compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.request import urlopen

from tests.faults.client import Answer, Client, Refused, Unknown, queue_counts
from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import REPOSITORY, ServerGone, ServerProcess
from tests.waiting import PATIENCE_S, NotInTime, until

# Windows that no machine stands still for, renewed all the time: for handlers that end by what was renewed.
OFTEN = "renewal=Heartbeat(timeout=60, threshold=59.5, interval=0.2)"
_IDLE_S_MAX = 10.0
_LOSS = re.compile("lease lost|lease was lost|lost its lease")
_APP = """
import asyncio, ctypes, os, select, struct, time
from veil import Adaptive, Consumer, Heartbeat, Lease, Message, NoRenewal

app = Consumer({queue!r}, {settings})
DIARY = open({diary!r}, "a", buffering=1)

def note(event, message, said=""):
    DIARY.write(f"{{time.monotonic()}} {{event}} {{message.body}} {{message.lease.token}} {{said}}\\n")

@app.handler
{kind} handle(message: Message, lease: Lease) -> None:
    note("begun", message)
{work}
    note("done", message)
"""


class Note(NamedTuple):
    """A line of a diary."""

    at_s: float
    event: str
    body: str
    token: int
    said: str


def short_windows(window_s: int) -> str:
    """Settings whose windows stay as short when they are renewed; the queue's own is asked for at the receive."""
    return f"visibility={window_s}, renewal=Adaptive(window_min={window_s}, window_max={window_s})"


class Queue:
    """One queue as the rig sees it, without retries and without waiting unless it says so."""

    def __init__(self, port: int, name: str, window_s: int) -> None:
        self.name, self._port = name, port
        self._loop = asyncio.Runner()
        self._client = Client(port)
        self._used_s = time.monotonic()
        self._call("CreateQueue", QueueName=name, Attributes={"VisibilityTimeout": str(window_s)})

    def _call(self, action: str, **given: Any) -> Answer:
        return self._loop.run(self._fresh_client().call(action, **given))

    def _fresh_client(self) -> Client:
        # Its event loop stands still between calls, so it would not notice that the server has closed an idle connection.
        if time.monotonic() - self._used_s > _IDLE_S_MAX:
            self._client.close()
        self._used_s = time.monotonic()
        return self._client

    def send(self, bodies: list[str]) -> None:
        for at in range(0, len(bodies), 10):
            entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies[at : at + 10])]
            answer = self._call("SendMessageBatch", QueueUrl=self.name, Entries=entries)
            if answer.get("Failed"):
                raise Refused(f"not sent: {answer['Failed']}")

    def receive(self, *, wait_s: int = 0, window_s: int = 600) -> list[Answer]:
        """What is visible, up to ten, hidden from everybody else for a long while."""
        answer = self._call(
            "ReceiveMessage",
            QueueUrl=self.name,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=window_s,
            AttributeNames=["ApproximateReceiveCount"],
        )
        received: list[Answer] = answer.get("Messages", [])
        return received

    def delete(self, receipt: str) -> None:
        self._call("DeleteMessage", QueueUrl=self.name, ReceiptHandle=receipt)

    def renewals(self) -> int:
        """How many leases of it the server has given a new deadline."""
        with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=PATIENCE_S) as answer:
            page = answer.read().decode()
        found = re.search(rf'^veil_leases_extended_total{{.*queue="{self.name}".*}} (\S+)$', page, re.M)
        return int(float(found[1])) if found else 0

    def counts(self) -> tuple[int, int]:
        """Visible and hidden."""
        visible, in_flight, _ = self._loop.run(queue_counts(self._fresh_client(), self.name))
        return visible, in_flight

    def close(self) -> None:
        self._client.close()
        self._loop.close()


class Worker:
    """`veil run` of one application; several lives write one diary."""

    def __init__(
        self, folder: Path, port: int, queue: str, *, settings: str, work: str, kind: str = "async def"
    ) -> None:
        folder.mkdir()
        self._folder, self._diary = folder, folder / "diary"
        self._diary.touch()
        self._read_bytes = 0
        self._notes: list[Note] = []
        app = _APP.format(queue=queue, settings=settings, work=work, kind=kind, diary=str(self._diary))
        (folder / "shop.py").write_text(app)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("VEIL_", "AWS_"))}
        self._environ = own | {
            "PYTHONPATH": str(REPOSITORY),
            "AWS_ENDPOINT_URL_SQS": f"http://127.0.0.1:{port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "rig",
            "AWS_SECRET_ACCESS_KEY": "rig",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "veil.cli.main", "run", "shop:app", "--log-level", "warning"]
        with (self._folder / "stderr").open("ab") as talk:
            self._process = subprocess.Popen(command, cwd=self._folder, env=self._environ, stderr=talk)

    def hold(self, body: str) -> None:
        """Let the handler of that message go on only when it is released."""
        os.mkfifo(self._folder / body)

    def release(self, body: str) -> None:
        """Let the handler go on that waits for it."""

        def is_waiting() -> bool:
            try:
                os.close(os.open(self._folder / body, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                return False
            return True

        until(is_waiting, f"the handler of {body} is waiting")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def terminate(self) -> int:
        """Ask it to stop, as an operator would, and give its exit code."""
        self.signal(signal.SIGTERM)
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """kill -9, also of one that stands still."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def notes(self, event: str = "") -> list[Note]:
        """What it wrote down, of one kind of event or all; a line that a kill cut off does not count."""
        with self._diary.open("rb") as diary:  # only what is new: a rig looks often, and diaries grow long
            diary.seek(self._read_bytes)
            whole, end, _cut_off = diary.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        for line in whole.decode().splitlines():
            at, what, body, token, said = line.split(" ", 4)
            self._notes.append(Note(float(at), what, body, int(token), said))
        return [note for note in self._notes if event in ("", note.event)]

    def losses(self) -> list[str]:
        """What its log says of leases that were lost."""
        return [line for line in self.talk().splitlines() if _LOSS.search(line)]

    def talk(self) -> str:
        return (self._folder / "stderr").read_text(errors="replace")


class World:
    """A server on disk and whatever consumers a rig sets loose on it; all of it ends with the rig."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.server = ServerProcess(place / "data", place)
        self._workers: list[Worker] = []
        self._queues: list[Queue] = []

    def queue(self, name: str, window_s: int) -> Queue:
        self._queues.append(Queue(self.server.port, name, window_s))
        return self._queues[-1]

    def worker(self, queue: str, *, port: int | None = None, **given: Any) -> Worker:
        folder = self.place / f"worker-{len(self._workers)}"
        self._workers.append(Worker(folder, port or self.server.port, queue, **given))
        return self._workers[-1]

    def __enter__(self) -> World:
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()
        for queue in self._queues:
            queue.close()
        self.server.kill()


@contextlib.contextmanager
def world(outcome: Outcome) -> Iterator[World]:
    """A world for one run; what keeps the rig from going on is held against it."""
    with scratch(outcome) as place:
        try:
            with World(place) as made:
                yield made
        except (Refused, Unknown, ServerGone, NotInTime, subprocess.TimeoutExpired) as problem:
            outcome.add("stuck", repr(problem))


def check_handled_once(outcome: Outcome, worker: Worker, queue: Queue, bodies: list[str]) -> None:
    """Every message was begun by its first receive and by no other, ended, and is out of the queue."""
    begun = [(note.body, note.token) for note in worker.notes("begun")]
    for again in [each for each in begun if each[1] != 1]:
        outcome.add("redelivered", f"{queue.name}: {again[0]} was handled by receive {again[1]}")
    if sorted({body for body, _ in begun}) != sorted(bodies) or len(begun) != len(bodies):
        outcome.add("handled", f"{queue.name}: {len(begun)} handled, {len(bodies)} sent")
    for loss in worker.losses():
        outcome.add("lease lost", f"{queue.name}: {loss}")
    if worker.terminate() != 0:
        outcome.add("exit", f"{queue.name}: {worker.talk()[-500:]}")
    if queue.counts() != (0, 0):
        outcome.add("left", f"{queue.name}: {queue.counts()} visible and hidden messages are left")
