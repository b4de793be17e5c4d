"""How the demo tells its story: numbered steps, the real answers, and a claim that holds or does not."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass, field

from veil.cli.output import has_colour, inert, say

_WIDTH = 96


@dataclass
class Story:
    """Prints the steps and remembers which claims did not hold."""

    quiet: bool = False
    steps: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._coloured = has_colour(sys.stdout)

    def step(self, title: str, why: str) -> None:
        """Begin a step: what happens, and why it matters."""
        self.steps.append(title)
        self._print()
        self._print(self._styled(f"{len(self.steps):>2}  {title}", "1"))
        for line in textwrap.wrap(why, _WIDTH - 4):
            self._print(f"    {line}")

    def show(self, what: str, answer: str | None = None) -> None:
        """A command as one would type it, and what came back; None where it prints nothing."""
        self._print(f"    {self._styled('$', '2')} {self._styled(what, '36')}")
        for line in [] if answer is None else inert(answer).splitlines() or ["(nothing)"]:
            self._print(self._styled(f"      {line}", "2"))

    def claim(self, text: str, holds: bool) -> None:
        """A sentence that must be true now."""
        (self.held if holds else self.broken).append(text)
        mark = self._styled("✓", "32") if holds else self._styled("✗ NOT SO:", "1;31")
        self._print(f"    {mark} {text}")

    def end(self) -> None:
        """The last line: how many claims held."""
        self._print()
        if self.broken:
            self._print(
                self._styled(
                    f"{len(self.broken)} of {len(self.held) + len(self.broken)} claims broken:", "1;31"
                )
            )
            for text in self.broken:
                self._print(f"  ✗ {text}")
        else:
            self._print(self._styled(f"All {len(self.held)} claims held.", "1;32"))

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._coloured else text

    def _print(self, text: str = "") -> None:
        if not self.quiet:
            say(text)
