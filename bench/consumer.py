"""Messages a second through handlers that do nothing: Veil's consumer beside a boto3 loop, aiobotocore and celery.

    python -m bench.consumer [--messages N] [--rounds N] [--concurrency N ...] [--contenders NAME ...] [--out FILE]
    python -m bench.consumer --profile N

All of them empty a queue of the same length on the same `veil serve`, in turns, each in a process of its own. aiobotocore and
celery get an environment of their own, `build/peers`, with the versions pinned in `bench/consumer_peers.py`. `--profile` shows
instead where the time of Veil's consumer goes at that concurrency.
"""

from __future__ import annotations

import argparse
import json
import platform
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from os import cpu_count
from pathlib import Path
from statistics import median
from typing import Any

import boto3

from bench import wire_requests as wire
from bench.consumer_peers import CELERY, NAMES, PINNED, VEIL, Peer, peer
from bench.consumer_trial import Trial, TrialFailed, fill, trial
from bench.contenders import running, scratch, veil_command
from bench.processes import HOST, await_rest, free_port

BUILD = Path("build")
_CELERY_SHARE = (
    5  # it is slower by an order: a fifth of the messages gives its rate as well, and an end of the run
)
Trials = dict[tuple[int, str], list[Trial]]


class Bench:
    """A server, and queues to be emptied."""

    def __init__(self, port: int, server_pid: int) -> None:
        self.endpoint, self._server_pid = f"http://{HOST}:{port}", server_pid
        self._client: Any = boto3.client(
            "sqs",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="veil",
            aws_secret_access_key="veil",
        )
        self._queues = 0

    def run(self, command: Callable[[str], list[str]], messages: int, body: str) -> Trial:
        """Empty a new queue of so many messages by the command for its URL."""
        url = self._queue()
        fill(self._client, url, messages, body)
        await_rest(self._server_pid)
        try:
            return trial(self._client, url, command(url), messages, self._server_pid)
        finally:
            self._client.delete_queue(QueueUrl=url)

    def celery_body(self, celery: Peer) -> str:
        """What celery itself sends for the task: nobody else may write it in its name."""
        url = self._queue()
        subprocess.run(celery.command(self.endpoint, url, 0), check=True, capture_output=True, timeout=60)
        (message,) = self._client.receive_message(QueueUrl=url)["Messages"]
        self._client.delete_queue(QueueUrl=url)
        return str(message["Body"])

    def _queue(self) -> str:
        self._queues += 1
        given = {"VisibilityTimeout": "600"}
        return str(self._client.create_queue(QueueName=f"noop-{self._queues}", Attributes=given)["QueueUrl"])


