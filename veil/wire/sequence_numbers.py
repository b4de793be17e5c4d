"""The order key of a message as Veil's own actions write it: decimal text, since JavaScript's numbers cannot hold it."""

from __future__ import annotations

from typing import Final

from veil.wire.request_errors import ParameterRefused

_MAX: Final = (1 << 63) - 1


def read_sequence_number(parameter: str, text: str) -> int:
    """The key; raises ParameterRefused for a text that cannot be one."""
    if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _MAX:
        return int(text)
    raise ParameterRefused(
        parameter, text, f"Must be a whole number between 0 and {_MAX}, in decimal digits."
    )
