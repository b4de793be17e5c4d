"""How many tags a queue may carry, and how long they may be."""

from __future__ import annotations

import pytest

from veil.core.errors import TagsRefused
from veil.core.queue import check_tags


def test_fifty_tags_are_enough() -> None:
    fifty = {str(number): "v" for number in range(50)}
    check_tags("q", {}, fifty)
    with pytest.raises(TagsRefused, match=r"Too many tags added for queue q\."):
        check_tags("q", fifty, {"one more": "v"})


def test_overwriting_a_tag_adds_none() -> None:
    check_tags("q", {str(number): "v" for number in range(50)}, {"7": "w"})


def test_an_empty_value_is_a_value_and_an_empty_key_is_no_key() -> None:
    check_tags("q", {}, {"k": ""})
    with pytest.raises(TagsRefused, match="tag key ''"):
        check_tags("q", {}, {"": "v"})


def test_keys_and_values_have_a_length() -> None:
    check_tags("q", {}, {"k" * 128: "v" * 256})
    with pytest.raises(TagsRefused, match="128"):
        check_tags("q", {}, {"k" * 129: ""})
    with pytest.raises(TagsRefused, match="256"):
        check_tags("q", {}, {"k": "v" * 257})
