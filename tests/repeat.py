"""`python -m tests.repeat 20 --busy 5`: run `make test` so often, the last ones beside busy loops; tell what failed.

A test that fails in one run of twenty is wrong, whatever the machine did meanwhile. Each run is recorded under build/ with its
commit, so the runs of one commit may be made in several sittings: a sitting makes those that are missing, and tells of all.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build" / "repeat"
RECORD: Final = FOLDER / "runs.jsonl"


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


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_once(commit: str, number: int, is_busy: bool) -> dict[str, Any]:
    """Run `make test`: what the record keeps of it."""
    log = FOLDER / f"{commit[:10]}-{number}.log"
    began, began_s, before_s = time.strftime("%FT%TZ", time.gmtime()), time.monotonic(), _children_s()
    with busy_cores((os.cpu_count() or 1) if is_busy else 0), log.open("w") as output:
        code = subprocess.run(["make", "test"], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT).returncode
        used_s = _children_s() - before_s  # the busy loops are not counted before they are joined
    return {
        "commit": commit,
        "began": began,
        "busy": is_busy,
        "seconds": round(time.monotonic() - began_s),
        "cpu_s": round(used_s),
        "passed": code == 0,
        "failed": re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.M),
    }


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.repeat", description=__doc__)
    words.add_argument("runs", type=int, nargs="?", default=20)
    words.add_argument("--busy", type=int, default=5, help="how many of them beside busy loops (default 5)")
    given = words.parse_args()
    if _git("status", "--porcelain"):
        sys.exit("Commit first: the record names the commit that was run.")
    commit = _git("rev-parse", "HEAD")
    FOLDER.mkdir(parents=True, exist_ok=True)
    recorded = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
    runs = [run for run in recorded if run["commit"] == commit]
    print(f"commit {commit[:10]}: {len(runs)} runs recorded in {RECORD}, where the logs are too", flush=True)
    for is_busy, wanted in ((False, given.runs - given.busy), (True, given.busy)):
        for _ in range(wanted - sum(run["busy"] == is_busy for run in runs)):
            run = run_once(commit, len(runs) + 1, is_busy)
            runs.append(run)
            with RECORD.open("a") as record:
                record.write(json.dumps(run) + "\n")
            print(
                f"run {len(runs)}{' beside busy loops' if is_busy else ''}: {run['seconds']} s, {run['cpu_s']} s of CPU, "
                f"{'passed' if run['passed'] else 'FAILED ' + ' '.join(run['failed'])}",
                flush=True,
            )
    failures = sum(not run["passed"] for run in runs)
    print(
        f"{len(runs)} runs since {runs[0]['began']}, {sum(run['busy'] for run in runs)} beside busy loops: {failures} failed"
    )
    for test, count in Counter(test for run in runs for test in run["failed"]).most_common():
        print(f"{count} of {len(runs)}: {test}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
