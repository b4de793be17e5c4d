"""Choose dead letters of one queue: look at it, select, and seal what was selected as a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veil.pipeline.dead_letters.analysis import history_tables
from veil.pipeline.dead_letters.calls import ENTRIES_MAX, opened
from veil.pipeline.dead_letters.letters import dead_letters
from veil.pipeline.dead_letters.reading import peeked
from veil.pipeline.dead_letters.runs import Run
from veil.pipeline.dead_letters.sealing import seal
from veil.pipeline.dead_letters.selection import Choice
from veil.pipeline.queues.queue_place import QueuePlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veil.journal.place import Place


def choose(
    spark: SparkSession,
    where: QueuePlace,
    tables: Place,
    choice: Choice,
    *,
    to: str | None = None,
    a_call: int = ENTRIES_MAX,
) -> Run:
    """A run over the dead letters of the queue that the choice selects; `save_run` makes it one that can be begun.

    Raises DeadLettersRefused, NotVeil, ApiError and TablesRefused.
    """
    choice.check(spark)
    with (
        opened(where, where.queue) as queue,
        peeked(spark, where, [where.queue], tables) as messages,
    ):
        letters = dead_letters(messages, *history_tables(spark, tables))
        return seal(choice.applied(letters), queue, tables, choice, to=to, a_call=a_call)
