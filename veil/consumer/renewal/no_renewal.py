"""Leave every window as the receive opened it."""

from __future__ import annotations

import math

from veil.consumer.renewal.policy import Duration, RenewalPolicy, Window, whole_seconds


class NoRenewal(RenewalPolicy):
    """Nothing is renewed; a handler is still told when its window has ended."""

    def __init__(self, *, visibility: Duration | None = None) -> None:
        self.visibility_s = None if visibility is None else whole_seconds("visibility", visibility)

    def __repr__(self) -> str:
        return f"NoRenewal(visibility={self.visibility_s})"

    @property
    def receive_visibility_s(self) -> int | None:
        return self.visibility_s

    @property
    def renews(self) -> bool:
        return False

    def due_s(self, window: Window) -> float:
        return math.inf

    def ask_s(self, window: Window, now_s: float) -> int:
        return 0
