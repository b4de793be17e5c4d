"""The tables are what a plain reading of the events says, whatever happened to the messages."""

from __future__ import annotations

import random

import pytest

from tests.pipeline.journal_kit import cut, no_spark, numbered, write_segment_of
from tests.pipeline.lifecycle_model import model_tables
from tests.pipeline.random_lives import random_journal
from tests.pipeline.tables_kit import all_rows, difference
from veil.journal.storage import Storage
from veil.pipeline.lifecycles.run import run_lifecycles


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))]
)
def test_all_tables_agree_with_the_model_over_random_lives(
    journal_place: Storage, tables_place: Storage, seed: int
) -> None:
    rng = random.Random(seed)
    events = numbered(random_journal(rng, 400))
    for piece in cut(events, 3, rng):
        write_segment_of(journal_place, piece)

    run = run_lifecycles(no_spark, journal_place, tables_place)

    assert (run.events, run.broken) == (len(events), ())
    assert difference(all_rows(tables_place), model_tables(events)) == ""


def test_a_journal_with_holes_is_still_read_as_the_model_reads_it(
    journal_place: Storage, tables_place: Storage
) -> None:
    """Segments may have been removed by their retention, or the journal turned on late."""
    events = numbered(random_journal(random.Random(77), 400, lost=0.3))
    write_segment_of(journal_place, events)

    run_lifecycles(no_spark, journal_place, tables_place)

    assert difference(all_rows(tables_place), model_tables(events)) == ""
