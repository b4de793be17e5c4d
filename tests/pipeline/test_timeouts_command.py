"""`veil pipeline timeouts`, from the tables to what stands on the screen."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from bench.queue_days import row, write_tables
from tests.pipeline.queue_histories import EXPONENTIAL, history_of
from veil.cli.main import run
from veil.journal.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def tables(tmp_path: Path, spark: SparkSession) -> Path:
    """`orders`, whose timeout of 10 s is too short, and `mails`, of which little is known."""
    rows = []
    for queue, leases in (("orders", 8_000), ("mails", 20)):
        history = history_of(EXPONENTIAL, Random(1), leases=leases, timeout_s=10)
        rows.append(
            row(
                DAY, queue, leases=leases,
                duplicates=history.duplicates, window_ms=10_000, window_at=DAY, processing=history.processing,
                processing_censored=history.censored,
            )
        )  # fmt: skip
    write_tables(Storage.at(tmp_path / "tables"), {DAY: rows})
    return tmp_path / "tables"


def veil(*arguments: str) -> int:
    return run(arguments)


def test_the_table_is_printed_and_the_findings_are_kept(tables: Path, capsys: pytest.CaptureFixture[str]):
    assert veil("pipeline", "timeouts", "--tables", str(tables)) == 0

    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["QUEUE", "LEASES", "PRESENT", "RECOMMENDED"]
    mails, orders = sorted(rows)
    assert mails.split()[:4] == ["mails", "20", "10", "s"]
    assert "not enough evidence" in mails
    assert "30 s" in orders
    assert "clear" in orders
    assert veil("timeouts", "show", "orders", "--tables", str(tables)) == 0
    assert capsys.readouterr().out.startswith("orders: 30 s (clear)\n")


def test_where_nothing_was_chosen_it_says_what_was_looked_for(
    tables: Path, capsys: pytest.CaptureFixture[str]
):
    assert veil("pipeline", "timeouts", "--tables", str(tables), "--since", "2099-01-01") == 0
    assert f"no leases since 2099-01-01 in {tables}; " in capsys.readouterr().err
    assert veil("pipeline", "timeouts", "--tables", str(tables), "--queue", "nobody") == 0
    assert f"no leases of nobody in {tables}; " in capsys.readouterr().err


def test_a_target_a_policy_and_a_queue_can_be_chosen(tables: Path, capsys: pytest.CaptureFixture[str]):
    options = ["--target", "2%", "--policy", "heartbeat", "--queue", "orders", "--json"]

    assert veil("pipeline", "timeouts", "--tables", str(tables), *options) == 0

    (line,) = capsys.readouterr().out.splitlines()
    finding = json.loads(line)
    assert (finding["queue"], finding["policy"], finding["certainty"]) == ("orders", "heartbeat", "clear")
    assert finding["recommended_timeout_s"] == 10
    assert not (tables / "timeouts.json").exists()  # it is for all queues


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--target", "lots", "'lots': expected a share from 0.0001% to 50%"),
        ("--target", "0", "'0': expected a share"),
        ("--since", "yesterday", "'yesterday': expected a date such as 2026-01-31"),
        ("--policy", "magic", "'--policy': 'magic': expected one of none, buffered, heartbeat, adaptive"),
    ],
)
def test_bad_options_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, told: str
):
    assert veil("pipeline", "timeouts", "--tables", str(tmp_path), option, value) == 2

    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_without_tables_it_says_what_to_run(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
):
    assert veil("pipeline", "timeouts", "--tables", str(tmp_path / "none")) == 0

    said = capsys.readouterr()
    assert said.out == ""
    assert "make the tables with: veil pipeline lifecycles" in said.err
