"""A keeper in a helper process, in real time: windows of a minute, renewed five times a second, so that none ends by itself."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.waiting import until, until_async
from veil.client.api import ApiError, Failure
from veil.client.client import SqsClient
from veil.consumer.lease import Lease, LeaseLost, LeaseStatus
from veil.consumer.renewal import Adaptive, Heartbeat
from veil.consumer.renewal.keeper import KeeperEvents, steady_s
from veil.consumer.renewal.keeper_process import HelperPipe, KeeperProcess

WINDOW_S = 60
OFTEN = Heartbeat(timeout=WINDOW_S, threshold=WINDOW_S - 0.5, interval=0.2)
ENOUGH = 3  # grants, after which the queue says so to whoever waits for it


class FileQueue:
    """Grants everything, and writes down what; a file named after a receipt says that it is lost."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._enough = self._directory / "enough"
        self._granted = 0

    async def extend(self, url: str, changes: Sequence[tuple[str, int]]) -> list[ApiError | None]:
        results: list[ApiError | None] = []
        with (self._directory / "granted").open("a") as granted:
            for receipt, visibility_s in changes:
                lost = (self._directory / receipt).exists()
                results.append(ApiError(Failure.LOST, "Gone", "taken by somebody else") if lost else None)
                if not lost:
                    granted.write(f"{receipt} {visibility_s}\n")
                    self._granted += 1
        if self._granted >= ENOUGH and self._enough.exists():
            self._enough.write_text("enough")
        return results

    async def close(self) -> None:
        return


def broken_factory() -> SqsClient:
    raise ApiError(Failure.FATAL, "", "no credentials")


def granted(directory: Path, receipt: str) -> list[int]:
    file = directory / "granted"
    rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [int(visibility) for name, visibility in rows if name == receipt]


def received(number: int) -> Lease:
    return Lease(
        queue_url="u", message_id=f"m{number}", receipt=f"r{number}", token=1, received_at_s=steady_s(),
        visibility_s=WINDOW_S, monotonic=steady_s,
    )  # fmt: skip


class Heard(KeeperEvents):
    def __init__(self) -> None:
        self.renewals = 0
        self.losses: list[str] = []

    def renewed(self, lease: Lease, visibility_s: int) -> None:
        self.renewals += 1

    def lost(self, lease: Lease, why: str) -> None:
        self.losses.append(why)


class Rig:
    def __init__(self, directory: Path) -> None:
        self.directory, self.heard = directory, Heard()
        self.keeper = KeeperProcess(functools.partial(FileQueue, str(directory)), OFTEN, events=self.heard)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    await rig.keeper.start()
    yield rig
    await rig.keeper.close()


async def test_a_handler_that_holds_the_interpreter_keeps_its_lease(rig):
    os.mkfifo(rig.directory / "enough")
    waits = os.open(rig.directory / "enough", os.O_RDONLY | os.O_NONBLOCK)
    lease = received(1)
    rig.keeper.hold(lease)
    # PyDLL keeps the interpreter during the call: nothing else in this process runs until the queue has granted enough.
    asked = ctypes.create_string_buffer(struct.pack("ihh", waits, select.POLLIN, 0))
    assert ctypes.PyDLL(None).poll(asked, 1, 60_000) == 1
    os.close(waits)
    assert granted(rig.directory, "r1")[:ENOUGH] == [WINDOW_S] * ENOUGH
    await rig.keeper.let_go(lease)
    await until_async(lambda: rig.heard.renewals >= ENOUGH)
    assert rig.heard.losses == [] and lease.end()


async def test_a_loss_is_heard_of(rig):
    lease = received(1)
    told = threading.Event()
    lease.when_lost(told.set)
    (rig.directory / "r1").touch()
    rig.keeper.hold(lease)
    assert await asyncio.to_thread(told.wait, 60)
    assert "taken by somebody else" in lease.why
    assert len(rig.heard.losses) == 1
    await rig.keeper.let_go(lease)


async def test_after_letting_go_nothing_is_sent(rig):
    kept, gone = received(1), received(2)
    rig.keeper.hold(kept)
    rig.keeper.hold(gone)
    await rig.keeper.let_go(gone)
    before = granted(rig.directory, "r2")
    await until_async(lambda: len(granted(rig.directory, "r1")) >= 2)
    assert granted(rig.directory, "r2") == before
    await rig.keeper.let_go(kept)


