"""Fair queues: a group that floods a standard queue waits behind the quiet ones.

A group is noisy while it holds more than a tenth of the messages in flight, and at least thirty of them. Messages of
quiet groups go first; among noisy groups the one with the fewest in flight does. A message without a group is a group of
its own, and so is always quiet.
"""

from __future__ import annotations

from collections.abc import Mapping

NOISY_COUNT_MIN = 30
NOISY_SHARE_PERCENT = 10


def noisy_groups(in_flight: Mapping[str, int], total_in_flight: int) -> list[str]:
    """The noisy groups, the one to serve first in front."""
    noisy = [
        (count, group)
        for group, count in in_flight.items()
        if count >= NOISY_COUNT_MIN and count * 100 > total_in_flight * NOISY_SHARE_PERCENT
    ]
    return [group for _, group in sorted(noisy)]
