"""The options of a source or sink: names without regard to case, values as text, as Spark hands them over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final

import msgspec

from veil.core.text import whole_number

HIDDEN: Final = "…"  # stands for a value that is not repeated


class OptionError(ValueError):
    """Names the option, the value that was given (unless that is HIDDEN) and what was expected."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        given = " is not given" if value is None else "" if value == HIDDEN else f"={value!r}"
        super().__init__(f"option {option}{given}: expected {expected}")
        self.option, self.value, self.expected = option, value, expected

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, object, str]]:
        # Spark carries errors from one process to another.
        return OptionError, (self.option, self.value, self.expected)


# Spark adds options of its own, which are not ours to judge.
_SPARKS_OWN = frozenset({"path", "checkpointlocation"})


class OptionValues:
    """The given options, each asked for once by its name."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        by_lower = {name.lower(): name for name in known}
        self._given: dict[str, str] = {}
        for name, value in given.items():
            own = by_lower.get(name.lower())
            if own is not None:
                self._given[own] = str(value)
            elif name.lower() not in _SPARKS_OWN:
                near = get_close_matches(name.lower(), by_lower, 1)
                hint = f"did you mean {by_lower[near[0]]}?" if near else "one of " + ", ".join(sorted(known))
                # Its value is not ours to show: it may be a secret that was put here by mistake.
                raise OptionError(name, HIDDEN, f"a known option; {hint}")

    def text(self, name: str) -> str | None:
        """The text of an option; None where it is not given or empty."""
        return self._given.get(name, "").strip() or None

    def needed(self, name: str, what: str) -> str:
        """The text of an option that must be there."""
        found = self.text(name)
        if found is None:
            raise OptionError(name, self._given.get(name), what)
        return found

    def whole(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A whole number within its limits."""
        found = self.text(name)
        if found is None:
            return default
        number = whole_number(found)
        if number is None or not low <= number <= high:
            raise OptionError(name, found, f"a whole number from {low} to {high}")
        return number

    def number(self, name: str, default: float | None, low: float, high: float) -> float | None:
        """A number within its limits."""
        found = self.text(name)
        if found is None:
            return default
        try:
            number = float(found)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise OptionError(name, found, f"a number from {low:g} to {high:g}")
        return number

    def instant_ms(self, name: str) -> int | None:
        """An instant: ISO 8601, in UTC where it names no zone."""
        found = self.text(name)
        if found is None:
            return None
        try:
            instant = datetime.fromisoformat(found)
        except ValueError:
            raise OptionError(name, found, "an instant such as 2026-01-31T12:00:00Z") from None
        return int((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)

    def texts(self, name: str) -> dict[str, str]:
        """Names and texts, as a JSON object."""
        found = self.text(name)
        if found is None:
            return {}
        try:
            return msgspec.json.decode(found, type=dict[str, str])
        except msgspec.DecodeError:
            raise OptionError(name, found, 'a JSON object of texts such as {"type": "order"}') from None

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of several words."""
        found = (self.text(name) or default).lower()
        if found not in choices:
            raise OptionError(name, self.text(name), "one of " + ", ".join(filter(None, choices)))
        return found
