"""Tags as people write them: KEY=VALUE, one on a line; what would be misread stands in quotes, as in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from veil.core.errors import TagsRefused
from veil.core.limits import TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX

# Each character of a tag may be written in an escape of up to twelve: what is longer cannot be tags of one queue.
_CHARS_MAX: Final = TAGS_MAX * (TAG_KEY_MAX + TAG_VALUE_MAX + 10) * 12
_PLAIN: Final = re.compile(r"[^\s\"=](?:[^=\r\n]*[^\s=])?\Z")
_LINE: Final = re.compile(r"\S[^\n]*")  # one that is not blank
_STRING: Final = json.JSONDecoder()


def read_tags(text: str) -> dict[str, str]:
    """Tags from lines of KEY=VALUE; raises TagsRefused for a line that is none."""
    if len(text) > _CHARS_MAX:
        raise TagsRefused(f"{len(text):,} characters: expected at most {TAGS_MAX} lines of KEY=VALUE")
    tags: dict[str, str] = {}
    for found in _LINE.finditer(text):
        line = found[0].rstrip()
        if len(tags) == TAGS_MAX:
            raise TagsRefused(f"more than {TAGS_MAX} tags: expected at most {TAGS_MAX}")
        try:
            key, value = _read(line)
        except ValueError:
            key = value = ""
        if not key:
            raise TagsRefused(f"{line[:80]!r}: expected KEY=VALUE")
        if key in tags:
            raise TagsRefused(f"tag {key[:80]!r} is there twice")
        tags[key] = value
    return tags


def write_tags(tags: Mapping[str, str]) -> str:
    """The lines of these tags, which read as the same."""
    return "\n".join(f"{_written(key)}={_written(value)}" for key, value in tags.items())


def _read(line: str) -> tuple[str, str]:
    """Key and value of a line without blanks around it; raises ValueError where it has none."""
    if line.startswith('"'):
        key, end = _STRING.raw_decode(line)
        blank, equals, value = line[end:].partition("=")
    else:
        blank = ""
        key, equals, value = line.partition("=")
        key = key.rstrip()
    if blank.strip() or not equals:
        raise ValueError(line)
    value = value.lstrip()
    if value.startswith('"'):
        value = json.loads(value)
    # Half of a surrogate pair can be written in an escape, but not stored.
    (key + value).encode()
    return key, value


def _written(part: str) -> str:
    return part if not part or _PLAIN.match(part) else json.dumps(part, ensure_ascii=False)
