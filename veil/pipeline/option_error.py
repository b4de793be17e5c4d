"""An option of a source or sink that cannot be used."""

from __future__ import annotations


class OptionError(ValueError):
    """Names the option, the value that was given and what was expected."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        given = f"{option} is not given" if value is None else f"{option}={value!r}"
        super().__init__(f"option {given}: expected {expected}")
        self.option, self.value, self.expected = option, value, expected

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, object, str]]:
        # Spark carries errors from one process to another.
        return OptionError, (self.option, self.value, self.expected)
