"""Which dead letters are redriven, and as what: expressions of Spark SQL over the columns LETTERS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from veil.pipeline.dead_letters.analysis import LETTERS, dead_letters, history_tables
from veil.pipeline.dead_letters.queue import DeadLettersRefused, opened, peeked
from veil.pipeline.dead_letters.runs import RedriveRun, seal
from veil.pipeline.queues import QueueAddress
from veil.pipeline.spark.session import first_line, without_query_pages
from veil.pipeline.sql import ATTRIBUTES, F, attribute_value, struct_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from veil.journal.storage import Storage


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for: `where` selects, `body` and `attributes` (by name) give a message another content."""

    where: str | None = None
    body: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def check(self, spark: SparkSession) -> None:
        """Raises DeadLettersRefused naming the option that Spark cannot read, before a single message is."""
        self.applied(spark.createDataFrame([], struct_of(LETTERS)))

    def applied(self, letters: DataFrame) -> DataFrame:
        """The selected dead letters with `new_body` and `new_attributes`, each null where nothing changes."""
        if self.where is not None:
            letters = letters.where(_expression(letters, "--where", self.where, "a condition", "boolean"))
        body = F.lit(None).cast("string")
        if self.body is not None:
            body = _expression(letters, "--set-body", self.body, "text", "string")
        return letters.select(
            *letters.columns, body.alias("new_body"), self._attributes(letters).alias("new_attributes")
        )

    def _attributes(self, letters: DataFrame) -> Column:
        if not self.attributes:
            return F.lit(None).cast(ATTRIBUTES)
        entries = []
        for name, sql in self.attributes.items():
            option = f"--set-attribute {name}"
            entries.append(F.struct(F.lit(name).alias("key"), _value(letters, option, sql).alias("value")))
        given = F.filter(F.array(*entries), lambda entry: entry["value"].isNotNull())
        kept = F.map_filter("attributes", lambda name, _: ~name.isin(*self.attributes))
        return F.map_concat(kept, F.map_from_entries(given)).cast(ATTRIBUTES)


def _expression(letters: DataFrame, option: str, sql: str, expected: str, type_name: str) -> Column:
    kind = _type_of(letters, option, sql)
    if kind.typeName() != type_name:
        raise DeadLettersRefused(f"{option} {sql!r}: expected {expected}, this is a {kind.simpleString()}")
    return F.expr(sql)


def _value(letters: DataFrame, option: str, sql: str) -> Column:
    """The attribute that the expression gives; its type follows from the expression's, and null is no attribute."""
    from pyspark.sql.types import BinaryType, BooleanType, NullType, NumericType, StringType

    kind = _type_of(letters, option, sql)
    found = F.expr(sql)
    if isinstance(kind, BinaryType):
        value = attribute_value("Binary", raw=found)
    elif isinstance(kind, NumericType):
        value = attribute_value("Number", found)
    elif isinstance(kind, StringType | BooleanType | NullType):
        value = attribute_value("String", found)
    else:
        raise DeadLettersRefused(
            f"{option}={sql}: expected text, a number or bytes, this is a {kind.simpleString()}"
        )
    return F.when(found.isNotNull(), value)


def _type_of(letters: DataFrame, option: str, sql: str) -> DataType:
    from pyspark.errors import PySparkException

    try:
        with without_query_pages():
            return letters.select(F.expr(sql).alias("value")).schema["value"].dataType
    except PySparkException as problem:
        raise DeadLettersRefused(
            f"{option} {sql!r}: {first_line(problem)} The columns are {', '.join(struct_of(LETTERS).names)}."
        ) from None


def choose(
    spark: SparkSession,
    where: QueueAddress,
    tables: Storage,
    choice: Selection,
    *,
    to: str | None = None,
    rate_s: float | None = None,
) -> RedriveRun:
    """A run over the dead letters of the queue that the choice selects; `save_run` makes it one that can be begun.

    Raises DeadLettersRefused, NotVeil, ApiError and TablesRefused.
    """
    choice.check(spark)
    with opened(where, where.queue) as queue, peeked(spark, where, [where.queue], tables) as messages:
        letters = dead_letters(messages, *history_tables(spark, tables))
        return seal(choice.applied(letters), queue, tables, choice, to=to, rate_s=rate_s)
