"""The history of each queue and message type: counts and histograms, summed from the tables' days or months.

This process sums them: a year of a thousand queues of three types is 36,000 rows of months, some forty megabytes. Spark would
take longer to start than that takes to read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from pyarrow import compute as pc

from veil.pipeline.lifecycles.columns import read_rows
from veil.pipeline.lifecycles.store import check_files
from veil.pipeline.lifecycles.tables import (
    BUCKET_MAX,
    QUEUE_HOURS,
    arrow_schema,
    bucket_of,
    day_number,
    lower_ms,
    month_of,
    upper_ms,
)

if TYPE_CHECKING:
    from veil.journal.storage import Storage
    from veil.pipeline.lifecycles.store import Manifest

K = TypeVar("K")


@dataclass(slots=True, kw_only=True)
class History:
    """Sums over the hours that were looked at. Histograms are counts by bucket; `windows` by length in milliseconds."""

    leases: int = 0
    dead_lettered: int = 0
    overrun: int = 0  # the holder showed life after its deadline
    duplicates: int = 0  # overrun, and received by somebody else
    failed: int = 0
    given_back: int = 0
    crashed: int = 0
    unknown: int = 0  # lapsed, and nothing tells of the holder: dead, or at work
    failed_ms: int = 0  # that failed attempts took
    messages_deleted: int = 0
    processing: Counter[int] = field(default_factory=Counter)
    let_go: Counter[int] = field(default_factory=Counter)  # failed or given back, to when they were
    # Lapsed, and nothing was heard of the end of the work: at work so long, if not dead.
    lapses: Counter[int] = field(default_factory=Counter)
    censored: Counter[int] = field(default_factory=Counter)  # removed or open
    recovery: Counter[int] = field(default_factory=Counter)  # after attempts that crashed
    recovery_unknown: Counter[int] = field(default_factory=Counter)  # after `unknown` ones
    # How many leases began with a window of that length.
    windows: Counter[int] = field(default_factory=Counter)
    present_ms: int | None = None  # the latest window
    present_at: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None

    def add(self, other: History) -> None:
        """Count the other's leases in."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in (*HISTOGRAMS.values(), "windows"):
            getattr(self, name).update(getattr(other, name))
        self.saw_window(other.present_ms, other.present_at)
        self.saw_hours(other.since, other.until)

    def saw_window(self, length_ms: int | None, at: datetime | None) -> None:
        """The window that a lease began with at that instant; the latest is the present one."""
        if length_ms is not None and at is not None and (self.present_at is None or at > self.present_at):
            self.present_ms, self.present_at = length_ms, at

    def saw_hours(self, since: datetime | None, until: datetime | None) -> None:
        """The span that was looked at includes these hours."""
        if since is not None and until is not None:
            self.since = since if self.since is None else min(self.since, since)
            self.until = until if self.until is None else max(self.until, until)

    @property
    def completed(self) -> int:
        """Leases whose whole processing time is known, also those that ended too late to count."""
        return self.processing.total()

    @property
    def present_s(self) -> float | None:
        """The queue's timeout as the latest lease met it."""
        return None if self.present_ms is None else self.present_ms / 1000

    @property
    def dead(self) -> int:
        """Attempts that are known to have ended before their deadline, at an instant that nobody knows: crashed, or failed and
        left to lapse."""
        return self.crashed + max(self.failed + self.given_back - self.let_go.total(), 0)

    @property
    def longest_s(self) -> float:
        """The upper end of the bucket of the longest complete observation."""
        return upper_ms(max(self.processing)) / 1000 if self.processing else 0.0

    @property
    def mean_s(self) -> float | None:
        """The mean of the complete observations alone: what a naive look sees."""
        if not self.processing:
            return None
        return sum(count * middle_s(bucket) for bucket, count in self.processing.items()) / self.completed


def middle_s(bucket: int) -> float:
    return (lower_ms(bucket) + upper_ms(bucket)) / 2000


def bucket_of_s(length_s: float) -> int:
    return bucket_of(length_s * 1000)


class Work(NamedTuple):
    """Whose history: one message type of one queue; '' for messages without a type."""

    region: str
    account: str
    queue: str
    message_type: str

    @property
    def whole_queue(self) -> Work:
        """All types of it together."""
        return self._replace(message_type="")


def merged(histories: Mapping[Work, History], key: Callable[[Work], K]) -> dict[K, History]:
    """The histories added up by what the key makes of whose they are."""
    found: dict[K, History] = {}
    for work, history in sorted(histories.items(), key=lambda each: each[0]):
        found.setdefault(key(work), History()).add(history)
    return found


# Columns of the table, and where a history has them.
HISTOGRAMS: Final = {
    "processing": "processing",
    "processing_failed": "let_go",
    "processing_lapsed": "lapses",
    "processing_censored": "censored",
    "recovery": "recovery",
    "recovery_unknown": "recovery_unknown",
}
COUNTS: Final = (
    "leases", "dead_lettered", "overrun", "duplicates", "failed", "given_back", "crashed", "unknown", "failed_ms",
    "messages_deleted",
)  # fmt: skip


def files_since(manifest: Manifest, since: date | None) -> list[str]:
    """The files of sums that have all that was sent on that day or later: months, and days where the first is not whole."""
    if since is None:
        return manifest.files_of("queue_months")
    first = day_number(since)
    whole = month_of(first) if since.day == 1 else month_of(first) + 1
    days = [day for day in sorted(manifest.days) if day >= first and month_of(day) < whole]
    months = [month for month in sorted(manifest.months) if month >= whole]
    return [
        *(file for day in days for file in manifest.days[day]),
        *(file for month in months for file in manifest.months[month]),
    ]


def add_counts(history: History, row: dict[str, Any]) -> None:
    for name in COUNTS:
        setattr(history, name, getattr(history, name) + row[name])
    last = row["hour"]
    if row["window_ms"] is not None:
        at = row["window_at"]
        history.windows[row["window_ms"]] += row["leases"]
        history.saw_window(row["window_ms"], at)
        # A month begins long before the last of its days: the latest receive is a better witness.
        last = max(last, at.replace(hour=0, minute=0, second=0, microsecond=0))
    history.saw_hours(row["hour"], last)


_SIZE: Final = BUCKET_MAX + 1
_EACH: Final = _SIZE * len(HISTOGRAMS)


def read_histories(
    tables: Storage, files: Sequence[str], *, queues: Sequence[str] = ()
) -> dict[Work, History]:
    """The history of every queue and type in these files of sums, or of the queues named."""
    check_files(tables, "queue_months", files)
    schema = arrow_schema(QUEUE_HOURS, *Work._fields, "hour", "window_ms", "window_at", *COUNTS, *HISTOGRAMS)
    histories: dict[Work, History] = {}
    numbers: dict[Work, int] = {}
    keys, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for file in files:
        rows = read_rows(tables, file, schema)
        if queues:
            rows = rows.filter(pc.field("queue").isin(queues))
        works = [Work(*each) for each in zip(*(rows[name].to_pylist() for name in Work._fields), strict=True)]
        known = rows.select(["window_ms", "window_at", "hour", *COUNTS]).to_pylist()
        for work, row in zip(works, known, strict=True):
            history = histories.setdefault(work, History())
            add_counts(history, row)
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
