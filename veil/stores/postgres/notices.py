"""What nodes tell one another with a commit: who speaks, whether queues have changed, and where messages are to be had."""

from __future__ import annotations

from typing import Final, NamedTuple

CHANNEL: Final = "veil"
# A notification holds less than 8,000 bytes; who is left out is found by the look every second.
_WAKES_MAX: Final = 300


class Notice(NamedTuple):
    """One notification."""

    node: int
    epoch: int | None  # of the queues, if they have changed
    wakes: dict[int, int]  # by queue, how many messages may have become receivable


def written(node: int, epoch: int | None, wakes: dict[int, int]) -> str:
    """The notification's payload."""
    some = ",".join(f"{queue_id}:{count}" for queue_id, count in list(wakes.items())[:_WAKES_MAX])
    return f"{node} {'' if epoch is None else epoch} {some}"


def read(payload: str) -> Notice | None:
    """The same back; None for what is none of ours: anybody may speak on a channel."""
    try:
        node, epoch, some = payload.split(" ")
        pairs = [each.split(":") for each in some.split(",") if each]
        return Notice(
            int(node), int(epoch) if epoch else None, {int(queue_id): int(n) for queue_id, n in pairs}
        )
    except ValueError:
        return None
