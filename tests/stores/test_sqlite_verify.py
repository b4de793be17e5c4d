"""A check of the data finds what is wrong with it, and nothing where nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.kit import a_grouped_message, a_message, make_queue, receipts_of, redrive_to, some_messages
from tests.stores.sqlite_kit import WAL, change, crashed_copy, flip_bit, flip_bit_in_text, open_store
from veil.core.clock import ManualClock
from veil.core.errors import StoreError
from veil.core.lease import HoldKey
from veil.core.message import MessageAttribute
from veil.core.queue import RedriveAllow
from veil.stores.sqlite.data_directory import DATABASE
from veil.stores.sqlite.opening import PAGE_BYTES
from veil.stores.sqlite.recovery.verify import verify
from veil.stores.store import QueueContent


async def a_lived_in_store(directory: Path, clock: ManualClock) -> None:
    """Something of everything: groups, delays, leases, dead letters, attempts, deduplication, a deleted queue."""
    async with open_store(directory, clock) as store:
        dead = await make_queue(store, "dead", redrive_allow=RedriveAllow("allowAll"))
        queue = await make_queue(store, redrive=redrive_to("dead", 1), visibility_s=30)
        fifo = await make_queue(store, "orders.fifo", visibility_s=30)
        fair = await make_queue(store, "fair")
        await store.send(queue, some_messages("a", "b", "c", "the body that was sent"))
        colour = {"colour": MessageAttribute("String", "rouge")}
        await store.send(queue, [a_message("later", delay_s=60, attributes=colour)])
        await store.send(
            fifo, [a_grouped_message(f"{group}{n}", group=group) for n in range(3) for group in "xyz"]
        )
        await store.send(fair, [a_message("f", group=f"g{n % 3}") for n in range(9)])
        await store.receive(queue, 2)
        clock.advance(seconds=31)
        await store.receive(queue, 2)
        assert (await store.counts(dead)).visible == 2
        held = await store.receive(fifo, 4, attempt_id="one")
        await store.open_stream(fair, "epoch", "me")
        await store.delete(fifo, receipts_of(fifo, held[:1]))
        await store.receive(fair, 2)
        await store.receive_hold(fair, HoldKey("epoch", 1, 0), 2, visibility_s=30)
        await store.receive_hold(queue, HoldKey("unread", 0, 0), 0, visibility_s=30)
        await store.edit_queue(fair, lambda content: QueueContent(content.settings, {"team": "blue"}))
        gone = await make_queue(store, "gone")
        await store.send(gone, [a_message(group="g") for _ in range(3)])
        await store.delete_queue(gone)
        assert store._sweeper is not None
        await store._sweeper


@pytest.fixture
async def data(tmp_path: Path, clock: ManualClock) -> Path:
    await a_lived_in_store(tmp_path / "data", clock)
    return tmp_path / "data"


def test_sound_data_is_found_sound(data: Path):
    done: list[tuple[int, int]] = []
    findings = verify(data, lambda *progress: done.append(progress))
    assert findings.is_sound and not findings.listed, str(findings)
    assert findings.queues == 4 and findings.messages == 22
    assert done[-1] == (22, 22)
    assert (findings.queues, findings.messages) == (4, 22)


async def test_data_in_use_is_checked_as_of_one_instant(tmp_path: Path):
    async with open_store(tmp_path) as store:
        queue = await make_queue(store)
        await store.send(queue, some_messages("a", "b"))
        findings = verify(tmp_path)
        assert findings.is_sound and findings.messages == 2
        assert "a server is running" in findings.lines()[0]
        await store.send(queue, [a_message()])  # and it goes on


async def test_a_deleted_queue_that_is_not_swept_yet_is_no_damage(tmp_path: Path):
    async with open_store(tmp_path / "data") as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message(group="g") for _ in range(3)])
        await store.delete_queue(queue)
        findings = verify(crashed_copy(tmp_path / "data", tmp_path / "crashed"))
    assert findings.is_sound and "will be swept" in str(findings)


def test_a_check_changes_nothing(data: Path):
    before = (data / DATABASE).read_bytes()
    verify(data)
    assert (data / DATABASE).read_bytes() == before


def test_a_flipped_bit_in_a_body_is_found(data: Path):
    flip_bit_in_text(data / DATABASE, "the body that was sent")
    findings = verify(data)
    assert not findings.is_sound
    assert "its body has the digest" in str(findings)
    assert findings.totals == {("error", "contents"): 1}


SPOILED = {
    "UPDATE queue_count SET visible = visible + 1 WHERE queue_id = 2": "counts say",
    "DELETE FROM queue_count WHERE queue_id = 2": "counts say nothing",
    "UPDATE lane SET members = 9 WHERE group_name = 'x'": "group x: its row says 9 messages",
    "UPDATE lane SET in_flight = in_flight + 1 WHERE group_name = 'g1'": "group g1",
    "UPDATE lane SET is_open = 1 - is_open WHERE group_name = 'z'": "group z",
    "DELETE FROM lane WHERE group_name = 'y'": "its row says that it does not exist",
    "INSERT INTO lane VALUES (3, 'ghost', 1, 1, 1, 0)": "the messages say that it does not exist",
    "UPDATE message SET wake_at_ms = NULL WHERE state = 2": "nothing would wake it",
    "UPDATE message SET wake_at_ms = due_at_ms + 1 WHERE state = 1": "after it is due",
    "UPDATE message SET holder = 0 WHERE state = 2": "held by delivery 0",
    "UPDATE message SET state = 7 WHERE body = 'b'": "its state is 7",
    "UPDATE message SET queue_id = 77 WHERE body = 'b'": "is in queue 77, which does not exist",
    "UPDATE message SET attributes = x'c1' WHERE attributes IS NOT NULL": "unreadable",
    "UPDATE message SET message_id = CAST(x'ff' AS TEXT) WHERE body = 'b'": "unreadable",
    "UPDATE queue SET settings = '{\"visibility_s\": -4}' WHERE id = 2": "settings unreadable",
    "UPDATE queue SET settings = '{' WHERE id = 2": "settings unreadable",
    "UPDATE queue SET tags = '[]' WHERE id = 2": "tags unreadable",
    "UPDATE clock_mark SET last_seq = 5": "the highest given out is said to be 5",
    "DELETE FROM clock_mark": "the mark is missing",
    "DELETE FROM meta": "receipt key",
    "UPDATE attempt SET claims = 'x'": "attempt one",
    "UPDATE hold SET members = x'c1' WHERE batch = 1": "hold epoch/1/0: unreadable",
    "UPDATE hold SET lost = -1": "says that it lost -1",
    "DELETE FROM stream WHERE name = 'epoch'": "could never be acknowledged",
    "UPDATE stream SET closed = -7": "says that -7 is the last batch",
    "UPDATE stream SET queue_id = 77": "stream epoch: its queue does not exist",
    "UPDATE message SET priority = 3 WHERE body = 'b'": "its priority is 3, which its queue knows nothing of",
    "UPDATE message SET priority = 72 WHERE body = 'b'": "its priority is 72, which no message can have",
    "PRAGMA user_version = 9": "version 9",
}


@pytest.mark.parametrize("statement", SPOILED)
def test_what_does_not_agree_is_found(data: Path, statement: str):
    change(data, statement)
    findings = verify(data)
    assert not findings.is_sound
    assert SPOILED[statement] in str(findings)


async def test_a_damaged_log_is_found_and_left_alone(tmp_path: Path):
    async with open_store(tmp_path / "data") as store:
        queue = await make_queue(store)
        for _ in range(10):
            await store.send(queue, [a_message()])
        crashed = crashed_copy(tmp_path / "data", tmp_path / "crashed")
    log = crashed / WAL
    flip_bit(log, log.stat().st_size // 2)
    before = log.read_bytes()
    findings = verify(crashed)
    assert not findings.is_sound
    assert "The write-ahead log is damaged" in str(findings)
    assert log.read_bytes() == before


def test_spoiled_pages_are_found_one_and_all(data: Path):
    file = data / DATABASE
    pages = file.stat().st_size // PAGE_BYTES
    found = 0
    for page in range(1, pages):
        whole = file.read_bytes()
        file.write_bytes(whole[: page * PAGE_BYTES] + b"\xa5" * PAGE_BYTES + whole[(page + 1) * PAGE_BYTES :])
        found += not verify(data).is_sound
        file.write_bytes(whole)
    assert found == pages - 1
    assert verify(data).is_sound


def test_a_file_that_is_no_database_is_told(tmp_path: Path):
    (tmp_path / DATABASE).write_bytes(b"this is no database" * 1_000)
    findings = verify(tmp_path)
    assert not findings.is_sound and "cannot be read" in str(findings)


def test_a_directory_without_data_is_told(tmp_path: Path):
    with pytest.raises(StoreError, match="holds no store"):
        verify(tmp_path)


def test_a_thousand_findings_of_one_kind_are_summed_up(data: Path):
    change(
        data,
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 1000)"
        " INSERT INTO lane SELECT 3, 'ghost' || x, 1, 0, 1, 0 FROM n",
    )
    text = str(verify(data))
    assert len(text.splitlines()) < 60
    assert "950 more of the same kind" in text
