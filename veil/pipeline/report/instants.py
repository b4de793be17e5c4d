"""Instants between Spark and here, as microseconds since 1970: Spark would hand them over without a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, overload

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
