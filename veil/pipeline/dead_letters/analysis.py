"""`veil pipeline dead-letters`: what rests among the dead letters and why, as groups, without receiving any of it.

Peeked messages become dead letters (where each came from, what it is, why it failed, how its leases ended), and these groups;
all of it as Spark's own expressions. The groups are one Parquet file beside the other tables, `dead_letters`, replaced whole by
each analysis.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import msgspec

from veil.core.message import ERROR_TYPE, HANDLER, MESSAGE_ID, REASON, RECEIVE_COUNT, SOURCE_QUEUE, TRACEBACK
from veil.core.text import CHARS_MAX, MASKS
from veil.pipeline.lifecycles.store import load_manifest, read_table, reading
from veil.pipeline.sql import ATTRIBUTES, TYPE_ATTRIBUTES, F, attribute_text, message_type, struct_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from veil.journal.storage import Storage
    from veil.pipeline.queues import QueueAddress

# One dead letter: what `--where`, `--set-body` and `--set-attribute` may speak of.
LETTERS: Final = f"""
    queue             string not null,
    message_id        string not null,
    seq               bigint not null,
    state             string not null,
    source            string,
    message_type      string,
    error_type        string,
    error_text        string,
    fingerprint       string,
    place             string,
    group_id          string not null,
    handler           string,
    first_id          string not null,
    sent_at           timestamp,
    dead_since        timestamp,
    first_seen        timestamp,
    receive_count     int,
    redriven_before   boolean not null,
    leases            string,
    body              string,
    body_bytes        int not null,
    attributes        {ATTRIBUTES} not null,
    system_attributes map<string, string> not null
