"""One message is looked up in the journal: through segments and the outbox, over redrives, over days, and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.journal.kit import DirectSink, flip_bit_in_a_page
from tests.stores.kit import a_message, make_queue, receipt_of
from tests.waiting import PATIENCE_S
from veil.core.clock import ManualClock
from veil.core.message import StoredMessage
from veil.core.queue import Queue, RedrivePolicy
from veil.journal import lives
from veil.journal.exporter import Exporter
from veil.journal.lives import Look, find_message, read_life
from veil.journal.segments import Segment, SegmentIndex, list_segments
from veil.journal.storage import Storage
from veil.stores.memory import MemoryStore
from veil.stores.store import Chosen

DAY_MS = 86_400_000


class World:
    """A store with a journal that is exported when the test says so."""

    def __init__(self, where: Path) -> None:
        self.place = Storage.at(where)
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock, journal=True)
        self.exporter = Exporter(self.store, DirectSink(str(where)), self.clock)
        self.index = SegmentIndex(self.place)

    async def send(self, queue: Queue, body: str = "x") -> int:
        (sent,) = await self.store.send(queue, [a_message(body)])
        return sent.seq

    async def receive(self, queue: Queue) -> StoredMessage:
        (message,) = await self.store.receive(queue, 1)
        return message

    async def life(self, seq: int, further: int = 1) -> Look:
        return await read_life(self.store, self.index, seq, further=further)

    async def kinds(self, seq: int) -> list[str]:
        return [event.kind for event in (await self.life(seq)).events]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "journal")
    await world.store.open()
    yield world
    await world.store.close()


async def test_what_waits_and_what_is_exported_are_one_life(world: World):
    queue = await make_queue(world.store, "orders")
    seq = await world.send(queue)
    await world.send(queue, "another")
    assert await world.kinds(seq) == ["sent"]
    await world.exporter.export_all()
    world.clock.advance(1_000)
    await world.receive(queue)
    assert await world.kinds(seq) == ["sent", "received"]
    look = await world.life(seq)
    assert look.is_whole and {event.seq for event in look.events} == {seq}


async def test_a_life_is_found_over_days_without_opening_what_came_before_it(world: World):
    queue = await make_queue(world.store, "orders")
    for _ in range(16):
        await world.send(queue, "earlier")
        await world.exporter.export_all()
        world.clock.advance(60_000)
    seq = await world.send(queue)
    await world.exporter.export_all()
    world.clock.advance(2 * DAY_MS)
    await world.store.purge(queue, rest_ms=0)
    await world.exporter.export_all()

    assert await world.kinds(seq) == ["sent", "purged"]
    # Eighteen segments: the first day's sixteen earlier ones are halved again and again, not read one by one.
    assert len(list_segments(world.place)) == 18
    assert world.index.opened <= 8


async def test_a_life_is_followed_through_the_dead_letters_and_a_redrive_from_either_end(world: World):
    dead = await make_queue(world.store, "orders-dead")
    queue = await make_queue(world.store, "orders", redrive=RedrivePolicy(dead.key, 1))
    seq = await world.send(queue)
    world.clock.advance(5_000)
    await world.receive(queue)
    world.clock.advance(60_000)
    await world.exporter.export_all()
    assert await world.store.receive(queue, 1) == []  # one receive too many
    await world.exporter.export_all()
    (letter,) = await world.store.peek(dead)
    (moved,) = await world.store.redrive(dead, [Chosen(letter.seq, letter.message_id)])
    assert not isinstance(moved, Exception) and moved.seq != seq
    world.clock.advance(1_000)
    message = await world.receive(queue)
    await world.store.delete(queue, [receipt_of(queue, message)])

    told = ["sent", "received", "dead_lettered", "redriven", "sent", "received", "deleted"]
    assert await world.kinds(seq) == told
    assert await world.kinds(moved.seq) == told


async def test_a_look_that_meets_its_bound_says_so_and_can_go_further(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    queue = await make_queue(world.store, "orders")
    seq = await world.send(queue)
    for _ in range(6):
        await world.exporter.export_all()
        world.clock.advance(60_000)
        await world.receive(queue)
    await world.exporter.export_all()
    monkeypatch.setattr(lives, "OPENED_MAX", 3)
    look = await world.life(seq)
    assert not look.is_whole and look.looked_until is not None
    assert (await world.life(seq, further=4)).is_whole
    assert await world.kinds(seq) == ["sent", *["received"] * 6]


async def test_a_damaged_segment_is_named_and_the_others_are_read(world: World):
    queue = await make_queue(world.store, "orders")
    seq = await world.send(queue)
    await world.exporter.export_all()
    await world.receive(queue)
    await world.exporter.export_all()
    broken = list_segments(world.place)[0].name
    world.place.write(broken, b"not a Parquet file")
    look = await world.life(seq)
    assert [event.kind for event in look.events] == ["received"]
    assert len(look.problems) == 1 and look.problems[0].startswith(
        f"{broken}: it is not a whole Parquet file"
    )


async def test_a_message_is_found_by_its_id_the_newest_segments_first(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    queue = await make_queue(world.store, "orders")
    seq = await world.send(queue)
    (message,) = await world.store.peek(queue)
    (waiting,) = (await find_message(world.store, world.index, message.message_id)).found
    assert (waiting.queue, waiting.seq) == (queue.key, seq)
    for _ in range(4):
        await world.exporter.export_all()
        world.clock.advance(60_000)
        await world.send(queue, "later")
    await world.exporter.export_all()

    monkeypatch.setattr(lives, "SEGMENTS_MAX", 3)
    first = await find_message(world.store, world.index, message.message_id)
    assert not first.found and first.older is not None
    second = await find_message(world.store, world.index, message.message_id, before=first.older)
    assert [each.seq for each in second.found] == [seq]
    nobody = await find_message(world.store, world.index, "no such id", before=first.older)
    assert not nobody.found and nobody.older is None


async def test_a_bit_flipped_in_a_page_is_no_reason_to_fail(world: World):
    queue = await make_queue(world.store, "orders")
    seq = await world.send(queue)
    await world.exporter.export_all()
    flip_bit_in_a_page(world.place, list_segments(world.place)[0].name)
    look = await world.life(seq)
    assert look.problems or look.events


async def test_a_journal_that_hangs_takes_no_thread_from_others(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    answers = Event()

    def hanging(*_: object, **__: object) -> list[Segment]:
        answers.wait()
        return []

    monkeypatch.setattr(lives, "list_segments", hanging)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):  # whoever asked goes away
                await world.life(1)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(str) == ""
    answers.set()
    assert (await world.life(1)).events == []
