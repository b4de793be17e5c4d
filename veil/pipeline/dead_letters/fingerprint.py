"""The fingerprint of an error's text (core/error_text.py) as expressions of Spark's own: a million texts are masked without a
row of them leaving the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veil.core.error_text import CHARS_MAX, MASKS

if TYPE_CHECKING:
    from pyspark.sql import Column


def fingerprint_of(text: Column) -> Column:
    """The text masked, on one line, cut to 300 characters; null stays null."""
    from pyspark.sql import functions as F  # noqa: N812

    masked = text
    for mask in MASKS:
        masked = F.regexp_replace(masked, mask.pattern, mask.shown)
    return F.left(F.trim(F.regexp_replace(masked, r"\s+", " ")), F.lit(CHARS_MAX))
