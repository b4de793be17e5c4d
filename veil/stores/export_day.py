"""The day that an export belongs to."""

from __future__ import annotations

from datetime import UTC, datetime


def export_day(at_ms: int) -> str:
    """The day of an instant of engine time, as YYYY-MM-DD."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).date().isoformat()
