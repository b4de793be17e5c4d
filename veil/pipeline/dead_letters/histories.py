"""What the tables of lifecycles know of dead letters: how the leases of each ended, and since when it is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_histories(letters: DataFrame, leases: DataFrame | None, messages: DataFrame | None) -> DataFrame:
    """Add `leases`, and `dead_since` where the message does not tell it; null where the tables know nothing.

    Told by message id: that of the message, or of the one of which it is a copy. Leases among the dead letters
    themselves do not count.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if leases is None:
        told = letters.withColumn("leases", F.lit(None).cast("string"))
    else:
        own = letters.select("first_id", "queue", "message_id").distinct()
        ended = leases.where(F.col("delivery") > 0).select(
            F.col("message_id").alias("first_id"), F.col("queue").alias("leased_from"), "how"
        )
        by_how = (
            own.join(ended, "first_id")
            .where(F.col("leased_from") != F.col("queue"))
            .groupBy("queue", "message_id", "how")
            .count()
        )
        history = by_how.groupBy("queue", "message_id").agg(
            F.concat_ws(
                ", ",
                F.transform(
                    # By name, so that equal histories read the same.
                    F.sort_array(F.collect_list(F.struct("how", "count"))),
                    lambda each: F.concat(each["count"].cast("string"), F.lit(" × "), each["how"]),
                ),
            ).alias("leases")
        )
        told = letters.join(history, ["queue", "message_id"], "left")
    if messages is None:
        return told
    died = (
        messages.where(F.col("dead_lettered_at").isNotNull())
        .groupBy("message_id", F.col("dead_letter_queue").alias("queue"))
        .agg(F.max("dead_lettered_at").alias("moved_at"))
    )
    return (
        told.join(died, ["queue", "message_id"], "left")
        .withColumn("dead_since", F.coalesce("dead_since", "moved_at"))
        .drop("moved_at")
    )
