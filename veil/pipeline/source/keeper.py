"""Keeps messages invisible while their batch runs: extends, three times a window, whatever is not acknowledged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("veil.pipeline.source")

_TIMES_A_WINDOW = 3
_AFTER_FAILURE = 12  # of a window


class Keeper:
    """Calls `extend` again and again on a thread of its own; `extend` says whether all went well."""

    def __init__(self, window_s: float, extend: Callable[[], bool]) -> None:
        self._window_s = window_s
        self._extend = extend
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="veil-keeper", daemon=True)

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
            pause_s = self._window_s / (_TIMES_A_WINDOW if self._once() else _AFTER_FAILURE)

    def _once(self) -> bool:
        try:
            return self._extend()
        except Exception as problem:
            # The thread must live as long as the query: the next try is sooner, and what cannot be kept is told by the batch.
            log.warning("leases could not be extended: %s", problem)
            return False
