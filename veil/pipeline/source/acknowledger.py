"""Deletes what is finished beside the next batch: most of the time nobody has to wait for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from veil.pipeline.source.stream import Offset


class Acknowledger:
    """Runs `work` for one offset after the other, on a thread of its own; what it raises comes to whoever waits next."""

    def __init__(self, work: Callable[[Offset], None]) -> None:
        self._work = work
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="veil-acknowledge")
        self._under_way: Future[None] | None = None

    def begin(self, end: Offset) -> None:
        """Acknowledge up to there; an earlier call is finished first."""
        self.wait()
        self._under_way = self._thread.submit(self._work, end)

    def wait(self) -> None:
        """Until everything begun is done."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def stop(self) -> None:
        """End the thread when what is under way is done."""
        self._thread.shutdown()
