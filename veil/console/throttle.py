"""Guessing secrets is slow: failures are counted by address and by key, and too many close the door for a while."""

from __future__ import annotations

from typing import Final

from veil.core.clock import Clock

WINDOW_MS: Final = 5 * 60_000
ADDRESS_FAILURES_MAX: Final = 10
# More than for an address: whoever knows a key's id could otherwise keep its owner out with ten requests.
KEY_FAILURES_MAX: Final = 50
_REMEMBERED_MAX: Final = 10_000


class Throttle:
    """Counts failed log-ins of the last five minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[tuple[str, str], list[int]] = {}

    def wait_s(self, address: str, key_id: str) -> int:
        """How long until the next try is heard; 0: now."""
        now_ms = self._clock.now_ms()
        return max(
            self._wait_s(("address", address), ADDRESS_FAILURES_MAX, now_ms),
            self._wait_s(("key", key_id), KEY_FAILURES_MAX, now_ms),
        )

    def failed(self, address: str, key_id: str) -> None:
        """One more failure."""
        now_ms = self._clock.now_ms()
        for key in (("address", address), ("key", key_id)):
            if key not in self._failures and len(self._failures) >= _REMEMBERED_MAX:
                del self._failures[next(iter(self._failures))]
            recent = [at_ms for at_ms in self._failures.pop(key, []) if at_ms > now_ms - WINDOW_MS]
            self._failures[key] = [*recent, now_ms][-KEY_FAILURES_MAX:]

    def succeeded(self, address: str) -> None:
        """The address has shown a secret: what it got wrong before is forgiven."""
        self._failures.pop(("address", address), None)

    def _wait_s(self, key: tuple[str, str], failures_max: int, now_ms: int) -> int:
        recent = [at_ms for at_ms in self._failures.get(key, ()) if at_ms > now_ms - WINDOW_MS]
        if len(recent) < failures_max:
            return 0
        return max(1, (recent[-failures_max] + WINDOW_MS - now_ms + 999) // 1000)
