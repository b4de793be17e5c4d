"""Sums per queue, message type and hour, and the same per day and per month: counts, and histograms that add up.

Everything here is in the form of the table itself (`tables.QUEUE_HOURS`): what a task counts, what is stored, and what both
come to. What adds up can be taken off again: rows with the sign -1 are those that the stored sums have counted and that are
there no more, or are otherwise now. Only the latest window does not subtract, and need not: a lease keeps the window that it
began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from veil.pipeline.lifecycles.columns import NONE, TEXT, Coded, Ints, flags, numbers, table_of, whole
from veil.pipeline.lifecycles.tables import (
    ATTEMPT,
    BUCKET_MAX,
    COUNTS,
    HISTOGRAMS,
    HOW,
    LAPSED,
    OUTCOME,
    PER_OCTAVE,
    QUEUE_HOURS,
    arrow_schema,
)

_KEYS: Final = ("region", "account", "queue", "message_type")
_SIZE: Final = BUCKET_MAX + 1
_SCHEMA: Final = arrow_schema(QUEUE_HOURS)


def buckets_of(lengths_ms: Ints) -> Ints:
    octaves = np.log2(np.maximum(lengths_ms, 1).astype(np.float64))
    found: Ints = np.minimum(np.floor(octaves * PER_OCTAVE), BUCKET_MAX).astype(np.int64)
    return found


def sums_of(leases: pa.Table, messages: pa.Table) -> pa.Table:
    """The sums per hour of some rows of both tables."""
    keys, (of_leases, of_messages) = _grouped([leases, messages])
    size = keys.num_rows
    how, outcome, became = (
        Coded.of(each) for each in (leases["how"], leases["outcome"], messages["outcome"])
    )
    held_ms, work_ms = numbers(leases["held_ms"]), numbers(leases["processing_ms"])
    wait_ms, recovery_ms = numbers(messages["wait_ms"]), numbers(leases["recovery_ms"])
    is_censored, is_failed = flags(leases["censored"]), outcome.is_in("failed")
    held, worked = np.maximum(held_ms, 0), np.maximum(np.where(is_censored, held_ms, work_ms), 0)

    def total(whose: Ints, amounts: Any = None) -> Ints:
        # Sums of doubles are exact as far as counts and milliseconds go: 2^53.
        return np.bincount(whose, amounts, size).astype(np.int64)

    sums = {
        "sent": total(of_messages, numbers(messages["sent_at"]) != NONE),
        "leases": total(of_leases),
        **{name: total(of_leases, outcome.is_in(name)) for name in ATTEMPT},
        **{name: total(of_leases, how.is_in(name)) for name in HOW},
        "overrun": total(of_leases, flags(leases["overrun"])),
        "duplicates": total(of_leases, flags(leases["duplicate"])),
        "extensions": total(of_leases, numbers(leases["extensions"])),
        "held_ms": total(of_leases, held),
        "wasted_ms": total(of_leases, np.where(how.is_in("deleted", "open"), 0, held)),
        "failed_ms": total(of_leases, np.where(is_failed, worked, 0)),
        **{column: total(of_messages, became.is_in(name)) for name, column in OUTCOME.items()},
    }
    is_let_go, is_lapsed, is_known = (
        outcome.is_in("failed", "given_back"),
        how.is_in(*LAPSED),
        work_ms != NONE,
    )
    # Of those that crashed, or were let go and left to lapse, nobody knows when the work ended.
    is_dead = is_lapsed & (is_let_go | outcome.is_in("crashed"))
    is_recovered = recovery_ms != NONE
    observed = {
        "processing": (of_leases, work_ms, is_known & ~is_censored & ~is_let_go),
        "processing_failed": (of_leases, work_ms, is_known & ~is_censored & is_let_go),
        "processing_lapsed": (of_leases, work_ms, is_known & is_censored & is_lapsed & ~is_dead),
        "processing_censored": (of_leases, work_ms, is_known & is_censored & ~is_lapsed),
        "waiting": (of_messages, wait_ms, wait_ms != NONE),
        "recovery": (of_leases, recovery_ms, is_recovered & outcome.is_in("crashed")),
        "recovery_unknown": (of_leases, recovery_ms, is_recovered & outcome.is_in("unknown")),
    }
    histograms = {
        name: _histogram(whose[which], buckets_of(lengths[which]), None, size)
        for name, (whose, lengths, which) in observed.items()
    }
    received_at = numbers(leases["received_at"])
    window_ms = np.maximum(numbers(leases["first_deadline"]) - received_at, 0)
    return _table(keys, sums, histograms, _latest(of_leases, received_at, window_ms, size))


def added_up(parts: Sequence[tuple[int, pa.Table]], by: str = "hour") -> pa.Table:
    """The sum of sums, each with its sign; by the hour, day or month."""
    tables = [part if by == "hour" else _begun(part, by) for _, part in parts]
    keys, whose = _grouped(tables)
    everything, whose_all = pa.concat_tables(tables), np.concatenate(whose)
    signs = np.repeat([sign for sign, _ in parts], [each.num_rows for each in tables])
    size = keys.num_rows
    sums = {
        name: np.bincount(whose_all, numbers(everything[name]) * signs, size).astype(np.int64)
        for name in COUNTS
    }
    histograms = {}
    for name in HISTOGRAMS:
        column = whole(everything[name])
        pairs, lengths = column.flatten(), np.diff(column.offsets.to_numpy())
        counts = pairs.field("count").to_numpy() * np.repeat(signs, lengths)
        histograms[name] = _histogram(
            np.repeat(whose_all, lengths), pairs.field("bucket").to_numpy().astype(np.int64), counts, size
        )
    counts_now = signs > 0
    window = _latest(
        whose_all[counts_now],
        numbers(everything["window_at"])[counts_now],
        numbers(everything["window_ms"])[counts_now],
        size,
    )
    return _table(keys, sums, histograms, window)


def without_empty(sums: pa.Table) -> pa.Table:
    """Without the rows of queues and types that nothing is left of."""
    left = sum(numbers(sums[name]) for name in ("leases", *OUTCOME.values()))
    return sums.filter(pa.array(left > 0))


def _begun(part: pa.Table, unit: str) -> pa.Table:
    """The sums with the beginning of the day or month in place of the hour."""
    utc = _SCHEMA.field("hour").type
    # Without a zone meanwhile, for which Arrow would look into a database that not every machine has.
    hours = part["hour"].cast(pa.int64()).cast(pa.timestamp(utc.unit))
    begun = pc.floor_temporal(hours, unit=unit).cast(pa.int64()).cast(utc)
    return part.set_column(0, "hour", begun)


def _grouped(tables: Sequence[pa.Table]) -> tuple[pa.Table, list[Ints]]:
    """The distinct hours, queues and types of all tables together, and of each table's rows which of them they are."""
    hours = [chunk for table in tables for chunk in table["hour"].chunks]
    together: dict[str, Any] = {"hour": pa.chunked_array(hours, _SCHEMA.field("hour").type)}
    for name in _KEYS:
        columns = (table[name] for table in tables)
        coded = [each if pa.types.is_dictionary(each.type) else each.dictionary_encode() for each in columns]
        together[name] = pa.chunked_array([chunk for each in coded for chunk in each.chunks], TEXT)
    joined = pa.table(together).unify_dictionaries()
    code = np.unique(numbers(joined["hour"]), return_inverse=True)[1]
    texts = {name: Coded.of(joined[name]) for name in _KEYS}
    for text in texts.values():
        code = code * (len(text.texts) + 1) + text.numbers + 1
    _, first, whose = np.unique(code, return_index=True, return_inverse=True)
    named = {name: text.picked(first).array() for name, text in texts.items()}
    named["message_type"] = pc.fill_null(named["message_type"].cast(pa.string()), "").dictionary_encode()
    keys = pa.table({"hour": whole(joined["hour"]).take(pa.array(first)), **named})
    return keys, np.split(whose, np.cumsum([each.num_rows for each in tables])[:-1])


