"""A segment or table that cannot be read is named; a segment is set aside, and tried again later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.journal_kit import (
    HOUR_MS,
    START_MS,
    a_message,
    journal_of,
    no_spark,
    story,
    write_segment_of,
)
from tests.pipeline.lifecycle_model import model_tables
from tests.pipeline.tables_kit import all_rows, difference
from veil.journal.schema import VERSION
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.run import run_lifecycles
from veil.pipeline.lifecycles.store import NAME, TABLES, TablesRefused, load_manifest, read_table
from veil.pipeline.timeouts.run import run_timeouts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_broken_segments_are_set_aside_by_name_and_worked_in_once_they_are_whole(
    journal_place: Storage, tables_place: Storage
) -> None:
    _whole, truncated, damaged = (write_segment_of(journal_place, story(number)) for number in range(3))
    newer = write_segment_of(journal_place, story(3), version=VERSION + 1)
    narrow = write_segment_of(journal_place, story(4), without=["deadline", "kind"])
    contents = {name: journal_place.read(name) for name in (truncated, damaged)}
    journal_place.write(truncated, contents[truncated][:200])
    pages = bytearray(contents[damaged])
    middle = pages.find(b"received")  # in a page of kinds, or wherever the codec left it
    middle = middle if middle > 0 else 60
    pages[middle : middle + 8] = b"\xff" * 8
    journal_place.write(damaged, bytes(pages))

    run = run_lifecycles(no_spark, journal_place, tables_place)

    reasons = {each.name: each.reason for each in run.broken}
    assert set(reasons) == {truncated, damaged, newer, narrow}
    assert f"version is {VERSION + 1}" in reasons[newer]
    assert "column kind is missing" in reasons[narrow]
    assert run.segments == 1
    assert difference(all_rows(tables_place), model_tables(story(0))) == ""

    manifest = tables_place.read(NAME)
    again = run_lifecycles(no_spark, journal_place, tables_place)
    assert (again.broken, again.changed) == (run.broken, False)
    assert tables_place.read(NAME) == manifest

    for name in (truncated, damaged):
        journal_place.write(name, contents[name])
    repaired = run_lifecycles(no_spark, journal_place, tables_place)
    assert {each.name for each in repaired.broken} == {newer, narrow}
    everything = [*story(0), *story(1), *story(2)]
    assert difference(all_rows(tables_place), model_tables(everything)) == ""
    assert load_manifest(tables_place).progress == {"j1": [(1, 9)]}


def test_a_segment_that_overlaps_what_is_known_is_set_aside(
    journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, story(0))
    run_lifecycles(no_spark, journal_place, tables_place)
    overlapping = write_segment_of(journal_place, [*story(0)[1:], *story(1)])

    run = run_lifecycles(no_spark, journal_place, tables_place)

    assert [each.name for each in run.broken] == [overlapping]
    assert "in the tables already" in run.broken[0].reason


def test_an_error_that_is_no_segment_s_fault_is_raised(
    journal_place: Storage, tables_place: Storage, tmp_path: Path
) -> None:
    write_segment_of(journal_place, story(0))

    def fail(step: str) -> None:
        if step == "looked through":
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        run_lifecycles(no_spark, journal_place, tables_place, on_step=fail)
    assert load_manifest(tables_place).generation == 0


def test_a_table_with_wrong_columns_is_named_with_what_was_expected(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    import pyarrow as pa
    from pyarrow import parquet as pq

    write_segment_of(journal_place, story(0))
    run_lifecycles(no_spark, journal_place, tables_place)
    (file,) = load_manifest(tables_place).files_of("messages")
    table = pq.read_table(Path(tables_place.uri) / file, partitioning=None)
    place = table.schema.get_field_index("wait_ms")
    with tables_place.writing(file) as out:
        pq.write_table(table.set_column(place, "wait_ms", table["wait_ms"].cast(pa.int32())), out)

    with pytest.raises(TablesRefused, match=r"table messages: column wait_ms of .* is int32, expected int64"):
        read_table(spark, tables_place, "messages")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("content", [None, b"", b"PAR1 no more"])
def test_a_file_of_the_tables_that_is_damaged_or_gone_is_named(
    journal_place: Storage, tables_place: Storage, table: str, content: bytes | None
) -> None:
    write_segment_of(journal_place, story(0))
    run_lifecycles(no_spark, journal_place, tables_place)
    (file,) = load_manifest(tables_place).files_of(table)
    if content is None:
        tables_place.remove(file)
    else:
        tables_place.write(file, content)
    write_segment_of(journal_place, story(1))

    with pytest.raises(TablesRefused, match=re.escape(f"{tables_place.uri}/{file}")):
        run_lifecycles(no_spark, journal_place, tables_place)


def test_a_damaged_file_of_sums_is_named_whichever_it_is(
    journal_place: Storage, tables_place: Storage
) -> None:
    months = (START_MS, START_MS + 40 * 24 * HOUR_MS)  # whose sums one run writes
    write_segment_of(journal_place, journal_of(*(a_message(at).received(at).deleted(at) for at in months)))
    run_lifecycles(no_spark, journal_place, tables_place)
    first, _ = load_manifest(tables_place).files_of("queue_months")
    tables_place.write(first, b"PAR1 no more")

    with pytest.raises(TablesRefused, match=re.escape(first)):
        run_timeouts(tables_place)


def test_tables_that_cannot_be_these_are_refused(
    spark: SparkSession, journal_place: Storage, tables_place: Storage
) -> None:
    write_segment_of(journal_place, story(0))
    journal_place.write("_journal.json", b'{"store_id": "one", "version": 1}')
    run_lifecycles(no_spark, journal_place, tables_place)
    journal_place.write("_journal.json", b'{"store_id": "two", "version": 1}')
    with pytest.raises(TablesRefused, match="belong to another store"):
        run_lifecycles(no_spark, journal_place, tables_place)

    tables_place.write(NAME, b'{"version": 99}')
    with pytest.raises(TablesRefused, match="has version 99, this Veil knows 4: upgrade"):
        run_lifecycles(no_spark, journal_place, tables_place)
    tables_place.write(NAME, b"{")
    with pytest.raises(TablesRefused, match="cannot be read"):
        read_table(spark, tables_place, "leases")


def test_a_table_that_does_not_exist_is_refused_and_one_without_rows_is_empty(
    spark: SparkSession, tables_place: Storage
) -> None:
    with pytest.raises(TablesRefused, match="expected one of leases, messages, queue_hours, queue_days"):
        read_table(spark, tables_place, "lease")
    empty = read_table(spark, tables_place, "leases")
    assert (empty.count(), "processing_ms" in empty.columns) == (0, True)


def test_a_segment_without_events_is_progress(journal_place: Storage, tables_place: Storage) -> None:
    name = write_segment_of(journal_place, story(0))
    import io

    from pyarrow import parquet as pq

    source = pq.ParquetFile(io.BytesIO(journal_place.read(name)))
    with (
        journal_place.writing(name) as out,
        pq.ParquetWriter(out, source.schema_arrow, store_schema=False) as writer,
    ):
        writer.add_key_value_metadata(source.metadata.metadata)

    run = run_lifecycles(no_spark, journal_place, tables_place)

    assert (run.segments, run.events, run.broken) == (1, 0, ())
    assert not run_lifecycles(no_spark, journal_place, tables_place).changed
