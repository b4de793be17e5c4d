"""Markup that text cannot become: whatever is put into an element is escaped, unless it was made here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Final

# What a page would not show, or would obey: controls, and the marks that turn the direction of text. A queue may be named
# by anybody who may create one, and a user agent by anybody at all.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_EMPTY: Final = frozenset({"meta", "link", "br", "line", "rect", "path", "circle", "use"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None


def shown(text: str) -> str:
    """The text with unseen characters made visible."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escaped(child: Child) -> Markup:
    """The child as markup: escaped, unless it is markup already."""
    if child is None:
        return Markup("")
    return child if isinstance(child, Markup) else Markup(html.escape(shown(child), quote=True))


def prose(text: str) -> str:
    """The text with numbers kept on one line with their units."""
    return re.sub(r"(?<=\d) (?=(?:%|s|ms|min|h|d|UTC)\b|%)", "\u00a0", text)


def join(children: Iterable[Child], between: str = "") -> Markup:
    """The children after each other."""
    return Markup(between.join(escaped(each) for each in children))


def el(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. Attributes of None are left out; `class_` is class, `stroke_width` is stroke-width."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY and not children:
        # SVG wants the slash, HTML ignores it.
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")
