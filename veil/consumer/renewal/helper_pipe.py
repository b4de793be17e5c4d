"""A helper process seen from its parent: say something without ever waiting, hear what it says in a thread."""

from __future__ import annotations

import base64
import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Callable

from veil.consumer.renewal.helper_messages import FromHelper, ToHelper, line, read_by_parent
from veil.consumer.renewal.keeper_protocol import RenewalApi
from veil.consumer.renewal.policy import RenewalPolicy

_FLUSH_CHECK_S = 0.2


class HelperPipe:
    """One helper process. `heard` is called from a thread of its own with each message, and with None at the end."""

    def __init__(
        self,
        api_factory: Callable[[], RenewalApi],
        policy: RenewalPolicy,
        heard: Callable[[HelperPipe, FromHelper | None], None],
    ) -> None:
        # A plain command, not multiprocessing: that would run the program's main module a second time.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "veil.consumer.renewal.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},  # noqa: PTH109
        )
        assert self._process.stdin is not None
        self._fd = self._process.stdin.fileno()
        os.set_blocking(self._fd, False)
        self._heard = heard
        self._room = threading.Condition()
        self._backlog = bytearray()
        self._ended = False
        self._write(base64.b64encode(pickle.dumps((api_factory, policy))) + b"\n")
        self._reader = threading.Thread(target=self._listen, name="veil-helper-reader", daemon=True)
        self._writer = threading.Thread(target=self._flush, name="veil-helper-writer", daemon=True)
        self._reader.start()
        self._writer.start()

    @property
    def pid(self) -> int:
        """Of the helper."""
        return self._process.pid

    def say(self, message: ToHelper) -> None:
        """Written when this returns, unless the pipe is full: the next moment may belong to code that holds the GIL."""
        self._write(line(message))

    def close(self, timeout_s: float) -> None:
        """Wait for the helper to end, or end it."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._end()
        for thread in (self._reader, self._writer):
            if thread is not threading.current_thread():
                thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _write(self, text: bytes) -> None:
        with self._room:
            if self._ended:
                return
            if not self._backlog:
                text = text[self._written(text) :]
            if text:
                self._backlog += text
                self._room.notify()

    def _written(self, text: bytes | bytearray) -> int:
        try:
            return os.write(self._fd, text)
        except BlockingIOError:
            return 0
        except OSError:  # it has ended; the reader will say so
            return len(text)

    def _flush(self) -> None:
        while True:
            with self._room:
                self._room.wait_for(lambda: self._backlog or self._ended)
                if self._ended:
                    return
            select.select([], [self._fd], [], _FLUSH_CHECK_S)
            with self._room:
                if not self._ended:
                    del self._backlog[: self._written(self._backlog)]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._heard(self, read_by_parent.decode(text))
        self._end()
        self._heard(self, None)

    def _end(self) -> None:
        with self._room:
            self._ended = True
            self._room.notify()
