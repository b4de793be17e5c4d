"""Tags as lines of text."""

from __future__ import annotations

import pytest

from veil.console.tag_lines import read_tags, write_tags
from veil.core.errors import TagsRefused


def test_blanks_around_keys_and_values_do_not_count():
    assert read_tags("a=1\n\n  b c =  2 = 3 \nempty=\n") == {"a": "1", "b c": "2 = 3", "empty": ""}


def test_what_is_written_reads_as_the_same():
    tags = {
        "plain": "text",
        "a=b": "c=d",
        " blank ": " x ",
        'quo"ted': '"y"',
        "line": "one\ntwo\r",
        "empty": "",
        "é": "\\",
    }
    assert read_tags(write_tags(tags)) == tags
    assert write_tags({"team": "shop"}) == "team=shop"


@pytest.mark.parametrize("text", ["no equals sign", "=value", '"open=1', '"bad\\q"=1', "a=1\na=2"])
def test_a_line_that_is_no_tag_is_refused(text: str):
    with pytest.raises(TagsRefused):
        read_tags(text)
