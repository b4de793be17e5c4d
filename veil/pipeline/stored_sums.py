"""Which stored sums a run adds its own to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from veil.pipeline.levels import DAYS, HOURS, LEVELS, MONTHS, day_of, month_of
from veil.pipeline.manifest import Manifest

# The table whose file a row is from, as the name of the file says, in SQL.
TABLE_OF_FILE: Final = r"regexp_extract(_metadata.file_path, '/table(?:=|%3D)(\\w+)/part[^/]*/[^/]*$', 1)"


class StoredSums(NamedTuple):
    """Files of several levels, and for each level those that its sums count for."""

    files: list[str]
    counts_for: dict[str, tuple[str, ...]]


def sums_beside(manifest: Manifest, touched: Iterable[int]) -> StoredSums:
    """For hours that are written anew: what else their days and months consist of."""
    hours, days, months = _parts(touched)
    beside_hours = [part for part in manifest.hours if part not in hours and day_of(part) in days]
    beside_days = [day for day in manifest.days if day not in days and month_of(day) in months]
    return StoredSums(
        [
            *(file for part in beside_hours for file in manifest.hours[part].queue_hours),
            *(file for day in beside_days for file in manifest.days[day]),
        ],
        {HOURS: (DAYS, MONTHS), DAYS: (MONTHS,)},
    )


def sums_before(manifest: Manifest, touched: Iterable[int]) -> StoredSums:
    """For rows that are counted off and added: the sums that have counted them."""
    hours, days, months = _parts(touched)
    known = [manifest.hours[part] for part in hours if part in manifest.hours]
    return StoredSums(
        [
            *(file for hour in known for file in hour.queue_hours),
            *(file for day in days for file in manifest.days.get(day, ())),
            *(file for month in months for file in manifest.months.get(month, ())),
        ],
        {level: (level,) for level in LEVELS},
    )


def _parts(touched: Iterable[int]) -> tuple[set[int], set[int], set[int]]:
    hours = set(touched)
    days = {day_of(part) for part in hours}
    return hours, days, {month_of(day) for day in days}
