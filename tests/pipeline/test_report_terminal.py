"""The same in a terminal: a table that fits, and as data for programs."""

from __future__ import annotations

import json

import pytest

from tests.pipeline.report_kit import a_finding, some_findings, some_overview
from veil.cli import output
from veil.cli.timeouts import COLUMNS, headline
from veil.core.findings import Findings
from veil.pipeline.report.summary import summary


def test_a_pipe_gets_every_column():
    table = headline(some_findings())

    assert table.columns == [*COLUMNS]
    assert len(table.rows) == 9


def test_a_queue_without_types_needs_no_column_for_them():
    assert "type" not in headline(Findings(1, "", 0.001, [a_finding()])).columns


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_table_fits_the_terminal_and_keeps_the_answer(width: int):
    table = headline(some_findings(10), width)

    assert output.drawn_width(*table) <= width
    assert {"queue", "present", "recommended", "duplicates"} <= set(table.columns)
    assert "2 min" in {row[table.columns.index("recommended")] for row in table.rows}


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_table_is_drawn_as_wide_as_it_says(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    table = headline(some_findings(10), width)
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "400")

    output.show_table(table.columns, table.rows, right=["leases"])

    assert max(map(len, capsys.readouterr().out.splitlines())) == output.drawn_width(*table)


def test_where_the_type_has_no_column_it_stands_behind_the_queue():
    table = headline(some_findings(), 80)

    assert "type" not in table.columns
    assert any(row[0].endswith("orders placed") for row in table.rows)


def test_the_dearest_comes_first():
    assert headline(some_findings()).rows[0][0] == "video-transcode"


def test_the_summary_has_what_programs_ask_for():
    findings = some_findings()
    told = summary(findings, some_overview(findings))

    thumbnails = next(queue for queue in told["queues"] if queue["name"] == "thumbnails")
    assert thumbnails["visibility_timeout_s"] == 30
    assert thumbnails["recommended_timeout_s"] == 120
    assert thumbnails["verdict"] == "too short"
    assert thumbnails["certainty"] == "clear"
    assert (thumbnails["leases"], thumbnails["duplicates"]) == (41_230, 3_928)
    assert thumbnails["p50_s"] == 12
    assert {"p99_s", "hidden_hours", "crashes"} <= thumbnails.keys()
    orders = next(queue for queue in told["queues"] if queue["name"] == "orders")
    assert [each["message_type"] for each in orders["message_types"]] == ["placed", "cancelled"]
    assert told["totals"]["leases_by_how"]["superseded"] > 0
    json.dumps(told, allow_nan=False)


def test_the_summary_can_do_without_the_tables():
    assert "totals" not in summary(some_findings())
