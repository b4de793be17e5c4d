"""Which message goes to which queue: ordered rules, the first that matches decides, and a default for the rest.

Written as JSON in the router's state, so that a batch that is done again is routed as it was the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import msgspec

from veil.pipeline import words
from veil.pipeline.routing.classes import GROUP, SIZE, TYPE, TYPE_ATTRIBUTES, body_bytes, class_column

if TYPE_CHECKING:
    from pyspark.sql import Column


class Match(msgspec.Struct, frozen=True, omit_defaults=True):
    """A condition on a message. `by` as in `--class-by`; values are exact, patterns have * for any text; sizes in bytes."""

    by: str
    values: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    size_from: int | None = None
    size_below: int | None = None

    def column(self, type_attributes: Sequence[str]) -> Column:
        """Whether each message meets it; never null."""
        from pyspark.sql import functions as F  # noqa: N812

        parts: list[Column] = []
        if self.by == SIZE and not self.values:
            if self.size_from is not None:
                parts.append(body_bytes() >= self.size_from)
            if self.size_below is not None:
                parts.append(body_bytes() < self.size_below)
            met = reduce(lambda one, other: one & other, parts)
        else:
            found = class_column(self.by, type_attributes)
            if "" in self.values:  # messages without one
                found = F.coalesce(found, F.lit(""))
            if self.values:
                parts.append(found.isin(list(self.values)))
            parts += [found.like(_like(pattern)) for pattern in self.patterns]
            met = reduce(lambda one, other: one | other, parts)
        return F.coalesce(met, F.lit(False))

    def __str__(self) -> str:
        if self.by == SIZE and not self.values:
            low = "" if self.size_from is None else f"{self.size_from} bytes or more"
            high = "" if self.size_below is None else f"less than {self.size_below} bytes"
            return " and ".join(each for each in (low, high) if each)
        shown = [repr(value) for value in (*self.values, *self.patterns)]
        some = f"{', '.join(shown[:5])} and {len(shown) - 5} more" if len(shown) > 6 else ", ".join(shown)
        what = {TYPE: "type", GROUP: "group", SIZE: "size"}.get(self.by, self.by.partition(":")[2])
        return f"{what} {some}"


class Rule(msgspec.Struct, frozen=True):
    """Messages that meet all of the conditions go to the queue."""

    queue: str
    matches: tuple[Match, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.matches))


class Target(msgspec.Struct, frozen=True):
    """A queue that messages are routed to, and the timeout that it should have; None: whatever it has."""

    queue: str
    timeout_s: int | None = None

    def __str__(self) -> str:
        return self.queue if self.timeout_s is None else f"{self.queue} ({words.length(self.timeout_s)})"


class RouteTable(msgspec.Struct, frozen=True):
    """The rules of a router, complete."""

    targets: tuple[Target, ...]
    default: str
    rules: tuple[Rule, ...] = ()
    type_attributes: tuple[str, ...] = TYPE_ATTRIBUTES
    class_by: str | None = None  # marked on the message, so that the journal knows it by that

    def queue_column(self) -> Column:
        """The queue that each message goes to."""
        from pyspark.sql import functions as F  # noqa: N812

        found = F.lit(self.default)
        for rule in reversed(self.rules):
            met = reduce(
                lambda one, other: one & other, [each.column(self.type_attributes) for each in rule.matches]
            )
            found = F.when(met, F.lit(rule.queue)).otherwise(found)
        return found


def _like(pattern: str) -> str:
    """The pattern in SQL's words: its `*` is any text, all else stands for itself."""
    escaped = "".join(f"\\{char}" if char in "\\%_" else char for char in pattern)
    return escaped.replace("*", "%")