"""
# source           the queue it came from: as the server knows it, else as the consumer wrote it on the message.
# error_type …     what the consumer wrote on the message, else what the tables know of its last failed attempt.
# place            where the error was raised: the file and the function, without the line, which moves with each release.
# fingerprint      the error's text with numbers, ids, instants, addresses, quoted text and paths masked.
# group_id         twelve hexadecimal digits: the same for dead letters of one group, today and tomorrow.
# first_id         the id that the sender's records know: that of the message of which this one is a copy.
# dead_since       when it came here; null where neither the message nor the tables tell.
# first_seen       dead_since, else sent_at.
# receive_count    of the consumer's receives from the source, where it is known.
# leases           what came of its attempts, such as "1 × crashed, 2 × failed"; null without the tables.


def fingerprint_of(text: Column) -> Column:
    """The text masked, on one line, cut to 300 characters; null stays null."""
    masked = text
    for mask in MASKS:
        masked = F.regexp_replace(masked, mask.pattern, mask.shown)
    return F.left(F.trim(F.regexp_replace(masked, r"\s+", " ")), F.lit(CHARS_MAX))


def with_histories(letters: DataFrame, leases: DataFrame | None, messages: DataFrame | None) -> DataFrame:
    """Add `leases`, and the error and `dead_since` where the message does not tell them; null where the tables know nothing."""
    unknown = F.lit(None).cast("string")
    told = letters.withColumn("leases", unknown) if leases is None else _with_attempts(letters, leases)
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


def _with_attempts(letters: DataFrame, leases: DataFrame) -> DataFrame:
    """Add what came of the attempts, and the error of the last that failed, by the message's id or that of the one of which it is
    a copy. Leases among the dead letters themselves do not count."""
    own = letters.select("first_id", "queue", "message_id").distinct()
    error = F.struct(*_ERROR)
    ended = leases.where(F.col("delivery") > 0).select(
        F.col("message_id").alias("first_id"),
        F.col("queue").alias("leased_from"),
        "outcome",
        F.when(F.col("error_type").isNotNull(), F.struct("delivery", error.alias("error"))).alias("last"),
    )
    by_outcome = (
        own.join(ended, "first_id")
        .where(F.col("leased_from") != F.col("queue"))
        .groupBy("queue", "message_id", "outcome")
        .agg(F.count(F.lit(1)).alias("count"), F.max("last").alias("last"))
    )
    history = by_outcome.groupBy("queue", "message_id").agg(
        F.concat_ws(
            ", ",
            F.transform(
                # By name, so that equal histories read the same.
                F.sort_array(F.collect_list(F.struct("outcome", "count"))),
                lambda each: F.concat(each["count"].cast("string"), F.lit(" × "), each["outcome"]),
            ),
        ).alias("leases"),
        F.max("last").getField("error").alias("last_error"),
    )
    told = letters.join(history, ["queue", "message_id"], "left")
    # All of it from one of both: a text of one attempt under the type of another would be nobody's error.
    is_silent = F.col("error_type").isNull() & F.col("error_text").isNull()
    errors = {name: F.when(is_silent, F.col("last_error")[name]).otherwise(F.col(name)) for name in _ERROR}
    return told.withColumns(errors).drop("last_error")


def place_of_error(traceback: Column) -> Column:
    """The file (its last two names) and the function of the innermost frame of a traceback; null where there is none."""
    frame = r'(?s).*File "(?:[^"]*?[/\\])?([^"/\\]+[/\\][^"/\\]+|[^"/\\]+)", line \d+(?:, in ([^\n]+))?'
    file, function = (F.regexp_extract(traceback, frame, group) for group in (1, 2))
    place = F.when(function == "", file).otherwise(F.concat(file, F.lit(" in "), F.trim(function)))
    return F.when(file != "", place)


_ERROR: Final = ("error_type", "error_text", "traceback")
REDRIVEN_FROM: Final = "Veil.RedrivenFrom"
GROUP_KEYS: Final = ("queue", "source", "message_type", "error_type", "fingerprint", "place")


def dead_letters(
    peeked: DataFrame,
    leases: DataFrame | None = None,
    messages: DataFrame | None = None,
    *,
    type_attributes: Sequence[str] = TYPE_ATTRIBUTES,
) -> DataFrame:
    """The columns LETTERS of messages in the columns PEEKED, with what the tables of lifecycles know where there are some."""
    told = with_histories(with_reasons(peeked, type_attributes), leases, messages)
    told = told.withColumn("fingerprint", fingerprint_of(F.col("error_text")))
    told = told.withColumn("place", place_of_error(F.col("traceback")))
    told = told.withColumn("group_id", group_id())
    told = told.withColumn("first_seen", F.coalesce("dead_since", "sent_at"))
    return told.select(*struct_of(LETTERS).names)


def with_reasons(peeked: DataFrame, type_attributes: Sequence[str] = TYPE_ATTRIBUTES) -> DataFrame:
    """Add what the message itself tells: source, type, error, earlier redrives."""
    server_source = F.element_at("system_attributes", F.lit("DeadLetterQueueSourceArn"))
    # A name, an ARN or a URL: the queue's name is what stands last.
    source = F.regexp_extract(F.coalesce(server_source, attribute_text(SOURCE_QUEUE)), r"([^:/]+)/?$", 1)
    return peeked.select(
        *(F.col(name) for name in peeked.columns if name not in ("receive_count",)),
        F.nullif(source, F.lit("")).alias("source"),
        message_type(type_attributes).alias("message_type"),
        attribute_text(ERROR_TYPE).alias("error_type"),
        attribute_text(REASON).alias("error_text"),
        attribute_text(TRACEBACK).alias("traceback"),
        attribute_text(HANDLER).alias("handler"),
        F.coalesce(attribute_text(MESSAGE_ID), F.col("message_id")).alias("first_id"),
        F.coalesce(attribute_text(RECEIVE_COUNT).try_cast("int"), F.col("receive_count")).alias("receive_count"),
        F.map_contains_key("attributes", REDRIVEN_FROM).alias("redriven_before"),
        # A copy that a consumer sent came here when it was sent; of the others the server does not say.
        F.when(server_source.isNull(), F.col("sent_at")).alias("dead_since"),
    )  # fmt: skip


def group_id() -> Column:
    """Twelve hexadecimal digits over what makes a group."""
    # A null is told apart from an empty text.
    keys = [F.coalesce(F.concat(F.lit("="), F.col(name)), F.lit("-")) for name in GROUP_KEYS]
    return F.left(F.sha2(F.concat_ws("\x1f", *keys), 256), F.lit(12))


HISTORIES_MAX: Final = 5
SNIPPET_CHARS: Final = 200
TEXT_CHARS: Final = 1_000


def grouped(letters: DataFrame, analysed_at: datetime) -> DataFrame:
    """The table of groups (DeadLetterGroup) of dead letters, the largest group first."""
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
    nothing = F.array().cast("array<struct<messages: bigint, leases: string>>")
    told = (
        groups.join(by_history, "group_id", "left")
        .withColumn("leases", F.coalesce("leases", nothing))
        .withColumn("analysed_at", F.lit(analysed_at).cast("timestamp"))
    )
    return told.select(*DeadLetterGroup.__struct_fields__).orderBy(F.desc("messages"), "group_id")


# ---- the table of groups

FILE: Final = "dead_letters.parquet"


class LeaseHistory(msgspec.Struct, frozen=True):
    """What came of the attempts of some messages of a group."""

    messages: int
    leases: str


class DeadLetterExample(msgspec.Struct, frozen=True):
    """One dead letter of a group."""

    message_id: str
    first_seen: datetime | None
    error_text: str | None
    body: str | None


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """One row of the table `dead_letters`."""

    analysed_at: datetime
    queue: str
    source: str | None
    message_type: str | None
    error_type: str | None
    fingerprint: str | None
    group_id: str
    messages: int
    in_flight: int
    redriven_before: int
    first_seen: datetime | None
    last_seen: datetime | None
    receive_count_min: int | None
    receive_count_median: int | None
    receive_count_max: int | None
    body_bytes: int
    leases: tuple[LeaseHistory, ...]  # the commonest
    examples: tuple[DeadLetterExample, ...]  # the newest and the oldest, with the beginning of the body
    place: str | None = None  # where the error was raised; older tables do not tell


def write_groups(groups: DataFrame, tables: Storage) -> None:
    """Put the groups in the table's place: whoever reads it finds the last analysis or this one, never a part of either."""
    from veil.pipeline.dead_letters.queue import (
        parquet_in,
        scratch_folder,
    )  # loads Spark, which readers do without

    with scratch_folder(tables) as folder:
        groups.coalesce(1).write.mode("append").parquet(tables.spark_path(folder))
        (written,) = parquet_in(tables, folder)
        with tables.open_input(written) as source, tables.writing(FILE) as target:
            shutil.copyfileobj(source, target, 1 << 20)


