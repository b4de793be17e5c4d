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

from veil.pipeline.lifecycles.tables import HOUR_MS

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


def begin_of_day_ms(hour_ms: int) -> int:
    """When the day of an instant begins, in milliseconds since 1970."""
    return hour_ms // _DAY_MS * _DAY_MS


def begin_of_month_ms(hour_ms: int) -> int:
    """When the month of an instant begins, in milliseconds since 1970."""
    first = date.fromordinal(_EPOCH + hour_ms // _DAY_MS).replace(day=1)
    return day_number(first) * _DAY_MS
