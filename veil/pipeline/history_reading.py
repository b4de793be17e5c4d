"""The same histories as `history_scan` finds, summed by this process: for the little that most tables' months come to.

A year of a thousand queues is ten megabytes of months. Spark would take longer to plan and compile the question than this
takes to answer it; from `BYTES_ON_DRIVER_MAX` on, Spark is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from veil.pipeline.buckets import BUCKET_MAX
from veil.pipeline.history import History
from veil.pipeline.history_scan import COUNTS, HISTOGRAMS, Work, add_counts
from veil.pipeline.journal_reading import BYTES_ON_DRIVER_MAX
from veil.pipeline.table_store import check_files

if TYPE_CHECKING:
    from veil.journal.place import Place

_SIZE: Final = BUCKET_MAX + 1
_EACH: Final = _SIZE * len(HISTOGRAMS)


def is_little(tables: Place, files: Sequence[str]) -> bool:
    """Whether the files are small enough, all together, to be read here."""
    left = BYTES_ON_DRIVER_MAX
    for file in files:
        with tables.open_input(file) as opened:
            left -= opened.size()
        if left < 0:
            return False
    return True


def read_here(tables: Place, files: Sequence[str], *, queues: Sequence[str] = ()) -> dict[Work, History]:
    """The history of every queue and type in these files of sums, or of the queues named."""
    check_files(tables, "queue_months", files)
    histories: dict[Work, History] = {}
    numbers: dict[Work, int] = {}
    keys, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for file in files:
        rows = _rows(tables, file, queues)
        works = [Work(*each) for each in zip(*(rows[name].to_pylist() for name in Work._fields), strict=True)]
        known = rows.select(["window_ms", "window_at", "hour", *COUNTS]).to_pylist()
        for work, row in zip(works, known, strict=True):
            history = histories.setdefault(work, History())
            add_counts(history, {**row, "first": row["hour"], "last": row["hour"]})
        base = np.array([numbers.setdefault(work, len(numbers)) for work in works], np.int64) * _EACH
        for at, name in enumerate(HISTOGRAMS):
            column = rows[name].combine_chunks()
            pairs = column.flatten()
            lengths = np.diff(column.offsets.to_numpy())
            keys.append(np.repeat(base + at * _SIZE, lengths) + pairs.field("bucket").to_numpy())
            counts.append(pairs.field("count").to_numpy())
    found, where = np.unique(np.concatenate(keys), return_inverse=True)
    # Sums of doubles are exact as far as counts go: 2^53.
    totals = np.bincount(where, np.concatenate(counts), len(found)).astype(np.int64)
    named = list(numbers)
    into = list(HISTOGRAMS.values())
    for key, count in zip(found.tolist(), totals.tolist(), strict=True):
        number, place = divmod(key, _EACH)
        at, bucket = divmod(place, _SIZE)
        getattr(histories[named[number]], into[at])[bucket] += count
    return histories


def _rows(tables: Place, file: str, queues: Sequence[str]) -> Any:
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import parquet as pq

    columns = [*Work._fields, "hour", "window_ms", "window_at", *COUNTS, *HISTOGRAMS]
    with tables.open_input(file) as opened:
        rows = pq.ParquetFile(opened).read(columns=columns)
    return rows.filter(pc.is_in(rows["queue"], value_set=pa.array(queues))) if queues else rows
