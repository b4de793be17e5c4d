"""A million dead letters analysed, and a hundred thousand of them redriven by a run that is killed three times.

    python -m bench.dead_letters [--letters N] [--redriven N] [--kills N] [--work DIR] [--out FILE]

The dead letters are sent through the API, as consumers send their copies, to a server that keeps them on disk. Then
`veil pipeline dead-letters` and `veil pipeline redrive` run as anybody would run them, each in a process of its own; the
redrive's whole process group is killed (SIGKILL) when it has come a part of its way, and gone on with. Checked: every group
has the count it was made with, each redriven message is in its source once, and every other one is where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.processes import rss_mb
from veil.pipeline.dead_letters.queue import DeadLetterQueue
from veil.pipeline.queues import QueueAddress
from veil.testing import VeilServer

DEAD, SOURCE = "orders-dead", "orders"
# Error type, text with what differs from message to message, and how many of a hundred.
ERRORS = (
    ("TimeoutError", "no answer from 10.0.{a}.{b}:5432 within {a} s", 30),
    ("shop.Declined", "card of customer {n} was declined: code {a}", 25),
    ("KeyError", "'field_{n}'", 15),
    ("OSError", "cannot write /var/spool/{n}/{b}.tmp", 10),
    ("shop.Unknown", "no article 7c9e6679-7425-40de-944b-{n:012x}", 10),
    (None, None, 10),  # received too often, and nobody wrote why
)
TYPES = ("payment", "shipping", "refund")
_SLICE = 20_000
Figures = dict[str, Any]


def error_of(number: int) -> tuple[str | None, str | None]:
    """Which error the message of that number met."""
    place = number * 37 % 100
    for kind, text, share in ERRORS:
        place -= share
        if place < 0:
            told = text and text.format(a=number % 250, b=number // 250 % 250, n=number)
            return kind, told
    raise AssertionError("the shares come to a hundred")


def entry(number: int) -> dict[str, Any]:
    """A dead letter as a consumer sends it."""
    kind, text = error_of(number)
    told = {"veil.source_queue": SOURCE, "type": TYPES[number % 3], "veil.receive_count": str(3 + number % 5)}
    if kind is not None and text is not None:
        told |= {"veil.error_type": kind, "veil.reason": text}
    return {
        "MessageBody": json.dumps({"order": number, "filler": "x" * 150}),
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value} for name, value in told.items()
        },
    }


def fill(dead: DeadLetterQueue, letters: int) -> None:
    """Send that many."""
    for begin in range(0, letters, _SLICE):
        entries = [entry(number) for number in range(begin, min(begin + _SLICE, letters))]
        failed = [each for each in dead.send(entries) if not isinstance(each, str)]
        if failed:
            raise SystemExit(f"{len(failed)} messages could not be sent: {failed[0]}")
        print(f"\r{begin + len(entries):,} sent", end="", file=sys.stderr)
    print(file=sys.stderr)


def numbers_in(queue: DeadLetterQueue) -> Iterator[int]:
    """The numbers of all messages in the queue, without receiving any."""
    token: str | None = None
    while True:
        page = queue.peek(1_000, token=token)
        for message in page.messages or ():
            yield int(json.loads(message.body)["order"])
        token = page.next_token
        if token is None:
            return


def veil(server: VeilServer, tables: Path, *arguments: str) -> list[str]:
    """The command line of a job."""
    command = [sys.executable, "-m", "veil.cli.main", "pipeline", *arguments]
    return [*command, "--endpoint", server.endpoint_url, "--tables", str(tables), "--json"]


def analyse(server: VeilServer, tables: Path, letters: int) -> Figures:
    """Run the analysis and compare the groups with what was made."""
    begun_s = time.monotonic()
    ran = subprocess.run(
        veil(server, tables, "dead-letters", DEAD), capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - begun_s
    if ran.returncode != 0:
        raise SystemExit(ran.stderr)
    groups = [json.loads(line) for line in ran.stdout.splitlines()]
    found = Counter[tuple[str, str | None]]()
    for group in groups:
        found[group["message_type"], group["error_type"]] += group["messages"]
    expected = Counter((TYPES[number % 3], error_of(number)[0]) for number in range(letters))
    return {
        "letters": letters,
        "groups": len(groups),
        "seconds": round(seconds, 1),
        # The largest of the command's own processes: a JVM or a Python.
        "largest_process_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
        "server_mb": round(rss_mb(server.pid)),
        "exact": found == expected and len(groups) == len(expected),
    }


def redrive(
    server: VeilServer, tables: Path, dead: DeadLetterQueue, letters: int, redriven: int, kills: int
) -> Figures:
    """Redrive the first ones, killed so often on the way, and look where everything is."""
    where = f"cast(get_json_object(body, '$.order') as int) < {redriven}"
    begun_s = time.monotonic()
    arguments = ["redrive", DEAD, "--where", where, "--yes"]
    killed_at = []
    for number in range(1, kills + 1):
        killed_at.append(_killed(veil(server, tables, *arguments), tables, redriven * number // (kills + 1)))
        (run,) = (tables / "redrives").iterdir()
        arguments = ["redrive", "--resume", run.name]
    ran = subprocess.run(veil(server, tables, *arguments), capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begun_s
    if ran.returncode != 0:
        raise SystemExit(ran.stderr)
    told = json.loads(ran.stdout)
    with DeadLetterQueue(QueueAddress(SOURCE, endpoint=server.endpoint_url)) as source:
        arrived = Counter(numbers_in(source))
    left = Counter(numbers_in(dead))
    return {
        "redriven": redriven,
        "killed_at": killed_at,
        "seconds": round(seconds, 1),
        "moved": told["moved"],
        "lost": letters - len(arrived | left),
        "doubled": arrived.total() + left.total() - len(arrived | left),
        "exact": set(arrived) == set(range(redriven))
        and set(left) == set(range(redriven, letters))
        and arrived.total() + left.total() == letters
        and told["moved"] == redriven,
    }


def _killed(command: list[str], tables: Path, after: int) -> int:
    """Run the command until so many are settled, and kill it with all its processes; how many were noted by then."""
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while (settled := _settled(tables)) < after:
                if process.poll() is not None:
                    said = process.stderr.read() if process.stderr else ""
                    raise SystemExit(f"it ended before it was killed: {said}")
                time.sleep(0.001)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    print(f"killed after {settled:,}", file=sys.stderr)
    return settled


def _settled(tables: Path) -> int:
    for path in tables.glob("redrives/*/progress.json"):
        noted = json.loads(path.read_bytes())
        return int(noted["moved"] + noted["gone"] + sum(noted["left"].values()))
    return -1


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for; 1 if anything was not exact."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.dead_letters", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--letters", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--redriven", type=int, default=100_000, metavar="N")
    parser.add_argument("--kills", type=int, default=3, metavar="N")
    parser.add_argument("--work", type=Path, default=Path("build/dead-letters"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("build/dead-letters.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    if not 0 < given.redriven <= given.letters:
        parser.error(f"--redriven {given.redriven}: expected 1 to --letters ({given.letters})")
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    tables = given.work.absolute() / "tables"
    with VeilServer("--store", "sqlite", "--data", str(given.work / "data")) as server:
        client = server.client()
        for name in (SOURCE, DEAD):
            client.create_queue(QueueName=name)
        with DeadLetterQueue(QueueAddress(DEAD, endpoint=server.endpoint_url)) as dead:
            begun_s = time.monotonic()
            fill(dead, given.letters)
            filled_s = time.monotonic() - begun_s
            figures: Figures = {
                "cores": os.cpu_count(),
                "python": platform.python_version(),
                "filled_s": round(filled_s, 1),
                "analysis": analyse(server, tables, given.letters),
            }
            figures["redrive"] = redrive(server, tables, dead, given.letters, given.redriven, given.kills)
    shutil.rmtree(given.work, ignore_errors=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(figures, indent=1) + "\n")
    analysis, redriven = figures["analysis"], figures["redrive"]
    print(
        f"{analysis['letters']:,} dead letters in {analysis['groups']} groups: {analysis['seconds']} s, largest process "
        f"{analysis['largest_process_mb']:,} MB, {'exact' if analysis['exact'] else 'WRONG'}\n"
        f"{redriven['redriven']:,} redriven, killed at {redriven['killed_at']}: {redriven['seconds']} s with "
        f"{len(redriven['killed_at']) + 1} starts, lost {redriven['lost']}, doubled {redriven['doubled']}, "
        f"{'exact' if redriven['exact'] else 'WRONG'}"
    )
    print(f"all figures: {given.out}", file=sys.stderr)
    return 0 if analysis["exact"] and redriven["exact"] else 1


if __name__ == "__main__":
    sys.exit(main())
