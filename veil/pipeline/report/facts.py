"""What the report tells beside the findings: how leases and messages ended, when, and a few single messages' lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, overload

from veil.pipeline.dead_letters.analysis import DeadLetterGroup

# What a timeline counts. `lapses`: leases whose deadline passed before their message was deleted or released.
SERIES: Final = ("sent", "deleted", "lapses", "duplicates", "dead_lettered")

# Why a message is shown as an example, the most telling first.
KINDS: Final = ("duplicate", "crash", "dead_letter", "renewed")


@dataclass(frozen=True, slots=True)
class Timeline:
    """Counts of one queue over slots of equal length; `by_send`: all of them counted where their message was sent."""

    begin: datetime
    slot: timedelta
    counts: Mapping[str, tuple[int, ...]]
    by_send: bool = True


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over any number of queues and hours."""

    sent: int = 0
    leases: int = 0
    overrun: int = 0
    duplicates: int = 0
    extensions: int = 0
    held_ms: int = 0
    wasted_ms: int = 0
    how: Mapping[str, int] = field(default_factory=dict)  # leases by how they ended
    outcome: Mapping[str, int] = field(default_factory=dict)  # messages by what became of them

    @classmethod
    def over(cls, parts: Iterable[Totals]) -> Totals:
        """All of them together."""
        every = list(parts)
        return cls(
            sent=sum(each.sent for each in every),
            leases=sum(each.leases for each in every),
            overrun=sum(each.overrun for each in every),
            duplicates=sum(each.duplicates for each in every),
            extensions=sum(each.extensions for each in every),
            held_ms=sum(each.held_ms for each in every),
            wasted_ms=sum(each.wasted_ms for each in every),
            how=_added(each.how for each in every),
            outcome=_added(each.outcome for each in every),
        )


def _added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums


@dataclass(frozen=True, slots=True)
class QueueLife:
    """What happened in one queue."""

    region: str
    account: str
    queue: str
    totals: Totals
    timeline: Timeline | None


@dataclass(frozen=True, slots=True)
class ExampleLease:
    """One lease of an example, as the table `leases` has it."""

    queue: str
    delivery: int
    received_at: datetime
    first_deadline: datetime | None
    deadline: datetime | None
    extensions: int
    last_extended_at: datetime | None
    ended_at: datetime | None
    how: str
    held_ms: int
    processing_ms: int | None
    overrun: bool
    user_agent: str | None


@dataclass(frozen=True, slots=True)
class Example:
    """One message's life, and why it is worth a look (one of KINDS)."""

    kind: str
    queue: str
    message_id: str | None
    message_type: str | None
    sent_at: datetime
    outcome: str
    ended_at: datetime | None
    leases: tuple[ExampleLease, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """The tables, as far as the report needs them."""

    collected_at: datetime
    since: datetime | None  # the hours that the tables cover, UTC
    until: datetime | None
    queues: tuple[QueueLife, ...] = ()
    examples: tuple[Example, ...] = ()
    spark_version: str = ""
    dead_letters: tuple[DeadLetterGroup, ...] = ()  # of the last analysis

    @property
    def totals(self) -> Totals:
        return Totals.over(queue.totals for queue in self.queues)


# Instants between Spark and here are microseconds since 1970: Spark would hand them over without a zone.
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)


def micros(at: datetime) -> int:
    """Microseconds since 1970."""
    return (at - _BEGIN) // timedelta(microseconds=1)


@overload
def moment(at_us: int) -> datetime: ...
@overload
def moment(at_us: int | None) -> datetime | None: ...
def moment(at_us: int | None) -> datetime | None:
    """The instant, in UTC; None for None."""
    return None if at_us is None else _BEGIN + timedelta(microseconds=at_us)
