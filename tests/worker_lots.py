"""How `make test` shares the tests between its workers: two keep the Sparks that tests/pipeline uses, one the browser.

One Spark would do, but its lot would last longer than all else; a third, or a second browser, would cost more than it saves.
These lots come first, then what takes long by itself, then file by file, since tests of a file share what they set up; the
shortest come last, so that no worker is left alone at the end. xdist's own grouping by a mark writes into a field that
pytest 9.2 no longer reads, and then spreads the tests without a word.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

# Reading queues, beside the drivers and clusters that tests start for themselves.
SOURCES: Final = tuple(f"tests/pipeline/test_{name}" for name in ("cluster", "java", "source_"))
WITHOUT_SPARK: Final = tuple(
    f"tests/pipeline/test_{name}" for name in ("autopilot_", "report_", "timeouts_simulated")
)
BROWSER: Final = ("tests/console/", "tests/server/test_web_pages.py", "tests/pipeline/test_report_browser.py")
# Each test by itself, except where a rig runs beside the others of its file.
LONG: Final = (
    "tests/cli/test_demo.py",
    "tests/faults/",
    "tests/test_documents.py",
    "tests/stores/test_model.py",
)
TOGETHER: Final = "tests/faults/test_consumer_rigs.py"
SHORT: Final = ("tests/core/", "tests/service/", "tests/wire/test_sigv4.py")


def _place(nodeid: str) -> tuple[int, str]:
    """When its turn comes, and its lot: what one worker runs without a break."""
    file = nodeid.partition("::")[0]
    if file.startswith(SOURCES):
        return 0, "sources"
    if file.startswith(BROWSER):
        return 1, "browser"
    if file.startswith("tests/pipeline/") and not file.startswith(WITHOUT_SPARK):
        return 2, "spark"
    if file.startswith(LONG):
        return 3, file if file == TOGETHER else nodeid
    return 5 if file.startswith(SHORT) else 4, file


class _InLots(LoadScopeScheduling):
    """Lots in the order of their first tests, each to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return _place(nodeid)[1]


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _place(item.nodeid)[0])


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _InLots(config, log)
