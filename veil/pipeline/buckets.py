"""The scale of every histogram: sixteen buckets an octave of milliseconds, so a bucket is 4.4 % wide.

Counts on one fixed scale add up, over hours, queues and years; that is what makes a year of history cost no more than
its buckets. Bucket b holds the lengths from 2^(b/16) up to, but not including, 2^((b+1)/16) milliseconds; what is shorter
than a millisecond counts as one.
"""

from __future__ import annotations

import math
from typing import Final

from veil.pipeline.sql_text import where

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
