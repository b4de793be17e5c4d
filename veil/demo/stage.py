"""The output of the demos: acts, facts, and claims that are checked as they are printed."""

from __future__ import annotations

import shutil
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from veil.cli.options import server_page
from veil.cli.output import echo, echo_err, has_colour, is_terminal
from veil.words import visible

_WIDTH: Final = 110
_LINE_EVERY_S: Final = 10.0


class Lateness:
    """How late this machine was: what was woken late here was woken late in the server and the workers too."""

    # A claim about a lease of a second or two cannot be shown by who wakes later than this.
    LATE_S: Final = 0.25
    _WAKE_EVERY_S: Final = 0.05
    _WAKES: Final = 40  # many small delays within two seconds cost as much as one that is long

    def __init__(self) -> None:
        self.woken_s = self.disk_s = 0.0
        threading.Thread(target=self._watch, name="lateness", daemon=True).start()

    def _watch(self) -> None:
        lately: deque[float] = deque(maxlen=self._WAKES)
        while True:
            before_s = time.monotonic()
            time.sleep(self._WAKE_EVERY_S)
            lately.append(time.monotonic() - before_s - self._WAKE_EVERY_S)
            self.woken_s = max(self.woken_s, sum(lately))

    def ask(self, endpoint: str) -> None:
        """Note how slow the disk was, by the server's own metrics."""
        metrics = server_page(endpoint, "/metrics", timeout_s=10).metrics
        self.disk_s = max(self.disk_s, float(metrics.get("veil_commit_worst_seconds", 0)))

    def __str__(self) -> str:
        """What was seen, where that was late; nothing otherwise."""
        found = {"processes were woken": self.woken_s, "writes to the disk came back": self.disk_s}
        late = [
            f"{what} up to {late_s:.1f} s late" for what, late_s in found.items() if late_s >= self.LATE_S
        ]
        return " and ".join(late)


class Stage:
    """Prints the acts of a demo and remembers which claims held. `out` is where to: stdout, stderr, or None for nowhere."""

    def __init__(self, out: Any = sys.stderr, lateness: Lateness | None = None) -> None:
        self._out, self._coloured = out, out is not None and has_colour(out)
        self._begun_s = time.monotonic()
        self.lateness = lateness or Lateness()
        self.acts = 0
        self.held: list[str] = []
        self.broken: list[str] = []
        self.not_shown: list[str] = []  # since the machine was late

    @property
    def told(self) -> dict[str, Any]:
        """How it went, for programs."""
        seconds = round(time.monotonic() - self._begun_s, 1)
        return {"held": self.held, "broken": self.broken, "not_shown": self.not_shown, "seconds": seconds}

    def act(self, title: str, sentence: str) -> None:
        """Begin an act: what happens, and why it matters."""
        self.acts += 1
        self._print()
        self._print(self._styled(f"{self.acts:>2}  {title}", "1"))
        self._wrapped("    ", sentence)

    def note(self, text: str) -> None:
        self._wrapped("    · ", visible(text), "2")

    def show(self, command: str, answer: str | None = None) -> None:
        """A command as one would type it, and what came back; None where it prints nothing."""
        self._print(f"    {self._styled('$', '2')} {self._styled(command, '36')}")
        for line in [] if answer is None else visible(answer, keep="\n\t").splitlines() or ["(nothing)"]:
            self._print(self._styled(f"      {line}", "2"))

    def claim(self, text: str, holds: bool, *, is_timed: bool = False) -> None:
        """A sentence that must be true now. One about times cannot be shown on a machine that was late: then it says so."""
        if not holds and is_timed and (late := str(self.lateness)):
            text = f"{text}. The machine was late: {late}"
            self.not_shown.append(text)
            mark = self._styled("? could not be shown:", "33")
        else:
            (self.held if holds else self.broken).append(text)
            mark = self._styled("✓", "32") if holds else self._styled("✗ NOT SO:", "1;31")
        self._wrapped(f"    {mark} ", visible(text))

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[str], None]]:
        """While the block runs, what it has come to: in a line that moves on a terminal, else every ten seconds."""
        begun_s = time.monotonic()
        if is_terminal(sys.stderr):
            from rich.console import Console

            console = Console(stderr=True, highlight=False, no_color=not self._coloured)
            with console.status(f"   {title}") as status:
                yield lambda seen: status.update(
                    f"   {title}, {time.monotonic() - begun_s:.0f} s" + (f": {visible(seen)}" if seen else "")
                )
            return
        lines = 0

        def moved(seen: str) -> None:
            nonlocal lines
            lasted_s = time.monotonic() - begun_s
            if lasted_s >= (lines + 1) * _LINE_EVERY_S:
                lines = int(lasted_s / _LINE_EVERY_S)
                self._print(f"    {title}, {lasted_s:.0f} s" + (f": {seen}" if seen else ""))

        yield moved

    def _wrapped(self, first: str, text: str, style: str = "") -> None:
        width = min(shutil.get_terminal_size().columns, _WIDTH) - 6
        for line in textwrap.wrap(text, width):
            self._print(self._styled(f"{first}{line}", style) if style else f"{first}{line}")
            first = "      " if first.strip() else first

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text

    def _print(self, text: str = "") -> None:
        if self._out is not None:
            (echo if self._out is sys.stdout else echo_err)(text, keep="\x1b\t")
