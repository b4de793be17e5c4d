"""The HTTP layer is tested on both event loops: Veil runs on uvloop, its users' tests may not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name == "test_http_server.py":
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """TLS on the loop that no server of ours runs on repeats what the other three ways tell."""
    for item in items:
        call = getattr(item, "callspec", None)
        if (
            item.path.name == "test_http_server.py"
            and call is not None
            and {"asyncio", "tls"} <= set(call.id.split("-"))
        ):
            item.add_marker("soak")
