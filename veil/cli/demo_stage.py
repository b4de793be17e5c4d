"""How the demo is told: acts of one sentence, what is seen meanwhile, and whether what was claimed holds. All of it is talk."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from veil.cli.output import has_colour, inert, is_terminal, talk

_WIDTH: Final = 110
_LINE_EVERY_S: Final = 10.0

Moved = Callable[[float, str], None]  # how far, of the total; and what is seen


@dataclass
class Stage:
    """Shows the acts on stderr: with bars on a terminal, in plain lines elsewhere."""

    acts: int = 0
    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._coloured = has_colour(sys.stderr)
        self._begun_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the demo has lasted."""
        return time.monotonic() - self._begun_s

    def act(self, title: str, sentence: str) -> None:
        """Begin an act."""
        self.acts += 1
        talk()
        talk(self._styled(f"{self.acts}  {title}", "1"))
        for line in textwrap.wrap(sentence, _width() - 4):
            talk(f"   {line}")

    def note(self, text: str) -> None:
        """One fact of the act."""
        talk(self._styled(f"   · {inert(text, keep='')}", "2"))

    def claim(self, text: str, holds: bool) -> None:
        """A sentence that must be true now."""
        (self.held if holds else self.broken).append(text)
        mark = self._styled("✓", "32") if holds else self._styled("✗ NOT SO:", "1;31")
        first, *more = textwrap.wrap(inert(text, keep=""), _width() - 6)
        talk(f"   {mark} {first}")
        for line in more:
            talk(f"     {line}")

    @contextmanager
    def progress(self, title: str, total: float | None = None) -> Iterator[Moved]:
        """While the block runs, how far it is; without a total, only that it goes on."""
        if is_terminal(sys.stderr):
            with self._bar(title, total) as bar:
                yield bar
            return
        begun_s = time.monotonic()
        told = 0

        def moved(done: float, seen: str) -> None:
            nonlocal told
            lasted_s = time.monotonic() - begun_s
            if lasted_s >= (told + 1) * _LINE_EVERY_S:
                told = int(lasted_s / _LINE_EVERY_S)
                talk(f"   {title}, {lasted_s:.0f} s" + (f": {seen}" if seen else ""))

        yield moved

    @contextmanager
    def _bar(self, title: str, total: float | None) -> Iterator[Moved]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.text import Text

        columns = (
            TextColumn("  "),
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[seen]}"),
        )
        console = Console(stderr=True, highlight=False, no_color=not self._coloured)
        with Progress(*columns, console=console, transient=True) as bar:
            line = bar.add_task(title, total=total, seen="")
            yield lambda done, seen: bar.update(line, completed=done, seen=Text(inert(seen, keep="")))

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDTH)
