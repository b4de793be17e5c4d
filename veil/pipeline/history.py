"""What the tables tell of the work on one queue, or on one message type of it: counts and histograms, summed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from veil.pipeline.buckets import BUCKET_MAX, bucket_of, lower_ms, upper_ms


@dataclass(slots=True, kw_only=True)
class History:
    """Sums over the hours that were looked at. Histograms are counts by bucket; `windows` by length in milliseconds."""

    leases: int = 0
    deleted: int = 0
    lapsed: int = (
        0  # expired, superseded or dead-lettered: the deadline passed before the end of the work was heard of
    )
    dead_lettered: int = 0
    overrun: int = 0
    duplicates: int = 0  # overrun, and received by somebody else
    processing: Counter[int] = field(default_factory=Counter)
    lapses: Counter[int] = field(
        default_factory=Counter
    )  # lapsed, and nothing was heard of the end of the work: at work so long, if not dead
    censored: Counter[int] = field(default_factory=Counter)  # released, removed or open
    recovery: Counter[int] = field(default_factory=Counter)
    windows: Counter[int] = field(
        default_factory=Counter
    )  # how many leases began with a window of that length
    present_ms: int | None = None  # the latest window
    present_at: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None

    def add(self, other: History) -> None:
        """Count the other's leases in."""
        for name in ("leases", "deleted", "lapsed", "dead_lettered", "overrun", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("processing", "lapses", "censored", "recovery", "windows"):
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
    def late(self) -> int:
        """Leases that lapsed and whose holder ended the work all the same, and said so."""
        return min(max(self.completed - self.deleted, 0), self.lapsed)

    @property
    def silent(self) -> int:
        """Leases that lapsed and of whose holder nothing was heard afterwards."""
        # Not all that were overrun: those that deleted late, before anybody else had come, count as deleted.
        return max(self.lapsed - max(self.late, min(self.duplicates, self.overrun)), 0)

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


_MIDDLES_S: Final = tuple((lower_ms(bucket) + upper_ms(bucket)) / 2000 for bucket in range(BUCKET_MAX + 1))


def middle_s(bucket: int) -> float:
    """The middle of a bucket, in seconds."""
    return _MIDDLES_S[bucket]


def bucket_of_s(length_s: float) -> int:
    """The bucket of a length in seconds."""
    return bucket_of(length_s * 1000)
