"""Sums per queue, message type and hour, and the same per day and per month: counts, and histograms that add up.

Leases and messages are first counted by their buckets, which is most of the work and shrinks them; the rest runs on those
counts, and adds stored sums in the same way. What adds up can be taken off again: a row with the sign -1 is one that the
stored sums have counted and that is there no more, or is otherwise now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from veil.pipeline.lifecycles.facts import HOUR_MS, PART
from veil.pipeline.lifecycles.scales import (
    BUCKET_MAX,
    DAYS,
    HOURS,
    LEVELS,
    MONTHS,
    begin_ms_sql,
    bucket_sql,
    day_of,
    month_of,
    part_sql,
)
from veil.pipeline.lifecycles.store import Manifest
from veil.pipeline.lifecycles.tables import HOW, OUTCOME, QUEUE_HOURS
from veil.pipeline.sql import named, quoted, struct_of, struct_of_columns, where

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

TABLE: Final = "table"
SIGN: Final = "sign"  # 1 for a row that counts, -1 for one that does so no more
HISTOGRAMS: Final = ("processing", "processing_lapsed", "processing_censored", "waiting", "recovery")
LAPSED: Final = ("expired", "superseded", "dead_lettered")
_KEYS: Final = ("region", "account", "queue", "message_type")
_SIZE: Final = BUCKET_MAX + 1
_NO_BUCKET: Final = -1  # in place of a bucket: the row has the sums
_WINDOW_BITS: Final = 26  # of a window in milliseconds: 18 hours
# Sums that are not just counts of rows.
_LENGTHS: Final = ("extensions", "held_ms", "wasted_ms")
_OUTCOME_COLUMNS: Final = {
    outcome: f"messages_{'dead' if outcome == 'dead_lettered' else outcome}" for outcome in OUTCOME
}
SUMS: Final = (
    "sent", "leases", *HOW, "overrun", "duplicates", *_LENGTHS, *_OUTCOME_COLUMNS.values(),
)  # fmt: skip
_SUMMED_FIRST: Final = ("sent", "overrun", "duplicates", "extensions", "held_ms")
_IS_LEASE: Final = "(delivery != 0)"
_LATEST: Final = "window"  # window_at, in milliseconds since the epoch, and window_ms in one number


def counted(lives: DataFrame) -> DataFrame:
    """Rows of `leases` and `messages`, each with its SIGN, as counts: PART, keys, two buckets (each with its histogram's
    number), sums."""
    work = f"""{bucket_sql("processing_ms")} + case
        when not censored then {_first_of("processing")}
        when how in ({quoted(LAPSED)}) then {_first_of("processing_lapsed")}
        else {_first_of("processing_censored")} end"""
    waiting = f"{bucket_sql('wait_ms')} + {_first_of('waiting')}"
    recovery = f"{bucket_sql('recovery_ms')} + {_first_of('recovery')}"
    # The greatest number is the latest window; one number instead of two keeps the aggregation in fixed-width memory.
    window_ms = "greatest(unix_millis(first_deadline) - unix_millis(received_at), 0)"
    since_hour_ms = f"unix_millis(received_at) - {begin_ms_sql(HOURS, PART)}"
    window = f"shiftleft({since_hour_ms}, {_WINDOW_BITS}) + least({window_ms}, {(1 << _WINDOW_BITS) - 1})"
    rows = lives.selectExpr(
        PART,
        *_KEYS[:-1],
        *named(
            {
                "message_type": "coalesce(message_type, '')",
                "work": f"coalesce({where(_IS_LEASE, work)}, {_NO_BUCKET})",
                "around": f"coalesce(if({_IS_LEASE}, {recovery}, {waiting}), {_NO_BUCKET})",
                "is_message": f"not {_IS_LEASE}",
                "state": f"if({_IS_LEASE}, how, outcome)",
                SIGN: SIGN,
                # Never taken off: a lease keeps the window that it began with.
                _LATEST: where(f"{_IS_LEASE} and {SIGN} > 0", window),
                "sent": f"if(sent_at is not null, {SIGN}, 0)",
                "overrun": f"if({_IS_LEASE} and overrun, {SIGN}, 0)",
                "duplicates": f"if({_IS_LEASE} and duplicate, {SIGN}, 0)",
                "extensions": f"if({_IS_LEASE}, extensions * {SIGN}, 0)",
                "held_ms": f"coalesce(held_ms, 0) * {SIGN}",
            }
        ),
    )
    sums = {"count": f"sum({SIGN})", **{name: f"sum({name})" for name in _SUMMED_FIRST}}
    grouped = _grouped(
        rows, (PART, *_KEYS, "work", "around", "is_message", "state"), {_LATEST: f"max(`{_LATEST}`)", **sums}
    )
    return grouped.selectExpr(PART, *_KEYS, "work", "around", "`count`", f"`{_LATEST}`", *named(_by_state()))


def _first_of(histogram: str) -> int:
    """The first bucket of a histogram, where those of all are numbered one after the other."""
    return HISTOGRAMS.index(histogram) * _SIZE


def _grouped(rows: DataFrame, keys: Sequence[str], aggregates: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return rows.groupBy(*keys).agg(*map(F.expr, named(aggregates)))


def _by_state() -> dict[str, str]:
    """The sums of rows that are of one state each, in SQL. Told apart here, where they are few, and not for each lease."""
    return {
        **{name: name for name in _SUMMED_FIRST},
        "leases": "if(not is_message, `count`, 0)",
        **{how: f"if(not is_message and state = '{how}', `count`, 0)" for how in HOW},
        "wasted_ms": "if(not is_message and state not in ('deleted', 'open'), held_ms, 0)",
        **{
            column: f"if(is_message and state = '{outcome}', `count`, 0)"
            for outcome, column in _OUTCOME_COLUMNS.items()
        },
    }


def _of_sums(is_sum: str) -> dict[str, str]:
    """Every sum in the rows that have the sums, 0 in the others, in SQL."""
    return {name: f"cast(if({is_sum}, `{name}`, 0) as bigint)" for name in SUMS}


def by_bucket(counts: DataFrame) -> DataFrame:
    """Counts as rows of (table, part, keys, bucket, count, window, sums), once for each level."""
    rows = counts.selectExpr("*", f"explode({_levels(LEVELS, PART)}) as level").selectExpr(
        "*", f"explode(array(work, around, {_NO_BUCKET - 1})) as bucket"
    )
    is_sum = f"bucket < {_NO_BUCKET}"
    return rows.where(f"bucket != {_NO_BUCKET}").selectExpr(
        f"level.`{TABLE}`",
        f"level.`{PART}`",
        *_KEYS,
        *named(
            {
                "bucket": f"if({is_sum}, {_NO_BUCKET}, bucket)",
                "count": f"cast(if({is_sum}, 0, `count`) as bigint)",
                _LATEST: where(is_sum, f"`{_LATEST}` + level.shift"),
                **_of_sums(is_sum),
            }
        ),
    )


def stored_by_bucket(stored: DataFrame, counts_for: Mapping[str, Sequence[str]]) -> DataFrame:
    """Stored sums, each with the TABLE that it is of, in the same form; for the levels that its table is said to count for."""
    hour = f"cast(floor(unix_millis(hour) / {HOUR_MS}) as int)"
    cases = "".join(
        f" when `{TABLE}` = '{table}' then {_levels(wanted, hour)}" for table, wanted in counts_for.items()
    )
    numbered = ", ".join(_shifted(name, _first_of(name)) for name in HISTOGRAMS)
    sums = f"array(named_struct('bucket', {_NO_BUCKET}, 'count', 0L))"
    is_sum = f"each.bucket = {_NO_BUCKET}"
    # From the beginning of what is stored, and from there to the level's.
    since_ms = "unix_millis(window_at) - unix_millis(hour)"
    window = f"shiftleft({since_ms}, {_WINDOW_BITS}) + window_ms + level.shift"
    return (
        stored.selectExpr("*", f"explode(case{cases} end) as level")
        .selectExpr("*", f"explode(concat({sums}, {numbered})) as each")
        .selectExpr(
            f"level.`{TABLE}`",
            f"level.`{PART}`",
            *_KEYS,
            "each.bucket",
            "each.`count`",
            *named({_LATEST: where(is_sum, window), **_of_sums(is_sum)}),
        )
    )


def _levels(levels: Sequence[str], hour: str) -> str:
    """Of each level: its name, the part that the hour belongs to, and what a window of that hour is greater there; in SQL."""

    def level(name: str) -> str:
        part = part_sql(name, hour)
        since_ms = f"{begin_ms_sql(HOURS, hour)} - {begin_ms_sql(name, part)}"
        shift = f"shiftleft({since_ms}, {_WINDOW_BITS})"
        return struct_of_columns({TABLE: f"'{name}'", PART: f"cast({part} as int)", "shift": shift})

    return f"array({', '.join(map(level, levels))})"


def summed(buckets: DataFrame) -> DataFrame:
    """Rows of the sums at all levels, with `table` and `part` in front."""
    # Once by what a file holds: the two steps below find their rows together, and each file has one writer.
    rows = buckets.repartition(TABLE, PART)
    totals = {_LATEST: f"max(`{_LATEST}`)", **{name: f"sum(`{name}`)" for name in SUMS}}
    keys = (TABLE, PART, *_KEYS)
    rows = _grouped(rows, (*keys, "bucket"), {"count": "sum(`count`)", **totals})
    pair = where(f"bucket != {_NO_BUCKET} and `count` != 0", "struct(bucket, `count`)")
    rows = _grouped(rows, keys, {"pairs": f"sort_array(collect_list({pair}))", **totals})
    # Of a queue or type that nothing is left of, there is no row.
    rows = rows.where(f"leases + {' + '.join(_OUTCOME_COLUMNS.values())} > 0")
    begins = "".join(f" when '{level}' then {begin_ms_sql(level, PART)}" for level in LEVELS)
    part_ms = f"(case `{TABLE}`{begins} end)"
    values = {
        "hour": f"timestamp_millis({part_ms})",
        "window_ms": f"`{_LATEST}` & {(1 << _WINDOW_BITS) - 1}",
        "window_at": f"timestamp_millis({part_ms} + shiftright(`{_LATEST}`, {_WINDOW_BITS}))",
        **{name: _histogram(name) for name in HISTOGRAMS},
    }
    columns = {
        field.name: f"cast({values.get(field.name, f'`{field.name}`')} as {field.dataType.simpleString()})"
        for field in struct_of(QUEUE_HOURS)
    }
    return rows.selectExpr(f"`{TABLE}`", PART, *named(columns))


def _histogram(name: str) -> str:
    """A histogram out of the pairs of all, in SQL."""
    first = _first_of(name)
    return _shifted(
        f"filter(pairs, pair -> pair.bucket >= {first} and pair.bucket < {first + _SIZE})", -first
    )


def _shifted(pairs: str, by: int) -> str:
    members = {"bucket": f"pair.bucket + {by}", "count": "pair.`count`"}
    return f"transform({pairs}, pair -> {struct_of_columns(members)})"


# The table whose file a row is from, as the name of the file says, in SQL.
TABLE_OF_FILE: Final = r"regexp_extract(_metadata.file_path, '/table(?:=|%3D)(\\w+)/part[^/]*/[^/]*$', 1)"


class StoredSums(NamedTuple):
    """Files of several levels, and for each level those that its sums count for."""

    files: list[str]
    counts_for: dict[str, tuple[str, ...]]


def sums_beside(manifest: Manifest, touched: Iterable[int]) -> StoredSums:
    """For hours that are written anew: what else their days and months consist of."""
    hours, days, months = _parts(touched)
    beside_hours = [part for part in manifest.hours if part not in hours and day_of(part) in days]
    beside_days = [day for day in manifest.days if day not in days and month_of(day) in months]
    return StoredSums(
        [
            *(file for part in beside_hours for file in manifest.hours[part].queue_hours),
            *(file for day in beside_days for file in manifest.days[day]),
        ],
        {HOURS: (DAYS, MONTHS), DAYS: (MONTHS,)},
    )


def sums_before(manifest: Manifest, touched: Iterable[int]) -> StoredSums:
    """For rows that are counted off and added: the sums that have counted them."""
    hours, days, months = _parts(touched)
    known = [manifest.hours[part] for part in hours if part in manifest.hours]
    return StoredSums(
        [
            *(file for hour in known for file in hour.queue_hours),
            *(file for day in days for file in manifest.days.get(day, ())),
            *(file for month in months for file in manifest.months.get(month, ())),
        ],
        {level: (level,) for level in LEVELS},
    )


def _parts(touched: Iterable[int]) -> tuple[set[int], set[int], set[int]]:
    hours = set(touched)
    days = {day_of(part) for part in hours}
    return hours, days, {month_of(day) for day in days}
