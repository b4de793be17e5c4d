"""A message as it is sent on: what it was, with the mark of where it came from, and the queue that it goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.core.limits import ATTRIBUTES_MAX, BODY_BYTES_MAX
from veil.pipeline.routing.classes import CHARS_MAX, body_bytes, class_column
from veil.pipeline.routing.route_table import RouteTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROUTED_FROM: Final = "Veil.RoutedFrom"
CLASS: Final = "Veil.Class"
_ATTRIBUTE: Final = "struct<data_type: string, string_value: string, binary_value: binary>"
_ATTRIBUTES: Final = f"map<string, {_ATTRIBUTE}>"
_CHAR_BYTES_MAX: Final = 4
_ID_BYTES: Final = 36


def forwarded(messages: DataFrame, table: RouteTable, *, keeps_order: bool, parts: int) -> DataFrame:
    """Rows for the sink from rows of the source; `keeps_order` for an intake that is a FIFO queue."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = messages
    if keeps_order:
        # A group's messages in one task, in their order; the sink keeps it from there.
        group = F.col("system_attributes")["MessageGroupId"]
        place = F.col("system_attributes")["SequenceNumber"].cast("decimal(38,0)")
        rows = rows.repartition(parts, group).sortWithinPartitions(place)
    queue = table.queue_column()
    group = F.col("system_attributes")["MessageGroupId"]
    return rows.select(
        "message_id",
        "body",
        _marked(table).alias("attributes"),
        # A FIFO queue wants a group. What came without one was in no order with anything.
        F.coalesce(group, F.when(queue.endswith(".fifo"), F.col("message_id"))).alias("group"),
        # Every message that the intake let in is one of its own, so its id is what tells it from the others.
        F.col("message_id").alias("deduplication_id"),
        F.col("system_attributes")["AWSTraceHeader"].alias("trace_header"),
        queue.alias("queue"),
    )


def _marked(table: RouteTable) -> Column:
    """The attributes with the marks, as far as there is room: a mark must not make a message impossible to send."""
    from pyspark.sql import functions as F  # noqa: N812

    attributes = F.coalesce(F.col("attributes"), F.map_from_arrays(F.array(), F.array()).cast(_ATTRIBUTES))
    size = body_bytes() + F.aggregate(
        F.map_entries(attributes),
        F.lit(0),
        lambda total, each: (
            total
            + F.octet_length(each["key"])
            + F.octet_length(each["value"]["data_type"])
            + F.coalesce(
                F.octet_length(each["value"]["string_value"]),
                F.octet_length(each["value"]["binary_value"]),
                F.lit(0),
            )
        ),
    )
    marked = attributes
    if table.class_by is not None:
        found = class_column(table.class_by, table.type_attributes)
        room = BODY_BYTES_MAX - CHARS_MAX * _CHAR_BYTES_MAX - len(CLASS) - len("String")
        room -= _ID_BYTES + len(ROUTED_FROM) + len("String")
        marked = _with(marked, CLASS, found, found.isNotNull() & (found != "") & (size <= room), spare=2)
    room = BODY_BYTES_MAX - _ID_BYTES - len(ROUTED_FROM) - len("String")
    # One that was routed before keeps its first id: that is what tells doubles of it apart from other messages.
    return _with(
        marked, ROUTED_FROM, F.col("message_id"), attributes[ROUTED_FROM].isNull() & (size <= room), spare=1
    )


def _with(attributes: Column, name: str, text: Column, allowed: Column, *, spare: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    value = F.struct(
        F.lit("String").alias("data_type"),
        text.alias("string_value"),
        F.lit(None).cast("binary").alias("binary_value"),
    )
    others = F.map_filter(attributes, lambda key, _: key != name)
    added = F.map_concat(others, F.create_map(F.lit(name), value))
    return F.when(allowed & (F.size(others) <= ATTRIBUTES_MAX - spare), added).otherwise(attributes)
