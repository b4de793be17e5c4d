"""What stops a write: a row that cannot be a message, or a service that does not take it."""

from __future__ import annotations

from typing import Any


class RowRefused(ValueError):
    """Names the row by its partition, its place there and its key, and says why it cannot be sent."""

    def __init__(
        self, queue: str, partition: int, ordinal: int, key: tuple[str, Any] | None, reason: str
    ) -> None:
        which = f"row {ordinal} of partition {partition}"
        if key is not None:
            which += f" ({key[0]}={key[1]!r})"
        super().__init__(f"{which} cannot be sent to queue {queue or 'without a name'}: {reason}")
        self.arguments = (queue, partition, ordinal, key, reason)

    def __reduce__(self) -> tuple[type[RowRefused], tuple[Any, ...]]:
        # Spark carries errors from one process to another.
        return RowRefused, self.arguments


class SendFailed(RuntimeError):
    """The service was throttling or away for longer than the patience, or takes nothing from us at all."""
