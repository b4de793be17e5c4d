"""What a request costs the server here and in another checkout: CPU time of both in turns, in one run.

    python -m bench.beside OTHER [--parts PART ...] [--batch N] [--connections N] [--rounds N] [--seconds S]

OTHER is the directory of a checkout with a virtual environment of its own in `.venv`. The rounds are short and alternate, so
that whatever else the machine does slows both down; the ratio is the median of those of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from bench.contenders import Contender, running, scratch, veil_command
from bench.generator import LIFE, PARTS, Lap, generator, run_lap, warm_up
from bench.processes import free_port

HERE, OTHER = "here", "other"


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[part for part in PARTS if part != LIFE])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--build", type=Path, default=Path("build"))
    given = parser.parse_args(arguments)
    costs_us: dict[tuple[str, str], list[float]] = defaultdict(list)
    pythons = {HERE: Path(sys.executable), OTHER: given.other.absolute() / ".venv" / "bin" / "python"}
    with contextlib.ExitStack() as stack:
        servers = []
        for name, python in pythons.items():
            port, data = free_port(), stack.enter_context(scratch(given.build))
            # -P: the package is the one that the environment has, not the one in the present directory.
            command = [str(python), "-P", *veil_command(data, port)[1:]]
            pid = stack.enter_context(running(command, port, given.build / f"beside-{name}.log"))
            servers.append(Contender(name, name, port, pid))
        load = stack.enter_context(generator())
        parts = tuple(given.parts)
        for server in servers:
            lap = Lap(server.port, server.pid, parts, given.batch, given.connections, given.seconds)
            load.submit(warm_up, lap).result()
        for number in range(given.rounds):
            for server in servers if number % 2 else servers[::-1]:
                lap = Lap(server.port, server.pid, parts, given.batch, given.connections, given.seconds)
                for figure in load.submit(run_lap, lap).result():
                    costs_us[figure.part, server.name].append(figure.server_cpu_s / figure.requests * 1e6)
    print(
        f"CPU µs a request, {given.connections} connections, {given.batch} a request, {given.rounds} rounds\n"
    )
    print(f"{'part':<10}{'other':>10}{'here':>10}{'here/other':>12}")
    for part in given.parts:
        here, other = costs_us[part, HERE], costs_us[part, OTHER]
        ratio = median(one / base for one, base in zip(here, other, strict=True))
        print(f"{part:<10}{median(other):>10.1f}{median(here):>10.1f}{ratio:>12.3f}")


if __name__ == "__main__":
    main()
