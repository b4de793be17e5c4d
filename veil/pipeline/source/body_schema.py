"""Checks the columns given for bodies, so that a slip is told by its own name and not as a riddle of the whole schema."""

from __future__ import annotations

import re
from typing import Final

from veil.pipeline.option_error import OptionError

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`|[A-Za-z_0-9]+)|([<>(),:]))")
_PLAIN: Final = frozenset({
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "string", "binary", "date", "timestamp", "timestamp_ntz", "decimal", "dec", "numeric",
})  # fmt: skip
_EXPECTED: Final = "columns such as id bigint, at timestamp, tags map<string, array<string>>"


def check_body_schema(text: str) -> None:
    """Raise OptionError unless the text is a list of columns with types that a body can be parsed by."""
    try:
        rest = _columns(_tokens(text))
    except _Slip as slip:
        raise OptionError("bodySchema", text, f"{_EXPECTED}; {slip}") from None
    if rest:
        raise OptionError("bodySchema", text, f"{_EXPECTED}; not {rest[0]!r} there")


class _Slip(Exception):
    pass


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _Slip(f"not {text[at:].strip()[:20]!r}")
        tokens.append(found[1] or found[2])
        at = found.end()
    return tokens


def _columns(tokens: list[str]) -> list[str]:
    """What is left after a list of columns."""
    while True:
        name = tokens[0] if tokens else ""
        if not (name.startswith("`") or name.replace("_", "a").isalnum()):
            raise _Slip(
                f"a name is missing before {name!r}" if name else "it ends where a column should begin"
            )
        tokens = _type(tokens[2:] if tokens[1:2] == [":"] else tokens[1:], name)
        if tokens[:1] != [","]:
            return tokens
        tokens = tokens[1:]


def _type(tokens: list[str], of: str) -> list[str]:
    """What is left after a type."""
    if not tokens:
        raise _Slip(f"{of} has no type")
    kind, rest = tokens[0].lower(), tokens[1:]
    if kind in ("array", "map", "struct"):
        rest = _expect("<", rest, kind)
        if kind == "struct":
            return _expect(">", _columns(rest), kind)
        rest = _type(rest, kind)
        if kind == "map":
            rest = _type(_expect(",", rest, kind), kind)
        return _expect(">", rest, kind)
    if kind not in _PLAIN:
        raise _Slip(f"{tokens[0]!r} is no type")
    if rest[:1] == ["("]:
        end = rest.index(")") if ")" in rest else -1
        if kind not in ("decimal", "dec", "numeric") or not all(each.isdigit() for each in rest[1:end:2]):
            raise _Slip(f"no brackets after {tokens[0]}")
        rest = rest[end + 1 :]
    if [each.lower() for each in rest[:2]] == ["not", "null"]:
        raise _Slip("a body can lack any of them, so not null cannot be promised")
    return rest


def _expect(sign: str, tokens: list[str], within: str) -> list[str]:
    if tokens[:1] != [sign]:
        raise _Slip(f"{sign!r} is missing in {within}")
    return tokens[1:]
