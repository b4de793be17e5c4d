"""What a large queue costs: receives, memory and the start, with a million messages waiting and many in flight.

    python -m bench.growth [--backlog 1000000] [--in-flight 100000] [--rounds 15]

Two servers run side by side, one with the large queues and one with a small one, and are measured in turns. The rate
of a short receive is at the mercy of whatever else the machine does, so the server's CPU time stands beside it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import wire_requests as wire
from bench.contenders import running, scratch, veil_command
from bench.load import LoadResult, run_load
from bench.processes import HOST, await_listening, await_rest, free_port, process_cpu_ns, rss_mb

SMALL = 1_000
_TAKEN = 400  # by one round: the small queue must not run dry under the measurement
_CONNECTIONS = 16
_FILL_CONNECTIONS = 64

RATIO_MAX = 1.3
MORE_MB_MAX = 50.0
READY_S_MAX = 2.0


@dataclass(slots=True)
class _Receives:
    """The rounds of receives on one queue."""

    port: int
    pid: int
    queue: str
    per_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def round(self) -> None:
        """Receive a few hundred one by one, on the clock; then delete them and send as many, off it."""
        bodies: list[bytes] = []
        request = wire.receive(self.queue, 1)
        cpu_ns = process_cpu_ns(self.pid)
        result = run_load(
            HOST, self.port, _CONNECTIONS, _so_many(request, _TAKEN), lambda _, status, body: bodies.append(body), seconds=60
        )  # fmt: skip
        cpu_ns = process_cpu_ns(self.pid) - cpu_ns
        self.per_s.append(result.per_second)
        self.cpu_us.append(cpu_ns / 1000 / max(1, result.requests))
        receipts = [receipt for body in bodies for receipt in wire.receipts_in(body)]
        if len(receipts) != len(bodies):
            raise RuntimeError(f"queue={self.queue}: {len(bodies) - len(receipts)} receives found nothing")
        deletes = [wire.delete(self.queue, receipts[at : at + 10]) for at in range(0, len(receipts), 10)]
        run_load(HOST, self.port, 4, lambda _: deletes.pop() if deletes else None, seconds=60)
        _fill(self.port, self.queue, len(receipts))


def _so_many(request: bytes, count: int) -> Callable[[int], bytes | None]:
    left = count

    def next_request(_: int) -> bytes | None:
        nonlocal left
        left -= 1
        return request if left >= 0 else None

    return next_request


def _ask(port: int, request: bytes) -> None:
    _good(run_load(HOST, port, 1, lambda _: request, requests=1))


def _good(result: LoadResult) -> None:
    if result.errors:
        raise RuntimeError(f"{result.errors} of {result.requests} requests failed: expected none")


def _fill(port: int, queue: str, messages: int) -> float:
    """Send so many in batches of ten over many connections; how long it took."""
    request = wire.send(queue, 10)
    begun_s = time.monotonic()
    if messages:
        _good(
            run_load(
                HOST, port, _FILL_CONNECTIONS, lambda _: wire.afresh(request), requests=-(-messages // 10)
            )
        )
    return time.monotonic() - begun_s


def _take(port: int, queue: str, messages: int) -> None:
    """Receive so many and keep them in flight."""
    request = wire.receive(queue, 10)
    if messages:
        _good(run_load(HOST, port, _CONNECTIONS, lambda _: request, requests=messages // 10))


def _compare(title: str, grown: _Receives, small: _Receives) -> bool:
    rate, cost = median(small.per_s) / median(grown.per_s), median(grown.cpu_us) / median(small.cpu_us)
    print(
        f"{title}: {median(grown.per_s):,.0f} receives/s against {median(small.per_s):,.0f}, ratio {rate:.2f} "
        f"(at most {RATIO_MAX}): {_verdict(rate <= RATIO_MAX)}; "
        f"server CPU {median(grown.cpu_us):.0f} µs a receive against {median(small.cpu_us):.0f}, ratio {cost:.2f}"
    )
    return rate <= RATIO_MAX


def _verdict(good: bool) -> str:
    return "good" if good else "TOO MUCH"


def _ready_s(data: Path) -> tuple[float, subprocess.Popen[bytes]]:
    """Start a server on the data and say how long it took until it answered a receive."""
    port = free_port()
    begun_s = time.monotonic()
    process = subprocess.Popen(veil_command(data, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    await_listening(port)
    _ask(port, wire.receive("backlog", 1))
    return time.monotonic() - begun_s, process


def measure(backlog: int, in_flight: int, rounds: int, build: Path) -> bool:
    """Fill, measure, restart and print; True if every bound was kept."""
    good = True
    with scratch(build) as directory:
        data = directory / "large"
        large, small = free_port(), free_port()
        with (
            running(veil_command(data, large), large) as large_pid,
            running(veil_command(directory / "small", small), small) as small_pid,
        ):
            for port, queue in ((large, "backlog"), (large, "in-flight"), (small, "small")):
                _ask(port, wire.create_queue(queue))
            _fill(small, "small", SMALL)
            # Both have worked a little before their memory counts, else the first to work looks greedy.
            _fill(large, "backlog", SMALL)
            await_rest(large_pid)
            empty_mb = rss_mb(large_pid)
            took_s = _fill(large, "backlog", backlog - SMALL)
            await_rest(large_pid)
            full_mb = rss_mb(large_pid)
            print(f"{backlog:,} messages sent in {took_s:.0f} s, {backlog / max(took_s, 1e-9):,.0f}/s")
            more_mb = full_mb - empty_mb
            print(
                f"memory {empty_mb:.0f} MB with {SMALL:,} messages, {full_mb:.0f} MB with {backlog:,}: {more_mb:+.0f} MB "
                f"(at most {MORE_MB_MAX:.0f}): {_verdict(more_mb <= MORE_MB_MAX)}"
            )
            good &= more_mb <= MORE_MB_MAX
            _fill(large, "in-flight", in_flight + SMALL)
            _take(large, "in-flight", in_flight)
            await_rest(large_pid)

            waiting = _Receives(large, large_pid, "backlog")
            flying = _Receives(large, large_pid, "in-flight")
            usual = _Receives(small, small_pid, "small")
            for number in range(rounds + 1):
                for receives in (usual, waiting, flying):
                    receives.round()
                if number == 0:  # the first round warms up
                    for receives in (usual, waiting, flying):
                        receives.per_s.clear()
                        receives.cpu_us.clear()
            good &= _compare(f"backlog of {backlog:,} against {SMALL:,}", waiting, usual)
            good &= _compare(f"{in_flight:,} in flight against none", flying, usual)
            print(f"memory at the end {rss_mb(large_pid):.0f} MB")
        good &= _restarts(data)
    return good


def _restarts(data: Path) -> bool:
    took_s, process = _ready_s(data)
    good = took_s <= READY_S_MAX
    print(f"ready after a stop in {took_s:.2f} s (at most {READY_S_MAX:g}): {_verdict(good)}")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed_s, process = _ready_s(data)
    print(
        f"ready after a kill in {killed_s:.2f} s (at most {READY_S_MAX:g}): {_verdict(killed_s <= READY_S_MAX)}"
    )
    process.terminate()
    process.wait()
    return good and killed_s <= READY_S_MAX


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if a bound was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--in-flight", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args(arguments)
    if given.backlog < SMALL:
        parser.error(f"--backlog {given.backlog}: expected {SMALL} or more")
    return 0 if measure(given.backlog, given.in_flight, given.rounds, Path("build")) else 1


if __name__ == "__main__":
    sys.exit(main())
