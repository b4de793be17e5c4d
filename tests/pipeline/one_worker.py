"""How `make test` shares the tests between its two workers: one keeps the Spark that most of this folder uses.

A second Spark in the other worker would cost more than it saves. Tests that start drivers and clusters of their own need
no part of it, and take longest of all: they go to the other worker, before everything else. xdist's own grouping by a
mark writes into a field that pytest 9.2 no longer reads, and then spreads the tests without a word.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

OWN_SPARK: Final = tuple(f"tests/pipeline/test_{name}.py" for name in ("cluster", "java", "source_kills"))


class _SparkTogether(LoadScopeScheduling):
    """Every test by itself to whoever is free, but those around Spark in two lots, and these first."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(OWN_SPARK):
            return "drivers of their own"
        return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _SparkTogether(config, log)
