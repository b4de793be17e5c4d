"""How far one message walks: the calls, functions, files and file switches of each step of its life, counted and not timed.

    python -m bench.walk [--rounds N] [--show STEP]

A real server (the embedded store, journal on, no keys) is asked over one connection, one request at a time; the interpreter's
profile hook notes every call of a function of `veil` on the server's main thread. A file switch is a call whose file is
another one than that of the call before. Whatever runs beside the requests is noise, so of several rounds the one with the
fewest calls counts. `--show` prints the walk of one step, a line for each call.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from bench.contenders import running, scratch, veil_command
from bench.processes import HOST, free_port
from bench.wire_requests import afresh, delete, queue_url, receipts_in, receive, request, send

_PACKAGE: Final = str(Path(__file__).parent.parent / "veil") + os.sep
_QUEUE, _SPENT, _DEAD_LETTERS = "walk", "walk-spent", "walk-dead"
_LAPSE_S: Final = 2.2  # longer than a visibility timeout of one second, and than the tick that follows it


class Walk(NamedTuple):
    """The calls of one step in their order, each a file and a function."""

    step: str
    calls: list[tuple[str, str]]

    @property
    def files(self) -> int:
        return len({file for file, _ in self.calls})

    @property
    def switches(self) -> int:
        return sum(one[0] != other[0] for one, other in zip(self.calls, self.calls[1:], strict=False))


# ---- in the server's process


class _Watch:
    """Notes calls between two signals, and writes them down at the second."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._calls: list[tuple[str, str]] = []

    def start(self, _number: int, _frame: FrameType | None) -> None:
        self._calls = []
        sys.setprofile(self._note)

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        sys.setprofile(None)
        part = self._out.with_suffix(".part")
        part.write_text(json.dumps(self._calls))
        part.rename(self._out)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            code = frame.f_code
            self._calls.append((code.co_filename.removeprefix(_PACKAGE), code.co_qualname))


def _serve(out: Path, arguments: list[str]) -> None:
    from veil.cli.main import main

    watch = _Watch(out)
    signal.signal(signal.SIGUSR1, watch.start)
    signal.signal(signal.SIGUSR2, watch.stop)
    sys.argv = ["veil", *arguments]
    main()


# ---- beside it


class _Client:
    """One connection to a server that can be watched."""

    def __init__(self, port: int, pid: int, out: Path) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=10)
        self._pid, self._out = pid, out

    def ask(self, message: bytes) -> bytes:
        """The body of the answer; raises ValueError for an error."""
        self._socket.sendall(afresh(message))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._socket.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        while len(body) < length:
            body += self._socket.recv(65536)
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise ValueError(f"{head.decode()}: {body.decode()}")
        return body

    def watched(self, step: str, do: Callable[[], object], settle_s: float = 0.1) -> Walk:
        """What the server did meanwhile."""
        os.kill(self._pid, signal.SIGUSR1)
        time.sleep(0.05)
        do()
        time.sleep(settle_s)  # what follows the answer belongs to the step
        os.kill(self._pid, signal.SIGUSR2)
        for _ in range(500):
            if self._out.exists():
                calls = json.loads(self._out.read_text())
                self._out.unlink()
                return Walk(step, [(file, name) for file, name in calls])
            time.sleep(0.01)
        raise TimeoutError("the server did not write down its calls")


def _change_visibility(queue: str, receipt: bytes, visibility_s: int) -> bytes:
    given = {
        "QueueUrl": queue_url(queue),
        "ReceiptHandle": receipt.decode(),
        "VisibilityTimeout": visibility_s,
    }
    return request("ChangeMessageVisibility", given)


def _make_queues(client: _Client) -> None:
    client.ask(request("CreateQueue", {"QueueName": _QUEUE}))
    client.ask(request("CreateQueue", {"QueueName": _DEAD_LETTERS}))
    url = {"QueueUrl": queue_url(_DEAD_LETTERS), "AttributeNames": ["QueueArn"]}
    arn = json.loads(client.ask(request("GetQueueAttributes", url)))["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    attributes = {"RedrivePolicy": policy}
    client.ask(request("CreateQueue", {"QueueName": _SPENT, "Attributes": attributes}))


def _round(client: _Client) -> Iterator[Walk]:
    yield client.watched("SendMessage", lambda: client.ask(send(_QUEUE, 1)))
    answer = b""

    def take() -> None:
        nonlocal answer
        answer = client.ask(receive(_QUEUE, 1, visibility_s=60))

    yield client.watched("ReceiveMessage", take)
    [receipt] = receipts_in(answer)
    yield client.watched(
        "ChangeMessageVisibility", lambda: client.ask(_change_visibility(_QUEUE, receipt, 1))
    )
    yield client.watched("lapse", lambda: None, _LAPSE_S)
    client.ask(send(_SPENT, 1))
    [spent] = receipts_in(client.ask(receive(_SPENT, 1, visibility_s=60)))
    client.ask(_change_visibility(_SPENT, spent, 0))
    yield client.watched("dead-letter", lambda: client.ask(receive(_SPENT, 1)))
    # It waits: on a busy machine the lease has a grace, and lapses later.
    [receipt] = receipts_in(client.ask(receive(_QUEUE, 1, wait_s=20, visibility_s=60)))
    yield client.watched("DeleteMessage", lambda: client.ask(delete(_QUEUE, [receipt])))


@contextmanager
def _server(build: Path) -> Iterator[_Client]:
    port = free_port()
    with scratch(build) as directory:
        out = directory / "calls"
        serve = veil_command(directory / "data", port, "--journal-interval-s", "3600")
        command = [sys.executable, "-m", "bench.walk", "--serve", str(out), "--", *serve[3:]]
        with running(command, port, build / "walk.log") as pid:
            yield _Client(port, pid, out)


def walks(rounds: int, build: Path) -> list[Walk]:
    """The walk of each step, by the round in which it had the fewest calls."""
    best: dict[str, Walk] = {}
    with _server(build) as client:
        _make_queues(client)
        for _ in _round(client):
            pass  # what is imported or made with the first request is no part of the walk
        for _ in range(rounds):
            for walk in _round(client):
                known = best.get(walk.step)
                if known is None or len(walk.calls) < len(known.calls):
                    best[walk.step] = walk
    return list(best.values())


def main() -> None:
    """Count, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--show", metavar="STEP", help="print every call of this step")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        _serve(given.serve, given.arguments)
        return
    found = walks(given.rounds, given.build)
    for walk in found:
        if walk.step == given.show:
            print("\n".join(f"{file}: {name}" for file, name in walk.calls), end="\n\n")
    print(f"{'step':<26}{'calls':>7}{'functions':>11}{'files':>7}{'file switches':>15}")
    for walk in found:
        functions = len(set(walk.calls))
        print(f"{walk.step:<26}{len(walk.calls):>7}{functions:>11}{walk.files:>7}{walk.switches:>15}")


if __name__ == "__main__":
    main()
