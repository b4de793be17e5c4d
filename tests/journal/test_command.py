"""`veil journal` lists the days, finds what is broken or missing, and exports what a stopped server left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Veil, command, nowhere
from tests.journal.kit import NO_TROUBLES, NOON_MS, APlan, a_row, an_event, events_of, flip_bit_in_a_page
from veil.journal.segment_writer import write_segment
from veil.journal.storage import Storage
from veil.testing import VeilServer

__all__ = ["command", "nowhere"]


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    place = Storage.at(tmp_path / "data" / "journal")
    for day, first, last in (("2026-09-21", 1, 2), ("2026-09-21", 3, 3), ("2026-09-22", 4, 6)):
        events = [an_event(at_ms=NOON_MS + n) for n in range(400)]
        rows = [(number, a_row(*events)) for number in range(first, last + 1)]
        write_segment(place, APlan("abc", first, last, day), rows)
    return place


FIRST = "day=2026-09-21/abc-0000000000000001-0000000000000002.parquet"
SECOND = "day=2026-09-21/abc-0000000000000003-0000000000000003.parquet"


def test_the_days_are_listed(command: Veil, place: Storage):
    ran = command("journal", "ls", "--data", "data")
    assert ran.code == 0
    assert [line.split()[:3] for line in ran.out.splitlines()] == [
        ["DAY", "SEGMENTS", "EVENTS"],
        ["2026-09-21", "2", "1,200"],
        ["2026-09-22", "1", "1,200"],
    ]


def test_the_days_as_json(command: Veil, place: Storage):
    first, second = command("journal", "ls", "--journal", place.uri, "--json").objects
    assert first["day"] == "2026-09-21" and first["segments"] == 2 and first["events"] == 1200
    assert second["bytes"] == sum(entry.size for entry in place.entries("day=2026-09-22"))
    assert first["broken"] == []


def test_a_broken_segment_is_named(command: Veil, place: Storage):
    place.write(SECOND, b"PAR1")
    ran = command("journal", "ls", "--data", "data")
    assert ran.code == 0
    assert f"broken: {SECOND}: it is not a whole Parquet file" in ran.out
    (first, _) = command("journal", "ls", "--data", "data", "--json").objects
    assert [each["name"] for each in first["broken"]] == [SECOND] and first["events"] == 800


def test_a_place_without_segments_says_so(command: Veil, tmp_path: Path):
    ran = command("journal", "ls", "--data", str(tmp_path / "nothing"))
    assert (ran.code, ran.out) == (0, "")
    assert "there are no segments in" in ran.err
    ran = command("journal", "verify", "--data", str(tmp_path / "nothing"))
    assert (ran.code, ran.out) == (1, "")
    assert "expected a directory with segments; it is empty or missing" in ran.err


def test_a_whole_journal_is_verified(command: Veil, place: Storage):
    ran = command("journal", "verify", "--data", "data")
    assert ran.code == 0
    assert ran.out.startswith("sound: 3 segments, 2,400 events, ")
    assert command("journal", "verify", "--data", "data", "--json").object["sound"] is True


def test_damage_and_missing_rows_are_found(command: Veil, place: Storage):
    flip_bit_in_a_page(place, FIRST)
    place.remove(SECOND)
    ran = command("journal", "verify", "--data", "data")
    assert ran.code == 1
    assert f"broken: {FIRST}: it is damaged" in ran.out
    assert "missing: rows 3 to 3 of journal abc" in ran.out
    assert "1 broken, 1 range missing" in ran.err

    ran = command("journal", "verify", "--data", "data", "--json")
    assert ran.code == 1
    broken, missing, summary = ran.objects
    assert broken["broken"] == FIRST
    assert missing == {"missing": {"journal_id": "abc", "first": 3, "last": 3}}
    assert summary["sound"] is False


def test_a_place_that_cannot_be_is_refused_in_one_line(command: Veil):
    ran = command("journal", "ls", "--journal", "ftp://host/x")
    assert ran.code == 2  # an argument is wrong
    assert ran.err.startswith("veil: journal 'ftp://host/x': expected a path") and ran.err.count("\n") == 1


def test_what_a_killed_server_left_is_exported(command: Veil, tmp_path: Path):
    with VeilServer("--data", "data", NO_TROUBLES) as server:
        url = server.client().create_queue(QueueName="orders")["QueueUrl"]
        server.client().send_message(QueueUrl=url, MessageBody="x")
        refused = command("journal", "export", "--data", "data")
        assert refused.code == 1
        assert "a server is running on data: it exports by itself" in refused.err
        os.kill(server.pid, signal.SIGKILL)

    ran = command("journal", "export", "--data", "data", "--json")
    assert ran.code == 0
    assert ran.object["events"] == ran.object["segments"] == 1
    assert [event["kind"] for event in events_of(Storage.at(tmp_path / "data" / "journal"))] == ["sent"]
    again = command("journal", "export", "--data", "data")
    assert "0 events exported in 0 segments" in again.err


def test_exporting_makes_no_data_where_there_is_none(command: Veil, tmp_path: Path):
    ran = command("journal", "export", "--data", "nothing")
    assert ran.code == 1
    assert "nothing contains no server data" in ran.err
    assert not (tmp_path / "nothing").exists()


def journal_finding(ran: Ran) -> dict[str, str]:
    (found,) = [each for each in ran.objects if each["check"] == "journal"]
    return found


@pytest.mark.parametrize(
    ("where", "verdict", "text"),
    [
        ("off", "skip", "off"),
        ("here", "ok", "here (nothing exported yet)"),
        ("data/journal", "ok", "data/journal"),
        ("a-file/journal", "fail", "a-file cannot be written"),
        ("marked-by-a-stranger", "fail", "_journal.json cannot be read"),
    ],
)
def test_the_doctor_looks_at_it(
    command: Veil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, verdict: str, text: str
):
    Storage.at(tmp_path / "data" / "journal").write("_journal.json", b'{"store_id": "s", "version": 1}')
    Storage.at(tmp_path / "marked-by-a-stranger").write("_journal.json", b"[]")
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("VEIL_JOURNAL", where)
    monkeypatch.setenv("VEIL_PORT", "0")
    found = journal_finding(command("doctor", "--json"))
    assert found["verdict"] == verdict
    assert text in found["text"]
