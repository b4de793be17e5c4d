"""The helper process writes the segments: pyarrow stays out of the server, and neither outlives its use."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.journal.kit import APlan, a_row, an_event, events_of
from tests.stores.kit import a_message, make_queue
from veil.core.clock import ManualClock
from veil.journal.exporter import Exporter
from veil.journal.helper_process import ExportFailed, HelperProcess
from veil.journal.storage import Storage
from veil.stores.memory import MemoryStore
from veil.stores.store import ExportPlan, OutboxRow

LONG_S = 30
_NICEST = 19  # nothing can be nicer
needs_pidfd = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs Linux to watch a stranger's process"
)


async def some_rows(*numbers: int) -> Any:
    for number in numbers:
        yield [OutboxRow(number, a_row(*(an_event() for _ in range(1_000))))]


async def test_segments_are_written_by_one_process_as_long_as_they_come(tmp_path: Path):
    place = Storage.at(tmp_path / "journal")
    helper = HelperProcess(place.uri, "s")
    first = await helper.write(APlan(first=1, last=2), some_rows(1, 2))
    pid = helper.pid
    second = await helper.write(APlan(first=3, last=3), some_rows(3))
    assert (first.events, second.events) == (2_000, 1_000)
    assert helper.pid == pid
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid or 0) > own or own == _NICEST
    maps = Path(f"/proc/{pid}/maps")  # Linux only
    assert not maps.exists() or "/pandas/" not in maps.read_text()
    await helper.close()
    assert len(events_of(place)) == 3_000
    assert place.exists("_journal.json")


async def test_it_sweeps_the_days_before_one(tmp_path: Path):
    place = Storage.at(tmp_path / "journal")
    helper = HelperProcess(place.uri, "s")
    for day in ("2026-09-20", "2026-09-21", "2026-09-22"):
        await helper.write(APlan(day=day), some_rows(1))
    assert await helper.sweep("2026-09-22") == ["2026-09-20", "2026-09-21"]
    assert [entry.name for entry in place.entries() if entry.is_folder] == ["day=2026-09-22"]
    await helper.close()


async def test_it_writes_to_an_object_store(bucket: str):
    place = Storage.at(f"s3://{bucket}/veil/journal")
    helper = HelperProcess(place.uri, "s")
    await helper.write(APlan(day="2026-09-20"), some_rows(1))
    await helper.write(APlan(first=2, last=2), some_rows(2))
    assert await helper.sweep("2026-09-21") == ["2026-09-20"]
    await helper.close()
    assert {event["position"] >> 20 for event in events_of(place)} == {2}


async def test_an_object_store_that_is_away_is_told_of(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    helper = HelperProcess(f"s3://{bucket}/journal", "s")
    with pytest.raises(ExportFailed, match="NETWORK_CONNECTION"):
        await helper.write(APlan(), some_rows(1))
    await helper.close()


async def test_a_failure_is_told_and_the_next_export_succeeds(tmp_path: Path):
    (tmp_path / "journal").write_text("a file where the directory should be")
    helper = HelperProcess(str(tmp_path / "journal"), "s")
    with pytest.raises(ExportFailed, match="File exists"):
        # More than a pipe holds: the rows must be taken although nobody can use them.
        await helper.write(APlan(first=1, last=20), some_rows(*range(1, 21)))
    pid = helper.pid
    (tmp_path / "journal").unlink()
    assert (await helper.write(APlan(first=1, last=20), some_rows(*range(1, 21)))).events == 20_000
    assert helper.pid == pid
    await helper.close()


async def test_the_location_of_another_store_is_refused(tmp_path: Path):
    ours, theirs = (HelperProcess(str(tmp_path / "journal"), name) for name in ("ours", "theirs"))
    await ours.write(APlan(), some_rows(1))
    with pytest.raises(ExportFailed, match="holds the journal of another store"):
        await theirs.write(APlan("other"), some_rows(1))
    with pytest.raises(ExportFailed, match="holds the journal of another store"):
        await theirs.sweep("2999-01-01")
    await ours.close()
    await theirs.close()


class KillsTheHelper:
    """An outbox that kills the helper in the middle of the rows, once."""

    def __init__(self, store: MemoryStore, helper: HelperProcess) -> None:
        self._store, self._helper = store, helper
        self.plan_export, self.finish_export = store.plan_export, store.finish_export
        self.outbox_size = store.outbox_size
        self.killed: list[int] = []

    async def outbox_rows(
        self, plan: ExportPlan, *, after: int = 0, limit: int = 1000
    ) -> Sequence[OutboxRow]:
        pid = self._helper.pid
        if after >= plan.first and pid is not None and not self.killed:
            self.killed.append(pid)
            os.kill(pid, signal.SIGKILL)
        return await self._store.outbox_rows(plan, after=after, limit=limit)


async def test_a_helper_that_was_killed_is_replaced_and_nothing_is_lost_or_doubled(tmp_path: Path):
    clock = ManualClock()
    place = Storage.at(tmp_path / "journal")
    store, helper = MemoryStore(clock, journal=True), HelperProcess(place.uri, "s")
    queue = await make_queue(store)
    sent = [(await store.send(queue, [a_message()]))[0].seq for _ in range(200)]
    outbox = KillsTheHelper(store, helper)
    exporter = Exporter(outbox, helper, clock)

    with pytest.raises(ExportFailed, match="the helper process has died"):
        await exporter.export_all()
    assert outbox.killed
    assert (await store.outbox_size()).rows == 200

    assert await exporter.export_all() == 200
    assert helper.pid not in outbox.killed
    assert [event["seq"] for event in events_of(place)] == sent
    await helper.close()


async def test_an_export_that_is_cancelled_leaves_nothing_behind(tmp_path: Path):
    place = Storage.at(tmp_path / "journal")
    helper = HelperProcess(place.uri, "s")
    begun = asyncio.Event()

    async def endless() -> Any:
        async for some in some_rows(1):
            yield some
        begun.set()
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(helper.write(APlan(), endless()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert helper.pid is None
    assert (await helper.write(APlan(), some_rows(1))).events == 1_000
    assert [entry.name for entry in place.entries("day=2026-09-21")] == [
        "day=2026-09-21/abc-0000000000000001-0000000000000001.parquet"
    ]
    await helper.close()


PARENT = """
import asyncio, sys
from tests.journal.test_helper import some_rows
from tests.journal.kit import APlan
from veil.journal.helper_process import HelperProcess

