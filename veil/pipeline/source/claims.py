"""The leases of what is sealed and not acknowledged: extended together, given up segment by segment."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from veil.consumer.message import ApiError, Failure
from veil.pipeline.queues.client import QueueClient
from veil.pipeline.source.tally import Tally

_EXTEND_PATIENCE = 6  # a share of the window: the next round comes soon, and the oldest leases first


@dataclass(slots=True)
class _Claim:
    receipts: list[str]
    lost: set[str] = field(default_factory=set)
    finished: bool = False  # its batch is done: a lease that is gone by now is no loss


class Claims:
    """What a run holds, by the name of the segment; safe from any thread."""

    def __init__(self, client: QueueClient, window_s: int, tally: Tally) -> None:
        self._client, self._window_s, self._tally = client, window_s, tally
        self._lock = threading.Lock()
        self._open: dict[str, _Claim] = {}

    def add(self, name: str, receipts: Sequence[str]) -> None:
        """Hold these from now on."""
        with self._lock:
            self._open[name] = _Claim(list(receipts))

    def drop(self, name: str) -> None:
        """Hold them no longer: they come back when their windows end."""
        with self._lock:
            self._open.pop(name, None)

    def some_lost(self) -> bool:
        """Whether a lease could not be kept: its message may be visible."""
        with self._lock:
            return any(claim.lost for claim in self._open.values())

    def extend_all(self) -> bool:
        """Give all of them a new window; False where some could not be asked for and must be tried again soon."""
        with self._lock:
            held = [
                (claim, receipt)
                for claim in self._open.values()
                for receipt in claim.receipts
                if receipt not in claim.lost
            ]
        if not held:
            return True
        results = self._client.extend(
            [receipt for _, receipt in held], self._window_s, patience_s=self._window_s / _EXTEND_PATIENCE
        )
        lost = 0
        for (claim, receipt), failed in zip(held, results, strict=True):
            if is_lost(failed) and not claim.finished:
                claim.lost.add(receipt)
                lost += 1
        self._tally.add("lost", lost)
        self._tally.add("renewed", sum(failed is None for failed in results))
        return all(failed is None or is_lost(failed) for failed in results)

    def delete(self, name: str) -> bool:
        """Delete a segment's messages from the queue; False while some must be tried again."""
        with self._lock:
            claim = self._open.get(name)
        if claim is None:
            return True
        claim.finished = True
        results = self._client.delete(claim.receipts)
        again = [
            receipt
            for receipt, failed in zip(claim.receipts, results, strict=True)
            if failed is not None and not is_lost(failed)
        ]
        gone = sum(is_lost(failed) for failed in results) - len(claim.lost)
        self._tally.add("deleted", sum(failed is None for failed in results))
        self._tally.add("failed_deletes", len(again))
        self._tally.add("lost", max(0, gone))
        claim.receipts = again
        if not again:
            self.drop(name)
        return not again


def is_lost(failed: ApiError | None) -> bool:
    """Whether no further call can help: somebody else has the message, or twelve hours are over."""
    return failed is not None and failed.failure in (Failure.LOST, Failure.CAPPED, Failure.REFUSED)
