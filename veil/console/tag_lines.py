"""Tags as people write them: KEY=VALUE, one on a line; what would be misread stands in quotes, as in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from veil.core.errors import TagsRefused

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_TAG: Final = re.compile(rf"\s*({_QUOTED}|[^=]*?)\s*=\s*(.*?)\s*\Z")
_PLAIN: Final = re.compile(r"[^\s\"=](?:[^=\r\n]*[^\s=])?\Z")


def read_tags(text: str) -> dict[str, str]:
    """Tags from lines of KEY=VALUE; raises TagsRefused for a line that is none."""
    tags: dict[str, str] = {}
    for line in text.split("\n"):
        if not line.strip():
            continue
        match = _TAG.match(line)
        try:
            key, value = (_read(part) for part in match.groups()) if match is not None else ("", "")
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


def _read(part: str) -> str:
    return str(json.loads(part)) if part.startswith('"') else part


def _written(part: str) -> str:
    return part if not part or _PLAIN.match(part) else json.dumps(part, ensure_ascii=False)
