"""Killed at any step, the exporter neither loses nor doubles an event."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journal.kit import DirectSink, events_of
from tests.stores.kit import make_queue
from veil.journal.exporter import Exporter
from veil.journal.segments import check_segment, gaps, list_segments
from veil.journal.storage import Storage
from veil.server.process import SystemClock
from veil.stores.sqlite import SqliteStore

STEPS = ["before plan", "planned", "writing", "written", "appeared", "before finish", "finished"]


def run_child(data: Path, journal: Path, step: str, occurrence: int) -> tuple[int, list[int]]:
    command = [
        sys.executable,
        "-m",
        "tests.journal.export_child",
        str(data),
        str(journal),
        step,
        str(occurrence),
    ]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode in (0, -signal.SIGKILL), ran.stderr
    return ran.returncode, [int(line) for line in ran.stdout.split()]


async def drain(data: Path, journal: Path) -> set[int]:
    """Export what is left, as the next start would, and give the keys of the messages that the store has."""
    clock = SystemClock()
    store = SqliteStore(data, clock, journal=True)
    await store.open()
    try:
        await Exporter(store, DirectSink(str(journal), store.store_id), clock).export_all()
        queue = await make_queue(store)
        return {message.seq for message in await store.peek(queue, limit=100_000)}
    finally:
        await store.close()


def assert_whole(place: Storage) -> None:
    assert [
        found for each in list_segments(place) if (found := check_segment(place, each, thorough=True))
    ] == []


def assert_told_once(journal: Path, stored: set[int]) -> None:
    place = Storage.at(journal)
    segments = list_segments(place)
    assert segments[0].first == 1 and gaps(segments) == []
    assert_whole(place)
    events = events_of(place)
    assert {event["kind"] for event in events} == {"sent"}
    told = [event["seq"] for event in events]
    assert len(told) == len(set(told)), "an event was exported twice"
    assert set(told) == stored, "an event was lost, or invented"
    positions = [event["position"] for event in events]
    assert len(positions) == len(set(positions))


@pytest.mark.parametrize("occurrence", [1, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("step", STEPS)
async def test_killed_at_each_step(step: str, occurrence: int, tmp_path: Path):
    data, journal = tmp_path / "data", tmp_path / "journal"
    data.mkdir()
    code, acknowledged = run_child(data, journal, step, occurrence)
    assert code == -signal.SIGKILL, "the step was never reached"
    # A reader that looks now, before the next start, finds only whole files.
    assert_whole(Storage.at(journal))

    stored = await drain(data, journal)
    assert set(acknowledged) <= stored
    assert_told_once(journal, stored)
    assert not list(journal.rglob("*.tmp")), "half a file was left behind"


async def test_killed_again_and_again(tmp_path: Path):
    data, journal = tmp_path / "data", tmp_path / "journal"
    data.mkdir()
    acknowledged: list[int] = []
    for step in reversed(STEPS):
        acknowledged += run_child(data, journal, step, 1)[1]
    stored = await drain(data, journal)
    assert set(acknowledged) <= stored
    assert_told_once(journal, stored)


async def test_killed_between_the_appearance_of_a_file_and_the_end_of_its_plan_it_is_written_again_the_same(
    tmp_path: Path,
):
    data, journal = tmp_path / "data", tmp_path / "journal"
    data.mkdir()
    run_child(data, journal, "appeared", 1)
    place = Storage.at(journal)
    (before,) = list_segments(place)
    content = place.read(before.name)
    await drain(data, journal)
    assert list_segments(place)[0] == before
    assert place.read(before.name) == content
