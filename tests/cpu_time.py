"""What the tests cost: `pytest -p tests.cpu_time …` ends with the CPU seconds of each file and of the dearest tests.

Wall time says little on a busy machine. This counts what a worker's process has used, and all that it has started: servers,
browsers, Spark's Java and Python, databases. What a fixture of a session starts is on the account of its first test.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

_COST: Final = "cpu_s"
_DEAREST: Final = 60
_GROUPS: Final = Path("/sys/fs/cgroup/cpuacct")


def _own_group() -> Path:
    """A control group of this process and of all that it will start: the only account that forgets nobody."""
    group = _GROUPS / f"veil-tests-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return group


class _Account:
    """What this worker has used up to the end of the last test."""

    def __init__(self) -> None:
        self._group = _own_group()
        self._used_s = self.used_s()

    def used_s(self) -> float:
        return int((self._group / "cpuacct.usage").read_text()) / 1e9

    def close(self) -> None:
        (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # somebody of it is still there
            self._group.rmdir()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: Any) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            before_s, self._used_s = self._used_s, self.used_s()
            report.user_properties.append((_COST, self._used_s - before_s))
        return report


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) in (None, 0) or hasattr(config, "workerinput"):
        account = _Account()
        config.pluginmanager.register(account)
        config.add_cleanup(account.close)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            cost_s = dict(getattr(report, "user_properties", ())).get(_COST)
            if cost_s is not None and getattr(report, "when", "") == "teardown":
                path = report.nodeid.partition("::")[0]
                tests[report.nodeid] += cost_s
                files[path] += cost_s
                folders[str(Path(path).parent)] += cost_s
    terminalreporter.section("CPU seconds")
    for counted, shown in ((folders, None), (files, None), (tests, _DEAREST)):
        for name, cost_s in counted.most_common(shown):
            terminalreporter.write_line(f"{cost_s:9.2f}  {name}")
        terminalreporter.write_line("")
