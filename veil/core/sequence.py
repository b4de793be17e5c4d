"""The order key of a message: engine milliseconds in the high bits, a counter below.

One number does three jobs. It is the place of the message in its queue, which a message keeps when its lease lapses and
when it is dead-lettered. It is unique over the whole store, so it identifies the row. And since its high bits are the
instant of the send, "older than the retention period" is a range of keys: nothing else needs to be indexed by age.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

COUNTER_BITS: Final = 20  # a million messages in one millisecond; the whole fits 63 bits until the year 2248
SEQ_MAX: Final = (1 << 63) - 1


def first_seq_of(instant_ms: int) -> int:
    """The smallest key that can belong to that engine millisecond."""
    return instant_ms << COUNTER_BITS


def instant_of(seq: int) -> int:
    """The engine millisecond in which the key was given out."""
    return seq >> COUNTER_BITS


def expired_below(now_ms: int, retention_s: int) -> int:
    """Keys below this one are past their retention."""
    return first_seq_of(max(0, now_ms - retention_s * 1000) + 1) if now_ms >= retention_s * 1000 else 0


def expires_at_ms(seq: int, retention_s: int) -> int:
    """The first engine millisecond at which the message of that key is past its retention."""
    return instant_of(seq) + retention_s * 1000


def wake_at_ms(seq: int, due_at_ms: int | None, retention_s: int) -> int | None:
    """When something next happens to a hidden message: its lease or delay ends, or its retention does."""
    if due_at_ms is None:
        return None
    expiry_ms = (seq >> COUNTER_BITS) + retention_s * 1000
    return due_at_ms if due_at_ms < expiry_ms else expiry_ms


def seq_with_counter(instant_ms: int, counter: int) -> int:
    """The key of an engine millisecond with the low bits of a counter that others draw from too."""
    return instant_ms << COUNTER_BITS | counter & (1 << COUNTER_BITS) - 1


class SequenceSource:
    """Gives out rising keys; never one twice, also when time stands still."""

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def next(self, now_ms: int) -> int:
        """A key above every earlier one, carrying the present instant (or a later one, if a burst ran ahead)."""
        seq = now_ms << COUNTER_BITS
        if seq <= self.last:
            seq = self.last + 1
        self.last = seq
        return seq


def sequence_text(seq: int) -> str:
    """The key as clients see it on FIFO queues: twenty digits, comparable as text."""
    return f"{seq:020d}"


# ---- fair queues
#
# A group is noisy while it holds more than a tenth of the messages in flight, and at least thirty of them. Messages of
# quiet groups go first; among noisy groups the one with the fewest in flight does. A message without a group is a group of
# its own, and so is always quiet.

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
