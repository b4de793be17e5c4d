"""Lifecycles in Polars: the same tables from the same segments, with its lazy frames and its streaming engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from veil.pipeline.lifecycles.tables import ATTEMPT, BUCKET_MAX, HOW, OUTCOME, PER_OCTAVE

_OF_THE_MESSAGE: Final = ("sent", "redriven", "expired", "purged")
_PLACE: Final = ("region", "account", "queue")
_KEYS: Final = ("hour", *_PLACE, "message_type")
_LEASES: Final = (
    "hour", *_PLACE, "seq", "message_id", "message_type", "body_bytes", "delivery", "receive_count", "received_at",
    "first_deadline", "deadline", "extensions", "last_extended_at", "ended_at", "how", "outcome", "rule",
    "error_type", "error_text", "traceback", "held_ms", "processing_ms",
    "censored", "overrun", "recovery_ms", "caller_key", "caller_address", "user_agent",
)  # fmt: skip
_MESSAGES: Final = (
    "hour", *_PLACE, "seq", "message_id", "message_type", "body_bytes", "sent_at", "available_at", "first_received_at",
    "wait_ms", "leases", "extensions", "duplicates", "failures", "wasted_ms", "outcome", "ended_at", "end_to_end_ms",
    "dead_lettered_at", "dead_letter_queue", "redriven_to",
)  # fmt: skip


def make_tables(files: list[str], folder: Path, threads: int) -> None:
    """Write the tables as Parquet into the folder."""
    if pl.thread_pool_size() != threads:
        raise ValueError(
            f"threads={pl.thread_pool_size()}: expected POLARS_MAX_THREADS={threads} in the environment"
        )
    events = pl.scan_parquet(files, hive_partitioning=False)
    newest = events.select(pl.col("at").max()).collect().item()
    messages = _message_facts(events).collect(engine="streaming")
    leases = _leases(_lease_facts(events).collect(engine="streaming"), messages, newest)
    messages = _messages(messages, leases)
    leases.select(_LEASES).write_parquet(folder / "leases.parquet", compression="zstd")
    messages.select(_MESSAGES).write_parquet(folder / "messages.parquet", compression="zstd")
    for name, every in (("queue_hours", "1h"), ("queue_days", "1d"), ("queue_months", "1mo")):
        begin = pl.col("hour").dt.truncate(every)
        sums = _queue_sums(leases.with_columns(begin), messages.with_columns(begin))
        sums.write_parquet(folder / f"{name}.parquet", compression="zstd")


def _of(name: str, *kinds: str) -> pl.Expr:
    """The column, of events of these kinds only."""
    return pl.col(name).filter(pl.col("kind").is_in(kinds))


def _placed() -> list[pl.Expr]:
    """Where the first of sent or received, then dead_lettered, then anything else says."""
    return [
        pl.coalesce(
            _of(name, "sent", "received").min(), _of(name, "dead_lettered").min(), pl.col(name).min()
        ).alias(name)
        for name in _PLACE
    ]


def _named() -> list[pl.Expr]:
    return [pl.col(name).max() for name in ("message_id", "message_type", "body_bytes")]


def _message_facts(events: pl.LazyFrame) -> pl.LazyFrame:
    return (
        events.filter(pl.col("kind").is_in(_OF_THE_MESSAGE))
        .with_columns(available=pl.coalesce("deadline", "at"))
        .group_by("seq")
        .agg(
            *_placed(),
            *_named(),
            sent_at=_of("at", "sent").min(),
            available_at=_of("available", "sent").min(),
            redriven_at=_of("at", "redriven").min(),
            redriven_to=_of("other_queue", "redriven").max(),
            expired_at=_of("at", "expired").min(),
            purged_at=_of("at", "purged").min(),
        )
    )


def _lease_facts(events: pl.LazyFrame) -> pl.LazyFrame:
    # What set the deadline last; a release is a deadline of now.
    sets = pl.col("kind").is_in(["received", "extended", "released", "given_back"])
    said = pl.col("outcome").is_not_null()
    released = pl.col("kind") == "released"
    return (
        events.filter(~pl.col("kind").is_in(_OF_THE_MESSAGE))
        .with_columns(
            set_at=pl.when(sets).then("at"),
            order=pl.when(sets).then(pl.struct("at", "position")),
            new_deadline=pl.when(released).then("at").when(sets).then("deadline"),
            is_returned=pl.col("kind").is_in(["released", "given_back"]),
            said_order=pl.when(said).then(pl.struct("at", "position")),
        )
        .group_by("seq", "delivery")
        .agg(
            *_placed(),
            *_named(),
            *(
                _of(name, "received").max()
                for name in ("receive_count", "caller_key", "caller_address", "user_agent")
            ),
            received_at=_of("at", "received").min(),
            first_deadline=_of("deadline", "received").min(),
            extensions=(pl.col("kind") == "extended").sum().cast(pl.Int32),
            last_extended_at=_of("at", "extended").max(),
            set_at=pl.col("set_at").max(),
            deadline=pl.col("new_deadline").max_by("order"),
            is_returned=pl.col("is_returned").max_by("order"),
            said=pl.col("outcome").max_by("said_order"),
            said_at=pl.col("at").filter(said).max(),
            **{name: pl.col(name).max_by("said_order") for name in ("error_type", "error_text", "traceback")},
            seen_at=_of("at", "holder_seen").max(),
            silent_at=_of("at", "holder_silent").max(),
            rule=pl.col("rule").max().fill_null(1).clip(lower_bound=1),
            undone_at=_of("at", "undone").min(),
            deleted_at=_of("at", "deleted").min(),
            delete_refused_at=_of("at", "delete_refused").min(),
            refused_at=_of("at", "delete_refused", "extension_refused").max(),
            dead_lettered_at=_of("at", "dead_lettered").min(),
            dead_letter_queue=_of("other_queue", "dead_lettered").max(),
        )
    )


def _ms_between(start: pl.Expr, end: pl.Expr) -> pl.Expr:
    return (end - start).dt.total_milliseconds().clip(lower_bound=0)


def _hour() -> pl.Expr:
    hours = pl.col("seq") // (1 << 20) // 3_600_000
    return pl.from_epoch(hours * 3_600_000, time_unit="ms").cast(pl.Datetime("us", "UTC")).alias("hour")


def _leases(facts: pl.DataFrame, messages: pl.DataFrame, newest: object) -> pl.DataFrame:
    col = pl.col
    # Few messages have more than one lease, and only these need to look at their neighbours.
    facts = facts.sort("seq", "delivery")
    again = facts.filter(col("seq").is_duplicated())
    again = again.select(
        "seq",
        "delivery",
        next_received_at=pl.when(col("undone_at").is_null())
        .then("received_at")
        .shift(-1)
        .backward_fill()
        .over("seq"),
        deleted_by_any=col("deleted_at").min().over("seq"),
        any_id=col("message_id").max().over("seq"),
        any_type=col("message_type").max().over("seq"),
        any_bytes=col("body_bytes").max().over("seq"),
    )
    names = {"sent_id": "message_id", "sent_type": "message_type", "sent_bytes": "body_bytes"}
    of_message = messages.lazy().select("seq", "expired_at", "purged_at", "redriven_at", **names)
    is_undone = col("how") == "undone"
    let_go = col("outcome").is_in(["failed", "given_back"])
    done_at = (
        pl.when(let_go)
        .then(pl.coalesce("said_at", pl.when("is_returned").then("set_at")))
        .otherwise(pl.coalesce("deleted_at", "delete_refused_at"))
    )
    no = pl.lit(False)
    return (
        facts.lazy()
        .join(again.lazy(), on=["seq", "delivery"], how="left")
        .join(of_message, on="seq", how="left")
        .with_columns(
            _hour(),
            message_id=pl.coalesce("sent_id", "any_id", "message_id"),
            message_type=pl.coalesce("sent_type", "any_type", "message_type"),
            body_bytes=pl.coalesce("sent_bytes", "any_bytes", "body_bytes"),
            gone_at=pl.min_horizontal(
                "deleted_at", "deleted_by_any", "expired_at", "purged_at", "redriven_at"
            ),
            newest=pl.lit(newest),
        )
        .with_columns(
            how=pl.when(col("undone_at").is_not_null())
            .then(pl.lit("undone"))
            .when(col("deleted_at").is_not_null())
            .then(pl.lit("deleted"))
            .when("is_returned")
            .then(pl.lit("released"))
            .when(col("gone_at") < col("deadline"))
            .then(pl.lit("removed"))
            .when(col("dead_lettered_at").is_not_null())
            .then(pl.lit("dead_lettered"))
            .when(col("next_received_at").is_not_null())
            .then(pl.lit("superseded"))
            .when(col("deadline").is_null() | (col("deadline") <= col("newest")))
            .then(pl.lit("expired"))
            .otherwise(pl.lit("open"))
        )
        .with_columns(
            outcome=pl.when(is_undone)
            .then(pl.lit("undone"))
            .when(col("said").is_not_null())
            .then("said")
            .when(col("deleted_at").is_not_null())
            .then(pl.lit("completed"))
            .when("is_returned")
            .then(pl.lit("given_back"))
            .when(col("gone_at") < col("deadline"))
            .then(pl.lit("removed"))
            .when(col("deadline") > col("newest"))
            .then(pl.lit("open"))
            .when(col("refused_at").is_not_null())
            .then(pl.lit("overran"))
            .when(col("seen_at") >= col("deadline"))
            .then(pl.lit("failed"))
            .when(col("silent_at") >= col("deadline"))
            .then(pl.lit("crashed"))
            .otherwise(pl.lit("unknown")),
            ended_at=pl.when(is_undone)
            .then("undone_at")
            .when(col("how") == "deleted")
            .then("deleted_at")
            .when(col("how") == "released")
            .then("set_at")
            .when(col("how") == "removed")
            .then("gone_at")
            .when(col("how") != "open")
            .then("deadline"),
            overrun=~is_undone
            & (
                (pl.coalesce("deleted_at", "refused_at") > col("deadline")).fill_null(no)
                | (col("last_extended_at") > col("next_received_at")).fill_null(no)
            ),
        )
        .with_columns(
            censored=is_undone | done_at.is_null(),
            until=pl.when(col("how") == "open").then("newest").otherwise("ended_at"),
        )
        .with_columns(
            held_ms=_ms_between(col("received_at"), col("until")),
            processing_ms=pl.when(~is_undone).then(
                _ms_between(
                    col("received_at"), pl.coalesce(done_at, pl.max_horizontal("until", "refused_at"))
                )
            ),
            duplicate=col("overrun") & col("next_received_at").is_not_null() & ~let_go,
            recovery_ms=pl.when(
                (col("how") == "superseded") & ~col("overrun") & (col("outcome") != "failed")
            ).then(
                _ms_between(pl.max_horizontal("received_at", "last_extended_at"), col("next_received_at"))
            ),
        )
        .collect(engine="streaming")
    )


def _messages(facts: pl.DataFrame, leases: pl.DataFrame) -> pl.DataFrame:
    col = pl.col
    wasted = ~col("how").is_in(["deleted", "open"])
    names = (*_PLACE, "message_id", "message_type", "body_bytes")
    of_leases = (
        leases.lazy()
        .group_by("seq")
        .agg(
            *(col(name).sort_by("delivery").first().alias(f"lease_{name}") for name in _PLACE),
            *(col(name).first().alias(f"lease_{name}") for name in names[3:]),
            first_received_at=col("received_at").filter(col("undone_at").is_null()).min(),
            leases=pl.len().cast(pl.Int32),
            extensions=col("extensions").sum(),
            duplicates=col("duplicate").sum().cast(pl.Int32),
            failures=(col("outcome") == "failed").sum().cast(pl.Int32),
            wasted_ms=col("held_ms").filter(wasted).sum(),
            deleted_at=col("deleted_at").max(),
            dead_lettered_at=col("dead_lettered_at").max(),
            dead_letter_queue=col("dead_letter_queue")
            .filter(col("dead_letter_queue").is_not_null())
            .sort_by(col("delivery").filter(col("dead_letter_queue").is_not_null()))
            .last(),
        )
    )
    return (
        facts.lazy()
        .join(of_leases, on="seq", how="full", coalesce=True)
        .with_columns(
            _hour(),
            *(pl.coalesce(name, f"lease_{name}").alias(name) for name in names),
            *(
                col(name).fill_null(0)
                for name in ("leases", "extensions", "duplicates", "failures", "wasted_ms")
            ),
            wait_ms=_ms_between(col("available_at"), col("first_received_at")),
            outcome=pl.when(col("deleted_at").is_not_null())
            .then(pl.lit("deleted"))
            .when(col("redriven_at").is_not_null())
            .then(pl.lit("redriven"))
            .when(col("purged_at").is_not_null())
            .then(pl.lit("purged"))
            .when(col("expired_at").is_not_null())
            .then(pl.lit("expired"))
            .when(col("dead_lettered_at").is_not_null())
            .then(pl.lit("dead_lettered"))
            .otherwise(pl.lit("open")),
            ended_at=pl.coalesce("deleted_at", "redriven_at", "purged_at", "expired_at"),
        )
        .with_columns(end_to_end_ms=_ms_between(col("sent_at"), col("ended_at")))
        .collect(engine="streaming")
    )


def _histogram(rows: pl.DataFrame, length: str, name: str) -> pl.DataFrame:
    octaves = pl.col(length).cast(pl.Float64).clip(lower_bound=1.0).log(2)
    bucket = (octaves * PER_OCTAVE).floor().clip(upper_bound=BUCKET_MAX).cast(pl.Int32)
    return (
        rows.lazy()
        .filter(pl.col(length).is_not_null())
        .group_by(*_KEYS, bucket=bucket)
        .agg(count=pl.len().cast(pl.Int64))
        .sort("bucket")
        .group_by(_KEYS, maintain_order=True)
        .agg(pl.struct("bucket", "count").alias(name))
        .collect()
    )


def _queue_sums(leases: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    col = pl.col
    leases = leases.with_columns(col("message_type").fill_null(""))
    messages = messages.with_columns(col("message_type").fill_null(""))
    held_ms = col("held_ms")
    window_ms = _ms_between(col("received_at"), col("first_deadline"))
    hours = leases.group_by(_KEYS).agg(
        leases=pl.len(),
        **{name: (col("outcome") == name).sum() for name in ATTEMPT if name not in HOW},
        **{how: (col("how") == how).sum() for how in HOW},
        overrun=col("overrun").sum(),
        duplicates=col("duplicate").sum(),
        extensions=col("extensions").sum(),
        held_ms=held_ms.sum(),
        wasted_ms=held_ms.filter(~col("how").is_in(["deleted", "open"])).sum(),
        failed_ms=pl.when("censored")
        .then("held_ms")
        .otherwise("processing_ms")
        .filter(col("outcome") == "failed")
        .sum(),
        window_ms=window_ms.sort_by("received_at", nulls_last=False).last(),
        window_at=col("received_at").max(),
    )
    of_messages = messages.group_by(_KEYS).agg(
        sent=col("sent_at").is_not_null().sum(),
        **{f"messages_{each.removesuffix('_lettered')}": (col("outcome") == each).sum() for each in OUTCOME},
    )
    numbers = [
        name
        for name in (*hours.columns, *of_messages.columns)
        if name not in (*_KEYS, "window_ms", "window_at")
    ]
    hours = hours.join(of_messages, on=_KEYS, how="full", coalesce=True)
    hours = hours.with_columns(col(name).fill_null(0).cast(pl.Int64) for name in numbers)
    lapsed = col("how").is_in(["expired", "superseded", "dead_lettered"])
    let_go, dead = col("outcome").is_in(["failed", "given_back"]), col("outcome").is_in(["failed", "crashed"])
    for rows, length, name in (
        (leases.filter(~col("censored") & ~let_go), "processing_ms", "processing"),
        (leases.filter(~col("censored") & let_go), "processing_ms", "processing_failed"),
        (leases.filter(col("censored") & lapsed & ~dead), "processing_ms", "processing_lapsed"),
        (leases.filter(col("censored") & ~lapsed), "processing_ms", "processing_censored"),
        (messages, "wait_ms", "waiting"),
        (leases.filter(col("outcome") == "crashed"), "recovery_ms", "recovery"),
        (leases.filter(col("outcome") == "unknown"), "recovery_ms", "recovery_unknown"),
    ):
        hours = hours.join(_histogram(rows, length, name), on=_KEYS, how="left")
        hours = hours.with_columns(col(name).fill_null([]))
    return hours
