"""Lists of queues that a store has in memory, by rising name."""

from __future__ import annotations

from collections.abc import Iterable

from veil.core.queue import Queue, QueueKey


def listed(
    queues: Iterable[Queue], region: str, account: str, prefix: str, after: str, limit: int
) -> list[Queue]:
    """Queues of one account and region whose names begin so, those after a name."""
    return _page(
        (
            queue
            for queue in queues
            if queue.key.account == account
            and queue.key.region == region
            and queue.key.name.startswith(prefix)
        ),
        after,
        limit,
    )


def dead_letter_sources(queues: Iterable[Queue], target: QueueKey, after: str, limit: int) -> list[Queue]:
    """The queues whose redrive policy names the target, those after a name."""
    return _page(
        (
            queue
            for queue in queues
            if (redrive := queue.settings.redrive) is not None and redrive.dead_letters == target
        ),
        after,
        limit,
    )


def _page(found: Iterable[Queue], after: str, limit: int) -> list[Queue]:
    # By id where names are equal: sources may be of several accounts.
    return sorted(
        (queue for queue in found if queue.key.name > after), key=lambda queue: (queue.key.name, queue.id)
    )[:limit]
