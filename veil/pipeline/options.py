"""The options of a source or sink: names without regard to case, values as text, as Spark hands them over."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, TypeVar

import msgspec

from veil.core.text import whole_number

D = TypeVar("D")
HIDDEN: Final = "…"  # stands for a value that is not repeated


class OptionError(ValueError):
    """Names the option, the value that was given (unless that is HIDDEN) and what was expected."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        # Put into words when it is told: Spark carries errors from one process to another, as what they were made of.
        super().__init__(option, value, expected)
        self.option, self.value, self.expected = option, value, expected

    def __str__(self) -> str:
        given = " is not given" if self.value is None else "" if self.value == HIDDEN else f"={self.value!r}"
        return f"option {self.option}{given}: expected {self.expected}"


# Spark adds options of its own, which are not ours to judge.
_SPARKS_OWN = frozenset({"path", "checkpointlocation"})


class OptionValues:
    """The given options, each asked for by its name; what was asked for is what is known."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        self._values = {name.lower(): str(value).strip() for name, value in given.items()}
        self._known: dict[str, str] = {}

    def check_all_known(self) -> None:
        """Raise OptionError for an option that nobody has asked for."""
        for name in self._given:
            if name.lower() not in self._known and name.lower() not in _SPARKS_OWN:
                near = get_close_matches(name.lower(), self._known, 1)
                names = ", ".join(sorted(self._known.values()))
                hint = f"did you mean {self._known[near[0]]}?" if near else f"one of {names}"
                # Its value is not ours to show: it may be a secret that was put here by mistake.
                raise OptionError(name, HIDDEN, f"a known option; {hint}")

    def text(self, name: str) -> str | None:
        """The text of an option; None where it is not given or empty."""
        self._known[name.lower()] = name
        return self._values.get(name.lower()) or None

    def whole(self, name: str, default: D, low: int, high: int) -> int | D:
        """A whole number within its limits."""
        found = self.text(name)
        if found is None:
            return default
        number = whole_number(found)
        if number is None or not low <= number <= high:
            raise OptionError(name, found, f"a whole number from {low} to {high}")
        return number

    def number(self, name: str, default: D, low: float, high: float) -> float | D:
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
