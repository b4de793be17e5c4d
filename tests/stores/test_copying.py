"""A copy of a store is the store: nothing is lost, nothing is new, and whoever holds a lease goes on holding it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.postgres_kit import database_of, drop_database, new_database, why_no_postgres
from tests.stores.kit import (
    a_grouped_message,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    receipts_of,
    redrive_to,
    some_messages,
)
from tests.stores.model_history import Author
from tests.stores.model_steps import LockStep, Step
from veil.core.clock import Clock, ManualClock
from veil.core.errors import StoreBusy, StoreError
from veil.core.lease import Deletion, HoldKey
from veil.core.receipt import Receipt
from veil.stores.copying.copy import MESSAGE, TABLES, Copied, Progress, copy_store, shifted
from veil.stores.copying.sqlite import SqliteTarget, sqlite_source, sqlite_target
from veil.stores.sqlite import SqliteStore
from veil.stores.sqlite.data_directory import DATABASE
from veil.stores.store import Extension, Store

pytestmark = pytest.mark.skipif(why_no_postgres() is not None, reason=str(why_no_postgres()))

Place = Path | str


def source_of(place: Place, clock: Clock) -> Any:
    if isinstance(place, Path):
        return sqlite_source(place, clock)
    from veil.stores.copying.postgres import postgres_source

    return postgres_source(place, clock)


def target_of(place: Place, clock: Clock) -> Any:
    if isinstance(place, Path):
        return sqlite_target(place, clock)
    from veil.stores.copying.postgres import postgres_target

    return postgres_target(place, clock)


def copied(
    here: Place,
    there: Place,
    clock: Clock,
    progress: Progress | None = None,
    *,
    there_clock: Clock | None = None,
) -> Copied:
    with source_of(here, clock) as source, target_of(there, there_clock or clock) as target:
        return copy_store(source, target, progress, without_events=True)


def store_at(place: Place, clock: Clock, **given: Any) -> Store:
    if isinstance(place, Path):
        return SqliteStore(place, clock, **given)
    from veil.stores.postgres import PostgresStore

    return PostgresStore(place, clock, **given)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    """New places of stores, by kind."""
    made: list[str] = []
    numbers = itertools.count()

    def place(kind: str) -> Place:
        if kind == "sqlite":
            return tmp_path / f"data{next(numbers)}"
        made.append(new_database())
        return made[-1]

    yield place
    for dsn in made:
        drop_database(dsn)


KINDS = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite"), ("postgres", "postgres")]


@pytest.mark.parametrize(("here", "there"), KINDS)
async def test_leases_receipts_counts_and_histories_go_on_in_the_copy(places, clock, here, there):
    one, other = places(here), places(there)
    store = store_at(one, clock)
    await store.open()
    await make_queue(store, "gone")
    await store.delete_queue(await make_queue(store, "gone"))
    dead = await make_queue(store, "dead")
    queue = await make_queue(store, visibility_s=30, redrive=redrive_to("dead", 1))
    fifo = await make_queue(store, "turns.fifo")
    await store.send(queue, some_messages("a", "b", "c"), retry_key=b"again")
    sent = await store.send(queue, some_messages("d"), retry_key=b"once more")
    await store.send(queue, [a_message("later", delay_s=60)])
    held = await store.receive(queue, 2, attempt_id="attempt")
    [spent] = await store.receive(queue, 1, visibility_s=0)
    await store.receive(queue, 1, visibility_s=20)  # "d", and "c" goes to the dead letters
    first = a_grouped_message("first", "g", deduplication_id="same")
    await store.send(fifo, [first, a_grouped_message("second", "g"), a_grouped_message("other", "h")])
    [leading] = await store.receive(fifo, 1)
    await store.open_stream(dead, "stream", "owner")
    content = await store.receive_hold(dead, HoldKey("stream", 1, 0), 10, visibility_s=100)
    store_id, receipt = store.store_id, store.receipts.write(queue.id, held[0].seq, held[0].delivery)
    await store.close()

    await asyncio.to_thread(copied, one, other, clock)
    copy = store_at(other, clock)
    await copy.open()
    try:
        assert copy.store_id == store_id
        assert copy.receipts.read(receipt, queue.id) == Receipt(
            queue.id, held[0].seq, held[0].delivery, receipt
        )
        again = await copy.find_queue(queue.key)
        assert again == queue
        counts = await copy.counts(queue)
        assert (counts.visible, counts.in_flight, counts.delayed) == (0, 3, 1)
        # What is known of earlier calls.
        assert await copy.send(queue, some_messages("d"), retry_key=b"once more") == sent
        assert (await copy.send(fifo, [a_grouped_message("x", "g", deduplication_id="same")]))[0].duplicate
        assert bodies(await copy.receive(queue, 2, attempt_id="attempt")) == ["a", "b"]
        # Leases.
        assert await copy.delete(queue, receipts_of(queue, held[:1])) == [Deletion.DELETED]
        assert await copy.extend(queue, [Extension(receipt_of(queue, held[1]), 5)]) == [None]
        assert bodies(await copy.receive(fifo, 10)) == ["other"]
        assert await copy.delete(fifo, [receipt_of(fifo, leading)]) == [Deletion.DELETED]
        assert bodies(await copy.receive(fifo, 10)) == ["second"]
        # Dead letters and holds.
        [letter] = await copy.peek(dead)
        assert (letter.message_id, letter.dead_letter_source, letter.receive_count) == (
            spent.message_id,
            queue.key.arn,
            2,  # the second time by the hold
        )
        held_again = await copy.receive_hold(dead, HoldKey("stream", 1, 0), 10, visibility_s=100)
        assert bodies(held_again.messages) == bodies(content.messages) == ["c"]
        # Deadlines.
        clock.advance(seconds=4.999)
        assert bodies(await copy.receive(queue, 10, visibility_s=0)) == []
        clock.advance(1)
        assert bodies(await copy.receive(queue, 10)) == []  # "b" was received once: to the dead letters
        assert (await copy.counts(dead)).visible == 1
        # Ids are not used again.
        assert (await make_queue(copy, "new")).id > fifo.id
    finally:
        await copy.close()


def test_the_remaining_time_is_kept_where_the_other_clock_tells_another_time(places):
    here, there = ManualClock(), ManualClock(1_900_000_000_000)
    one, other = places("sqlite"), places("postgres")

    async def fill() -> Any:
        store = store_at(one, here)
        await store.open()
        queue = await make_queue(store, visibility_s=30)
        await store.send(queue, some_messages("a"))
        [message] = await store.receive(queue, 1)
        here.advance(seconds=10)
        await store.close()
        return queue, message

    async def look(queue: Any) -> None:
        store = store_at(other, there)
        await store.open()
        try:
            there.advance(seconds=19.999)
            assert (await store.counts(queue)).in_flight == 1
            there.advance(1)
            counts = await store.counts(queue)
            assert counts.in_flight == 0
        finally:
            await store.close()

    queue, _ = asyncio.run(fill())
    copied(one, other, here, there_clock=there)
    asyncio.run(look(queue))


def test_a_message_that_wakes_by_its_retention_does_so_by_its_age():
    row = [None] * len(MESSAGE.columns)
    row[MESSAGE.index_of("wake_at_ms")], row[MESSAGE.index_of("due_at_ms")] = 5_000, 9_000
    [told] = shifted(MESSAGE, [tuple(row)], 1_000)
    assert (told[MESSAGE.index_of("wake_at_ms")], told[MESSAGE.index_of("due_at_ms")]) == (5_000, 10_000)


# ---- whole histories


class MovesWhenReopened(LockStep):
    """The store under test moves to the other kind of place whenever a history closes and opens it."""

    def __init__(self, directory: Path) -> None:
        self._moves, self.copies = 0, 0
        super().__init__("sqlite", directory)

    def _place(self) -> Place:
        directory = self._directory / str(self._moves)
        return directory if self._moves % 2 == 0 else database_of(directory)

    def _make(self) -> Store:
        return store_at(self._place(), self.clock, journal=True)

    async def take(self, step: Step) -> Any:
        if step["op"] == "reopen":
            await self.audit()  # which exports what the copy would leave behind
            await super().take({"op": "advance", "ms": 1, "queue": step["queue"]})  # a copy takes its time
            await self.subject.store.close()
            here = self._place()
            self._moves += 1
            await asyncio.to_thread(copied, here, self._place(), self.clock)
            self.subject.use(self._make())
            await self.subject.store.open()
            self.copies += 1
            step = {"op": "settle", "queue": step["queue"], "settle": True}
        return await super().take(step)


@pytest.mark.parametrize("seed", range(1))
async def test_a_store_that_moves_again_and_again_agrees_with_the_reference(tmp_path, seed):
    run = MovesWhenReopened(tmp_path)
    await run.open()
    try:
        author = Author(f"moves {seed}", run)
        for number in range(400):
            step: Step = {"op": "reopen", "queue": "std"} if number % 40 == 39 else author.next()
            author.learn(step, await run.take(step))
            if number % 25 == 0:
                await run.audit()
        await run.audit()
    finally:
        await run.close()
    assert run.copies >= 10


# ---- cut short, and begun again


class Cut(Exception):
    """The power went."""


def cut_after(rows: int) -> Progress:
    def progress(done: int, expected: int) -> None:
        if done > rows:
            raise Cut

    return progress


async def a_filled_store(place: Place, clock: Clock, messages: int = 5_000) -> None:
    store = store_at(place, clock)
    await store.open()
    queue = await make_queue(store)
    await store.send(queue, [a_message(f"m{number}") for number in range(messages)])
    await store.close()


@pytest.mark.parametrize(("here", "there"), KINDS[:2])
async def test_a_copy_that_was_cut_short_goes_on_where_it_stopped(places, clock, here, there):
    one, other = places(here), places(there)
    await a_filled_store(one, clock)
    with pytest.raises(Cut):
        await asyncio.to_thread(copied, one, other, clock, cut_after(2_500))
    if there == "postgres":
        with pytest.raises(StoreError, match="not finished"):
            await store_at(other, clock).open()
    else:
        assert not (other / DATABASE).exists()

    seen: list[int] = []
    outcome = await asyncio.to_thread(copied, one, other, clock, lambda done, _: seen.append(done))

    assert outcome.resumed
    assert seen[0] > 4_000  # it did not begin anew
    copy = store_at(other, clock)
    await copy.open()
    queue = await make_queue(copy)
    assert (await copy.counts(queue)).visible == 5_000
    assert len({message.body for message in await copy.peek(queue, limit=10_000)}) == 5_000
    await copy.close()


async def test_the_log_of_a_copy_stays_as_short_as_one_piece(places, clock, monkeypatch):
    monkeypatch.setattr("veil.stores.copying.sqlite.CHECKPOINT_WAL_PAGES", 10)
    one, other = places("sqlite"), places("sqlite")
    await a_filled_store(one, clock, 10_000)
    sizes: list[int] = []
    log = other / "copying" / f"{DATABASE}-wal"
    await asyncio.to_thread(copied, one, other, clock, lambda *_: sizes.append(log.stat().st_size))
    assert len(sizes) > 5
    assert max(sizes) < 2 * sizes[1]  # after the first two thousand messages


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_target_with_data_is_refused_and_left_alone(places, clock, kind):
    one, other = places("sqlite"), places(kind)
    await a_filled_store(one, clock, 1)
    await a_filled_store(other, clock, 3)
    with pytest.raises(StoreError, match="already"):
        await asyncio.to_thread(copied, one, other, clock)
    store = store_at(other, clock)
    await store.open()
    assert (await store.counts(await make_queue(store))).visible == 3
    await store.close()


async def test_the_unfinished_copy_of_one_store_is_not_gone_on_with_from_another(places, clock):
    one, another, target = places("sqlite"), places("sqlite"), places("postgres")
    await a_filled_store(one, clock)
    with pytest.raises(Cut):
        await asyncio.to_thread(copied, one, target, clock, cut_after(2_500))
    await a_filled_store(another, clock, 1)
    with pytest.raises(StoreError, match="unfinished copy of another store"):
        await asyncio.to_thread(copied, another, target, clock)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_in_use_is_not_copied(places, clock, kind):
    one = places(kind)
    store = store_at(one, clock)
    await store.open()
    try:
        with pytest.raises(StoreBusy, match="in use"):
            await asyncio.to_thread(copied, one, places("sqlite"), clock)
    finally:
        await store.close()


async def test_events_that_wait_for_the_journal_are_not_left_behind_unasked(places, clock):
    one, other = places("sqlite"), places("postgres")
    store = store_at(one, clock, journal=True)
    await store.open()
    await store.send(await make_queue(store), some_messages("a"))
    await store.close()
    with (
        pytest.raises(StoreError, match="--without-events"),
        source_of(one, clock) as source,
        target_of(other, clock) as target,
    ):
        copy_store(source, target)


# ---- nothing is forgotten

LEFT_BEHIND = {
    "sqlite": {"meta", "clock_mark", "queue_count", "outbox", "export", "sqlite_sequence", "lease_log"},
    "postgres": {
        "meta",
        "epoch",
        "queue_count",
        "outbox",
        "outbox_count",
        "export",
        "node",
        "heard",
        "duty",
        "lease_time",
        *("server", "placement", "carried"),  # of a set of servers, which a copy is not one of
    },
}
# Columns that follow from others, or that one store keeps for itself.
OWN_COLUMNS = {
    "sqlite": {("queue", "ranked"), ("repeatable_send", "seq"), ("repeatable_send", "sends")},
    "postgres": {("queue", "version"), ("queue", "has_lanes"), ("queue", "swept")},
}


def columns_of_sqlite(directory: Path) -> set[tuple[str, str]]:
    connection = apsw.Connection(str(directory / DATABASE))
    query = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    found = {(str(table), str(column)) for table, column in connection.execute(query)}
    connection.close()
    return found


def columns_of_postgres(dsn: str) -> set[tuple[str, str]]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'veil'"
        return {(table, column) for table, column in connection.execute(query)}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_every_table_and_column_is_copied_or_left_behind_on_purpose(places, clock, kind):
    place = places(kind)
    await a_filled_store(place, clock, 1)
    found = columns_of_sqlite(place) if isinstance(place, Path) else columns_of_postgres(place)
    carried = {(table.name, column) for table in TABLES for column in table.columns}
    own = {(table, column) for table, column in found if table in LEFT_BEHIND[kind]} | OWN_COLUMNS[kind]
    assert found - carried - own == set(), "a table or column that a copy does not know"
    repacked = {("repeatable_send", column) for column in ("queue_id", "retry_key", "until_ms", "sent")}
    assert carried - found - (repacked if kind == "sqlite" else set()) == set()


def test_a_target_that_was_never_begun_begins(tmp_path: Path):
    # Cut short between the making of the file and the first mark.
    target = SqliteTarget(tmp_path, ManualClock())
    assert target.mark() is None
