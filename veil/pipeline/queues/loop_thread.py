"""An event loop on a thread of its own, for code that may not wait asynchronously itself.

Spark calls sources and sinks as plain functions, while the client's connections live on an event loop; the loop's thread
also lets several calls run side by side.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class LoopThread:
    """A running event loop; it ends with the process, or when closed."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work on the loop; the caller waits when it needs what it comes to."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work on the loop and wait for what it comes to."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            # Interrupted while waiting: the work must not go on behind the caller's back.
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
