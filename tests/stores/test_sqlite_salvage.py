"""Of damaged data all is saved that can be read, what was given up is counted, and the result is sound."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.stores.kit import a_key, a_message, bodies, make_queue, receipts_of
from tests.stores.sqlite_kit import WAL, change, crashed_copy, flip_bit, flip_bit_in_text, open_store
from tests.stores.test_sqlite_verify import a_lived_in_store
from veil.core.clock import ManualClock
from veil.core.errors import StoreBusy, StoreDamaged, StoreError
from veil.core.lease import Deletion
from veil.stores.sqlite.data_directory import DATABASE
from veil.stores.sqlite.opening import PAGE_BYTES
from veil.stores.sqlite.recovery.salvage import SET_ASIDE, Salvaged, salvage
from veil.stores.sqlite.recovery.verify import verify
from veil.stores.sqlite.recovery.wal_scan import scan_wal


def salvaged(data: Path, out: Path) -> Salvaged:
    """Salvage, and see that the source is as it was and the result sound."""
    before = {path.name: path.read_bytes() for path in data.iterdir() if path.name.startswith(DATABASE)}
    report = salvage(data, out)
    after = {path.name: path.read_bytes() for path in data.iterdir() if path.name.startswith(DATABASE)}
    assert before == after
    findings = verify(out)
    assert findings.is_sound, str(findings)
    assert findings.messages == report.messages
    assert not list(out.glob(".salvage-*"))
    return report


async def bodies_saved(out: Path, name: str = "orders") -> list[str]:
    async with open_store(out) as store:
        queue = await store.find_queue(a_key(name))
        assert queue is not None
        return bodies(await store.peek(queue, limit=100_000))


async def a_crash_with_sends(tmp_path: Path, count: int) -> Path:
    async with open_store(tmp_path / "live") as store:
        queue = await make_queue(store)
        for number in range(count):
            await store.send(queue, [a_message(f"message number {number:04d}")])
        return crashed_copy(tmp_path / "live", tmp_path / "crashed")


def all_bodies(count: int) -> list[str]:
    return [f"message number {number:04d}" for number in range(count)]


async def test_sound_data_is_saved_as_it_is(tmp_path: Path, clock: ManualClock):
    await a_lived_in_store(tmp_path / "data", clock)
    report = salvaged(tmp_path / "data", tmp_path / "out")
    assert (report.queues, report.messages, report.set_aside, report.given_up) == (4, 22, 0, 0)
    assert not (tmp_path / "out" / SET_ASIDE).exists()
    async with open_store(tmp_path / "out", clock) as store:
        fair = await store.find_queue(a_key("fair"))
        assert fair is not None and fair.tags == {"team": "blue"}
        assert tuple(await store.counts(fair)) == (5, 4, 0)


async def test_receipts_and_leases_outlive_a_salvage(tmp_path: Path, clock: ManualClock):
    async with open_store(tmp_path / "data", clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message()])
        held = await store.receive(queue, 1)
        text = store.receipts.write(queue.id, held[0].seq, held[0].delivery)
    salvaged(tmp_path / "data", tmp_path / "out")
    async with open_store(tmp_path / "out", clock) as store:
        assert await store.receive(queue, 1) == []
        assert await store.delete(queue, [store.receipts.read(text, queue.id)]) == [Deletion.DELETED]


async def test_one_flipped_bit_in_the_log_costs_nothing(tmp_path: Path):
    crashed = await a_crash_with_sends(tmp_path, 40)
    log = crashed / WAL
    whole = log.read_bytes()
    chance = random.Random(7)
    for attempt in range(12):
        log.write_bytes(whole)
        # The header, a frame's header, its salts, its checksum, a page: all are hit in turn.
        place = [5, 32, 32 + 4_120 * 3 + 2, 32 + 4_120 * 4 + 9, 32 + 4_120 * 5 + 18][attempt : attempt + 1]
        flip_bit(log, place[0] if place else chance.randrange(32, len(whole) // 2), bit=attempt % 8)
        assert scan_wal(log).verdict == "damaged"
        out = tmp_path / f"out{attempt}"
        report = salvaged(crashed, out)
        assert (report.messages, report.set_aside, report.given_up) == (40, 0, 0), (attempt, str(report))
        assert report.log.doubtful == 0  # the bit was found and put right
        assert await bodies_saved(out) == all_bodies(40)


async def test_a_sector_lost_in_the_log_costs_little(tmp_path: Path):
    crashed = await a_crash_with_sends(tmp_path, 100)
    log = crashed / WAL
    whole = log.read_bytes()
    at = 32 + 4_120 * 150 + 3_200
    log.write_bytes(whole[:at] + b"\xa5" * 512 + whole[at + 512 :])
    assert scan_wal(log).verdict == "damaged"
    report = salvaged(crashed, tmp_path / "out")
    assert report.log.doubtful == 1
    found = await bodies_saved(tmp_path / "out")
    assert set(found) <= set(all_bodies(100))
    assert len(found) >= 90  # SQLite by itself would stop in the middle


async def test_a_message_that_is_not_what_was_sent_is_set_aside(tmp_path: Path):
    async with open_store(tmp_path / "data") as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("the body that was sent"), a_message("another")])
    flip_bit_in_text(tmp_path / "data" / DATABASE, "the body that was sent")
    report = salvaged(tmp_path / "data", tmp_path / "out")
    assert (report.messages, report.set_aside) == (1, 1)
    assert await bodies_saved(tmp_path / "out") == ["another"]
    [line] = (tmp_path / "out" / SET_ASIDE).read_text().splitlines()
    assert json.loads(line)["body"].startswith("the body th")
    assert "digest" in json.loads(line)["wrong"]


async def test_a_spoiled_page_costs_the_messages_on_it_and_no_others(tmp_path: Path):
    async with open_store(tmp_path / "data") as store:
        queue = await make_queue(store)
        texts = [f"{number:05d} " + "x" * 500 for number in range(400)]
        await store.send(queue, [a_message(text) for text in texts])
    file = tmp_path / "data" / DATABASE
    data = file.read_bytes()
    page = data.index(b"00200 xxx") // PAGE_BYTES
    lost = data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES].count(b"x" * 500)
    file.write_bytes(data[: page * PAGE_BYTES] + b"\xa5" * PAGE_BYTES + data[(page + 1) * PAGE_BYTES :])
    report = salvaged(tmp_path / "data", tmp_path / "out")
    assert report.given_up == lost > 0
    assert report.messages == 400 - lost
    found = await bodies_saved(tmp_path / "out")
    assert len(found) == 400 - lost and set(found) < set(texts)


async def test_messages_whose_queue_is_lost_are_kept_under_a_made_up_name(tmp_path: Path):
    async with open_store(tmp_path / "data") as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("homeless")])
    change(tmp_path / "data", "UPDATE queue SET settings = '{'")
    report = salvaged(tmp_path / "data", tmp_path / "out")
    assert (report.queues, report.queues_rebuilt, report.messages) == (1, 1, 1)
    async with open_store(tmp_path / "out") as store:
        [found] = await store.all_queues()
        assert found.name == f"salvaged-{queue.id}" and found.id == queue.id
        assert bodies(await store.receive(found, 1)) == ["homeless"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE message SET wake_at_ms = NULL WHERE state <> 0",
        "UPDATE message SET state = 9 WHERE body = 'b'",
        "UPDATE queue_count SET visible = 99",
        "DELETE FROM lane",
        "DELETE FROM clock_mark",
        "DELETE FROM meta",
    ],
)
async def test_what_does_not_agree_is_made_to_agree(tmp_path: Path, clock: ManualClock, statement: str):
    await a_lived_in_store(tmp_path / "data", clock)
    change(tmp_path / "data", statement)
    assert not verify(tmp_path / "data").is_sound
    assert salvaged(tmp_path / "data", tmp_path / "out").messages == 22
    async with open_store(tmp_path / "out", clock) as store:
        fifo = await store.find_queue(a_key("orders.fifo"))
        assert fifo is not None
        clock.advance(seconds=60)
        received = await store.receive(fifo, 10)
        assert len(received) == 8
        await store.delete(fifo, receipts_of(fifo, received))


async def test_nothing_is_salvaged_from_a_running_server_or_over_data(tmp_path: Path):
    async with open_store(tmp_path / "data"):
        with pytest.raises(StoreBusy):
            salvage(tmp_path / "data", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    with pytest.raises(StoreError, match="not empty"):
        salvage(tmp_path / "data", tmp_path / "full")
    with pytest.raises(StoreError, match="holds no store"):
        salvage(tmp_path / "nowhere", tmp_path / "out")


async def test_data_of_which_nothing_can_be_read_is_told(tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / DATABASE).write_bytes(b"this is no database" * 1_000)
    with pytest.raises(StoreDamaged, match="nothing could be read"):
        salvage(tmp_path / "data", tmp_path / "out")
