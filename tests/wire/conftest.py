"""`wire` is a front end over the store in memory; the tests that say most about a store run on PostgreSQL too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.postgres_kit import why_no_postgres
from tests.stores.kit import STORES
from tests.wire.kit import Wire

ON_POSTGRES_TOO = {
    "test_fifo_and_dead_letters",
    "test_receipts",
    "test_redrives",
    "test_repeated_sends",
    "test_sending_and_receiving",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if "wire" in metafunc.fixturenames and name in ON_POSTGRES_TOO:
        metafunc.parametrize("wire", ["memory", "postgres"], indirect=True)


@pytest.fixture
async def wire(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Wire]:
    name = getattr(request, "param", "memory")
    reason = why_no_postgres() if name == "postgres" else None
    if reason is not None:
        pytest.skip(reason)
    async with Wire(make_store=lambda clock: STORES[name].make(tmp_path, clock)) as made:
        yield made
