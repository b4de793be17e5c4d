"""Bodies and attributes as people read them: text, never markup, and never more of it than somebody reads."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from veil.core.message import MessageAttribute, StoredMessage

PREVIEW_CHARS: Final = 200
# Longer ones are shown as they were sent: to lay them out takes longer than a page may take.
_PRETTY_CHARS_MAX: Final = 50_000
_BINARY_SHOWN_BYTES: Final = 64


class Body(NamedTuple):
    """A body to look at."""

    preview: str  # its beginning, on one line
    text: str  # laid out if it is JSON, and cut if it is long
    is_json: bool
    is_cut: bool  # there is more than is shown


def show_preview(body: str) -> str:
    """Its beginning, on one line."""
    return " ".join(body[: PREVIEW_CHARS * 2].split())[:PREVIEW_CHARS]


def show_body(body: str, chars_max: int) -> Body:
    """The body laid out for reading; as it was sent where it is no JSON, or too large to lay out."""
    found = _pretty(body, chars_max)
    if found is None:
        return Body(show_preview(body), body[:chars_max], False, len(body) > chars_max)
    text, is_cut = found
    return Body(show_preview(body), text, True, is_cut)


def _pretty(body: str, chars_max: int) -> tuple[str, bool] | None:
    """The JSON laid out, and whether it was cut; None where it is none."""
    if len(body) > _PRETTY_CHARS_MAX or body.lstrip()[:1] not in ("{", "["):
        return None
    layout = _Layout(chars_max)
    try:
        # Numbers stay as they were written: 1.10 and 1e400 are not ours to round.
        document = json.loads(body, parse_float=_Written, parse_int=_Written, parse_constant=_Written)
        layout.add(document, "\n")
    except _Full:
        return "".join(layout.pieces)[:chars_max], True
    except (ValueError, RecursionError):
        return None
    return "".join(layout.pieces), False


class _Written(str):
    """A number, in the digits it was sent with."""

    __slots__ = ()


class _Full(Exception):
    """As much is laid out as is shown. What is nested deeply would come to many times its length otherwise."""


class _Layout:
    def __init__(self, chars_max: int) -> None:
        self.pieces: list[str] = []
        self._room = chars_max

    def add(self, value: object, newline: str) -> None:
        """Lay the value out behind what there is; raises _Full once there is enough."""
        inner = newline + "  "
        if isinstance(value, dict) and value:
            self._put("{")
            for place, (key, each) in enumerate(value.items()):
                self._put(f"{',' if place else ''}{inner}{_quoted(key)}: ")
                self.add(each, inner)
            self._put(newline + "}")
        elif isinstance(value, list) and value:
            self._put("[")
            for place, each in enumerate(value):
                self._put(f"{',' if place else ''}{inner}")
                self.add(each, inner)
            self._put(newline + "]")
        else:
            self._put(value if isinstance(value, _Written) else _quoted(value))

    def _put(self, text: str) -> None:
        self.pieces.append(text)
        self._room -= len(text)
        if self._room < 0:
            raise _Full


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def cut(text: str, chars_max: int) -> str:
    """The text, or its beginning and how long it is."""
    return text if len(text) <= chars_max else f"{text[:chars_max]}… ({len(text):,} characters)"


def attributes_of(message: StoredMessage, chars_max: int) -> list[tuple[str, str, str]]:
    """Name, data type and value of each attribute, values cut; bytes as hexadecimal digits, the first of them."""
    return [
        (name, attribute.data_type, _value(attribute, chars_max))
        for name, attribute in (message.attributes or {}).items()
    ]


def _value(attribute: MessageAttribute, chars_max: int) -> str:
    if isinstance(attribute.value, str):
        return cut(attribute.value, chars_max)
    shown = attribute.value[:_BINARY_SHOWN_BYTES].hex(" ")
    return (
        shown
        if len(attribute.value) <= _BINARY_SHOWN_BYTES
        else f"{shown} … ({len(attribute.value):,} bytes)"
    )
