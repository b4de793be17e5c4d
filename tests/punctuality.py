"""Tests that rest on the machine's own punctuality, and what is done where the machine was late.

A few tests hold real leases of a second or two in real processes, since what a frozen or killed process does cannot be had
from a clock of the test's own. They are marked `punctual(lease_s=…)`, each by itself. While one runs, a process measures how
late the machine wakes a sleeper. Where such a test fails and the machine was late by more than its lease can bear, the
failure says nothing about Veil: the test runs again, and the summary says so. A failure on a machine that kept time stands
at once. (Plugins that repeat tests do so for every failure, or by its text; this goes by what the machine did.)

Spark gives each of its Python workers ten seconds to start, and no setting for it. A test on Spark that fails with Spark's
own sentence about that runs again in the same way.
"""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
import time
import warnings
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

# Of its lease: it is renewed at its half, and the rest of the margin is for the calls themselves.
TOO_LATE: Final = 0.25
TRIES: Final = 3
_BEAT_S: Final = 0.02
_NOTED_S: Final = 0.2
_LATE: Final = "late_machine"
SPARK_WAITED_IN_VAIN: Final = "Python worker failed to connect back"

_SLEEPER: Final = """
import os, sys, time
beat_s, noted_s, parent = float(sys.argv[1]), float(sys.argv[2]), os.getppid()
while os.getppid() == parent:
    before_s = time.monotonic()
    time.sleep(beat_s)
    late_s = time.monotonic() - before_s - beat_s
    if late_s >= noted_s:
        print(before_s, late_s, flush=True)
"""


class Meter:
    """How late the machine woke a sleeper: a process of its own, since a test may hold this one's interpreter."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", _SLEEPER, str(_BEAT_S), str(_NOTED_S)]
        self._sleeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lates: list[tuple[float, float]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def late_s(self, since_s: float) -> float:
        """The latest waking since then, 0 where none was late."""
        time.sleep(2 * _BEAT_S)  # a lateness is told when it is over
        return max((late_s for at_s, late_s in self._lates if at_s + late_s >= since_s), default=0.0)

    def close(self) -> None:
        self._sleeper.kill()
        self._sleeper.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._sleeper.stdout is not None
        with self._sleeper.stdout as lines:
            for line in lines:
                at_s, late_s = map(float, line.split())
                self._lates.append((at_s, late_s))


_METER: Final[pytest.StashKey[Meter]] = pytest.StashKey()


def _the_meter(config: pytest.Config) -> Meter:
    if _METER not in config.stash:
        config.stash[_METER] = Meter()
    return config.stash[_METER]


def pytest_unconfigure(config: pytest.Config) -> None:
    if _METER in config.stash:
        config.stash[_METER].close()


def _lateness(failures: list[pytest.TestReport], late_s: float, lease_s: float) -> str:
    """How the machine was late, in words; empty where it was not."""
    if any(SPARK_WAITED_IN_VAIN in failure.longreprtext for failure in failures):
        return "Spark waited in vain for a Python worker"
    too_late = late_s >= TOO_LATE * lease_s
    return f"the machine woke its sleepers up to {late_s:.2f} s late" if too_late else ""


def _forget_the_failure() -> None:
    """Let go of what the test left open: found later, it would be blamed on another one."""
    sys.last_type = sys.last_value = sys.last_traceback = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.hookimpl
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test of these kinds until it passes, the machine kept time, or it had its tries."""
    mark = item.get_closest_marker("punctual")
    if mark is None and "spark" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    lease_s = mark.kwargs["lease_s"] if mark else math.inf
    meter = _the_meter(item.config) if mark else None
    for tries_left in reversed(range(TRIES)):
        began_s = time.monotonic()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failures = [report for report in reports if report.failed]
        if not failures or not tries_left:
            break
        late = _lateness(failures, meter.late_s(began_s) if meter else 0.0, lease_s)
        if not late:
            break
        reports[0].user_properties.append((_LATE, late))
        reports[0].outcome = "rerun"  # type: ignore[assignment]
        item.ihook.pytest_runtest_logreport(report=reports[0])
        _forget_the_failure()
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    return ("late", "L", "LATE") if report.outcome == "rerun" else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which tests had to run again, and how late the machine was."""
    for report in terminalreporter.stats.get("late", ()):
        terminalreporter.write_line(f"RAN AGAIN {report.nodeid}: {dict(report.user_properties)[_LATE]}")
