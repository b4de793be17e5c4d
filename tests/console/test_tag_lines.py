"""Tags as lines of text."""

from __future__ import annotations

import time

import pytest

from veil.console.queue_form import read_tags, write_tags
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


@pytest.mark.parametrize(
    "text", ["k=v\n" + " " * 100_000 + "a", '"' * 100_000, '"\\' * 50_000, "=" * 100_000]
)
def test_no_text_takes_longer_than_its_length(text: str):
    began_s = time.process_time()
    with pytest.raises(TagsRefused):
        read_tags(text)
    assert time.process_time() - began_s < 1  # minutes where it backtracks


def test_more_than_a_queue_takes_is_refused_before_it_is_read():
    with pytest.raises(TagsRefused, match="at most 50"):
        read_tags("\n".join(f"key{number}=x" for number in range(51)))
    with pytest.raises(TagsRefused, match="characters"):
        read_tags("\n" * 300_000)


@pytest.mark.parametrize("text", ['"\\ud800"=x', 'x="\\ud800"', '"a" b=1', 'a="b" c'])
def test_what_cannot_be_stored_or_is_half_quoted_is_refused(text: str):
    with pytest.raises(TagsRefused):
        read_tags(text)
