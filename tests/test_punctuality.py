"""A test that rests on a punctual machine runs again where the machine was late, and nowhere else."""

from __future__ import annotations

import gc
import signal
import socket
import time
import weakref

import pytest

from tests import punctuality
from tests.punctuality import Meter

pytest_plugins = ["pytester"]

CONFTEST = """
import tests.punctuality as punctuality

pytest_plugins = ["tests.punctuality"]
LATE_S = iter({late_s})

class Told:
    def late_s(self, since_s): return next(LATE_S)
    def close(self): pass

punctuality.Meter = Told

def pytest_configure(config):
    config.addinivalue_line("markers", "punctual(lease_s): as in the house")
"""

FAILS_TWICE = """
import pytest
ran = []

@pytest.mark.punctual(lease_s=1)
def test_leases(tmp_path):
    ran.append(tmp_path)
    assert len(ran) > 2
"""

ON_SPARK = """
import pytest
ran = []

@pytest.fixture
def spark(): return None

def test_rows(spark):
    ran.append(1)
    assert len(ran) > 2, "terminated with exception: {why}. SQLSTATE: XXKST"
"""


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs are in this process, and their meter must not stay."""
    monkeypatch.setattr(punctuality, "Meter", punctuality.Meter)


def run(pytester: pytest.Pytester, late_s: list[float], tests: str = FAILS_TWICE) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST.format(late_s=late_s))
    pytester.makepyfile(tests)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio")


@pytest.mark.usefixtures("restored")
def test_it_runs_again_while_the_machine_is_late_and_the_summary_says_so(pytester: pytest.Pytester):
    result = run(pytester, [0.9, 0.4, 0.0])
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["RAN AGAIN *::test_leases: the machine woke its sleepers up to 0.90 s late"])


@pytest.mark.usefixtures("restored")
def test_a_failure_on_a_machine_that_kept_time_stands_at_once(pytester: pytest.Pytester):
    result = run(pytester, [0.0] * 9)
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("RAN AGAIN*")


@pytest.mark.usefixtures("restored")
def test_what_a_longer_lease_can_bear_is_no_excuse(pytester: pytest.Pytester):
    run(pytester, [0.4] * 9, FAILS_TWICE.replace("lease_s=1", "lease_s=2")).assert_outcomes(failed=1)


@pytest.mark.usefixtures("restored")
def test_it_is_tried_three_times_and_no_more(pytester: pytest.Pytester):
    result = run(pytester, [0.9] * 9, FAILS_TWICE.replace("> 2", "> 3"))
    result.assert_outcomes(failed=1)
    assert str(result.stdout).count("RAN AGAIN") == 2


@pytest.mark.usefixtures("restored")
def test_other_tests_stand_however_late_the_machine_was(pytester: pytest.Pytester):
    result = run(pytester, [0.9] * 9, FAILS_TWICE.replace("@pytest.mark.punctual(lease_s=1)", ""))
    result.assert_outcomes(failed=1)


@pytest.mark.usefixtures("restored")
def test_a_test_on_spark_runs_again_where_spark_gave_up_on_a_worker_and_for_no_other_cause(
    pytester: pytest.Pytester,
):
    result = run(pytester, [], ON_SPARK.format(why=punctuality.SPARK_WAITED_IN_VAIN))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["RAN AGAIN *::test_rows: Spark waited in vain for a Python worker"])
    run(pytester, [], ON_SPARK.format(why="Python worker exited unexpectedly")).assert_outcomes(failed=1)


@pytest.mark.usefixtures("restored")
def test_after_each_late_try_its_leavings_are_let_go(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    tries: list[int] = []
    monkeypatch.setattr(punctuality, "_forget_the_failure", lambda: tries.append(1))
    run(pytester, [0.9, 0.4, 0.0]).assert_outcomes(passed=1)
    assert len(tries) == 2


def test_what_a_try_left_open_goes_without_a_word():
    class Held(socket.socket):
        me: Held

    gc.disable()
    try:
        held = Held()
        held.me = held  # only the collector finds it, and would warn in whatever test it runs in
        left = weakref.ref(held)
        del held
        assert left() is not None
        punctuality._forget_the_failure()
        assert left() is None
    finally:
        gc.enable()


def test_the_meter_sees_a_sleeper_that_was_held_up():
    began_s = time.monotonic()
    meter = Meter()
    try:
        while not meter._lates:
            meter._sleeper.send_signal(signal.SIGSTOP)
            time.sleep(0.3)  # the lateness itself
            meter._sleeper.send_signal(signal.SIGCONT)
        assert meter.late_s(began_s) >= 0.2
        assert meter.late_s(time.monotonic() + 60) == 0
    finally:
        meter.close()
