"""With several workers all tests of this folder go to one of them: a second Spark would cost more than it saves.

`make test` loads this plugin. xdist's own grouping by a mark writes into a field that pytest 9.2 no longer reads, and
then spreads the tests without a word.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class _SparkTogether(LoadScopeScheduling):
    """Every test by itself to whoever is free, but those that need Spark as one, and first: they take longest."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _SparkTogether(config, log)
