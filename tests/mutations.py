"""`python -m tests.mutations`: does `make quick` notice when a rule of the core is wrong?

Each rule is broken by itself, in a copy of the repository, and `make quick` must fail there. Names the test that noticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
LEFT_OUT: Final = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "site")


class Mutation(NamedTuple):
    """A rule, and how it is broken: `before` stands once in its file."""

    rule: str
    file: str
    before: str
    after: str


MUTATIONS: Final = (
    Mutation("spent at maxReceiveCount", "decide.py", "message.receive_count >= spent_at", "message.receive_count > spent_at"),
    Mutation("twelve hours, included", "lease.py", "deadline_ms > lease_end_ms(", "deadline_ms >= lease_end_ms("),
    Mutation("the in-flight limit", "decide.py", "if left <= 0 and not hold", "if left < 0 and not hold"),
    Mutation("five minutes of deduplication", "limits.py", "DEDUPLICATION_MS: Final = 5 *", "DEDUPLICATION_MS: Final = 4 *"),
    Mutation("visible at the deadline", "lease.py", "State.IN_FLIGHT and (message.due_at_ms or 0) > now_ms",
             "State.IN_FLIGHT and (message.due_at_ms or 0) >= now_ms"),
    Mutation("the delay of a send", "decide.py", "_DELAYED, now_ms + delay_s * SECOND_MS,", "_DELAYED, now_ms + delay_s,"),
    Mutation("the end of retention", "sequence.py", "return instant_of(seq) + retention_s * 1000",
             "return instant_of(seq) + retention_s * 1000 + 1"),
    Mutation("no order key twice", "sequence.py", "if seq <= self.last:", "if seq < self.last:"),
    Mutation("a replaced receipt extends nothing", "lease.py", "if held.holder != receipt.holder:",
             "if held.holder > receipt.holder + 1:"),
    Mutation("more than a tenth is noisy", "sequence.py", "count * 100 > total_in_flight", "count * 100 >= total_in_flight"),
    Mutation("FIFO dead letters swallow no other", "decide.py", "message.message_id if target.settings.fifo",
             "message.deduplication_id if target.settings.fifo"),
    Mutation("an undone receive does not count", "decide.py", "_visible(message), message.receive_count - 1",
             "_visible(message), message.receive_count"),
)  # fmt: skip


def caught_by(mutation: Mutation | None) -> str | None:
    """The test of `make quick` that fails first where this rule is broken, or none; None where all pass."""
    with tempfile.TemporaryDirectory(prefix="veil-mutation-") as folder:
        place = Path(folder) / "veil"
        shutil.copytree(ROOT, place, ignore=LEFT_OUT)
        (place / ".venv").symlink_to(ROOT / ".venv")
        if mutation is not None:
            file = place / "veil" / "core" / mutation.file
            text = file.read_text()
            assert text.count(mutation.before) == 1, f"{mutation.file} has not once: {mutation.before}"
            file.write_text(text.replace(mutation.before, mutation.after))
        # A test that a busy machine holds up has noticed nothing.
        environ = os.environ | {
            "PYTEST_ADDOPTS": "-x --timeout 0 -p no:cacheprovider",
            "PYTHONPATH": str(place),
        }
        # Nearly every rule is noticed by the tests of the core, which `make quick` begins with.
        core = [sys.executable, "-m", "pytest", "-q", "-m", "not soak and not slow", "tests/core"]
        for command in (core, ["make", "quick", "--assume-old=setup"]):
            ran = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True)
            if ran.returncode:
                break
        else:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - |$)", ran.stdout, re.M)
        assert failed is not None, ran.stdout[-3000:] + ran.stderr[-3000:]
        alone = [sys.executable, "-m", "pytest", "-q", failed[1]]
        again = subprocess.run(alone, cwd=place, env=environ, capture_output=True, text=True)
        assert again.returncode == 1, f"{failed[1]} does not fail again by itself:\n{again.stdout[-3000:]}"
    return failed[1]


def main() -> int:
    if (test := caught_by(None)) is not None:
        print(f"{test} fails though no rule is broken")
        return 1
    survived = 0
    for mutation in MUTATIONS:
        test = caught_by(mutation)
        survived += test is None
        print(f"{mutation.rule}: {'NOT NOTICED' if test is None else test}", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
