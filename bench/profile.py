"""Where the server's time goes, request by request: for finding what holds the rate.

    python -m bench.profile [--parts send receive delete] [--batches 1 10] [--connections 128] [--how sample|trace]

`sample` looks at the stack after every millisecond of CPU time, costs next to nothing and gives microseconds that
are true; time inside C is that of the Python line that called it. `trace` is cProfile: exact counts, but each call
costs extra, so many small functions look dearer than they are.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import pstats
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from bench.contenders import running, scratch, veil_command
from bench.generator import PARTS, Lap, generator, run_lap
from bench.processes import free_port

_EVERY_S = 0.001
_TOP = 32


class _Sampler:
    """Counts, in the server's process, which functions the main thread was in."""

    def __init__(self) -> None:
        self.own: Counter[str] = Counter()
        self.within: Counter[str] = Counter()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _EVERY_S, _EVERY_S)

    def stop(self, out: Path) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write_text(json.dumps({"own": self.own, "within": self.within}))

    def _look(self, number: int, frame: FrameType | None) -> None:
        if frame is not None:
            self.own[_name(frame)] += 1
        seen: set[str] = set()
        while frame is not None:
            seen.add(_name(frame))
            frame = frame.f_back
        self.within.update(seen)


class _Tracer:
    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    def start(self) -> None:
        self._profile.enable()

    def stop(self, out: Path) -> None:
        self._profile.disable()
        self._profile.dump_stats(out)


def _name(frame: FrameType) -> str:
    code = frame.f_code
    path = Path(code.co_filename)
    return f"{'/'.join(path.parts[-3:])}:{code.co_qualname}"


def _serve(how: str, out: Path, arguments: list[str]) -> None:
    """Run the server in this process; SIGUSR1 starts the watch, SIGUSR2 ends it and writes what was seen."""
    from veil.cli.main import main

    watch = _Sampler() if how == "sample" else _Tracer()
    signal.signal(signal.SIGUSR1, lambda number, frame: watch.start())

    def stop(number: int, frame: FrameType | None) -> None:
        watch.stop(out.with_suffix(".part"))
        out.with_suffix(".part").rename(out)

    signal.signal(signal.SIGUSR2, stop)
    sys.argv = ["veil", *arguments]
    main()


@contextmanager
def _watched(how: str, build: Path) -> Iterator[tuple[int, int, Path]]:
    """A server that can be watched: its port, its process and where it will write."""
    port = free_port()
    with scratch(build) as directory:
        out = directory / "profile"
        serve = veil_command(directory / "data", port)
        command = [
            sys.executable,
            "-m",
            "bench.profile",
            "--serve",
            how,
            "--into",
            str(out),
            "--",
            *serve[3:],
        ]
        with running(command, port, build / "profile.log") as pid:
            yield port, pid, out


def profile(part: str, batch: int, connections: int, seconds: float, how: str, build: Path) -> str:
    """The costliest functions of one part, as a table."""
    with _watched(how, build) as (port, pid, out), generator() as load:
        # The warm-up also fills in what the part needs, so that the watch sees nothing else.
        load.submit(run_lap, Lap(port, pid, (part,), batch, connections, 0.3)).result()
        lap = Lap(port, pid, (part,), batch, connections, seconds, watch=True)
        (figure,) = load.submit(run_lap, lap).result()
        cpu_us = figure.server_cpu_s / figure.requests * 1e6
        head = (
            f"{part} of {batch} at {connections} connections: {figure.requests / figure.seconds:,.0f} req/s, "
            f"{cpu_us:.0f} µs of server CPU a request"
        )
        _await(out)
        body = _sampled(out, cpu_us) if how == "sample" else _traced(out)
        return f"{head}\n{body}"


def _await(out: Path) -> None:
    for _ in range(200):
        if out.exists():
            return
        time.sleep(0.02)
    raise TimeoutError(f"{out.name}: expected the server to have written it")


def _sampled(out: Path, cpu_us: float) -> str:
    counts = json.loads(out.read_text())
    total = sum(counts["own"].values())
    lines = [f"{total} samples", f"{'within µs':>10} {'own µs':>8}  function"]
    # What every stack has in common is only the way to the event loop.
    parted = [item for item in counts["within"].items() if item[1] < total or item[0].endswith("Runner.run")]
    for name, within in sorted(parted, key=lambda item: -item[1])[:_TOP]:
        own = counts["own"].get(name, 0)
        lines.append(f"{within / total * cpu_us:10.1f} {own / total * cpu_us:8.1f}  {name}")
    return "\n".join(lines)


def _traced(out: Path) -> str:
    text = io.StringIO()
    pstats.Stats(str(out), stream=text).strip_dirs().sort_stats("tottime").print_stats(_TOP)
    return text.getvalue()


def main() -> None:
    """Profile what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["send", "receive", "delete"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--how", choices=("sample", "trace"), default="sample")
    parser.add_argument("--serve", choices=("sample", "trace"), help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        _serve(given.serve, given.into, given.arguments)
        return
    for batch in given.batches:
        for part in given.parts:
            print(
                profile(part, batch, given.connections, given.seconds, given.how, Path("build")), end="\n\n"
            )


if __name__ == "__main__":
    main()
