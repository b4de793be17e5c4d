"""The demo's processes: started, killed in the middle of their work, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from veil.cli.demo_signals import not_interrupted

_STOP_PATIENCE_S: Final = 15.0


def child_environ(endpoint: str, **more: str) -> dict[str, str]:
    """An environment in which AWS's variables name the demo's server, and nothing that is set for other ones counts."""
    others = ("VEIL_", "AWS_", "SPARK_", "PYSPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return kept | {
        "AWS_ENDPOINT_URL_SQS": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "demo",
        "AWS_SECRET_ACCESS_KEY": "demo",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        **more,
    }


class Hand:
    """One process, with everything that it starts itself."""

    def __init__(
        self, arguments: list[str], environ: Mapping[str, str], folder: Path, log: Path,
        heard: Callable[[str], None] | None,
    ) -> None:  # fmt: skip
        with log.open("ab") as end:
            # A session of its own, so that it can be ended with all its children, and so that ^C reaches the demo alone.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=end if heard is None else subprocess.PIPE,
                stderr=end,
                env=environ,
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._listening: threading.Thread | None = None
        if heard is not None:
            assert self._process.stdout is not None
            self._listening = threading.Thread(
                target=_listen, args=(self._process.stdout, heard), daemon=True
            )
            self._listening.start()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def say(self, line: str) -> None:
        """Tell it something; it may be gone already."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and all that it has started."""
        if self._process.poll() is None:  # afterwards the number may be somebody else's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def ended(self, within_s: float) -> int | None:
        """Its exit code once it has ended and all it said was heard; None if it has not by then."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None
        if self._listening is not None:
            self._listening.join(within_s)
        return code

    def close(self) -> None:
        """Let go of the pipes to it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Crew:
    """All processes of the demo but its server; on the way out of the block none of them is left."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder, self._environ = folder, environ
        self._hands: list[Hand] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hand in self._hands:
            hand.signal(signal.SIGKILL)
        for hand in list(self._hands):
            hand.ended(_STOP_PATIENCE_S)
            self._forget(hand)

    def start(self, log: str, *arguments: str, heard: Callable[[str], None] | None = None) -> Hand:
        """Start a Python process; what it prints goes to that log, or line by line to `heard`."""
        with not_interrupted():
            hand = Hand(list(arguments), self._environ, self.folder, self.folder / log, heard)
            self._hands.append(hand)
        return hand

    def kill(self, hand: Hand) -> None:
        """kill -9: it has no chance to finish or to give anything back."""
        hand.signal(signal.SIGKILL)
        hand.ended(_STOP_PATIENCE_S)
        self._forget(hand)

    def stop(self, hands: list[Hand]) -> None:
        """Ask them to stop, and wait until they have."""
        for hand in hands:
            hand.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_PATIENCE_S
        for hand in hands:
            if hand.ended(max(0.0, deadline_s - time.monotonic())) is None:
                hand.signal(signal.SIGKILL)
                hand.ended(_STOP_PATIENCE_S)
            self._forget(hand)

    def _forget(self, hand: Hand) -> None:
        hand.close()
        self._hands.remove(hand)


def _listen(pipe: IO[bytes], heard: Callable[[str], None]) -> None:
    with contextlib.suppress(ValueError):  # closed while reading
        for line in pipe:
            heard(line.decode(errors="replace").rstrip("\n"))
