"""The benchmarks on PostgreSQL run from end to end, briefly: their figures mean nothing here, that they count right does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.postgres_server import why_no_server

if (reason := why_no_server()) is not None:
    pytest.skip(reason, allow_module_level=True)

from bench import pgmq, postgres, postgres_backlog, postgres_churn, postgres_servers
from bench.elasticmq import NotAvailable


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.chdir(tmp_path)


@pytest.mark.soak
def test_a_short_run_has_a_row_for_each_queue_and_number_of_nodes() -> None:
    assert (
        postgres.main(["--smoke", "--callers", "4", "--queues", "veil", "plain", "--out", "figures.json"])
        == 0
    )
    rows = json.loads(Path("figures.json").read_text())
    assert {(row["level"], row["name"]) for row in rows} == {
        ("store", "veil"),
        ("store", "plain"),
        ("http", "one node"),
        ("http", "two nodes"),
    }
    assert {row["batch"] for row in rows} == {1, 10}
    assert all(row["messages_per_s"] > 0 for row in rows)


@pytest.mark.soak
def test_the_cost_of_a_backlog_is_measured_at_any_size(capsys: pytest.CaptureFixture[str]) -> None:
    run = [
        "--smoke",
        "--backlog",
        "1000",
        "--in-flight",
        "100",
        "--rounds",
        "1",
        "--seconds",
        "0.1",
        "--callers",
        "4",
    ]
    assert postgres_backlog.main(run) in (0, 1)
    shown = capsys.readouterr().out
    for subject in ("1,000 messages sent", "100 messages received", "waiting, by 1:", "in flight, by 10:"):
        assert subject in shown


@pytest.mark.soak
def test_churn_tells_sizes_drift_and_what_a_long_transaction_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ["--smoke", "--minutes", "3", "--minute-s", "0.3", "--callers", "4", "--long-transaction"]
    assert postgres_churn.main(run) in (0, 1)
    shown = capsys.readouterr().out
    assert shown.count("messages/s flat out") == 3
    assert shown.count("a snapshot is held") == 1
    assert "while a snapshot was held" in shown and "drift" in shown


def test_where_pgmq_cannot_be_had_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(NotAvailable, match="pip could not fetch it"):
        pgmq.fetch(tmp_path / "pgmq")


@pytest.mark.soak
def test_the_cost_of_several_servers_is_told_for_few_and_many_queues(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["postgres_servers", "--smoke", "--callers", "4"])
    assert postgres_servers.main() == 0
    assert capsys.readouterr().out.count("two servers") == 4 + 2  # of one node and of two