def measure(
    bench: Bench, peers: Sequence[Peer], concurrencies: Sequence[int], messages: int, rounds: int
) -> tuple[Trials, dict[tuple[int, str], str]]:
    """So many rounds, in each of which everyone has a turn; and why some had none."""
    trials: Trials = {}
    failed: dict[tuple[int, str], str] = {}
    bodies = {peer.name: wire.BODY for peer in peers}
    lengths = {peer.name: messages // (_CELERY_SHARE if peer.name == CELERY else 1) for peer in peers}
    for each in peers:
        if each.name == CELERY and each.missing is None:
            bodies[CELERY] = bench.celery_body(each)
    for turn in range(rounds):
        for concurrency in concurrencies:
            for each in peers:
                if each.missing is not None:
                    failed[concurrency, each.name] = each.missing
                    continue
                try:
                    command = partial(_command, each, bench.endpoint, concurrency)
                    found = bench.run(command, lengths[each.name], bodies[each.name])
                except TrialFailed as reason:
                    failed[concurrency, each.name] = str(reason)
                    continue
                trials.setdefault((concurrency, each.name), []).append(found)
                print(
                    f"round {turn + 1}, concurrency {concurrency}: {each.name} {found.messages_per_s:,.0f}/s",
                    file=sys.stderr,
                )
    return trials, failed


def _command(each: Peer, endpoint: str, concurrency: int, url: str) -> list[str]:
    return each.command(endpoint, url, concurrency)


def middle(trials: Sequence[Trial]) -> Trial:
    """The median of each figure."""
    rows = [asdict(each) for each in trials]
    return Trial(**{name: median(row[name] for row in rows) for name in rows[0]})


def table(trials: Trials, failed: dict[tuple[int, str], str]) -> str:
    """A row for each; the ratios are to the fastest other consumer at the same concurrency."""
    lines = [
        f"{'slots':>5}  {'consumer':<12} {'msg/s':>8} {'of best':>8} {'CPU µs/msg':>11} {'of best':>8}"
        f" {'its cores':>10} {'server µs/msg':>14} {'server cores':>13}"
    ]
    rows = {key: middle(each) for key, each in trials.items()}
    for concurrency, name in sorted({*trials, *failed}, key=lambda key: (key[0], NAMES.index(key[1]))):
        row = rows.get((concurrency, name))
        start = f"{concurrency:>5}  {name:<12}"
        remark = failed.get((concurrency, name), "")
        if row is None:
            lines.append(f"{start} {remark}")
            continue
        others = [each for (many, who), each in rows.items() if many == concurrency and who != VEIL]
        best = max(others, key=lambda each: each.messages_per_s, default=row)
        lines.append(
            f"{start} {row.messages_per_s:8,.0f} {row.messages_per_s / best.messages_per_s:8.2f} {row.consumer_us:11,.0f}"
            f" {row.consumer_us / best.consumer_us:8.2f} {row.consumer_cores:10.2f} {row.server_us:14,.0f}"
            f" {row.server_cores:13.2f} {remark}".rstrip()
        )
    return "\n".join(lines)


def profile(bench: Bench, concurrency: int, messages: int) -> None:
    """Print where the time of Veil's consumer goes, by the time within each function."""
    file = BUILD / "consumer.prof"
    found = bench.run(
        lambda url: [*peer(VEIL, BUILD).command(bench.endpoint, url, concurrency), str(file)],
        messages,
        wire.BODY,
    )
    print(f"{found.messages_per_s:,.0f} messages/s under the profiler, which makes calls dear")
    pstats.Stats(str(file)).strip_dirs().sort_stats("tottime").print_stats(30)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 when a consumer that could be had failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.consumer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=20_000, help="in the queue of each trial (20000)")
    parser.add_argument("--rounds", type=int, default=3, help="the table shows their median (3)")
    parser.add_argument(
        "--concurrency", nargs="+", type=int, default=[1, 10, 100], metavar="N", help="1 10 100"
    )
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME")
    parser.add_argument(
        "--profile", type=int, metavar="N", help="profile Veil's consumer at this concurrency instead"
    )
    parser.add_argument("--out", type=Path, default=BUILD / "consumer.json", metavar="FILE")
    given = parser.parse_args(arguments)
    peers = [peer(name, BUILD) for name in NAMES if name in given.contenders]
    port = free_port()
    begun_s = time.monotonic()
    with (
        scratch(BUILD) as data,
        running(veil_command(data, port), port, BUILD / "consumer-server.log") as pid,
    ):
        bench = Bench(port, pid)
        if given.profile is not None:
            profile(bench, given.profile, given.messages)
            return 0
        trials, failed = measure(bench, peers, given.concurrency, given.messages, given.rounds)
    facts = {
        "cores": cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "boto3": boto3.__version__,
        "peers": PINNED,
        "messages": given.messages,
        "rounds": given.rounds,
    }
    rows = [
        {"concurrency": key[0], "consumer": key[1], "trials": [asdict(each) for each in rows]}
        for key, rows in trials.items()
    ]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")
    print(
        f"{facts['cores']} cores for server and consumer together, {facts['machine']}, Python {facts['python']}, boto3"
        f" {facts['boto3']}, {', '.join(PINNED)}; {given.messages:,} messages, median of {given.rounds} rounds\n"
    )
    print(table(trials, failed))
    print(f"{time.monotonic() - begun_s:.0f} s; all figures: {given.out}", file=sys.stderr)
    missing = {each.name for each in peers if each.missing is not None}
    return 1 if any(name not in missing for _, name in failed) else 0


if __name__ == "__main__":
    sys.exit(main())
