"""What every rig hands back, and where it keeps what it wrote."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.checker import Verdict


@dataclass(slots=True)
class Outcome:
    """One run of a rig: what it did, and every violation it saw, by class."""

    rig: str
    seed: int
    done: str = ""
    violations: dict[str, list[str]] = field(default_factory=dict)
    kept: Path | None = None  # where the history of a failed run is

    @property
    def ok(self) -> bool:
        return not any(self.violations.values())

    def add(self, kind: str, text: str) -> None:
        """Hold something against the server."""
        self.violations.setdefault(kind, []).append(text)

    def take(self, verdict: Verdict) -> None:
        """Add what the checker found."""
        for kind, found in verdict.faults.items():
            if found:
                self.violations.setdefault(kind, []).extend(found)

    def discard(self) -> None:
        """Throw away what a failed run has kept."""
        if self.kept is not None:
            shutil.rmtree(self.kept, ignore_errors=True)

    def __str__(self) -> str:
        lines = [f"{self.rig} seed={self.seed}: {self.done}"]
        for kind, found in self.violations.items():
            lines += [f"  {kind} ({len(found)})", *(f"    {line}" for line in found[:5])]
        if self.kept is not None:
            lines.append(f"  kept: {self.kept}")
        return "\n".join(lines)


@contextlib.contextmanager
def scratch(outcome: Outcome) -> Iterator[Path]:
    """A directory for one run, removed afterwards unless the run found something."""
    place = Path(tempfile.mkdtemp(prefix=f"veil-{outcome.rig}-"))
    try:
        yield place
    except BaseException:
        outcome.kept = place
        raise
    if outcome.ok:
        shutil.rmtree(place, ignore_errors=True)
    else:
        outcome.kept = place
