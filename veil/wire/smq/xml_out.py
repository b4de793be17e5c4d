"""Write the XML of an answer."""

from __future__ import annotations

import re
from typing import Final

DECLARATION: Final = '<?xml version="1.0" encoding="utf-8"?>'
# Without the slash at the end that Alibaba's documents show: its SDK for Java reads an error in no other namespace, and the
# others go by local names.
NAMESPACE: Final = "http://mns.aliyuncs.com/doc/v1"
# A bare return would reach the client as a line feed: XML parsers normalise line ends.
_SPECIAL: Final = re.compile(r"[&<>\r\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_NOT_XML: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_SPELLED: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"}


def document(root: str, content: str) -> bytes:
    """A whole document; the content is XML already."""
    return f'{DECLARATION}<{root} xmlns="{NAMESPACE}">{content}</{root}>'.encode()


def element(name: str, value: str | int) -> str:
    """One element with a text."""
    return f"<{name}>{value if isinstance(value, int) else escaped(value)}</{name}>"


def escaped(text: str) -> str:
    """The text as it may stand between tags; what XML cannot carry becomes a replacement character."""
    if _SPECIAL.search(text) is None:
        return text
    for char, spelled in _SPELLED.items():  # the ampersand first: the others bring some along
        text = text.replace(char, spelled)
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
