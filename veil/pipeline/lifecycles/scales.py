"""The two scales of the sums: buckets of length, and levels of time.

Every histogram has sixteen buckets an octave of milliseconds, so a bucket is 4.4 % wide. Counts on one fixed scale add up,
over hours, queues and years; that is what makes a year of history cost no more than its buckets. Bucket b holds the lengths
from 2^(b/16) up to, but not including, 2^((b+1)/16) milliseconds; what is shorter than a millisecond counts as one.

The levels at which the same sums are kept are the hours, days and months in which messages were sent. A part is the number
of its hour, day or month since 1970.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Final

from veil.pipeline.lifecycles.facts import HOUR_MS
from veil.pipeline.sql import where

PER_OCTAVE: Final = 16
BUCKET_MAX: Final = 511  # 2^32 ms, 49 days: longer than anything a queue keeps
# One more than there are: estimates look at the bucket after.
_UPPER_MS: Final = tuple(math.pow(2.0, (bucket + 1) / PER_OCTAVE) for bucket in range(BUCKET_MAX + 2))
_LOWER_MS: Final = (0.0, *_UPPER_MS[:-1])


def bucket_of(length_ms: float) -> int:
    """The bucket of a length in milliseconds."""
    return min(BUCKET_MAX, math.floor(math.log2(max(length_ms, 1.0)) * PER_OCTAVE))


def lower_ms(bucket: int) -> float:
    """Where the bucket begins."""
    return _LOWER_MS[bucket]


def upper_ms(bucket: int) -> float:
    """Where the bucket ends."""
    return _UPPER_MS[bucket]


def bucket_sql(length_ms: str) -> str:
    """The bucket of a length in milliseconds, in SQL; null for null."""
    octaves = f"log2(greatest(cast({length_ms} as double), 1.0D))"
    # `greatest` and `least` pass over nulls: without this, no length would count as one of a millisecond.
    return where(
        f"{length_ms} is not null", f"cast(least({BUCKET_MAX}, floor({octaves} * {PER_OCTAVE})) as int)"
    )


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
