"""Nobody listens: what a store speaks to before its owner has taken over."""

from __future__ import annotations


class SilentEvents:
    """A StoreEvents that ignores everything."""

    def messages_available(self, queue_id: int, count: int) -> None:
        """Ignored."""

    def counted(self, event: str, queue_id: int, count: int) -> None:
        """Ignored."""
