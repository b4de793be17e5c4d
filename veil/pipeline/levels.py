"""The levels at which the same sums are kept: the hours, days and months in which messages were sent.

A part is the number of its hour, day or month since 1970.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Final

from veil.pipeline.facts import HOUR_MS

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


def part_sql(level: str, hour: str) -> str:
    """The part of an hour at a level, in SQL."""
    if level == HOURS:
        return hour
    day = f"cast(floor({hour} / {HOURS_A_DAY}) as int)"
    if level == DAYS:
        return day
    known = f"date_from_unix_date({day})"
    return f"((year({known}) - 1970) * 12 + month({known}) - 1)"


def begin_ms_sql(level: str, part: str) -> str:
    """When a part begins, in milliseconds since 1970, in SQL."""
    if level == HOURS:
        return f"(cast({part} as bigint) * {HOUR_MS})"
    if level == DAYS:
        return f"(cast({part} as bigint) * {_DAY_MS})"
    first = f"make_date(cast(floor({part} / 12) as int) + 1970, {part} % 12 + 1, 1)"
    return f"(cast(unix_date({first}) as bigint) * {_DAY_MS})"
