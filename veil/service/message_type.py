"""What kind of message it is, as the journal and the pipeline tell kinds apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from veil.core.message import MessageAttribute

TYPE_CHARS_MAX: Final = 256


def message_type(attributes: Mapping[str, MessageAttribute], names: Sequence[str]) -> str | None:
    """The value of the first of the names that the message has as a String attribute, cut to 256 characters."""
    for name in names:
        found = attributes.get(name)
        if found is not None and isinstance(found.value, str) and found.data_type.startswith("String"):
            return found.value[:TYPE_CHARS_MAX]
    return None
