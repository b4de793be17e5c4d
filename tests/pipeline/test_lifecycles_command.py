"""`veil pipeline lifecycles` and `veil pipeline files`, as people and scripts use them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.pipeline.journal_kit import START_MS, S, a_message, journal_of, numbered, write_segment_of
from veil.cli.main import run
from veil.cli.pipeline import pipeline_app
from veil.journal.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = START_MS


def test_a_run_says_what_it_did_and_names_what_it_set_aside(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    options = ["--journal", journal_place.uri, "--tables", tables_place.uri]
    told = journal_of(a_message(T).received(T + S).deleted(T + 2 * S))
    write_segment_of(journal_place, told)
    broken = write_segment_of(journal_place, numbered(told, first_row=4))
    journal_place.write(broken, b"PAR1")

    done = CliRunner().invoke(pipeline_app, ["lifecycles", *options])
    assert (done.exit_code, done.stdout.startswith("3 events of 1 segment: 1 hour written")) == (0, True)
    assert f"set aside {broken}: " in done.stderr

    again = CliRunner().invoke(pipeline_app, ["lifecycles", *options, "--json"])
    assert again.exit_code == 0
    found = json.loads(again.stdout)
    assert (found["events"], found["segments"], found["generation"]) == (0, 0, 1)
    assert [each["name"] for each in found["broken"]] == [broken]

    files = CliRunner().invoke(pipeline_app, ["files", "messages", "--tables", tables_place.uri])
    import duckdb

    (rows,) = duckdb.sql(f"select queue, outcome from read_parquet({files.stdout.split()})").fetchall()
    assert rows == ("orders", "deleted")


def test_little_is_worked_through_without_spark_and_pandas(
    journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, journal_of(a_message(T).received(T + S).deleted(T + 2 * S)))
    program = """
import sys
from veil.cli.main import run
places = ["--journal", sys.argv[1], "--tables", sys.argv[2]]
codes = run(["pipeline", "lifecycles", *places]), run(["pipeline", "timeouts", *places[2:]])
print(*{"pyspark", "pandas"} & set(sys.modules), end="", file=sys.stderr)
sys.exit(max(codes))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, journal_place.uri, tables_place.uri],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 events of 1 segment: 1 hour written")


def test_a_journal_that_is_not_there_is_named(
    tables_place: Storage, journal_place: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--journal", journal_place.uri, "--tables", tables_place.uri]
    assert run(["pipeline", "lifecycles", *places]) == 1
    assert f"journal {journal_place.uri}: expected a directory with segments" in capsys.readouterr().err


@pytest.mark.parametrize("table", ["lease", "queue_years"])
def test_files_of_an_unknown_table_are_refused(
    tables_place: Storage, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "files", table, "--tables", tables_place.uri]) == 2
    assert f"table '{table}': expected one of leases, messages" in capsys.readouterr().err


def test_following_waits_for_a_journal_that_is_not_there_yet(
    journal_place: Storage, tables_place: Storage
) -> None:
    options = ["--follow", "--every", "1", "--journal", journal_place.uri, "--tables", tables_place.uri]
    veil = [sys.executable, "-m", "veil.cli.main", "pipeline", "lifecycles", *options]
    with subprocess.Popen(veil, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None and following.stderr is not None
        assert following.stderr.readline().startswith(f"waiting for the first segment in {journal_place.uri}")
        write_segment_of(journal_place, journal_of(a_message(T).received(T + S).deleted(T + 2 * S)))
        assert following.stdout.readline().startswith("3 events of 1 segment: 1 hour written")
        following.terminate()


def test_files_of_tables_that_are_not_there_say_so_instead_of_nothing(
    tables_place: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "files", "leases", "--tables", tables_place.uri]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err.startswith(f"no files of leases in {tables_place.uri}; ")) == ("", True)
