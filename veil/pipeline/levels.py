"""The levels at which the same sums are kept: the hours, days and months in which messages were sent.

A part is the number of its hour, day or month since 1970.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from veil.pipeline.facts import HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import Column

HOURS: Final = "queue_hours"
DAYS: Final = "queue_days"
MONTHS: Final = "queue_months"
LEVELS: Final = (HOURS, DAYS, MONTHS)
HOURS_A_DAY: Final = 24
_DAY_MS: Final = HOUR_MS * HOURS_A_DAY
_EPOCH: Final = date(1970, 1, 1).toordinal()


def day_of(hour: int) -> int:
    """The day of an hour."""
    return hour // HOURS_A_DAY


def month_of(day: int) -> int:
    """The month of a day."""
    known = date.fromordinal(_EPOCH + day)
    return (known.year - 1970) * 12 + known.month - 1


def day_number(day: date) -> int:
    """The part of a date."""
    return day.toordinal() - _EPOCH


def instant_of(day: int) -> datetime:
    """When a day begins."""
    return datetime.fromtimestamp(day * _DAY_MS / 1000, UTC)


def part_column(level: str, hour: Column) -> Column:
    """The part of an hour at a level."""
    from pyspark.sql import functions as F  # noqa: N812

    if level == HOURS:
        return hour
    day = F.floor(hour / HOURS_A_DAY).cast("int")
    if level == DAYS:
        return day
    known = F.date_from_unix_date(day)
    return (F.year(known) - 1970) * 12 + F.month(known) - 1


def begin_ms_column(level: str, part: Column) -> Column:
    """When a part begins, in milliseconds since 1970."""
    from pyspark.sql import functions as F  # noqa: N812

    if level == HOURS:
        return part.cast("bigint") * HOUR_MS
    if level == DAYS:
        return part.cast("bigint") * _DAY_MS
    year, month = F.floor(part / 12).cast("int") + 1970, part % 12 + 1
    return F.unix_date(F.make_date(year, month, F.lit(1))).cast("bigint") * _DAY_MS
