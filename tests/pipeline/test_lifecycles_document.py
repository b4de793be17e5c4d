"""What docs/lifecycles.md says of the tables is what they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from veil.core.attempt import AttemptOutcome
from veil.pipeline.lifecycles.tables import ATTEMPT, HOW, LEASES, MESSAGES, OUTCOME, QUEUE_HOURS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "lifecycles.md").read_text(encoding="utf-8")


def named_first(section: str) -> list[str]:
    """The words in the first column of the section's table."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [word for row in rows for word in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize(
    ("section", "schema"),
    [("leases", LEASES), ("messages", MESSAGES), ("queue_hours, queue_days and queue_months", QUEUE_HOURS)],
)
def test_every_column_is_explained_once_and_in_order_of_the_schema(section: str, schema: str) -> None:
    columns = re.findall(r"^\s+(\w+)\s", schema, re.MULTILINE)
    assert named_first(section) == columns


def test_every_way_in_which_a_lease_ends_is_explained() -> None:
    assert sorted(named_first("What the words mean")) == sorted(HOW)


@pytest.mark.parametrize(("whose", "outcomes"), [("lease", ATTEMPT), ("message", OUTCOME)])
def test_every_outcome_is_explained(whose: str, outcomes: tuple[str, ...]) -> None:
    (sentences,) = re.findall(rf"\(`outcome` of a {whose}\): (.*?)\n\n", DOCUMENT, re.DOTALL)
    assert set(outcomes) <= set(re.findall(r"`(\w+)`", sentences)) <= {*outcomes, "rule"}


def test_the_outcomes_of_attempts_are_those_of_the_rule() -> None:
    assert set(ATTEMPT) == {each.value for each in AttemptOutcome}
