"""Every test that asks for `service` is run on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.kit import Desk, open_desk
from tests.stores.kit import STORES
from veil.core.clock import ManualClock
from veil.service.service import Service


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=list(STORES))
async def service(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Service]:
    service = Service(STORES[request.param].make(tmp_path, clock), clock)
    await service.start()
    yield service
    await service.stop()


@pytest.fixture
async def orders(service: Service) -> Desk:
    return await open_desk(service, "orders")


@pytest.fixture
async def steps(service: Service) -> Desk:
    return await open_desk(service, "steps.fifo")
