"""The streaming job: what the intake gives goes on to the queues that the rules name.

A batch is acknowledged at the intake only when all of its messages are in their queues, so nothing is lost. A batch that
was cut short is done again, by the same rules: what had been sent already is sent once more under the same deduplication
id, which a FIFO queue drops; a standard queue may have it twice, and the attribute `Veil.RoutedFrom` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from veil.pipeline.queues.queue_place import QueuePlace
from veil.pipeline.registering import register
from veil.pipeline.routing.forwarding import forwarded
from veil.pipeline.routing.route_table import RouteTable
from veil.pipeline.routing.state import CHECKPOINT, SEGMENTS, RouterState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Routed:
    """One batch: how many messages went to each queue."""

    batch: int
    counts: dict[str, int]
    again: bool  # the repetition of one that was cut short


@dataclass(frozen=True)
class Router:
    """From one intake, by rules that are asked for before every batch."""

    spark: SparkSession
    intake: QueuePlace
    state: RouterState
    rules: Callable[[], RouteTable]
    tell: Callable[[Routed], None] = lambda _: None
    source_options: tuple[tuple[str, str], ...] = ()
    error_path: str | None = None
    parts: int = 2

    def start(self, *, once: bool, every_s: float = 1.0) -> StreamingQuery:
        """Begin; `once` ends when all that is there now has been routed."""
        register(self.spark)
        reader = self.spark.readStream.format("veil").options(**self._service(self.intake.queue))
        reader = reader.option("segments", self.state.place.sub(SEGMENTS).uri).option(
            "partitions", str(self.parts)
        )
        for name, value in self.source_options:
            reader = reader.option(name, value)
        writer = reader.load().writeStream.foreachBatch(self._route)
        writer = writer.option("checkpointLocation", self.state.place.spark_path(CHECKPOINT))
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every_s:g} seconds").start()

    def _route(self, messages: DataFrame, batch: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812

        query = self.state.query_id()
        table = self.state.rules_of(batch, query)
        again = table is not None
        if table is None:
            table = self.rules()
            self.state.begin(batch, query, table)
        rows = forwarded(messages, table, keeps_order=self.intake.queue.endswith(".fifo"), parts=self.parts)
        seen = Observation()
        counts = {
            target.queue: F.count(F.when(F.col("queue") == target.queue, 1)) for target in table.targets
        }
        rows = rows.observe(seen, *(count.alias(queue) for queue, count in counts.items()))
        options = {**self._service(None), "queueColumn": "queue", "keyColumn": "message_id"}
        # Named by query and batch: Veil knows the calls of a repetition again.
        options["writeId"] = f"{query}-{batch}"
        if self.error_path is not None:
            options["errorPath"] = self.error_path
        rows.write.format("veil").options(**options).mode("append").save()
        self.tell(Routed(batch, {queue: int(seen.get[queue]) for queue in counts}, again))

    def _service(self, queue: str | None) -> dict[str, str]:
        given: dict[str, Any] = {
            "queue": queue,
            "endpoint": self.intake.endpoint,
            "region": self.intake.region,
            "profile": self.intake.profile,
        }
        return {name: value for name, value in given.items() if value is not None}
