"""A place is a directory anywhere: whole files or none, on this machine and in an object store alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from veil.journal.storage import Entry, Storage


@pytest.fixture(params=["local", "file-uri", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        return Storage.at(f"s3://{request.getfixturevalue('bucket')}/some/journal")
    directory = tmp_path / "some where" / "journal"
    return Storage.at(directory if request.param == "local" else directory.as_uri())


def test_what_was_written_is_read_again(place: Storage):
    place.write("day=2026-01-01/a.bin", b"first")
    assert place.read("day=2026-01-01/a.bin") == b"first"
    assert place.exists("day=2026-01-01/a.bin") and place.exists("day=2026-01-01")


def test_writing_replaces(place: Storage):
    place.write("manifest.json", b"1")
    place.write("manifest.json", b"22")
    assert place.read("manifest.json") == b"22"
    assert place.entries() == [Entry("manifest.json", 2, False)]


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("secrets.token_hex", lambda size: "full")
    (tmp_path / "_rows.bin.full.tmp").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left on device") as failed:
        Storage.at(tmp_path).write("rows.bin", b"1")

    assert failed.value.filename == str(tmp_path / "rows.bin")


def test_nothing_appears_when_the_writer_fails(place: Storage):
    place.write("before.bin", b"x")
    with pytest.raises(RuntimeError), place.writing("half.bin") as file:
        file.write(b"half of it")
        raise RuntimeError
    assert [entry.name for entry in place.entries()] == ["before.bin"]


def test_a_failed_writer_leaves_the_older_file_alone(place: Storage):
    place.write("a.bin", b"old")
    with pytest.raises(RuntimeError), place.writing("a.bin") as file:
        file.write(b"new")
        raise RuntimeError
    assert place.read("a.bin") == b"old"


def test_a_place_that_does_not_exist_is_empty(place: Storage):
    assert place.entries() == []
    assert place.entries("day=2026-01-01", recursive=True) == []
    assert not place.exists("a.bin")
    with pytest.raises(FileNotFoundError):
        place.read("a.bin")


def test_entries_are_relative_to_the_place_and_sorted(place: Storage):
    place.write("day=2/b.bin", b"12")
    place.write("day=1/a.bin", b"1")
    assert place.entries() == [Entry("day=1", 0, True), Entry("day=2", 0, True)]
    assert place.entries("day=2") == [Entry("day=2/b.bin", 2, False)]
    assert [each.name for each in place.entries(recursive=True) if not each.is_folder] == [
        "day=1/a.bin",
        "day=2/b.bin",
    ]


def test_removing_is_fine_twice(place: Storage):
    place.write("day=1/a.bin", b"1")
    place.write("day=2/b.bin", b"1")
    for _ in range(2):
        place.remove("day=1/a.bin")
        place.remove_folder("day=2")
    assert [each for each in place.entries(recursive=True) if not each.is_folder] == []


def test_a_folder_is_a_place_of_its_own(place: Storage):
    place.sub("tables").write("a.bin", b"1")
    assert place.read("tables/a.bin") == b"1"
    assert place.sub("tables").uri == f"{place.uri}/tables"


def test_parquet_is_written_and_read_in_place(place: Storage):
    table = pa.table({"a": [1, 2, 3]})
    with place.writing("t.parquet") as file:
        pq.write_table(table, file)
    with place.open_input("t.parquet") as file:
        assert pq.ParquetFile(file).read() == table


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../other", "a/../../b", "a//b", "./a"])
def test_a_name_never_leads_outside(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="relative name"):
        Storage.at(tmp_path).remove(name)


def test_a_writer_that_was_killed_leaves_only_a_hidden_file(tmp_path: Path):
    with Storage.at(tmp_path).writing("a.bin") as file:
        file.write(b"half")
        names = [entry.name for entry in Storage.at(tmp_path).entries()]
        assert len(names) == 1 and names[0].startswith("_")


@pytest.mark.parametrize(
    ("where", "spark"),
    [
        ("/data/journal", "file:///data/journal"),
        ("/data/with space", "file:///data/with space"),
        ("file:///data/with%20space", "file:///data/with space"),
        ("s3://bucket/journal/", "s3a://bucket/journal"),
        ("s3a://bucket/journal", "s3a://bucket/journal"),
        ("hdfs://name:9000/journal", "hdfs://name:9000/journal"),
    ],
)
def test_spark_is_told_the_same_place_in_its_words(where: str, spark: str):
    assert Storage.at(where).spark_path() == spark.rstrip("/")
    assert Storage.at(where).spark_path("day=1/a.parquet") == f"{spark}/day=1/a.parquet"


@pytest.mark.parametrize("where", ["", " ", "ftp://host/x", "s3://", "file://host/x", "file:///", "s3:///x"])
def test_a_place_that_cannot_be_is_refused_with_what_was_expected(where: str):
    with pytest.raises(ValueError, match="a path, file:///PATH"):
        Storage.at(where)


def test_a_secret_in_a_uri_is_refused():
    with pytest.raises(ValueError, match="without a secret"):
        Storage.at("s3://key:secret@bucket/journal")
