"""docs/journal.md lists the columns, the kinds and the metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path

from veil.core.event import Kind
from veil.journal.schema import COLUMNS

TEXT = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
TYPES = {"text": "string", "int": "int32", "long": "int64", "instant": "timestamp, µs, UTC"}


def table() -> str:
    """What the document must have between its marks."""
    lines = ["| column | type | | |", "| --- | --- | --- | --- |"]
    for column in COLUMNS:
        null = "may be null" if column.nullable else ""
        meaning = column.meaning.replace("|", "\\|")
        lines.append(f"| `{column.name}` | {TYPES[column.kind]} | {null} | {meaning} |")
    return "\n".join(lines)


def test_the_columns_are_those_of_the_schema():
    shown = TEXT.partition("<!-- columns: begin")[2].partition("-->\n")[2].partition("\n<!-- columns: end")[0]
    assert shown == table()


def test_every_kind_is_explained():
    kinds = TEXT.partition("| kind | happened |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", " ".join(line.split("|")[1] for line in kinds.splitlines()[2:]))) == {
        kind.label for kind in Kind
    }


def test_every_metric_is_named():
    source = (Path(__file__).parents[2] / "veil" / "server" / "metrics.py").read_text(encoding="utf-8")
    exported = set(re.findall(r'"(veil_journal_\w+)"', source))
    named = {name.removesuffix("_total") for name in re.findall(r"`(veil_journal_\w+)`", TEXT)}
    assert named == exported
