"""Match text against a pattern in which `*` stands for any run of characters and `?` for any one."""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text fits; at most len(pattern) × len(text) steps, whatever the pattern."""
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    at = spot = 0
    star, resume = -1, 0
    while spot < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, spot
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[spot]):
            at += 1
            spot += 1
        elif star >= 0:
            # Only the last star needs to take more: what an earlier one could reach by that, this one can.
            resume += 1
            at, spot = star + 1, resume
        else:
            return False
    return pattern.count("*", at) == len(pattern) - at
