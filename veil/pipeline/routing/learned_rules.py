"""Rules from the past: each class to the band that suits it, looked at again from time to time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from veil.pipeline.history_scan import read_histories
from veil.pipeline.routing.bands import Band
from veil.pipeline.routing.classes import TYPE, TYPE_ATTRIBUTES
from veil.pipeline.routing.learning import QUANTILE_DEFAULT, Verdict, by_class, learn
from veil.pipeline.routing.route_table import Match, RouteTable, Rule, Target
from veil.pipeline.routing.state import RouterState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from veil.journal.place import Place


@dataclass
class LearnedRules:
    """Knows the rules of the moment; `table` looks at the tables again where the last look is too old."""

    spark: SparkSession
    tables: Place
    state: RouterState
    bands: Sequence[Band]
    default: Band
    queue_of: Callable[[Band], str]
    queues: Sequence[str]  # whose past counts
    class_by: str = TYPE
    type_attributes: Sequence[str] = TYPE_ATTRIBUTES
    quantile: float = QUANTILE_DEFAULT
    since: date | None = None
    look_every_s: float = 3600.0
    tell: Callable[[list[Verdict]], None] = lambda _: None
    verdicts: list[Verdict] = field(default_factory=list)
    _looked_at_s: float = float("-inf")

    def table(self) -> RouteTable:
        """The rules, of a look that is no older than `look_every_s`."""
        if time.monotonic() - self._looked_at_s >= self.look_every_s:
            self._look()
            self._looked_at_s = time.monotonic()
        return self._as_table()

    def _look(self) -> None:
        from veil.pipeline.table_store import read_table

        histories = read_histories(
            read_table(self.spark, self.tables, "queue_hours"), since=self.since, queues=self.queues
        )
        self.verdicts = learn(
            by_class(histories), self.bands, self.state.classes(), self.default, self.quantile
        )
        self.state.keep_classes({each.message_class: each.band.name for each in self.verdicts})
        self.tell(self.verdicts)

    def _as_table(self) -> RouteTable:
        rules = []
        for band in self.bands:
            classes = tuple(each.message_class for each in self.verdicts if each.band == band)
            if classes and band != self.default:
                rules.append(Rule(self.queue_of(band), (Match(self.class_by, classes),)))
        return RouteTable(
            tuple(Target(self.queue_of(band), band.timeout_s) for band in self.bands),
            self.queue_of(self.default),
            tuple(rules),
            tuple(self.type_attributes),
            None if self.class_by == TYPE else self.class_by,
        )
