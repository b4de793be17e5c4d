"""Readers find the segments, accept what older versions wrote, and are told which ones are broken."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.journal.kit import NOON_MS, APlan, a_row, an_event, flip_bit_in_a_page
from veil.journal import segments as reading
from veil.journal.schema import COLUMNS, VERSION, VERSION_KEY, Column, segment_name
from veil.journal.segment_writer import SCHEMA, arrow_schema, write_segment
from veil.journal.segments import (
    Gap,
    Segment,
    SegmentProblem,
    check_segment,
    event_count,
    gaps,
    list_segments,
)
from veil.journal.storage import Storage


@pytest.fixture
def place(tmp_path: Path) -> Storage:
    return Storage.at(tmp_path / "journal")


def write(
    place: Storage, *, day: str = "2026-09-21", journal_id: str = "abc", first: int = 1, last: int = 1
) -> Segment:
    rows = [
        (number, a_row(*(an_event(at_ms=NOON_MS + n) for n in range(500))))
        for number in range(first, last + 1)
    ]
    written = write_segment(place, APlan(journal_id, first, last, day), rows)
    return next(each for each in list_segments(place) if each.name == written.name)


def write_table(place: Storage, table: pa.Table, version: str | None) -> Segment:
    name = segment_name("2026-09-21", "abc", 1, 1)
    metadata = {} if version is None else {VERSION_KEY: version}
    with place.writing(name) as file:
        pq.write_table(table.replace_schema_metadata(metadata), file)
    return list_segments(place)[0]


def test_segments_are_listed_by_day_then_journal_then_row(place: Storage):
    write(place, day="2026-09-22", first=3, last=9)
    write(place, day="2026-09-21", first=2, last=2)
    write(place, day="2026-09-21", first=1, last=1)
    write(place, day="2026-09-21", journal_id="aaa", first=40, last=41)

    assert [(each.day, each.journal_id, each.first, each.last) for each in list_segments(place)] == [
        ("2026-09-21", "aaa", 40, 41),
        ("2026-09-21", "abc", 1, 1),
        ("2026-09-21", "abc", 2, 2),
        ("2026-09-22", "abc", 3, 9),
    ]
    assert [each.first for each in list_segments(place, since_day="2026-09-22")] == [3]


def test_whatever_else_lies_there_is_passed_over(place: Storage):
    segment = write(place)
    for name in (
        "_journal.json",
        "day=2026-09-21/_x.parquet.tmp",
        "day=2026-09-21/notes.txt",
        "other/a.parquet",
    ):
        place.write(name, b"x")
    assert list_segments(place) == [segment]
    assert segment.size == len(place.read(segment.name))
    assert event_count(place, segment) == 500


def test_a_place_without_a_journal_has_no_segments(place: Storage):
    assert list_segments(place) == []


def test_a_whole_segment_has_no_problem(place: Storage):
    segment = write(place, last=3)
    assert check_segment(place, segment) is None
    assert check_segment(place, segment, thorough=True) is None


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_segment_that_was_cut_is_named(place: Storage, kept: int):
    segment = write(place)
    place.write(segment.name, place.read(segment.name)[:kept])
    problem = check_segment(place, segment)
    assert problem is not None and problem.name == segment.name
    assert "not a whole Parquet file" in problem.reason


def test_a_flipped_bit_in_a_page_is_found_by_reading_it_all(place: Storage):
    segment = write(place, last=5)
    flip_bit_in_a_page(place, segment.name)
    problem = check_segment(place, segment, thorough=True)
    assert problem is not None and "damaged" in problem.reason
    assert check_segment(place, segment) is None  # the footer is well


def test_a_segment_that_is_gone_is_named(place: Storage):
    segment = write(place)
    place.remove(segment.name)
    assert check_segment(place, segment) == SegmentProblem(segment.name, "it is gone")


def test_a_place_that_cannot_be_read_is_not_taken_for_a_broken_segment(place: Storage):
    segment = write(place)
    broken = segment._replace(name=segment.name + "/x")
    with pytest.raises(NotADirectoryError):
        check_segment(place, broken)


def test_a_newer_version_is_refused_by_name(place: Storage):
    segment = write_table(place, SCHEMA.empty_table(), str(VERSION + 1))
    problem = check_segment(place, segment)
    assert problem is not None and f"its version is {VERSION + 1}, newer than {VERSION}" in problem.reason


def test_an_older_version_may_lack_what_came_later(place: Storage, monkeypatch: pytest.MonkeyPatch):
    older = write_table(place, SCHEMA.empty_table(), str(VERSION))
    later = (*COLUMNS, Column("colour", "text", True, VERSION + 1, "came later"))
    monkeypatch.setattr(reading, "COLUMNS", later)
    monkeypatch.setattr(reading, "VERSION", VERSION + 1)
    assert check_segment(place, older) is None
    newer = write_table(place, SCHEMA.empty_table(), str(VERSION + 1))
    problem = check_segment(place, newer)
    assert problem is not None and problem.reason == "column colour is missing"


@pytest.mark.parametrize("missing", ["seq", "deadline"])
def test_a_column_that_its_version_must_have_is_missed(place: Storage, missing: str):
    columns = [column for column in COLUMNS if column.name != missing]
    segment = write_table(place, arrow_schema(columns).empty_table(), str(VERSION))
    problem = check_segment(place, segment)
    assert problem is not None and problem.reason == f"column {missing} is missing"


def test_a_column_of_another_type_is_named(place: Storage):
    at = SCHEMA.get_field_index("seq")
    segment = write_table(place, SCHEMA.set(at, pa.field("seq", pa.string())).empty_table(), str(VERSION))
    problem = check_segment(place, segment)
    assert problem is not None and problem.reason == "column seq is string, expected int64"


def test_parquet_of_somebody_else_is_no_segment(place: Storage):
    problem = check_segment(place, write_table(place, pa.table({"a": [1]}), None))
    assert problem is not None and "not a segment of a journal" in problem.reason


def test_events_outside_the_rows_that_the_name_tells_are_found(place: Storage):
    segment = write(place, first=1, last=2)
    moved = segment._replace(name=segment_name(segment.day, "abc", 2, 3), first=2, last=3)
    place.write(moved.name, place.read(segment.name))
    problem = check_segment(place, moved, thorough=True)
    assert problem is not None and "rows outside 2 to 3" in problem.reason


def test_missing_rows_are_found_for_each_journal():
    def segment(journal_id: str, first: int, last: int) -> Segment:
        return Segment("", journal_id, first, last, "", 0)

    assert gaps([segment("a", 5, 9), segment("a", 10, 12), segment("b", 1, 4)]) == []
    found = gaps([segment("a", 20, 29), segment("b", 7, 7), segment("a", 1, 9), segment("b", 5, 5)])
    assert found == [Gap("a", 10, 19), Gap("b", 6, 6)]
