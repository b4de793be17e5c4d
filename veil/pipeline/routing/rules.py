"""Which message goes to which queue: ordered rules over classes of messages, the first that matches decides.

Rules are written by somebody, as TOML, or learned; the table of them is kept as JSON in the router's state, so that a batch
that is done again is routed as it was the first time. Classes are Spark's own expressions over the columns of the source: no
Python runs for a message.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from veil import words
from veil.core.errors import VeilError
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.text import length_s
from veil.pipeline.sql import TYPE_ATTRIBUTES, F, message_type

if TYPE_CHECKING:
    from pyspark.sql import Column


class RouteRefused(VeilError):
    """Bands, rules, queues or the state do not fit; says which, and what was expected."""


_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


class Band(NamedTuple):
    """A timeout and what it is called."""

    name: str
    timeout_s: int


def read_length_s(text: str, what: str) -> int:
    """A timeout such as 30s, 5min or 1h; raises RouteRefused."""
    seconds = length_s(text)
    if seconds is None or not 1 <= seconds <= VISIBILITY_MAX_S:
        raise RouteRefused(f"{what} {text!r}: expected a timeout from 1s to 12h, such as 30s, 5min or 1h")
    return seconds


def read_bands(text: str) -> list[Band]:
    """Bands from NAME=TIMEOUT,…, the shortest first; raises RouteRefused."""
    bands = []
    for piece in text.split(","):
        name, _, length = piece.strip().partition("=")
        if not _NAME.fullmatch(name):
            raise RouteRefused(f"band {piece.strip()!r}: expected NAME=TIMEOUT, such as short=30s")
        bands.append(Band(name, read_length_s(length, f"band {name}")))
    bands.sort(key=lambda band: band.timeout_s)
    _check_distinct([band.name for band in bands], "name")
    _check_distinct([words.exact_length(band.timeout_s) for band in bands], "timeout")
    return bands


def band_named(bands: Sequence[Band], name: str) -> Band:
    """The band of that name; raises RouteRefused."""
    for band in bands:
        if band.name == name:
            return band
    raise RouteRefused(f"band {name!r}: expected one of {', '.join(band.name for band in bands)}")


def _check_distinct(values: Sequence[str], what: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise RouteRefused(f"bands: two have the {what} {value}; expected a different one for each")


TYPE, GROUP, SIZE, JSON = "type", "group", "size", "json:"
CHARS_MAX: Final = 256
_PATH: Final = re.compile(r"\$(\.[^.\[\]'\s]+|\[[0-9]+\]|\['[^']+'\])+")
_SIZES: Final = ((1 << 10, "1 KiB"), (16 << 10, "16 KiB"), (256 << 10, "256 KiB"))


def check_class_by(text: str) -> str:
    """`type`, `group`, `size` or `json:$.field`, as it was given; raises RouteRefused."""
    path = text.removeprefix(JSON)
    if text in (TYPE, GROUP, SIZE) or (text.startswith(JSON) and _PATH.fullmatch(path)):
        return text
    raise RouteRefused(f"class {text!r}: expected type, group, size or json:$.FIELD")


def body_bytes() -> Column:
    return F.octet_length("body")


def class_column(by: str, type_attributes: Sequence[str] = TYPE_ATTRIBUTES) -> Column:
    """The class of each message as text, at most 256 characters; null where it has none."""
    if by == TYPE:
        found = message_type(type_attributes)
    elif by == GROUP:
        found = F.col("system_attributes")["MessageGroupId"]
    elif by == SIZE:
        found = F.lit(f"above {_SIZES[-1][1]}")
        for upto, name in reversed(_SIZES):
            found = F.when(body_bytes() <= upto, F.lit(f"up to {name}")).otherwise(found)
    else:
        found = F.get_json_object("body", by.removeprefix(JSON))
    return F.substring(found, 1, CHARS_MAX)


class Match(msgspec.Struct, frozen=True, omit_defaults=True):
    """A condition on a message. `by` as in `--class-by`; values are exact, patterns have * for any text; sizes in bytes."""

    by: str
    values: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    size_from: int | None = None
    size_below: int | None = None

    def column(self, type_attributes: Sequence[str]) -> Column:
        """Whether each message meets it; never null."""
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


_TOP: Final = ("default", "queues", "rules", "type_attributes")
_RULE: Final = ("queue", "type", "group", "json", "size_from", "size_below")


def read_rule_file(path: Path) -> RouteTable:
    """The rules in the file; raises RouteRefused, which names the place in it."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise RouteRefused(f"rules {path}: {problem.strerror or problem}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise RouteRefused(f"rules {path}: expected TOML; {problem}") from None
    try:
        return read_rules(found)
    except RouteRefused as refused:
        raise RouteRefused(f"rules {path}: {refused}") from None


