"""The conditions of a policy statement: does what is known about a request satisfy them?

Three answers are possible: yes, no, and "cannot tell" (None), for an operator that Veil does not know, a
value with a policy variable, or a fact that cannot be read. Who asks decides what the last means, so that
doubt never lets anybody in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from operator import eq, ge, gt, le, lt
from typing import Any, Final

# ---- wildcards

ARN_PARTS: Final = 6


class Wildcards:
    """Patterns that a text is held against all at once.

    Tenants write the patterns and strangers the text, so nothing here goes back: all patterns together are one row of bits, in
    which a bit says "so far the text fits this much of that pattern". Each character of the text moves the row by one shift,
    whatever the patterns are and however many.
    """

    __slots__ = ("_anything", "_chars", "_ends", "_literals", "_loops", "_singles", "_starts")

    def __init__(self, patterns: Iterable[str], *, arns: bool = False) -> None:
        """With `arns` a text fits part by part: the wildcard of one of an ARN's first five parts takes no colon, so that it
        cannot reach into the next."""
        literals: set[str] = set()
        self._anything = False
        self._starts = self._ends = 0
        # What moves on with any character, and what stays for any: one of each for colons, one for all else.
        self._singles = [0, 0]
        self._loops = [0, 0]
        chars: list[str] = []  # for each bit the character that moves it on; any at the end of a pattern
        for pattern in patterns:
            if arns and pattern.count(":") < ARN_PARTS - 1:
                continue
            if "*" not in pattern and "?" not in pattern:
                literals.add(pattern)
            elif not arns and not pattern.strip("*"):
                self._anything = True
            else:
                self._add(pattern, chars, ARN_PARTS - 1 if arns else 0)
        self._literals = frozenset(literals)
        self._chars = "".join(chars)

    def _add(self, pattern: str, chars: list[str], colons: int) -> None:
        """Give the pattern the next bits. Up to the last of the colons no wildcard takes one."""
        self._starts |= 1 << len(chars)
        for char in pattern:
            wild = self._loops if char == "*" else self._singles if char == "?" else None
            if wild is None:
                colons -= char == ":"
            else:
                wild[0] |= 1 << len(chars)
                if colons <= 0:
                    wild[1] |= 1 << len(chars)
            if char != "*":
                chars.append(char)
        self._ends |= 1 << len(chars)
        chars.append("?")

    def match(self, text: str) -> bool:
        """Whether the whole text fits one of the patterns; the time is that of as many shifts as it has characters."""
        if self._anything or text in self._literals:
            return True
        # Made for this text alone: kept for every character of every pattern they would be many times a policy's size.
        moves: dict[str, int] = {}
        row = self._starts
        for char in text:
            if not row:
                return False
            colon = char == ":"
            move = moves.get(char)
            if move is None:
                move = self._singles[colon]
                place = self._chars.find(char)
                while place >= 0:
                    move |= 1 << place
                    place = self._chars.find(char, place + 1)
                move = moves[char] = move & ~self._ends
            row = (row & move) << 1 | row & self._loops[colon]
        return bool(row & self._ends)


# A request may bring a text of any length, and the policy's author chooses what it is held against; a longer one is a fact
# that cannot be read.
MATCHED_CHARS_MAX: Final = 1_024

_Read = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class _Operator:
    """How the policy's values and the request's fact are read, and how the two are compared."""

    read_values: Callable[[list[str]], tuple[Any, ...]]
    read_fact: _Read
    fits: Callable[[Any, Any], bool]  # (fact, value)
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """One operator on one key: satisfied if the fact fits any of the values, or, negated, none of them."""

    operator: _Operator | None  # None: not known here
    key: str  # lower case
    values: tuple[Any, ...]  # as the operator reads them
    quantifier: str = ""  # "forallvalues", "foranyvalue" or none
    if_exists: bool = False

    def satisfied(self, facts: Mapping[str, str]) -> bool | None:
        """Yes, no, or None for "cannot tell"; the keys of `facts` are in lower case."""
        if self.operator is None:
            return None
        fact = facts.get(self.key)
        if self.operator is _NULL:
            return any((fact is None) == absent for absent in self.values)
        if fact is None:
            # AWS: an absent key satisfies whatever is negated, optional or about "all values".
            if self.quantifier:
                return self.quantifier == "forallvalues"
            return self.if_exists or self.operator.negated
        try:
            read = self.operator.read_fact(fact)
        except ValueError:
            return None
        return any(self.operator.fits(read, value) for value in self.values) != self.operator.negated


def parse_condition(operator_name: str, key: str, values: list[str]) -> Condition:
    """The condition, with its values read; ValueError says which value the operator cannot read."""
    name = operator_name.lower()
    quantifier, _, plain = name.rpartition(":")
    if_exists = plain.endswith("ifexists")
    operator = _OPERATORS.get(plain.removesuffix("ifexists"))
    if quantifier not in ("", "forallvalues", "foranyvalue") or any("${" in value for value in values):
        operator = None
    if operator is None:
        return Condition(None, key.lower(), tuple(values))
    try:
        read = operator.read_values(values)
    except ValueError as problem:
        raise ValueError(f"condition {operator_name} on {key}: {problem}") from None
    return Condition(operator, key.lower(), read, quantifier, if_exists)


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a number") from None
    if not number.is_finite():
        raise ValueError(f"{text!r} is not a number")
    return number


def _date(text: str) -> datetime:
    try:
        at = datetime.fromtimestamp(int(text), UTC) if text.isdigit() else datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not an ISO 8601 date or a number of seconds") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _address(text: str) -> IPv4Network | IPv6Network:
    address = ip_address(text)
    # A dual-stack socket shows 192.0.2.1 as ::ffff:192.0.2.1; a policy for one must hold for the other.
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return ip_network(address)


def _within(address: IPv4Network | IPv6Network, network: IPv4Network | IPv6Network) -> bool:
    return address.version == network.version and address.network_address in network


def _matched(text: str) -> str:
    if len(text) > MATCHED_CHARS_MAX:
        raise ValueError(f"longer than {MATCHED_CHARS_MAX} characters")
    return text


def _like(fact: str, patterns: Wildcards) -> bool:
    return patterns.match(fact)


def _each(read: _Read) -> Callable[[list[str]], tuple[Any, ...]]:
    return lambda values: tuple(map(read, values))


def _operators() -> dict[str, _Operator]:
    table = {
        "stringequals": _Operator(tuple, str, eq),
        "stringequalsignorecase": _Operator(_each(str.casefold), str.casefold, eq),
        "stringlike": _Operator(lambda values: (Wildcards(values),), _matched, _like),
        "arnlike": _Operator(lambda values: (Wildcards(values, arns=True),), _matched, _like),
        "ipaddress": _Operator(_each(partial(ip_network, strict=False)), _address, _within),
        "bool": _Operator(_each(_bool), _bool, eq),
        "null": _NULL,
    }
    table["arnequals"] = table["arnlike"]  # AWS makes no difference between the two
    for kind, read in (("numeric", _number), ("date", _date)):
        comparisons = {
            "equals": eq,
            "lessthan": lt,
            "lessthanequals": le,
            "greaterthan": gt,
            "greaterthanequals": ge,
        }
        for name, compare in comparisons.items():
            table[kind + name] = _Operator(_each(read), read, compare)
    for name, same in list(table.items()):
        if name.startswith(("string", "arn", "ip")) or name in ("numericequals", "dateequals"):
            negative = f"not{name}" if name == "ipaddress" else re.sub("(equals|like)", r"not\1", name)
            table[negative] = replace(same, negated=True)
    return table


_NULL = _Operator(_each(_bool), str, eq)
_OPERATORS = _operators()
