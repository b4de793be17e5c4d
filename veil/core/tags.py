"""What tags a queue may carry."""

from __future__ import annotations

from collections.abc import Mapping

from veil.core.errors import TagsRefused
from veil.core.limits import TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX


def check_tags(name: str, existing: Mapping[str, str], added: Mapping[str, str]) -> None:
    """Raise TagsRefused unless the queue of that name may carry both together; an empty value is a value."""
    for key, value in added.items():
        if not 1 <= len(key) <= TAG_KEY_MAX:
            raise TagsRefused(f"tag key {key!r}: expected 1 to {TAG_KEY_MAX} characters")
        if len(value) > TAG_VALUE_MAX:
            raise TagsRefused(f"the value of tag {key!r}: expected at most {TAG_VALUE_MAX} characters")
    if len(existing.keys() | added.keys()) > TAGS_MAX:
        raise TagsRefused(f"Too many tags added for queue {name}.")
