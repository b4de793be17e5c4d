"""Signals during the demo: whichever ends it, it tidies up first, and never in the middle of starting a process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Interruptions:
    """Handlers run in the main thread, which is the one that starts processes, so plain fields will do."""

    held_back = False
    waiting = False

    def arrived(self, number: int, frame: object) -> None:
        if self.held_back:
            self.waiting = True
            return
        # The second one must not stop the tidying up that the first one causes.
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt


_interruptions = _Interruptions()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within the block SIGTERM and a lost terminal end the demo as Ctrl-C does: by KeyboardInterrupt, once."""
    before = {number: signal.signal(number, _interruptions.arrived) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def not_interrupted() -> Iterator[None]:
    """A block that a signal ends only afterwards: else a process could be started and nobody know it."""
    _interruptions.held_back = True
    try:
        yield
    finally:
        _interruptions.held_back = False
        if _interruptions.waiting:
            _interruptions.waiting = False
            _interruptions.arrived(signal.SIGINT, None)
