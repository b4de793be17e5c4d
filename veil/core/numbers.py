"""Numbers in texts that somebody else wrote."""

from __future__ import annotations

from typing import Final

_SEQ_DIGITS_MAX: Final = 19
_SEQ_MAX: Final = (1 << 63) - 1


def whole_number(text: str | None, digits_max: int = 18) -> int | None:
    """The number that the text is, in plain digits; None for anything else, and for more digits than that.

    `int` alone also takes blanks, signs, underscores and the digits of every script, and raises for more than 4,300 of them.
    """
    if text is None or len(text) > digits_max or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def seq_number(text: str) -> int | None:
    """The key of a message; None for what cannot be one."""
    seq = whole_number(text, _SEQ_DIGITS_MAX)
    return seq if seq is not None and 0 < seq <= _SEQ_MAX else None
