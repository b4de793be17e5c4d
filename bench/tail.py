"""How long the slowest requests take while everything else that a server does goes on beside them.

    python -m bench.tail [--connections 128] [--seconds 6] [--backlog 1000000] [--workers N]

Connections send, receive and delete one message after the other: first alone, then while a queue of `--backlog` messages is
purged, the journal is exported every second, ten console pages are open, and checkpoints come as they must. The aim is a 99th
percentile of at most three times the median.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import wire_requests as wire
from bench.contenders import running, scratch, veil_command
from bench.generator import Lap, Lives, generator
from bench.load import LoadResult, run_load
from bench.processes import HOST, free_port

RATIO_MAX: Final = 3.0
_BUSY, _BACKLOG = "busy", "backlog"
_PAGES: Final = (
    "/console/overview",
    "/console/queues",
    f"/console/queues/us-east-1/{_BUSY}/messages",
    f"/console/queues/us-east-1/{_BUSY}/in-flight",
    f"/console/queues/us-east-1/{_BUSY}/activity",
)
_PAGES_OPEN: Final = 10
_LOOK_EVERY_S: Final = 1.0


def lives(port: int, connections: int, seconds: float) -> LoadResult:
    """Whole lives of messages; runs in the generator's process."""
    load = Lives(_BUSY, Lap(port, 0, (), 1, connections, seconds))
    return run_load(HOST, port, connections, load.next_request, load.on_response, seconds=seconds)


def _ask(port: int, request: bytes) -> None:
    run_load(HOST, port, 1, lambda _: request, None, seconds=600, requests=1)


def _fill(port: int, messages: int) -> None:
    request = wire.send(_BACKLOG, 10)
    run_load(HOST, port, 16, lambda _: wire.afresh(request), None, seconds=600, requests=messages // 10)


@contextlib.contextmanager
def _beside(port: int) -> Iterator[list[str]]:
    """A purge, and pages that are looked at once a second; what each came to."""
    ended = threading.Event()
    told: list[str] = []

    def purge() -> None:
        begun_s = time.monotonic()
        _ask(port, wire.request("PurgeQueue", {"QueueUrl": wire.queue_url(_BACKLOG)}))
        told.append(f"the purge took {time.monotonic() - begun_s:.1f} s")

    def look(path: str) -> None:
        while not ended.is_set():
            page = http.client.HTTPConnection(HOST, port, timeout=60)
            page.request("GET", path)
            status = page.getresponse().status
            page.close()
            if status != 200:
                told.append(f"{path}: {status}")
                return
            ended.wait(_LOOK_EVERY_S)

    threads = [threading.Thread(target=purge)]
    threads += [threading.Thread(target=look, args=(_PAGES[n % len(_PAGES)],)) for n in range(_PAGES_OPEN)]
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; 1 where the aim is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tail", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--build", type=Path, default=Path("build"))
    given = parser.parse_args(arguments)
    port = free_port()
    with scratch(given.build) as data, contextlib.ExitStack() as stack:
        more = ["--journal-interval-s", "1", "--workers", str(given.workers)]
        stack.enter_context(running(veil_command(data, port, *more), port, given.build / "tail.log"))
        load = stack.enter_context(generator())
        for queue in (_BUSY, _BACKLOG):
            _ask(port, wire.create_queue(queue))
        print(f"storing {given.backlog:,} messages", file=sys.stderr)
        _fill(port, given.backlog)
        asked = (port, given.connections, given.seconds)
        load.submit(lives, port, given.connections, 1.0).result()  # warms up
        results = {"alone": load.submit(lives, *asked).result()}
        with _beside(port) as told:
            results["beside"] = load.submit(lives, *asked).result()
    print(
        f"{given.connections} connections, {given.seconds:g} s, {given.workers} worker(s); {'; '.join(told)}\n"
    )
    print(f"{'':<10}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'p99/p50':>10}{'errors':>8}")
    for name, result in results.items():
        ratio = result.p99_ms / result.p50_ms
        print(
            f"{name:<10}{result.per_second:>12,.0f}{result.p50_ms:>10.2f}{result.p99_ms:>10.2f}{ratio:>10.1f}{result.errors:>8}"
        )
    beside = results["beside"]
    return int(beside.p99_ms > RATIO_MAX * beside.p50_ms)


if __name__ == "__main__":
    sys.exit(main())
