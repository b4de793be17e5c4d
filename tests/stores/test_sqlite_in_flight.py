"""What needs thousands of messages: the real limit of those in flight, and that memory does not grow with a backlog."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from tests.stores.kit import STORES, a_message, make_queue, some_messages
from veil.core.clock import ManualClock
from veil.core.errors import InFlightLimit
from veil.stores.sqlite import lease_log


async def test_as_many_may_be_in_flight_as_amazon_says_and_not_one_more(tmp_path: Path) -> None:
    store = STORES["sqlite"].make(tmp_path, ManualClock())
    await store.open()
    queue = await make_queue(store)
    await store.send(queue, [a_message("x", message_id=f"id-{n}") for n in range(120_001)])

    assert len(await store.receive(queue, 120_001)) == 120_000
    with pytest.raises(InFlightLimit):
        await store.receive(queue, 1)
    await store.close()


async def test_nothing_in_memory_grows_with_the_backlog_waiting_or_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_log, "LEASES_MAX", 500)  # beyond it leases are in the rows of their messages
    store = STORES["sqlite"].make(tmp_path, ManualClock(), journal=True)
    await store.open()
    queue = await make_queue(store)

    async def used_bytes(messages: int) -> int:
        for _ in range(messages // 100):
            await store.send(queue, some_messages(*("x" * 100 for _ in range(100))))
            await store.receive(queue, 50, visibility_s=600)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    await used_bytes(500)
    tracemalloc.start()
    try:
        before = await used_bytes(500)
        assert await used_bytes(5_000) - before < 100_000  # a hundred bytes each would be five times that
    finally:
        tracemalloc.stop()
    await store.close()
