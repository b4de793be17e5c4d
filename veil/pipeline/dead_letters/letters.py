"""Peeked messages as dead letters: where each came from, what it is, why it failed, and what its leases were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from veil.core.dead_letter import ERROR_TYPE, HANDLER, MESSAGE_ID, REASON, RECEIVE_COUNT, SOURCE_QUEUE
from veil.pipeline.dead_letters.columns import LETTERS
from veil.pipeline.dead_letters.fingerprint import fingerprint_of
from veil.pipeline.dead_letters.histories import with_histories
from veil.pipeline.schemas import struct_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# As the server's setting `journal_type_attributes` has them unless it is told otherwise.
TYPE_ATTRIBUTES: Final = ("MessageType", "message_type", "Type", "type")
TYPE_CHARS_MAX: Final = 256
REDRIVEN_FROM: Final = "Veil.RedrivenFrom"
GROUP_KEYS: Final = ("queue", "source", "message_type", "error_type", "fingerprint")


def dead_letters(
    peeked: DataFrame,
    leases: DataFrame | None = None,
    messages: DataFrame | None = None,
    *,
    type_attributes: Sequence[str] = TYPE_ATTRIBUTES,
) -> DataFrame:
    """The columns LETTERS of messages in the columns PEEKED, with what the tables of lifecycles know where there are some."""
    from pyspark.sql import functions as F  # noqa: N812

    told = with_reasons(peeked, type_attributes)
    told = told.withColumn("group_id", group_id())
    told = with_histories(told, leases, messages)
    told = told.withColumn("first_seen", F.coalesce("dead_since", "sent_at"))
    return told.select(*struct_of(LETTERS).names)


def with_reasons(peeked: DataFrame, type_attributes: Sequence[str] = TYPE_ATTRIBUTES) -> DataFrame:
    """Add what the message itself tells: source, type, error and its fingerprint, earlier redrives."""
    from pyspark.sql import functions as F  # noqa: N812

    server_source = F.element_at("system_attributes", F.lit("DeadLetterQueueSourceArn"))
    # A name, an ARN or a URL: the queue's name is what stands last.
    source = F.regexp_extract(F.coalesce(server_source, _text(SOURCE_QUEUE)), r"([^:/]+)/?$", 1)
    error_text = _text(REASON)
    return peeked.select(
        *(F.col(name) for name in peeked.columns if name not in ("receive_count",)),
        F.nullif(source, F.lit("")).alias("source"),
        F.left(F.coalesce(*map(_type, type_attributes), F.lit(None)), F.lit(TYPE_CHARS_MAX)).alias("message_type"),
        _text(ERROR_TYPE).alias("error_type"),
        error_text.alias("error_text"),
        fingerprint_of(error_text).alias("fingerprint"),
        _text(HANDLER).alias("handler"),
        F.coalesce(_text(MESSAGE_ID), F.col("message_id")).alias("first_id"),
        F.coalesce(_text(RECEIVE_COUNT).try_cast("int"), F.col("receive_count")).alias("receive_count"),
        F.map_contains_key("attributes", REDRIVEN_FROM).alias("redriven_before"),
        # A copy that a consumer sent came here when it was sent; of the others the server does not say.
        F.when(server_source.isNull(), F.col("sent_at")).alias("dead_since"),
    )  # fmt: skip


def group_id() -> Column:
    """Twelve hexadecimal digits over what makes a group."""
    from pyspark.sql import functions as F  # noqa: N812

    # A null is told apart from an empty text.
    keys = [F.coalesce(F.concat(F.lit("="), F.col(name)), F.lit("-")) for name in GROUP_KEYS]
    return F.left(F.sha2(F.concat_ws("\x1f", *keys), 256), F.lit(12))


def _text(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.element_at("attributes", F.lit(name)).getField("string_value")


def _type(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    found = F.element_at("attributes", F.lit(name))
    return F.when(found.getField("data_type").startswith("String"), found.getField("string_value"))
