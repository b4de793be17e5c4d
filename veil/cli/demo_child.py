"""A process of the demo's: it ends when the demo does, however that ends."""

from __future__ import annotations

import os
import signal
import threading


def leave_with_the_demo() -> threading.Event:
    """End this process when the demo's end of its stdin is closed; the event is set once the demo has said something."""
    spoken = threading.Event()
    threading.Thread(target=_listen, args=(spoken,), daemon=True).start()
    return spoken


def _listen(spoken: threading.Event) -> None:
    # Not through sys.stdin: a thread that waits within it keeps the interpreter from ending.
    while os.read(0, 65_536):
        spoken.set()
    os.kill(os.getpid(), signal.SIGKILL)  # there is nobody left to finish anything for
