"""`veil pipeline report`, from the command line to the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.journal_kit import journal_of, write_segment_of
from tests.pipeline.report_kit import a_finding, some_findings
from tests.pipeline.test_report_overview import telling_lives
from veil.cli.main import run
from veil.core.findings import FILE, Findings, encode
from veil.journal.storage import Storage

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(*arguments: str) -> int:
    return run(["pipeline", "report", *arguments])


def test_without_findings_it_says_what_to_run(data: Path, capsys: Captured):
    assert report("--data", str(data)) == 1

    told = capsys.readouterr().err
    assert f"no timeouts.json in {data / 'tables'}" in told
    assert "veil pipeline timeouts" in told


def test_findings_that_cannot_be_read_are_named(data: Path, capsys: Captured):
    Storage.at(data / "tables").write(FILE, b"{}")

    assert report("--data", str(data)) == 1
    assert "timeouts.json is not readable" in capsys.readouterr().err


def test_groups_of_dead_letters_that_cannot_be_read_are_named(data: Path, capsys: Captured):
    tables = Storage.at(data / "tables")
    tables.write(FILE, encode(some_findings()))
    tables.write("dead_letters.parquet", b"half of it")

    assert report("--data", str(data)) == 1
    assert f"{data}/tables/dead_letters.parquet cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["nowhere/report.html", "."])
def test_a_place_where_no_file_can_be_is_refused_at_once(data: Path, out: str, capsys: Captured):
    assert report("--data", str(data), "--out", out) == 2
    assert f"--out {out}: " in capsys.readouterr().err


def test_the_page_is_written_and_the_table_printed(
    data: Path, journal_place: Storage, tables_place: Storage, capsys: Captured
):
    from veil.pipeline.lifecycles.run import run_lifecycles

    write_segment_of(journal_place, journal_of(*telling_lives()))
    run_lifecycles(lambda: pytest.fail("so little needs no Spark"), journal_place, tables_place)
    day = "2026-01-01T00:00:00+00:00"
    found = [a_finding(queue, since=day, until=day) for queue in ("orders", "thumbnails")]
    tables_place.write(FILE, encode(Findings(1, day, 0.001, found)))
    capsys.readouterr()

    assert report("--data", str(data), "--out", "report.html") == 0

    out, talk = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == [
        "QUEUE", "LEASES", "PRESENT", "RECOMMENDED", "VERDICT", "CERTAINTY", "DUPLICATES", "HIDDEN", "P50", "P99",
    ]  # fmt: skip
    assert {line.split()[0] for line in lines[1:]} == {"orders", "thumbnails"}
    assert str(data / "report.html") in talk
    page = (data / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "Done twice" in page
    assert "Over these 2 minutes" in page
    assert [each.name for each in data.glob("*report*")] == ["report.html"]

    assert report("--data", str(data), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {queue["name"] for queue in told["queues"]} == {"orders", "thumbnails"}
    assert told["totals"]["sent"] == 6
    assert Path(told["report"]).is_file()


def test_on_a_narrow_terminal_the_table_fits(monkeypatch: pytest.MonkeyPatch, capsys: Captured):
    from veil.cli import output, timeouts

    monkeypatch.setenv("COLUMNS", "64")
    for module in (output, timeouts):
        monkeypatch.setattr(module, "is_terminal", lambda stream: True)
    timeouts.show_findings(some_findings(5))

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 64
    assert len([line for line in lines if "thumbnails" in line]) == 1
    assert len(lines) < 20  # a row is a line


def test_it_does_not_even_load_spark():
    code = "import sys, veil.pipeline.report.overview, veil.pipeline.report.page; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
