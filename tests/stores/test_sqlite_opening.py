"""A store is opened only on data that can be trusted, and without reading the backlog."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import apsw
import pytest

from tests.stores.kit import a_message, bodies, make_queue
from tests.stores.sqlite_kit import WAL, change, crashed_copy, flip_bit, open_store
from veil.core.clock import ManualClock
from veil.core.errors import StoreBusy, StoreDamaged, StoreError, StoreTooNew
from veil.stores.sqlite import SqliteStore, opening
from veil.stores.sqlite.data_directory import DATABASE
from veil.stores.sqlite.opening import SCHEMA_VERSION
from veil.stores.sqlite.recovery.wal_scan import scan_wal


async def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path):
    async with open_store(tmp_path) as store:
        queue = await make_queue(store)
        with pytest.raises(StoreBusy, match="in use by another Veil server"):
            await SqliteStore(tmp_path, ManualClock()).open()
        await store.send(queue, [a_message()])  # the first does not notice
    async with open_store(tmp_path):
        pass


async def test_data_of_a_newer_version_is_refused(tmp_path: Path):
    async with open_store(tmp_path):
        pass
    change(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StoreTooNew, match=f"schema version {SCHEMA_VERSION + 1}, this Veil knows up to"):
        await SqliteStore(tmp_path, ManualClock()).open()
    change(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION}")
    async with open_store(tmp_path):  # the refusal has left the lock free
        pass


async def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "SQLITE_VERSION_MIN", apsw.SQLITE_VERSION_NUMBER + 1)
    with pytest.raises(StoreError, match="can corrupt a WAL"):
        await SqliteStore(tmp_path, ManualClock()).open()
    assert not (tmp_path / DATABASE).exists()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    (tmp_path / DATABASE).write_bytes(b"this is not a database" * 500)
    with pytest.raises(StoreDamaged, match="veil verify"):
        await SqliteStore(tmp_path, ManualClock()).open()


async def a_crash_with_sends(tmp_path: Path, count: int) -> Path:
    """The files of a store that died after so many sends, each a commit of its own."""
    async with open_store(tmp_path / "live") as store:
        queue = await make_queue(store)
        for number in range(count):
            await store.send(queue, [a_message(f"m{number}")])
        return crashed_copy(tmp_path / "live", tmp_path / "crashed")


async def test_a_torn_end_of_the_log_is_accepted_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    crashed = await a_crash_with_sends(tmp_path, 5)
    log = crashed / WAL
    log.write_bytes(log.read_bytes()[:-1_000])
    with caplog.at_level(logging.WARNING, "veil.stores"):
        async with open_store(crashed) as store:
            [queue] = await store.all_queues()
            assert bodies(await store.peek(queue)) == ["m0", "m1", "m2", "m3"]
    assert "unfinished as a power cut leaves it" in caplog.text


async def test_a_log_damaged_in_the_middle_is_refused_and_left_as_it_is(tmp_path: Path):
    crashed = await a_crash_with_sends(tmp_path, 20)
    log = crashed / WAL
    flip_bit(log, log.stat().st_size // 2)
    damaged = log.read_bytes()
    assert scan_wal(log).verdict == "damaged"
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"silently drop what was acknowledged; run 'veil verify'"):
            await SqliteStore(crashed, ManualClock()).open()
        assert log.read_bytes() == damaged


async def test_settings_that_cannot_be_read_are_refused_as_damage(tmp_path: Path):
    crashed = await a_crash_with_sends(tmp_path, 1)
    for settings in ("{", '{"visibility_s": -1}', '{"unheard_of": 1}'):
        change(crashed, f"UPDATE queue SET settings = '{settings}'")
        with pytest.raises(StoreDamaged, match="run 'veil verify'"):
            await SqliteStore(crashed, ManualClock()).open()


async def test_a_crash_while_the_data_is_created_leaves_a_usable_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def dies(_: int) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(opening.secrets, "token_bytes", dies)
        with pytest.raises(KeyboardInterrupt):
            await SqliteStore(tmp_path, ManualClock()).open()
    async with open_store(tmp_path) as store:
        await store.send(await make_queue(store), [a_message()])


async def test_a_creation_that_was_cut_anywhere_can_be_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stages: list[Path] = []

    def snapshot(path: Path) -> None:
        stages.append(crashed_copy(tmp_path / "live", tmp_path / f"stage{len(stages)}"))

    with monkeypatch.context() as patch:
        migrate = opening._migrate

        def watched(connection: apsw.Connection, path: Path) -> None:
            snapshot(path)
            migrate(connection, path)
            snapshot(path)

        patch.setattr(opening, "_migrate", watched)
        async with open_store(tmp_path / "live"):
            pass
    before, after = stages
    whole = (after / WAL).read_bytes()
    step = len(whole) // 25
    logs = [whole[:size] for size in range(0, len(whole), step)]
    # Nothing of it was synced but the header of the log: whatever else may be missing.
    logs += [whole[:at] + bytes(100) + whole[at + 100 :] for at in range(step, len(whole) - 100, step)]
    for number, log in enumerate(logs):
        cut = tmp_path / f"cut{number}"
        shutil.copytree(before, cut)
        shutil.copyfile(after / DATABASE, cut / DATABASE)
        (cut / WAL).write_bytes(log)
        async with open_store(cut) as store:
            await store.send(await make_queue(store), [a_message()])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / DATABASE).touch()
    async with open_store(tmp_path / "empty") as store:
        await make_queue(store)


async def test_what_is_left_of_a_torn_commit_is_gone_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    crashed = await a_crash_with_sends(tmp_path, 5)
    log = crashed / WAL
    log.write_bytes(log.read_bytes()[:-1_000])
    assert scan_wal(log).verdict == "torn_tail"
    seen: list[bytes] = []
    monkeypatch.setattr(opening, "_migrate", lambda connection, path: seen.append(log.read_bytes()))
    opening.open_database(crashed).close()
    assert seen == [b""]


async def test_what_the_opening_wrote_is_synced_before_the_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Two commits that are not on disk could both be spoiled by a power cut, and that would look like damage.
    from tests.stores.sqlite_kit import SyncGate

    gate = SyncGate(monkeypatch)
    async with open_store(tmp_path):
        assert gate.calls >= 1


async def test_an_opening_that_fails_lets_go_of_the_data(tmp_path: Path):
    async with open_store(tmp_path) as store:
        await make_queue(store)
    change(tmp_path, "UPDATE queue SET settings = '{\"visibility_s\": -1}'")
    with pytest.raises(Exception, match="visibility_s"):
        await SqliteStore(tmp_path, ManualClock()).open()
    change(tmp_path, "UPDATE queue SET settings = '{}'")
    async with open_store(tmp_path):
        pass


async def pages_read_to_open(directory: Path, messages: int) -> int:
    async with open_store(directory) as store:
        queues = [await make_queue(store, f"q{n}") for n in range(4)]
        grouped = await make_queue(store, "grouped")
        for start in range(0, messages, 5_000):
            for n, queue in enumerate(queues):
                share = range(start, min(messages, start + 5_000), 5)
                await store.send(queue, [a_message("x" * 100, delay_s=n % 2 * 900) for _ in share])
            await store.send(grouped, [a_message("x" * 100, group=f"g{n % 50}") for n in share])
    async with open_store(directory) as store:
        assert sum([sum(await store.counts(queue)) for queue in await store.all_queues()]) == messages
        return store._connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)[0]


@pytest.mark.slow
async def test_opening_does_not_read_the_backlog(tmp_path: Path):
    few = await pages_read_to_open(tmp_path / "few", 1_000)
    many = await pages_read_to_open(tmp_path / "many", 100_000)
    assert (tmp_path / "many" / DATABASE).stat().st_size > 20_000_000
    assert many <= 3 * few
