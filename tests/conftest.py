"""What holds for every test: none leaves its logging behind for the next."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that run in-process set up logging for their process, which here is everybody's."""
    root, own = logging.getLogger(), logging.getLogger("veil")
    before = list(root.handlers), root.level, own.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])
