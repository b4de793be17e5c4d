"""`wire` is a front end over the store in memory: what a store must do is told in tests/stores, once for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.wire.kit import Wire
from tests.wire.smq_kit import SmqWire


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with Wire() as made:
        yield made


@pytest.fixture
async def smq() -> AsyncIterator[SmqWire]:
    async with SmqWire() as made:
        yield made
