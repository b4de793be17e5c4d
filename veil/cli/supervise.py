"""Worker processes: started, restarted when they crash or their source changes, and told when to stop."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.2
_BACKOFF_FIRST_S: Final = 0.5
_BACKOFF_MAX_S: Final = 30.0
_STEADY_S: Final = 60.0  # a worker that lived so long has not crashed at the start: its restarts begin anew
_RELOAD_PATIENCE_S: Final = 5.0
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Sources:
    """The Python files under a directory; a change is a new, a lost or a newer file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = self._times()

    def changed(self) -> Path | None:
        """A file that changed since the last call."""
        now, before = self._times(), self._seen
        self._seen = now
        for path in now.keys() | before.keys():
            if now.get(path) != before.get(path):
                return path
        return None

    def _times(self) -> dict[Path, int]:
        return dict(self._walk())

    def _walk(self) -> Iterator[tuple[Path, int]]:
        for folder, folders, files in os.walk(self._root):
            # Environments and caches hold thousands of files that nobody edits.
            folders[:] = [
                name
                for name in folders
                if not name.startswith((".", "__pycache__"))
                and name not in ("node_modules", "site-packages")
                and not Path(folder, name, "pyvenv.cfg").exists()
            ]
            for name in files:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    try:
                        yield path, path.stat().st_mtime_ns
                    except OSError:
                        continue


class Worker:
    """One place among the workers: its process, and when the next one may be started."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._crashes = 0
        self._started_s = 0.0
        self.not_before_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, now_s: float) -> None:
        """Start a process."""
        # A session of its own: otherwise ^C in a terminal reaches it twice, from the terminal and from here, and the second
        # signal means "hurry".
        self.process = subprocess.Popen(  # noqa: S603 - our own interpreter
            self._command, start_new_session=True
        )
        self._started_s = now_s

    def crashed(self, now_s: float) -> float:
        """Its process is gone without being asked to: how long until the next one."""
        self._crashes = 1 if now_s - self._started_s > _STEADY_S else self._crashes + 1
        wait_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0 ** (self._crashes - 1))
        self.process, self.not_before_s = None, now_s + wait_s
        return wait_s

    def forgive(self) -> None:
        """The source has changed: begin anew, at once."""
        self._crashes, self.not_before_s = 0, 0.0

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)


class Supervisor:
    """Keeps the workers running until it is told to stop, and then waits for them.

    A worker that ends by itself with 0 was done; one that could not be started because of its settings (2) would only
    fail again. Both stay away, and when all are gone, so is the supervisor.
    """

    def __init__(self, commands: Sequence[Sequence[str]], *, watch: Path | None = None) -> None:
        self._workers = [Worker(command) for command in commands]
        self._sources = Sources(watch) if watch is not None else None
        self._stopping = False
        self._code = 0

    def run(
        self, *, monotonic: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
    ) -> int:
        """The exit code: 0 unless a worker that stays away said otherwise."""
        before = {number: signal.signal(number, self._passed_on) for number in _STOP_SIGNALS}
        try:
            live = list(self._workers)
            while live:
                now_s = monotonic()
                live = [worker for worker in live if self._tended(worker, now_s)]
                if self._sources is not None and not self._stopping and (path := self._sources.changed()):
                    self._reload(path)
                    live = list(self._workers)
                if live:
                    pause(_LOOK_S)
            return self._code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for worker in self._workers:
                worker.signal(signal.SIGKILL)

    def _tended(self, worker: Worker, now_s: float) -> bool:
        """Whether the worker runs or will run again."""
        if worker.process is None:
            if self._stopping:
                return False
            if now_s >= worker.not_before_s:
                worker.start(now_s)
            return True
        code = worker.process.poll()
        if code is None:
            return True
        if self._stopping or code in (0, 2):
            if code > 0:
                self._code = code
            worker.process = None
            # With --reload the next edit may mend it.
            return self._sources is not None and not self._stopping and self._rests(worker)
        wait_s = worker.crashed(now_s)
        _log.warning("a worker ended with %s, next start in %.1f s", _in_words(code), wait_s)
        return True

    def _rests(self, worker: Worker) -> bool:
        worker.not_before_s = float("inf")
        return True

    def _reload(self, path: Path) -> None:
        _log.info("%s changed: restarting", path)
        self._code = 0
        for worker in self._workers:
            worker.signal(signal.SIGTERM)
        for worker in self._workers:
            if worker.process is not None:
                try:
                    worker.process.wait(_RELOAD_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    worker.signal(signal.SIGTERM)  # the second one hurries
                    worker.process.wait()
                worker.process = None
            worker.forgive()

    def _passed_on(self, number: int, frame: object) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.signal(number)


def worker_command(arguments: Sequence[str]) -> list[str]:
    """The command line of one worker, which leaves when this process is gone."""
    return [sys.executable, "-P", "-m", "veil.cli.main", "run", *arguments, "--parent", str(os.getpid())]


def _in_words(code: int) -> str:
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
