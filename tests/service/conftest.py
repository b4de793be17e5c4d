"""Tests that ask for `service` are run on the store in memory, and where it waits for what a store tells, on every store."""

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


# What a store must do is told in tests/stores, once for all of them; these are about being told of it.
WAITING = {"test_cancelled_receives", "test_long_polling", "test_ticker"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "service" in metafunc.fixturenames:
        waits = metafunc.module.__name__.rpartition(".")[2] in WAITING
        metafunc.parametrize("service", list(STORES) if waits else ["memory"], indirect=True)


@pytest.fixture
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
