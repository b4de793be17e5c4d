"""An option of a source or sink that cannot be used."""

from __future__ import annotations

from typing import Final

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
