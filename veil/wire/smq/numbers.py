"""Whole numbers in elements, headers and parameters."""

from __future__ import annotations

import re
from typing import Final

from veil.wire.smq.refusals import ArgumentRefused

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}\Z", re.ASCII)


def read_number(name: str, text: str, low: int, high: int) -> int:
    """The number in that range; raises ArgumentRefused."""
    text = text.strip()
    number = int(text) if _INTEGER.match(text) else low - 1
    if not low <= number <= high:
        raise ArgumentRefused(name, text, f"a whole number from {low} to {high}")
    return number
