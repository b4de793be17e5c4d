"""What the console costs the data plane: the whole life of a message without it, with it, and while people look.

    python -m bench.console_cost [--rounds N] [--seconds S] [--connections N] [--readers N] [--out FILE]

Three servers take turns: `off` has no console, `unseen` has one that nobody opens (it notes who holds what), and `open`
has readers on its live pages all the time. The ratios are those of a round to the round without a console in the same
turn: of messages per second, and of the server's CPU time for a message.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from bench.contenders import Contender, running, scratch, veil_command
from bench.generator import LIFE, Figure, Lap, generator, run_lap, warm_up
from bench.processes import HOST, free_port

OFF, UNSEEN, OPEN = "off", "unseen", "open"
BATCHES: Final = (1, 10)
AIM: Final = 0.98
_LAPS_MAX: Final = 10
_LIVE_PAGES: Final = (
    "/console/overview/live",
    "/console/queues/live",
    "/console/queues/live?sort=visible",
    "/console/consumers/live",
)


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one server, and of its ratios to the one without a console."""

    batch: int
    console: str
    messages_per_s: float
    cpu_us_per_message: float
    of_off: float
    cpu_of_off: float


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if an open console costs more than it may."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.console_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each timed round (2)")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--readers", type=int, default=10, help="open live pages (10)")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--out", type=Path, default=Path("build/console-cost.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    rows = _measure(given.build, given.rounds, given.seconds, given.connections, given.readers)
    print(f"the whole life of a message, {given.connections} at a time, median of {given.rounds} rounds;")
    print(f"open: {given.readers} live pages\n")
    print(f"{'batch':>5}  {'console':8}{'msg/s':>9}{'CPU µs/msg':>12}{'of off':>8}{'CPU of off':>12}")
    for row in rows:
        print(
            f"{row.batch:>5}  {row.console:8}{row.messages_per_s:>9,.0f}{row.cpu_us_per_message:>12.1f}"
            f"{row.of_off:>8.3f}{row.cpu_of_off:>12.3f}"
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    # By CPU time: what others do on the machine meanwhile changes the rates of both, but hardly that.
    return 0 if all(row.cpu_of_off <= 2 - AIM for row in rows if row.console == OPEN) else 1


def _measure(build: Path, rounds: int, seconds: float, connections: int, readers: int) -> list[Row]:
    rates: dict[tuple[int, str], list[float]] = defaultdict(list)
    costs: dict[tuple[int, str], list[float]] = defaultdict(list)
    with _all_running(build) as servers, generator() as load:
        for server in servers:
            load.submit(warm_up, Lap(server.port, server.pid, (LIFE,), 10, connections, 0.5)).result()
        looked_at = next(server for server in servers if server.name == OPEN)
        with _looking(looked_at.port, readers):
            for batch in BATCHES:
                for number in range(rounds):
                    print(f"batches of {batch}, round {number + 1}", file=sys.stderr)
                    # Turned round each time: whoever comes second finds a warmer or a busier machine.
                    for server in servers if number % 2 else servers[::-1]:
                        lap = Lap(server.port, server.pid, (LIFE,), batch, connections, seconds)
                        figure = told(load, lap)
                        rates[batch, server.name].append(figure.messages / figure.seconds)
                        costs[batch, server.name].append(figure.server_cpu_s / figure.messages * 1e6)
    return [
        Row(
            batch,
            name,
            median(rates[batch, name]),
            median(costs[batch, name]),
            median(one / off for one, off in zip(rates[batch, name], rates[batch, OFF], strict=True)),
            median(one / off for one, off in zip(costs[batch, name], costs[batch, OFF], strict=True)),
        )
        for batch in BATCHES
        for name in (OFF, UNSEEN, OPEN)
    ]


def told(load: Executor, lap: Lap) -> Figure:
    """What the lap came to; one in which a busy machine let no message through tells nothing, and is run again."""
    for _ in range(_LAPS_MAX):
        (figure,) = load.submit(run_lap, lap).result()
        if figure.messages and figure.server_cpu_s:
            return figure
    raise RuntimeError(f"no message came through in {_LAPS_MAX} laps of {lap.seconds} s")


@contextlib.contextmanager
def _all_running(build: Path) -> Iterator[list[Contender]]:
    with contextlib.ExitStack() as stack:
        servers = []
        for name in (OFF, UNSEEN, OPEN):
            port, data = free_port(), stack.enter_context(scratch(build))
            command = veil_command(data, port, "--console", "off" if name == OFF else "on")
            pid = stack.enter_context(running(command, port, build / f"console-{name}.log"))
            servers.append(Contender(name, name, port, pid))
        yield servers


@contextlib.contextmanager
def _looking(port: int, readers: int) -> Iterator[None]:
    """So many live pages are open meanwhile, and read."""
    connections = [http.client.HTTPConnection(HOST, port, timeout=30) for _ in range(readers)]
    threads = []
    for number, connection in enumerate(connections):
        connection.request("GET", _LIVE_PAGES[number % len(_LIVE_PAGES)])
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{_LIVE_PAGES[number % len(_LIVE_PAGES)]}: {answer.status}")
        threads.append(threading.Thread(target=_read, args=(answer,), daemon=True))
        threads[-1].start()
    try:
        yield
    finally:
        for connection in connections:
            if connection.sock is not None:
                connection.sock.close()
            connection.close()


def _read(answer: http.client.HTTPResponse) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        while answer.read1(65536):
            pass


if __name__ == "__main__":
    sys.exit(main())
