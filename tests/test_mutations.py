"""The rules that `python -m tests.mutations` breaks are still where it looks for them."""

from __future__ import annotations

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_a_rule_that_is_broken_on_purpose_stands_once(mutation: Mutation) -> None:
    assert (ROOT / "veil" / "core" / mutation.file).read_text().count(mutation.before) == 1
