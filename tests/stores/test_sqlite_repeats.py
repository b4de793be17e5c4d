"""How many repeated sends the embedded store knows: a bounded number, the latest, across a restart too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.kit import bodies, make_queue, some_messages
from veil.core.clock import ManualClock
from veil.stores.sqlite import SqliteStore

KEYS = [bytes([number]) * 16 for number in range(3)]


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_latest_are_known_and_what_they_pushed_out_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    monkeypatch.setattr("veil.stores.sqlite.database.REPEATED_MESSAGES_MAX", 4)
    clock = ManualClock()
    store = SqliteStore(tmp_path, clock)
    await store.open()
    queue = await make_queue(store)
    for key in KEYS:
        await store.send(queue, some_messages("x", "y"), retry_key=key)
    if restarted:
        await store.close()
        store = SqliteStore(tmp_path, clock)
        await store.open()
    for key in reversed(KEYS):
        await store.send(queue, some_messages(f"again {key[0]}"), retry_key=key)
    found = bodies(await store.peek(queue))
    await store.close()

    assert found == ["x", "y"] * 3 + ["again 0"]
