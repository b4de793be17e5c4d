"""The demo on a bad machine: whatever it can show holds, and what it cannot is told and is no error.

Some runs go beside a process that writes and syncs two gigabytes in a loop, and others that keep every core busy.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.faults.rig import Outcome

RUNS = 20
_HOG_BYTES = 2 << 30
_WITHIN_S = 900.0
_WRITER = """
import os, sys
piece = os.urandom(1 << 20)
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(int(sys.argv[2]) >> 20):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
"""


@contextlib.contextmanager
def _bad_machine(place: Path) -> Iterator[None]:
    commands = [["-c", _WRITER, str(place / "hog"), str(_HOG_BYTES)]]
    commands += [["-c", "while True: pass"]] * (os.cpu_count() or 1)
    hogs = [subprocess.Popen([sys.executable, *command]) for command in commands]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def run_demos(runs: int = RUNS, seed: int = 1) -> Outcome:
    """Run the whole demo so many times, every second time on a machine that is made bad."""
    outcome = Outcome("demo", seed)
    held = not_shown = 0
    for number in range(runs):
        with tempfile.TemporaryDirectory(prefix="veil-demo-rig-") as folder:
            place = Path(folder)
            command = [sys.executable, "-m", "veil.cli.main", "demo", "--out", str(place / "shop")]
            with _bad_machine(place) if number % 2 else contextlib.nullcontext():
                ran = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
            if ran.returncode:
                outcome.add("failed", f"run {number}: {ran.stderr[-500:]}")
                continue
            told = json.loads((place / "shop" / "summary.json").read_text())["demo"]
            held += not told["not_shown"]
            not_shown += len(told["not_shown"])
    outcome.done = f"{runs} demos, all claims held in {held}, {not_shown} claims could not be shown"
    return outcome