def _histogram(whose: Ints, buckets: Ints, counts: Ints | None, size: int) -> pa.ListArray:
    """Pairs of bucket and count for each of so many keys."""
    found, places = np.unique(whose * _SIZE + buckets, return_inverse=True)
    totals = np.bincount(places, counts, len(found)).astype(np.int64)
    found, totals = found[totals != 0], totals[totals != 0]
    offsets = np.searchsorted(found, np.arange(size + 1) * _SIZE)
    pairs = pa.StructArray.from_arrays(
        [pa.array(found % _SIZE, pa.int32()), pa.array(totals, pa.int64())],
        fields=list(_SCHEMA.field(HISTOGRAMS[0]).type.value_type),
    )
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pairs, type=_SCHEMA.field(HISTOGRAMS[0]).type
    )


def _latest(whose: Ints, at: Ints, window_ms: Ints, size: int) -> tuple[Ints, Ints]:
    """Of each key the latest window and its instant; of windows of one instant, the longest."""
    order = np.lexsort((window_ms, at))
    order = order[at[order] != NONE]
    latest_at, latest_ms = np.full(size, NONE), np.full(size, NONE)
    latest_at[whose[order]] = at[order]  # of several for one place, numpy keeps the last
    latest_ms[whose[order]] = window_ms[order]
    return latest_at, latest_ms


def _table(
    keys: pa.Table, sums: dict[str, Ints], histograms: dict[str, Any], window: tuple[Ints, Ints]
) -> pa.Table:
    at, length_ms = window
    named = {name: keys[name] for name in keys.column_names}
    columns = {**named, **sums, **histograms, "window_at": at, "window_ms": length_ms}
    return table_of(columns, _SCHEMA)
