"""Choose a handful of telling messages: one whose work was done twice, one lost with its holder, a dead letter, a renewed one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from veil.pipeline.report.facts import KINDS, Example, ExampleLease
from veil.pipeline.report.instants import micros, moment

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_RECENT: Final = timedelta(days=7)  # a year of leases is not read for a few drawings
_EACH_MAX: Final = 2
_INSTANTS: Final = ("received_at", "first_deadline", "deadline", "last_extended_at", "ended_at")


class _Pick(NamedTuple):
    kind: str
    queue: str
    seq: int


def collect_examples(leases: DataFrame, messages: DataFrame, until: datetime) -> list[Example]:
    """The examples from the last days before `until`, the most telling kind first."""
    from pyspark.sql import functions as F  # noqa: N812

    begin = F.timestamp_micros(F.lit(micros(until - _RECENT)))
    picks = _picked(leases.where(F.col("hour") >= begin))
    if not picks:
        return []
    seqs = [pick.seq for pick in picks]
    own = F.col("seq").isin(seqs) & (F.col("hour") >= begin)
    found_leases = leases.where(own & F.col("received_at").isNotNull()).select(
        "seq", "queue", "delivery", "extensions", "how", "held_ms", "processing_ms", "overrun", "user_agent",
        *(F.unix_micros(name).alias(name) for name in _INSTANTS),
    ).collect()  # fmt: skip
    found_messages = messages.where(own).select(
        "seq", "queue", "message_id", "message_type", "outcome",
        F.unix_micros("sent_at").alias("sent_at"), F.unix_micros("ended_at").alias("ended_at"),
    ).collect()  # fmt: skip
    made = (_example(pick, found_leases, found_messages) for pick in picks)
    return [example for example in made if example is not None]


def _picked(leases: DataFrame) -> list[_Pick]:
    """For each kind the best of each queue, and of these the best few: one pass over the leases."""
    from pyspark.sql import functions as F  # noqa: N812

    lapsed = F.col("how").isin("expired", "superseded", "dead_lettered")
    scores: dict[str, tuple[Column, list[Column]]] = {
        "duplicate": (F.col("overrun") & (F.col("how") == "superseded"), [F.col("processing_ms")]),
        # A first lease without renewals shows best what a crash costs.
        "crash": (
            lapsed & ~F.col("overrun") & F.col("recovery_ms").isNotNull(),
            [-F.col("delivery"), -F.col("extensions"), F.col("recovery_ms")],
        ),
        "dead_letter": (F.col("how") == "dead_lettered", [F.col("delivery"), F.col("held_ms")]),
        "renewed": (
            (F.col("how") == "deleted") & (F.col("extensions") > 0),
            [F.col("extensions"), F.col("held_ms")],
        ),
    }
    best = []
    for kind in KINDS:
        where, parts = scores[kind]
        named = [F.coalesce(part, F.lit(0)).cast("long").alias(f"by{i}") for i, part in enumerate(parts)]
        # Structs compare by their parts in turn; null ones do not take part.
        best.append(F.max(F.when(where, F.struct(*named, F.col("seq")))).alias(kind))
    rows = leases.groupBy("region", "account", "queue").agg(*best).collect()
    picks: list[_Pick] = []
    for kind in KINDS:
        ranked = sorted(
            (row for row in rows if row[kind] is not None), key=lambda row: row[kind], reverse=True
        )
        for row in ranked[:_EACH_MAX]:
            pick = _Pick(kind, row["queue"], row[kind]["seq"])
            if pick.seq not in {each.seq for each in picks}:
                picks.append(pick)
    return picks


def _example(pick: _Pick, leases: list[Row], messages: list[Row]) -> Example | None:
    own = sorted((row for row in leases if row["seq"] == pick.seq), key=lambda row: row["delivery"])
    # In the dead letters a message may have a row of its own under the same key.
    rows = sorted(
        (row for row in messages if row["seq"] == pick.seq), key=lambda row: row["queue"] != pick.queue
    )
    if not own or not rows:
        return None
    message = rows[0]
    bars = tuple(lease for row in own if (lease := _lease(row)) is not None)
    sent_at = moment(message["sent_at"]) or bars[0].received_at
    return Example(
        pick.kind, pick.queue, message["message_id"], message["message_type"], sent_at, message["outcome"],
        moment(message["ended_at"]), bars,
    )  # fmt: skip


def _lease(row: Row) -> ExampleLease | None:
    at = {name: moment(row[name]) for name in _INSTANTS}
    received_at = at["received_at"]
    if received_at is None:
        return None
    return ExampleLease(
        queue=row["queue"],
        delivery=row["delivery"],
        received_at=received_at,
        first_deadline=at["first_deadline"],
        deadline=at["deadline"],
        extensions=row["extensions"],
        last_extended_at=at["last_extended_at"],
        ended_at=at["ended_at"],
        how=row["how"],
        held_ms=row["held_ms"] or 0,
        processing_ms=row["processing_ms"],
        overrun=row["overrun"],
        user_agent=row["user_agent"],
    )