async def main():
    helper = HelperProcess(sys.argv[1], "s")
    await helper.write(APlan(), some_rows(1))
    print(helper.pid, flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


@needs_pidfd
def test_it_dies_with_its_parent(tmp_path: Path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "journal")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        watched = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            ended, _, _ = select.select([watched], [], [], LONG_S)
        finally:
            os.close(watched)
    assert ended, "the helper outlived its parent"


@needs_pidfd
def test_signals_to_the_whole_group_leave_it_to_its_parent(tmp_path: Path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "journal")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        helper = int(parent.stdout.readline())
        watched = os.pidfd_open(helper)
        os.kill(helper, signal.SIGTERM)
        os.kill(helper, signal.SIGINT)
        assert os.getpgid(helper) != os.getpgid(parent.pid)
        assert not select.select([watched], [], [], 0.2)[0]
        parent.kill()
        assert select.select([watched], [], [], LONG_S)[0]
        os.close(watched)


def test_the_server_never_loads_pyarrow():
    code = (
        "import sys, veil.journal.exporter, veil.journal.helper_process, veil.journal.storage, veil.server.main\n"
        "from veil.journal.storage import Location\n"
        "Location('/nowhere', 's').check()\n"
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyarrow", "numpy"} & set(ran.stdout.split())
