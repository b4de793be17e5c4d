"""The class of a message, by which it is told apart: its type, its group, a field of its JSON, or its size.

All of it as Spark's own expressions over the columns of the source: no Python runs for a message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from veil.pipeline.routing.refusal import RouteRefused

if TYPE_CHECKING:
    from pyspark.sql import Column

TYPE, GROUP, SIZE, JSON = "type", "group", "size", "json:"
# What the server's journal takes for the type of a message, unless it is set otherwise.
TYPE_ATTRIBUTES: Final = ("MessageType", "message_type", "Type", "type")
CHARS_MAX: Final = 256
_PATH: Final = re.compile(r"\$(\.[^.\[\]'\s]+|\[[0-9]+\]|\['[^']+'\])+")
_SIZES: Final = ((1 << 10, "1 KiB"), (16 << 10, "16 KiB"), (256 << 10, "256 KiB"))


def check_class_by(text: str) -> str:
    """`type`, `group`, `size` or `json:$.field`, as it was given; raises RouteRefused."""
    path = text.removeprefix(JSON)
    if text in (TYPE, GROUP, SIZE) or (text.startswith(JSON) and _PATH.fullmatch(path)):
        return text
    raise RouteRefused(f"class {text!r}: expected type, group, size or json:$.FIELD")


def body_bytes() -> Column:
    """The size of the body in UTF-8."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.octet_length("body")


def class_column(by: str, type_attributes: Sequence[str] = TYPE_ATTRIBUTES) -> Column:
    """The class of each message as text, at most 256 characters; null where it has none."""
    from pyspark.sql import functions as F  # noqa: N812

    if by == TYPE:
        each = [F.col("attributes")[name] for name in type_attributes]
        texts = [F.when(one["data_type"].startswith("String"), one["string_value"]) for one in each]
        found = F.coalesce(*texts)
    elif by == GROUP:
        found = F.col("system_attributes")["MessageGroupId"]
    elif by == SIZE:
        found = F.lit(f"above {_SIZES[-1][1]}")
        for upto, name in reversed(_SIZES):
            found = F.when(body_bytes() <= upto, F.lit(f"up to {name}")).otherwise(found)
    else:
        found = F.get_json_object("body", by.removeprefix(JSON))
    return F.substring(found, 1, CHARS_MAX)
