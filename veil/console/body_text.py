"""Bodies and attributes as people read them: text, never markup."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from veil.core.message import MessageAttribute, StoredMessage

PREVIEW_CHARS: Final = 200
_PRETTY_CHARS_MAX: Final = 100_000
_BINARY_SHOWN_BYTES: Final = 64


class Body(NamedTuple):
    """A body to look at."""

    preview: str  # its beginning, on one line
    text: str  # laid out if it is JSON, and cut if it is long
    is_json: bool
    cut_chars: int  # how many characters are not shown


def show_preview(body: str) -> str:
    """Its beginning, on one line."""
    return " ".join(body[: PREVIEW_CHARS * 2].split())[:PREVIEW_CHARS]


def show_body(body: str, chars_max: int = 20_000) -> Body:
    """The body laid out for reading; as it was sent where it is no JSON, or too large to lay out."""
    pretty = _pretty(body)
    text = body if pretty is None else pretty
    return Body(show_preview(body), text[:chars_max], pretty is not None, max(0, len(text) - chars_max))


def _pretty(body: str) -> str | None:
    if body.lstrip()[:1] not in ("{", "[") or len(body) > _PRETTY_CHARS_MAX:
        return None
    try:
        # Numbers stay as they were written: 1.10 and 1e400 are not ours to round.
        document = json.loads(body, parse_float=_Written, parse_int=_Written, parse_constant=_Written)
        return _laid_out(document, "\n")
    except (ValueError, RecursionError):
        return None


class _Written(str):
    """A number, in the digits it was sent with."""

    __slots__ = ()


def _laid_out(value: object, newline: str) -> str:
    inner = newline + "  "
    if isinstance(value, _Written):
        return value
    if isinstance(value, dict) and value:
        pairs = (f"{_quoted(key)}: {_laid_out(each, inner)}" for key, each in value.items())
        return "{" + inner + ("," + inner).join(pairs) + newline + "}"
    if isinstance(value, list) and value:
        return "[" + inner + ("," + inner).join(_laid_out(each, inner) for each in value) + newline + "]"
    return _quoted(value)


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def attribute_value(attribute: MessageAttribute) -> str:
    """The value as text; bytes as hexadecimal digits, the first of them."""
    if isinstance(attribute.value, str):
        return attribute.value
    shown = attribute.value[:_BINARY_SHOWN_BYTES].hex(" ")
    return (
        shown
        if len(attribute.value) <= _BINARY_SHOWN_BYTES
        else f"{shown} … ({len(attribute.value):,} bytes)"
    )


def attributes_of(message: StoredMessage) -> list[tuple[str, str, str]]:
    """Name, data type and value of each attribute."""
    return [
        (name, attribute.data_type, attribute_value(attribute))
        for name, attribute in (message.attributes or {}).items()
    ]