def read_groups(tables: Storage, most: int | None = None) -> list[DeadLetterGroup]:
    """The groups of the last analysis, the largest first, up to so many; none where there was no analysis."""
    from pyarrow import parquet as pq

    if not tables.exists(FILE):
        return []
    with reading(tables, FILE) as opened, pq.ParquetFile(opened) as file:
        rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(batch_size=1_000))
        return msgspec.convert(list(islice(rows, most)), list[DeadLetterGroup])


def analyse(
    spark: SparkSession,
    where: QueueAddress,
    queues: Sequence[str],
    tables: Storage,
    *,
    type_attributes: Sequence[str] = TYPE_ATTRIBUTES,
) -> None:
    """Look at the dead letters of the queues and replace the table `dead_letters` with their groups.

    `where` names the service (its queue is not looked at). Raises NotVeil, ApiError and TablesRefused.
    """
    from veil.pipeline.dead_letters.queue import peeked

    with peeked(spark, where, queues, tables, body_chars_max=SNIPPET_CHARS) as messages:
        leases, lives = history_tables(spark, tables)
        letters = dead_letters(messages, leases, lives, type_attributes=type_attributes)
        write_groups(grouped(letters, datetime.now(UTC)), tables)


def history_tables(spark: SparkSession, tables: Storage) -> tuple[DataFrame | None, DataFrame | None]:
    """The tables `leases` and `messages`; None where `veil pipeline lifecycles` has not made them."""
    manifest = load_manifest(tables)
    leases, messages = (
        read_table(spark, tables, name) if manifest.files_of(name) else None
        for name in ("leases", "messages")
    )
    return leases, messages