async def test_by_hand_it_goes_through_the_helper_and_is_not_undone(rig):
    lease, other = received(1), received(2)
    rig.keeper.hold(lease)
    rig.keeper.hold(other)
    await asyncio.to_thread(lease.extend, 600)
    assert lease.by_hand and lease.remaining_s > 2 * WINDOW_S
    await until_async(lambda: len(granted(rig.directory, "r2")) >= 3)
    assert granted(rig.directory, "r1")[-1] == 600
    await lease.release()
    assert (lease.state, lease.released) == (LeaseStatus.ENDED, True)
    assert granted(rig.directory, "r1")[-1] == 0
    (rig.directory / "r2").touch()
    with pytest.raises(LeaseLost):
        await other.extend(600)
    assert other.lost


async def test_a_helper_that_dies_is_replaced_before_anything_is_lost(rig):
    lease = received(1)
    rig.keeper.hold(lease)
    await until_async(lambda: lease.extensions >= 1)
    first = rig.keeper.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until_async(lambda: rig.keeper.pid != first)
    before = lease.extensions
    await until_async(lambda: lease.extensions > before)
    assert not lease.lost
    await rig.keeper.let_go(lease)


async def test_a_lease_that_was_lost_is_not_renewed_by_the_next_helper(rig):
    lease, other, first = received(1), received(2), rig.keeper.pid
    rig.keeper.hold(lease, other)
    (rig.directory / "r1").touch()
    await until_async(lambda: lease.lost)
    (rig.directory / "r1").unlink()  # the holder that took it is done, and nobody else has it
    before = len(granted(rig.directory, "r1"))
    os.kill(first, signal.SIGKILL)
    await until_async(lambda: rig.keeper.pid != first)
    renewed = len(granted(rig.directory, "r2"))
    await until_async(lambda: len(granted(rig.directory, "r2")) >= renewed + 2)
    assert len(granted(rig.directory, "r1")) == before
    async with asyncio.timeout(60):
        await rig.keeper.let_go(lease, other)


async def test_what_is_let_go_while_a_dead_helper_is_replaced_is_let_go(rig, monkeypatch):
    lease, settling, close = received(1), [], HelperPipe.close

    def let_go_first(pipe: HelperPipe, timeout_s: float) -> None:
        settling.append(rig.keeper.let_go(lease))
        close(pipe, timeout_s)

    rig.keeper.hold(lease)
    await until_async(lambda: lease.extensions >= 1)
    monkeypatch.setattr(HelperPipe, "close", let_go_first)
    os.kill(rig.keeper.pid, signal.SIGKILL)
    await until_async(lambda: bool(settling))
    monkeypatch.undo()
    async with asyncio.timeout(60):
        await settling[0]
    other = received(2)
    rig.keeper.hold(other)
    before = len(granted(rig.directory, "r1"))
    await until_async(lambda: len(granted(rig.directory, "r2")) >= 2)
    assert len(granted(rig.directory, "r1")) == before
    await rig.keeper.let_go(other)


async def test_without_another_helper_leases_are_lost_and_nobody_waits_for_it(rig, monkeypatch):
    def no_memory(*_: object) -> HelperPipe:
        raise OSError("Cannot allocate memory")

    lease, other = received(1), received(2)
    rig.keeper.hold(lease, other)
    await until_async(lambda: lease.extensions >= 1)
    monkeypatch.setattr("veil.consumer.renewal.keeper_process.HelperPipe", no_memory)
    os.kill(rig.keeper.pid, signal.SIGKILL)
    await until_async(lambda: lease.lost)
    async with asyncio.timeout(60):
        await rig.keeper.let_go(other)
    assert "Cannot allocate memory" in lease.why


async def test_a_helper_that_dies_in_the_middle_of_a_word_is_missed_too(monkeypatch):
    popen = subprocess.Popen
    torn = """printf '["ready",""]\\n["renewed",1,'"""
    monkeypatch.setattr(subprocess, "Popen", lambda _, **given: popen(["/bin/sh", "-c", torn], **given))
    keeper = KeeperProcess(broken_factory, Adaptive())
    await keeper.start()
    await until_async(lambda: keeper.pid is None)  # each of them has died, and it has given up
    await keeper.close()


async def test_a_factory_that_fails_is_heard_of_at_the_start():
    keeper = KeeperProcess(broken_factory, Adaptive())
    with pytest.raises(RuntimeError, match="no credentials"):
        await keeper.start()
    await keeper.close()


PARENT = """
import asyncio, functools, sys
from tests.consumer.test_keeper_process import *

async def main():
    keeper = KeeperProcess(functools.partial(FileQueue, sys.argv[1]), OFTEN)
    await keeper.start()
    keeper.hold(received(1))
    print(keeper.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_the_helper_ends_with_a_parent_that_is_killed(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    helper = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def is_gone() -> bool:
        try:
            # Nobody here is its parent to notice.
            return Path(f"/proc/{helper}/stat").read_text().split()[2] == "Z"
        except OSError:
            return True

    until(is_gone, "the helper outlived its parent")
