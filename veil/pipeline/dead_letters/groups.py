"""Dead letters of one source, type and error as one row: how many, since when, how often received, how their leases ended."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from veil.pipeline.dead_letters.columns import GROUPS
from veil.pipeline.dead_letters.letters import GROUP_KEYS
from veil.pipeline.schemas import struct_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HISTORIES_MAX: Final = 5
SNIPPET_CHARS: Final = 200
TEXT_CHARS: Final = 1_000


def grouped(letters: DataFrame, analysed_at: datetime) -> DataFrame:
    """The table GROUPS of dead letters, the largest group first."""
    from pyspark.sql import functions as F  # noqa: N812

    example = F.struct(
        "message_id",
        "first_seen",
        F.left("error_text", F.lit(TEXT_CHARS)).alias("error_text"),
        F.left("body", F.lit(SNIPPET_CHARS)).alias("body"),
    )
    # Of two of one instant the same one is shown each time.
    age = F.struct("first_seen", "seq")
    # Alike in everything that is asked for below: both questions share this pass, and with it the masking of the texts.
    alike = letters.groupBy("group_id", *GROUP_KEYS, "leases", "receive_count").agg(
        F.count(F.lit(1)).alias("messages"),
        F.count_if(F.col("state") == "in_flight").alias("in_flight"),
        F.count_if("redriven_before").alias("redriven_before"),
        F.min("first_seen").alias("first_seen"),
        F.max("first_seen").alias("last_seen"),
        F.sum(F.col("body_bytes").cast("bigint")).alias("body_bytes"),
        F.max(F.struct(age.alias("age"), example.alias("example"))).alias("newest"),
        F.min(F.struct(age.alias("age"), example.alias("example"))).alias("oldest"),
    )
    groups = alike.groupBy("group_id", *GROUP_KEYS).agg(
        *(F.sum(name).alias(name) for name in ("messages", "in_flight", "redriven_before", "body_bytes")),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.min("receive_count").alias("receive_count_min"),
        F.percentile("receive_count", 0.5, F.col("messages")).cast("int").alias("receive_count_median"),
        F.max("receive_count").alias("receive_count_max"),
        F.array_distinct(
            F.array(F.max("newest").getField("example"), F.min("oldest").getField("example"))
        ).alias("examples"),
    )
    by_history = (
        alike.where(F.col("leases").isNotNull())
        .groupBy("group_id", "leases")
        .agg(F.sum("messages").alias("messages"))
        .groupBy("group_id")
        .agg(F.sort_array(F.collect_list(F.struct("messages", "leases")), asc=False).alias("leases"))
        .withColumn("leases", F.slice("leases", 1, HISTORIES_MAX))
    )
    nothing = F.array().cast(struct_of(GROUPS)["leases"].dataType)
    told = (
        groups.join(by_history, "group_id", "left")
        .withColumn("leases", F.coalesce("leases", nothing))
        .withColumn("analysed_at", F.lit(analysed_at).cast("timestamp"))
    )
    return told.select(*struct_of(GROUPS).names).orderBy(F.desc("messages"), "group_id")
