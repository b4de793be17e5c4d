"""What tags a queue may carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from veil.core.errors import TagsRefused
from veil.core.limits import TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX


def check_tag_keys(keys: Iterable[str]) -> None:
    """Raise TagsRefused for a key that no tag can have."""
    for key in keys:
        if not 1 <= len(key) <= TAG_KEY_MAX:
            raise TagsRefused(f"tag key {key[: TAG_KEY_MAX + 1]!r}: expected 1 to {TAG_KEY_MAX} characters")


def check_tags(name: str, existing: Mapping[str, str], added: Mapping[str, str]) -> None:
    """Raise TagsRefused unless the queue of that name may carry both together; an empty value is a value."""
    check_tag_keys(added)
    for key, value in added.items():
        if len(value) > TAG_VALUE_MAX:
            raise TagsRefused(f"the value of tag {key!r}: expected at most {TAG_VALUE_MAX} characters")
    if len(existing.keys() | added.keys()) > TAGS_MAX:
        raise TagsRefused(f"Too many tags added for queue {name}.")
