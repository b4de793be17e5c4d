"""The real limit of messages in flight, once: elsewhere it is set to a few."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.kit import STORES, a_message, make_queue
from veil.core.clock import ManualClock
from veil.core.errors import InFlightLimit


async def test_as_many_may_be_in_flight_as_amazon_says_and_not_one_more(tmp_path: Path) -> None:
    store = STORES["sqlite"].make(tmp_path, ManualClock())
    await store.open()
    queue = await make_queue(store)
    await store.send(queue, [a_message("x", message_id=f"id-{n}") for n in range(120_001)])

    assert len(await store.receive(queue, 120_001)) == 120_000
    with pytest.raises(InFlightLimit):
        await store.receive(queue, 1)
    await store.close()
