"""What one check of `veil doctor` came to."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """What one check came to."""

    check: str
    verdict: Verdict
    text: str
    advice: str = ""