def read_rules(found: dict[str, Any]) -> RouteTable:
    """The rules in the tables of such a file; raises RouteRefused."""
    _check_words("the file", found, _TOP)
    queues = found.get("queues")
    if not isinstance(queues, dict) or not queues:
        raise RouteRefused('queues: expected a table of the target queues, such as orders-short = "30s"')
    targets = tuple(
        Target(name, read_length_s(str(value), f"queue {name}: timeout")) for name, value in queues.items()
    )
    names = [target.queue for target in targets]
    default = found.get("default")
    if default not in names:
        raise RouteRefused(f"default {default!r}: expected one of the queues {', '.join(names)}")
    rules = found.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(each, dict) for each in rules):
        raise RouteRefused("rules: expected [[rules]] tables")
    attributes = tuple(_texts("type_attributes", found.get("type_attributes", list(TYPE_ATTRIBUTES))))
    return RouteTable(
        targets,
        default,
        tuple(_rule(f"rule {number}", each, names) for number, each in enumerate(rules, 1)),
        attributes,
    )


def _rule(where: str, given: dict[str, Any], queues: Sequence[str]) -> Rule:
    _check_words(where, given, _RULE)
    queue = given.get("queue")
    if queue not in queues:
        raise RouteRefused(f"{where}: queue {queue!r}: expected one of {', '.join(queues)}")
    matches = [_match(where, by, given[by]) for by in (TYPE, GROUP) if by in given]
    fields = given.get("json", {})
    if not isinstance(fields, dict):
        raise RouteRefused(f'{where}: json {fields!r}: expected a table such as {{ "$.kind" = "bulk" }}')
    for path, value in fields.items():
        try:
            by = check_class_by(JSON + path)
        except RouteRefused:
            raise RouteRefused(f"{where}: json {path!r}: expected a path such as $.kind") from None
        matches.append(_match(where, by, value))
    if "size_from" in given or "size_below" in given:
        low, high = (_bytes(where, name, given.get(name)) for name in ("size_from", "size_below"))
        matches.append(Match(SIZE, size_from=low, size_below=high))
    if not matches:
        raise RouteRefused(f"{where}: expected a condition: type, group, json, size_from or size_below")
    return Rule(str(queue), tuple(matches))


def _match(where: str, by: str, value: Any) -> Match:
    texts = _texts(f"{where}: {by}", value)
    return Match(
        by, tuple(text for text in texts if "*" not in text), tuple(text for text in texts if "*" in text)
    )


def _texts(where: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str | int | float | bool) for each in values):
        raise RouteRefused(f"{where} {value!r}: expected a text or a list of texts")
    # As JSON has them: get_json_object gives true, not True.
    return [str(each).lower() if isinstance(each, bool) else str(each) for each in values]


def _bytes(where: str, name: str, value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise RouteRefused(f"{where}: {name} {value!r}: expected a number of bytes")


def _check_words(where: str, given: dict[str, Any], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            raise RouteRefused(f"{where}: {word!r}: expected only {', '.join(known)}")
