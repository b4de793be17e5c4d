"""Which queue of which service: what can be written down, sent to an executor and opened there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A queue by name, ARN or URL; endpoint, region and profile are found by AWS's variables where they are None."""

    queue: str
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
