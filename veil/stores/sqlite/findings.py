"""What a check of the data found, for people and for the command's exit status."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "note"]
LISTED_MAX = 50  # of one kind: a spoiled disk has one thing to say, not a million


class Finding(NamedTuple):
    """One thing that was found."""

    severity: Severity
    where: str
    text: str


@dataclass(slots=True)
class Findings:
    """Everything that was found, and how much was looked at."""

    queues: int = 0
    messages: int = 0
    body_bytes: int = 0
    listed: list[Finding] = field(default_factory=list)
    totals: Counter[tuple[Severity, str]] = field(
        default_factory=Counter
    )  # by severity and kind, unlisted ones too

    def add(self, severity: Severity, kind: str, where: str, text: str) -> None:
        """Note a finding; `kind` groups those that are alike."""
        self.totals[severity, kind] += 1
        if self.totals[severity, kind] <= LISTED_MAX:
            self.listed.append(Finding(severity, where, text))

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; warnings and notes are not."""
        return not any(severity == "error" for severity, _ in self.totals)

    def __str__(self) -> str:
        lines = [f"{finding.severity}: {finding.where}: {finding.text}" for finding in self.listed]
        for (severity, kind), total in self.totals.items():
            if total > LISTED_MAX:
                lines.append(f"{severity}: {kind}: {total - LISTED_MAX:,} more of the same kind")
        verdict = "sound" if self.is_sound else "damaged"
        lines.append(
            f"{verdict}: {self.queues:,} queues, {self.messages:,} messages, {self.body_bytes:,} bytes of bodies read"
        )
        return "\n".join(lines)
