"""How `make test` shares the tests between its workers: one keeps the Spark that most of tests/pipeline uses, one the browser.

A second one of either would cost more than it saves. Tests that start drivers and clusters of their own need no part of that
Spark, and go to another worker. These lots come first, then what takes long by itself, so that no worker is left with it
at the end. xdist's own grouping by a mark writes into a field that pytest 9.2 no longer reads, and then spreads the tests
without a word.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

OWN_SPARK: Final = tuple(f"tests/pipeline/test_{name}.py" for name in ("cluster", "java", "source_kills"))
BROWSER: Final = ("tests/console/", "tests/server/test_web_pages.py", "tests/pipeline/test_report_browser.py")
LONG: Final = (
    "tests/faults/",
    "tests/cli/test_demo.py",
    "tests/test_documents.py",
    "tests/stores/test_model.py",
)


def _lot(nodeid: str) -> str:
    """What one worker runs without a break: the tests of a name together, others each by itself."""
    if nodeid.startswith(OWN_SPARK):
        return "drivers of their own"
    if nodeid.startswith(BROWSER):
        return "browser"
    return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


def _turn(item: pytest.Item) -> int:
    if item.nodeid.startswith(OWN_SPARK):
        return 0
    if item.nodeid.startswith(BROWSER):
        return 2
    if item.nodeid.startswith("tests/pipeline/"):
        return 1
    return 3 if item.nodeid.startswith(LONG) else 4


class _InLots(LoadScopeScheduling):
    """Lots in the order of their first tests, each to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return _lot(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _InLots(config, log)
