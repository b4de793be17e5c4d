"""Bands: the few timeouts that the target queues have, each with a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from veil.core.limits import VISIBILITY_MAX_S
from veil.pipeline.routing.refusal import RouteRefused

_UNITS: Final = {"": 1, "s": 1, "min": 60, "h": 3600}
_LENGTH: Final = re.compile(r"([0-9]{1,6}) ?(s|min|h)?")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
DEFAULT: Final = "short=30s,medium=5min,long=1h"


class Band(NamedTuple):
    """A timeout and what it is called."""

    name: str
    timeout_s: int


def read_length_s(text: str, what: str) -> int:
    """A timeout such as 30s, 5min or 1h; raises RouteRefused."""
    found = _LENGTH.fullmatch(text.strip())
    seconds = int(found[1]) * _UNITS[found[2] or ""] if found else 0
    if not 1 <= seconds <= VISIBILITY_MAX_S:
        raise RouteRefused(f"{what} {text!r}: expected a timeout from 1s to 12h, such as 30s, 5min or 1h")
    return seconds


def read_bands(text: str) -> list[Band]:
    """Bands from NAME=TIMEOUT,…, the shortest first; raises RouteRefused."""
    bands = []
    for piece in text.split(","):
        name, _, length = piece.strip().partition("=")
        if not _NAME.fullmatch(name):
            raise RouteRefused(f"band {piece.strip()!r}: expected NAME=TIMEOUT, such as short=30s")
        bands.append(Band(name, read_length_s(length, f"band {name}")))
    bands.sort(key=lambda band: band.timeout_s)
    _check_distinct([band.name for band in bands], "name")
    _check_distinct([str(band.timeout_s) for band in bands], "timeout")
    return bands


def band_named(bands: Sequence[Band], name: str) -> Band:
    """The band of that name; raises RouteRefused."""
    for band in bands:
        if band.name == name:
            return band
    raise RouteRefused(f"band {name!r}: expected one of {', '.join(band.name for band in bands)}")


def _check_distinct(values: Sequence[str], what: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise RouteRefused(f"bands: two have the {what} {value}; expected a different one for each")
