"""A backup is the state of one instant, taken beside a running server; a restore goes on from it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tests.stores.kit import (
    a_grouped_message,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    receipts_of,
    some_messages,
)
from tests.stores.sqlite_kit import WAL, change, crashed_copy, flip_bit, flip_bit_in_text, open_store
from tests.stores.test_sqlite_crashes import ROOT, said, start_sender
from veil.core.clock import ManualClock
from veil.core.errors import MessageGone, ReceiptExpired, StoreBusy, StoreDamaged, StoreError
from veil.core.lease import Deletion
from veil.core.queue import QueueCounts
from veil.stores.sqlite.data_directory import DATABASE
from veil.stores.sqlite.recovery.backup import backup, restore
from veil.stores.sqlite.recovery.verify import verify, verify_file
from veil.stores.store import Extension


async def test_a_backup_beside_a_running_store_restores_to_what_it_was(tmp_path: Path, clock: ManualClock):
    data, out = tmp_path / "data", tmp_path / "monday.veil"
    async with open_store(data, clock) as store:
        queue = await make_queue(store, visibility_s=30)
        await store.send(queue, some_messages("a", "b"))
        [held] = await store.receive(queue, 1)
        backup(data, out)
        await store.send(queue, [a_message("after the backup")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "monday.veil"]  # no log beside it
    assert out.stat().st_mode & 0o077 == 0  # messages are nobody else's business
    assert verify_file(out).is_sound

    restore(out, tmp_path / "again")
    async with open_store(tmp_path / "again", clock) as store:
        assert bodies(await store.peek(queue)) == ["a", "b"]
        assert await store.counts(queue) == QueueCounts(visible=1, in_flight=1)
        # Receipts and leases go on: the key is the same.
        text = store.receipts.write(queue.id, held.seq, held.delivery)
        assert await store.delete(queue, [store.receipts.read(text, queue.id)]) == [Deletion.DELETED]
    findings = verify(tmp_path / "again")
    assert findings.is_sound, str(findings)


async def test_a_window_that_was_open_lapses_when_it_would_have(tmp_path: Path, clock: ManualClock):
    data, out = tmp_path / "data", tmp_path / "monday.veil"
    async with open_store(data, clock) as store:
        queue = await make_queue(store, visibility_s=30)
        await store.send(queue, [a_message()])
        await store.receive(queue, 1)
        backup(data, out)
    clock.advance(seconds=20)
    restore(out, tmp_path / "again")
    async with open_store(tmp_path / "again", clock) as store:
        assert await store.receive(queue, 1) == []
        clock.advance(seconds=10)
        assert len(await store.receive(queue, 1)) == 1


async def test_no_receipt_of_the_lost_time_is_written_again(tmp_path: Path, clock: ManualClock):
    data, out = tmp_path / "data", tmp_path / "monday.veil"
    async with open_store(data, clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message()])
        backup(data, out)
        [before] = await store.receive(queue, 1)
        later = await make_queue(store, "later")
    restore(out, tmp_path / "again")
    async with open_store(tmp_path / "again", clock) as store:
        [after] = await store.receive(queue, 1)
        assert after.seq == before.seq and after.delivery > before.delivery
        # The consumer of before cannot touch the lease of the one of after.
        assert await store.delete(queue, [receipt_of(queue, before)]) == [Deletion.STALE]
        assert await store.extend(queue, [Extension(receipt_of(queue, after), 0)]) == [None]
        # But what it has handled it may delete, while nobody else has it.
        assert await store.delete(queue, [receipt_of(queue, before)]) == [Deletion.DELETED]
        assert (await make_queue(store, "other")).id > later.id


async def test_a_receipt_of_the_lost_time_does_not_end_a_delay(tmp_path: Path, clock: ManualClock):
    data, out = tmp_path / "data", tmp_path / "monday.veil"
    async with open_store(data, clock) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message(delay_s=60)])
        backup(data, out)
        clock.advance(seconds=60)
        [received] = await store.receive(queue, 1)
    clock.advance(seconds=-30)
    restore(out, tmp_path / "again")
    async with open_store(tmp_path / "again", clock) as store:
        for visibility_s in (0, 10):
            [refusal] = await store.extend(queue, [Extension(receipt_of(queue, received), visibility_s)])
            assert isinstance(refusal, MessageGone)
        assert await store.counts(queue) == QueueCounts(0, 0, 1)


async def test_fifo_groups_are_restored_with_their_order_and_holders(tmp_path: Path, clock: ManualClock):
    data, out = tmp_path / "data", tmp_path / "monday.veil"
    async with open_store(data, clock) as store:
        queue = await make_queue(store, "orders.fifo", visibility_s=30)
        await store.send(queue, [a_grouped_message(body, group=body[0]) for body in ("a1", "a2", "b1")])
        [first] = await store.receive(queue, 1)
        backup(data, out)
    restore(out, tmp_path / "again")
    async with open_store(tmp_path / "again", clock) as store:
        assert bodies(await store.receive(queue, 10)) == ["b1"]
        await store.delete(queue, receipts_of(queue, [first]))
        assert bodies(await store.receive(queue, 10)) == ["a2"]
        [refused] = await store.delete(queue, receipts_of(queue, [first]))
        assert refused is Deletion.GONE or isinstance(refused, ReceiptExpired)


async def test_backups_of_a_busy_server_hold_all_that_was_acknowledged_before_them(tmp_path: Path):
    data = tmp_path / "data"
    process = start_sender(data, "x")
    try:
        assert process.stdout.readline().strip() == "open"
        for number in range(3):
            lines = [process.stdout.readline().strip() for _ in range(300)]
            out = tmp_path / f"{number}.veil"
            backup(data, out)
            findings = verify_file(out)
            assert findings.is_sound, str(findings)
            connection = apsw.Connection(str(out), flags=apsw.SQLITE_OPEN_READONLY)
            found = {body for (body,) in connection.execute("SELECT body FROM message")}
            connection.close()
            assert said(lines, "sent") <= found
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


async def test_a_backup_writes_over_nothing(tmp_path: Path):
    async with open_store(tmp_path / "data"):
        out = tmp_path / "precious"
        out.write_text("precious")
        with pytest.raises(StoreError, match="exists already"):
            backup(tmp_path / "data", out)
        assert out.read_text() == "precious"


async def test_a_backup_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with open_store(tmp_path / "data"):
        pass
    (tmp_path / "out").mkdir()

    def fails(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        backup(tmp_path / "data", tmp_path / "out" / "monday.veil")
    assert list((tmp_path / "out").iterdir()) == []


async def test_a_stopped_store_is_backed_up_with_what_its_log_holds(tmp_path: Path):
    async with open_store(tmp_path / "data") as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("in the log")])
        crashed = crashed_copy(tmp_path / "data", tmp_path / "crashed")
    backup(crashed, tmp_path / "monday.veil")
    restore(tmp_path / "monday.veil", tmp_path / "again")
    async with open_store(tmp_path / "again") as store:
        assert bodies(await store.peek(queue)) == ["in the log"]


async def test_a_store_with_a_damaged_log_is_not_backed_up_as_if_it_were_whole(tmp_path: Path):
    async with open_store(tmp_path / "data") as store:
        queue = await make_queue(store)
        for _ in range(10):
            await store.send(queue, [a_message()])
        crashed = crashed_copy(tmp_path / "data", tmp_path / "crashed")
    flip_bit(crashed / WAL, (crashed / WAL).stat().st_size // 2)
    with pytest.raises(StoreDamaged, match="veil verify"):
        backup(crashed, tmp_path / "monday.veil")
    assert not (tmp_path / "monday.veil").exists()


async def test_there_must_be_data_to_back_up(tmp_path: Path):
    with pytest.raises(StoreError, match="holds no store"):
        backup(tmp_path, tmp_path / "monday.veil")
    assert list(tmp_path.iterdir()) == []


async def a_backup(tmp_path: Path) -> Path:
    async with open_store(tmp_path / "data") as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("the body that was sent")])
        backup(tmp_path / "data", tmp_path / "monday.veil")
    return tmp_path / "monday.veil"


async def test_nothing_is_restored_over_data(tmp_path: Path):
    out = await a_backup(tmp_path)
    with pytest.raises(StoreError, match=f"holds data already .{DATABASE}"):
        restore(out, tmp_path / "data")
    (tmp_path / "log only").mkdir()
    (tmp_path / "log only" / WAL).write_bytes(b"x")
    with pytest.raises(StoreError, match="holds data already"):
        restore(out, tmp_path / "log only")


async def test_nothing_is_restored_under_a_running_server(tmp_path: Path):
    out = await a_backup(tmp_path)
    async with open_store(tmp_path / "live"):
        with pytest.raises(StoreBusy):
            restore(out, tmp_path / "live")


async def test_a_damaged_backup_is_not_restored(tmp_path: Path):
    out = await a_backup(tmp_path)
    flip_bit_in_text(out, "the body that was sent")
    with pytest.raises(StoreDamaged, match="not a sound backup"):
        restore(out, tmp_path / "again")
    assert not (tmp_path / "again" / DATABASE).exists()
    with pytest.raises(StoreError, match="there is no such file"):
        restore(tmp_path / "missing", tmp_path / "again")
    (tmp_path / "noise").write_bytes(b"not a backup" * 1_000)
    with pytest.raises(StoreDamaged, match="not a sound backup"):
        restore(tmp_path / "noise", tmp_path / "again")


async def test_a_backup_of_a_newer_version_is_not_restored(tmp_path: Path):
    out = await a_backup(tmp_path)
    (tmp_path / "newer").mkdir()
    out.rename(tmp_path / "newer" / DATABASE)
    change(tmp_path / "newer", "PRAGMA user_version = 99")
    with pytest.raises(StoreDamaged, match="version 99"):
        restore(tmp_path / "newer" / DATABASE, tmp_path / "again")


async def test_the_server_goes_on_while_a_backup_is_written(tmp_path: Path):
    data, out = tmp_path / "data", tmp_path / "monday.veil"
    async with open_store(data) as store:
        queue = await make_queue(store)
        await store.send(queue, [a_message("x" * 10_000) for _ in range(500)])
        code = "import sys; from pathlib import Path; from veil.stores.sqlite.recovery.backup import backup; "
        code += "backup(Path(sys.argv[1]), Path(sys.argv[2]))"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(data), str(out), cwd=ROOT, stderr=subprocess.PIPE
        )
        sent = 0
        while process.returncode is None:
            await store.send(queue, [a_message("meanwhile")])
            sent += 1
            await asyncio.sleep(0.001)
        _, err = await process.communicate()
        assert process.returncode == 0, err
        assert sent > 5
    assert verify_file(out).is_sound
