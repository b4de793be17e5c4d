"""A sentence for the next page: what was done, said once, to the one who did it."""

from __future__ import annotations

import secrets

_KEPT_MAX = 500


class Notices:
    """Keeps sentences between a change and the page that follows it."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, str]] = {}

    def leave(self, cookie: str, sentence: str) -> str:
        """Keep the sentence for that visitor; returns the number to ask for it with."""
        if len(self._kept) >= _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        number = secrets.token_hex(8)
        self._kept[number] = (cookie, sentence)
        return number

    def take(self, cookie: str, number: str) -> str | None:
        """The sentence, the first time it is asked for by whom it was left for."""
        if number in self._kept and self._kept[number][0] == cookie:
            return self._kept.pop(number)[1]
        return None
