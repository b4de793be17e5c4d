"""`python -m tests.repeat 20 --busy 5`: run `make test` so often, the last ones beside busy loops; tell what failed.

A test that fails in one run of twenty is wrong, whatever the machine did meanwhile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """So many processes that do nothing, as fast as they can."""
    loops = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _spin() -> None:
    while True:
        pass


def run_once(log: Path) -> tuple[int, list[str]]:
    """Run `make test` into that file: its exit code, and the tests that failed."""
    with log.open("w") as said:
        code = subprocess.run(["make", "test"], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT).returncode
    return code, re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.M)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.repeat", description=__doc__)
    words.add_argument("runs", type=int, nargs="?", default=20)
    words.add_argument("--busy", type=int, default=5, help="how many of them beside busy loops (default 5)")
    given = words.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="veil-repeat-"))
    print(f"logs in {folder}", flush=True)
    failed: Counter[str] = Counter()
    bad_runs = 0
    for number in range(1, given.runs + 1):
        is_busy = number > given.runs - given.busy
        began_s, used_s = time.monotonic(), _children_s()
        with busy_cores((os.cpu_count() or 1) if is_busy else 0):
            code, tests = run_once(folder / f"{number}.log")
        bad_runs += code != 0
        failed.update(tests)
        print(
            f"run {number}{' beside busy loops' if is_busy else ''}: {time.monotonic() - began_s:.0f} s, "
            f"{_children_s() - used_s:.0f} s of CPU, {'passed' if code == 0 else 'FAILED ' + ' '.join(tests)}",
            flush=True,
        )
    for test, count in failed.most_common():
        print(f"{count} of {given.runs}: {test}")
    return 1 if bad_runs else 0


if __name__ == "__main__":
    sys.exit(main())
