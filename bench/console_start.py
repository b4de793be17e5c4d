"""What the console adds to the start of `veil serve`: with it and without, in turns, in one run.

    python -m bench.console_start [--rounds N]

From the start of the process until the server accepts connections. What the first visit costs (the templates are loaded
then) is in `bench.console_pages`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Final

from bench.contenders import running, scratch, veil_command
from bench.processes import free_port

ADDED_MS_MAX: Final = 50.0  # what is aimed at
OFF, ON = "off", "on"


def start_ms(console: str, build: Path) -> float:
    """How long one server took to listen, on new data."""
    port = free_port()
    with scratch(build) as data:
        begun_s = time.monotonic()
        with running(veil_command(data, port, "--console", console), port):
            return (time.monotonic() - begun_s) * 1e3


def main(arguments: list[str] | None = None) -> int:
    """Measure; 1 if the console costs more of the start than it may."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.console_start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--build", type=Path, default=Path("build"))
    given = parser.parse_args(arguments)
    start_ms(OFF, given.build)  # the first one finds nothing in the machine's memory
    took_ms: dict[str, list[float]] = {OFF: [], ON: []}
    for number in range(given.rounds):
        # Turned round each time: whoever comes second finds a warmer or a busier machine.
        for console in (OFF, ON) if number % 2 else (ON, OFF):
            took_ms[console].append(start_ms(console, given.build))
    added_ms = median(on - off for on, off in zip(took_ms[ON], took_ms[OFF], strict=True))
    for console, took in took_ms.items():
        print(
            f"console {console:3}  listening after {median(took):.0f} ms ({min(took):.0f} to {max(took):.0f})"
        )
    print(f"added: {added_ms:+.0f} ms, the median of {given.rounds} pairs (aim: under {ADDED_MS_MAX:g})")
    return 0 if added_ms < ADDED_MS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
