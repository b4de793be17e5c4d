"""What is kept for five minutes (deduplication ids, sends that may be repeated, attempts) does not outlive them for long."""

from __future__ import annotations

from pathlib import Path

from tests.stores.kit import a_grouped_message, make_queue
from tests.stores.sqlite_kit import open_store
from veil.core.clock import ManualClock
from veil.service.background import TICK_MIN_MS
from veil.stores.sqlite import SqliteStore

_FIVE_MINUTES_S = 300


def remembered(store: SqliteStore) -> list[int]:
    tables = ("deduplication", "repeatable_send", "attempt")
    return [store._connection.execute(f"SELECT count(*) FROM {table}").get for table in tables]


async def tick(store: SqliteStore, clock: ManualClock) -> int:
    """Settle whenever the store says that something is due, as the ticker does; how often that was within a second."""
    ticks, until_ms = 0, clock.now_ms() + 1_000
    while (due_ms := store.next_due_ms()) is not None and due_ms <= clock.now_ms() <= until_ms:
        await store.settle()
        clock.advance(TICK_MIN_MS)
        ticks += 1
    return ticks


async def test_however_much_was_sent_it_is_forgotten_after_five_minutes(tmp_path: Path, clock: ManualClock):
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store, "orders.fifo")
        for number in range(3_000):
            await store.send(queue, [a_grouped_message("x", f"g{number}")], retry_key=b"%d" % number)
        for number in range(700):
            await store.receive(queue, 1, visibility_s=43_200, attempt_id=f"a{number}")
        rows = remembered(store)
        assert rows[0] == 3_000 and rows[2] == 700
        clock.advance(seconds=_FIVE_MINUTES_S - 1)
        await tick(store, clock)
        assert remembered(store) == rows

        clock.advance(seconds=11)
        assert 1 < await tick(store, clock) < 20
        assert remembered(store) == [0, 0, 0]
        # Nothing is left to be forgotten, so nothing is due for its sake.
        assert store.next_due_ms() > clock.now_ms() + 3_600_000


async def test_what_is_found_at_the_start_is_forgotten_too(tmp_path: Path, clock: ManualClock):
    async with open_store(tmp_path, clock) as store:
        queue = await make_queue(store, "orders.fifo")
        await store.send(queue, [a_grouped_message("x")], retry_key=b"1")
    clock.advance(seconds=_FIVE_MINUTES_S + 1)
    async with open_store(tmp_path, clock) as store:
        await tick(store, clock)
        assert remembered(store) == [0, 0, 0]
