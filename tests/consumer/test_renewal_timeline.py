"""The drawing and the figures in the documents are what the code does."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from bench import renewal_calls, renewal_timeline

DOCS = Path(__file__).parents[2] / "docs"


def test_the_drawing_shows_what_the_keeper_does():
    drawn = (DOCS / "renewal.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)
    assert drawn == renewal_timeline.svg(), "run `python -m bench.renewal_timeline > docs/renewal.svg`"


def test_the_story_of_the_drawing():
    lines = {line.name: line for line in renewal_timeline.lines()}
    assert lines.pop("NoRenewal").lost_at_s == 30
    assert all(line.lost_at_s is None for line in lines.values())
    assert len(lines["Adaptive, learned"].tries) == 1


def test_adaptive_needs_fewer_calls_than_both_of_the_others():
    calls = {
        name: renewal_calls.measure(name, handler_s=3_600, messages=50, run_s=1_200).calls
        for name in renewal_calls.POLICIES
    }
    assert calls["Adaptive"] < min(calls["Heartbeat"], calls["Buffered"]) / 3


def test_the_table_is_printed(capsys):
    assert renewal_calls.main(["--messages", "5", "--minutes", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3 + 3 * len(renewal_calls.HANDLERS_S)
