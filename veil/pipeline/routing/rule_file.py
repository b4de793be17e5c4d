"""Rules that somebody wrote, as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from veil.pipeline.routing.bands import read_length_s
from veil.pipeline.routing.classes import GROUP, JSON, SIZE, TYPE, TYPE_ATTRIBUTES, check_class_by
from veil.pipeline.routing.refusal import RouteRefused
from veil.pipeline.routing.route_table import Match, RouteTable, Rule, Target

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
    targets = tuple(Target(name, _timeout_s(name, value)) for name, value in queues.items())
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
        by,
        tuple(text for text in texts if "*" not in text),
        tuple(text for text in texts if "*" in text),
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


def _timeout_s(name: str, value: Any) -> int:
    return read_length_s(str(value), f"queue {name}: timeout")


def _check_words(where: str, given: dict[str, Any], known: Sequence[str]) -> None:
    for word in given:
        if word not in known:
            raise RouteRefused(f"{where}: {word!r}: expected only {', '.join(known)}")
