"""Keeps messages invisible while their batch runs: extends, three times a window, whatever is not acknowledged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("veil.pipeline.source")

_TIMES_A_WINDOW: Final = 3
_AFTER_FAILURE: Final = 12  # of a window
_SURE: Final = 2 / 3  # of a window: older than that, an extension is overdue


class Keeper:
    """Calls `extend` again and again on a thread of its own; `extend` says whether all went well."""

    def __init__(self, window_s: float, extend: Callable[[], bool]) -> None:
        self._window_s = window_s
        self._extend = extend
        self._kept_at_s: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="veil-keeper", daemon=True)

    @property
    def is_sure(self) -> bool:
        """Whether no lease can have lapsed, nor will within the next third of a window."""
        kept_at_s = self._kept_at_s
        return kept_at_s is not None and time.monotonic() - kept_at_s < self._window_s * _SURE

    def start(self) -> None:
        """Extend what is there now, then go on in the background: after a restart the windows may be nearly over."""
        self._once()
        self._thread.start()

    def stop(self) -> None:
        """No more extensions after this."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = self._window_s / _TIMES_A_WINDOW
        while not self._stopped.wait(pause_s):
            began_s = time.monotonic()
            share = _TIMES_A_WINDOW if self._once() else _AFTER_FAILURE
            # Counted from the beginning: thousands of extensions take their time, which must not be added to each round.
            pause_s = max(
                self._window_s / _AFTER_FAILURE, began_s + self._window_s / share - time.monotonic()
            )

    def _once(self) -> bool:
        began_s = time.monotonic()
        try:
            kept = self._extend()
        except Exception as problem:
            # The thread must live as long as the query: the next try is sooner, and what cannot be kept is told by the batch.
            log.warning("leases could not be extended: %s", problem)
            return False
        if kept:
            self._kept_at_s = began_s  # a lease that came later was fresh then
        return kept
