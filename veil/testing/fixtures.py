"""The pytest plugin that comes with Veil: `veil_server`, a real server that every test finds empty.

One server for each test process, started when the first test asks for it, on a free port. After each test its queues
are removed, whatever their account and region.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from veil.testing.process import VeilServer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the choice of the store."""
    parser.getgroup("veil").addoption(
        "--veil-store",
        default="memory",
        choices=("memory", "sqlite"),
        help="Where the server behind the fixture veil_server keeps messages: memory (default) or sqlite, on disk.",
    )


@pytest.fixture(scope="session")
def veil_session_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VeilServer]:
    """One server for the whole run; what a test leaves in it the next one finds."""
    from veil.testing.process import VeilServer

    store = request.config.getoption("--veil-store")
    arguments = ["--data", str(tmp_path_factory.mktemp("veil") / "data")] if store == "sqlite" else []
    with VeilServer("--store", store, *arguments) as server:
        yield server


@pytest.fixture
def veil_server(veil_session_server: VeilServer) -> Iterator[VeilServer]:
    """A server without queues."""
    yield veil_session_server
    veil_session_server.reset()
