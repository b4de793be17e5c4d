"""The benchmark of lifecycles compares like with like: a generated journal means the same to all three engines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet as pq

from bench.journal_events import BEGIN_MS, JournalPlan, make_journal
from bench.lifecycles import link_segments
from bench.lifecycles_check import Digest, differences, digest, table_files
from tests.pipeline.journal_kit import a_message, journal_of, write_segment_of
from veil.journal.segments import check_segment, gaps, list_segments
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.run import run_lifecycles
from veil.pipeline.lifecycles.tables import HOW, OUTCOME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So few a day that the events span three hours, in which everything happens that takes its time.
PLAN = JournalPlan(events=30_000, more=3_000, events_a_day=240_000, segment_events=8_000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    assert make_journal(PLAN, folder)
    return folder


def test_a_generated_journal_is_whole_and_well(made: Path) -> None:
    places = [Storage.at(made / part) for part in ("journal", "later")]

    assert [
        check_segment(place, each, thorough=True) for place in places for each in list_segments(place)
    ] == [None] * 5
    assert gaps(each for place in places for each in list_segments(place)) == []
    assert sum(_events(made, "journal")) == PLAN.events
    assert sum(_events(made, "later")) == PLAN.more


def test_the_same_plan_makes_the_same_journal_and_makes_it_once(made: Path, tmp_path: Path) -> None:
    assert make_journal(PLAN, tmp_path / "again")

    first, second = (sorted(each.glob("*/day=*/*")) for each in (made, tmp_path / "again"))
    assert [each.name for each in first] == [each.name for each in second]
    assert [each.read_bytes() for each in first] == [each.read_bytes() for each in second]
    assert not make_journal(PLAN, tmp_path / "again")


@pytest.mark.soak
def test_all_engines_make_the_same_tables_also_in_two_steps(
    spark: SparkSession, made: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    link_segments(made / "journal", journal)
    # Generated journals do not tell of holders that the server found to be gone.
    crash = a_message(BEGIN_MS).received(BEGIN_MS + 2_000).received(BEGIN_MS + 35_000)
    crash.deleted(BEGIN_MS + 40_000).holder_silent(BEGIN_MS + 95_000, delivery=1)
    write_segment_of(Storage.at(journal), journal_of(crash))
    run_lifecycles(spark, Storage.at(journal), Storage.at(tmp_path / "spark"))
    first = digest(table_files("spark", tmp_path / "spark"))
    for engine in ("duckdb", "polars"):
        assert differences(first, _made_by(engine, journal, tmp_path / engine)) == []
    _has_everything(first)

    link_segments(made / "later", journal)
    run_lifecycles(spark, Storage.at(journal), Storage.at(tmp_path / "spark"))
    second = digest(table_files("spark", tmp_path / "spark"))

    assert differences(second, _made_by("duckdb", journal, tmp_path / "duckdb")) == []
    assert differences(first, second) != []


def _has_everything(found: Digest) -> None:
    """A comparison of tables in which something never happens would say nothing about it."""
    assert [how for how in HOW if not found["leases"].get(f"how {how}")] == []
    assert [outcome for outcome in OUTCOME if not found["messages"].get(f"outcome {outcome}")] == []
    for name in (
        "in processing",
        "in processing_lapsed",
        "in processing_censored",
        "in waiting",
        "in recovery",
        "in recovery_unknown",
        "sum of overrun",
    ):
        assert found["queue_hours"][name] > 0
    assert found["messages"]["sum of duplicates"] > 0


def _made_by(engine: str, journal: Path, tables: Path) -> Digest:
    """Run by the command of the benchmark: Polars takes the number of its threads from the process."""
    command = [sys.executable, "-m", "bench.lifecycles_run", engine, str(journal), str(tables)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["seconds"] > 0
    return digest(table_files(engine, tables))


def _events(made: Path, part: str) -> list[int]:
    return [pq.ParquetFile(path).metadata.num_rows for path in (made / part).glob("day=*/*")]
