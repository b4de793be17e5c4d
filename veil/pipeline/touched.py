"""Take the rows of the messages that a run touches out of the stored hours, and leave the others where they are.

New events are of few messages. To send whole hours through Spark for their sake would cost as much as making those hours
did; telling the touched rows from the others is a look at two columns, and needs no Spark. A file that has none of them
stays as it is, of one that has the others are copied, and the touched rows go into a file of their own, which Spark merges
with the new events and counts off the sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from veil.pipeline.facts import part_of_seq_range
from veil.pipeline.lives import lives_schema

if TYPE_CHECKING:
    from veil.journal.place import Place
    from veil.pipeline.manifest import Hour

PICKED: Final = "picked"  # the folder of the rows that were taken out; nobody names it once the run is over
FILES_MAX: Final = 8  # of an hour, in one table: more are put together when the hour is touched
COPIED_ROWS_MAX: Final = 5_000_000  # looked at by this process; with more, Spark's many are quicker
TABLES: Final = ("leases", "messages")


class Parted(NamedTuple):
    """The stored hours in two: files that stay, by hour and table, and the file of the touched rows, if there are any."""

    kept: dict[int, dict[str, list[str]]]
    picked: list[str]
    rows: dict[int, int]  # that were taken out of each hour


def part_hours(
    tables: Place, folder: str, hours: Mapping[int, Hour], seqs: Any, *, time_has_passed: bool
) -> Parted:
    """Part the hours by the messages of these order keys (a sorted array), and by those with open leases if time has passed
    since they were judged. What is written goes to the folder."""
    import pyarrow as pa

    kept: dict[int, dict[str, list[str]]] = {}
    rows: dict[int, int] = {}
    picked: list[Any] = []
    for part, hour in hours.items():
        wanted = _touched(tables, hour, part, seqs, time_has_passed=time_has_passed)
        kept[part] = {}
        for name in TABLES:
            stay, taken = _part_files(
                tables, f"{folder}/kept/table={name}/part={part}", getattr(hour, name), wanted
            )
            kept[part][name] = stay
            picked += taken
            rows[part] = rows.get(part, 0) + sum(each.num_rows for each in taken)
    if not picked:
        return Parted(kept, [], rows)
    file = f"{folder}/{PICKED}/rows.parquet"
    _write(tables, file, pa.concat_tables(picked))
    return Parted(kept, [file], rows)


def _touched(tables: Place, hour: Hour, part: int, seqs: Any, *, time_has_passed: bool) -> Any:
    """The order keys of the touched messages of one hour."""
    import pyarrow as pa
    from pyarrow import compute as pc

    low, high = (seqs.searchsorted(each) for each in part_of_seq_range(part))
    found = [pa.chunked_array([pa.array(seqs[low:high], pa.int64())])]
    if time_has_passed and hour.open:
        for file in hour.leases:
            known = _read(tables, file, ["seq", "how"])
            found.append(known["seq"].filter(pc.equal(known["how"], "open")))
    return pa.chunked_array([chunk for each in found for chunk in each.chunks], pa.int64()).combine_chunks()


def _part_files(tables: Place, folder: str, files: Iterable[str], wanted: Any) -> tuple[list[str], list[Any]]:
    """The files that stay (old ones and at most one new), and the touched rows of the others."""
    import pyarrow as pa
    from pyarrow import compute as pc

    files = tuple(files)
    stay, left, taken = [], [], []
    for file in files:
        is_touched = pc.is_in(_read(tables, file, ["seq"])["seq"], value_set=wanted)
        if len(files) <= FILES_MAX and not pc.any(is_touched).as_py():
            stay.append(file)
            continue
        rows = _read(tables, file, lives_schema().fieldNames())
        taken.append(rows.filter(is_touched))
        left.append(rows.filter(pc.invert(is_touched)))
    together = pa.concat_tables(left) if left else None
    if together is not None and together.num_rows:
        stay.append(f"{folder}/kept.parquet")
        _write(tables, stay[-1], together)
    return stay, [each for each in taken if each.num_rows]


def _read(tables: Place, file: str, columns: list[str]) -> Any:
    from pyarrow import parquet as pq

    with tables.open_input(file) as opened:
        return pq.ParquetFile(opened).read(columns=columns).replace_schema_metadata(None)


def _write(tables: Place, file: str, rows: Any) -> None:
    from pyarrow import parquet as pq

    distinct = distinct_columns()
    with tables.writing(file) as out:
        pq.write_table(
            rows,
            out,
            compression="zstd",
            data_page_version="2.0",
            store_schema=False,
            use_dictionary=[name for name in rows.schema.names if name not in distinct],
            column_encoding={
                name: "DELTA_BYTE_ARRAY" if type_ == "string" else "DELTA_BINARY_PACKED"
                for name, type_ in distinct.items()
            },
        )


def distinct_columns() -> dict[str, str]:
    """Columns of the lives whose values hardly repeat, with their types: no dictionary pays for them."""
    types = {field.name: field.dataType.simpleString() for field in lives_schema()}
    return {
        name: type_
        for name, type_ in types.items()
        if name == "message_id" or type_ in ("timestamp", "bigint")
    }
