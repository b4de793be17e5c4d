"""Match text against patterns in which `*` stands for any run of characters and `?` for any one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ARN_PARTS: Final = 6


class Wildcards:
    """Patterns that a text is held against all at once.

    Tenants write the patterns and strangers the text, so nothing here goes back: all patterns together are one row of bits, in
    which a bit says "so far the text fits this much of that pattern". Each character of the text moves the row by one shift,
    whatever the patterns are and however many.
    """

    __slots__ = ("_anything", "_ends", "_literals", "_loops", "_places", "_singles", "_starts")

    def __init__(self, patterns: Iterable[str], *, arns: bool = False) -> None:
        """With `arns` a text fits part by part: the wildcard of one of an ARN's first five parts takes no colon, so that it
        cannot reach into the next."""
        literals: set[str] = set()
        self._anything = False
        self._places: dict[str, list[int]] = {}  # of each character, the bits that it moves on
        self._starts = self._ends = 0
        # What moves on with any character, and what stays for any: one of each for colons, one for all else.
        self._singles = [0, 0]
        self._loops = [0, 0]
        at = 0
        for pattern in patterns:
            if arns and pattern.count(":") < ARN_PARTS - 1:
                continue
            if "*" not in pattern and "?" not in pattern:
                literals.add(pattern)
            elif not arns and not pattern.strip("*"):
                self._anything = True
            else:
                at = self._add(pattern, at, ARN_PARTS - 1 if arns else 0)
        self._literals = frozenset(literals)

    def _add(self, pattern: str, at: int, colons: int) -> int:
        """Give the pattern its bits, from `at`; the place after them. Up to the last of the colons no wildcard takes one."""
        self._starts |= 1 << at
        for char in pattern:
            wild = self._loops if char == "*" else self._singles if char == "?" else None
            if wild is None:
                self._places.setdefault(char, []).append(at)
                colons -= char == ":"
            else:
                wild[0] |= 1 << at
                if colons <= 0:
                    wild[1] |= 1 << at
            at += char != "*"
        self._ends |= 1 << at
        return at + 1

    def match(self, text: str) -> bool:
        """Whether the whole text fits one of the patterns; the time is that of as many shifts as it has characters."""
        if self._anything or text in self._literals:
            return True
        # Made for this text alone: kept for every character of every pattern they would be the square of a policy's size.
        moves: dict[str, int] = {}
        row = self._starts
        for char in text:
            if not row:
                return False
            colon = char == ":"
            move = moves.get(char)
            if move is None:
                move = self._singles[colon]
                for place in self._places.get(char, ()):
                    move |= 1 << place
                moves[char] = move
            row = (row & move) << 1 | row & self._loops[colon]
        return bool(row & self._ends)
