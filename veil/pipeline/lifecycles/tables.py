"""The tables that the pipeline keeps, written out: `leases`, `messages`, `queue_hours` (and `queue_days` and `queue_months`,
the same by day and by month).

Instants are UTC timestamps, lengths are whole milliseconds with the unit in the name. A message is known by `seq`; its
rows stand in the partition of the hour in which it was sent (`hour`), which is a function of `seq`, so every event of a
message, however late it comes, belongs to one partition.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from functools import cache
from typing import Any, Final

HOUR_MS: Final = 3_600_000

# How a lease ended. `released`: its holder made the message visible, at once or after a wait. `expired`: the deadline passed,
# and nobody has received the message since. `superseded`: the deadline passed and a later receive has it. `dead_lettered`: the
# deadline passed and the message went to the dead letters. `removed`: retention, a purge or somebody else's delete took the
# message away during the lease.
HOW: Final = ("deleted", "released", "expired", "superseded", "dead_lettered", "undone", "removed", "open")

# What came of the attempt: `veil.core.attempt` says what each means, and by which rule it is judged.
ATTEMPT: Final = (
    "completed", "failed", "given_back", "overran", "crashed", "unknown", "undone", "removed", "open",
)  # fmt: skip

# The deadline passed before the message was deleted or released.
LAPSED: Final = ("expired", "superseded", "dead_lettered")

# What became of a message, and the column of the sums that counts it. `dead_lettered`: it rests in the dead letters now.
OUTCOME: Final = {
    "deleted": "messages_deleted",
    "expired": "messages_expired",
    "purged": "messages_purged",
    "redriven": "messages_redriven",
    "dead_lettered": "messages_dead",
    "open": "messages_open",
}

# What both tables say of the message.
_MESSAGE: Final = """
    hour              timestamp  not null,
    region            string     not null,
    account           string     not null,
    queue             string     not null,
    seq               bigint     not null,
    message_id        string,
    message_type      string,
    body_bytes        int,"""
LEASES: Final = f"""{_MESSAGE}
    delivery         int        not null,
    receive_count    int,
    received_at      timestamp,
    first_deadline   timestamp,
    deadline         timestamp,
    extensions       int        not null,
    last_extended_at timestamp,
    ended_at         timestamp,
    how              string     not null,
    outcome          string     not null,
    rule             int        not null,
    error_type       string,
    error_text       string,
    traceback        string,
    held_ms          bigint,
    processing_ms    bigint,
    censored         boolean    not null,
    overrun          boolean    not null,
    recovery_ms      bigint,
    caller_key       string,
    caller_address   string,
    user_agent       string
"""
# held_ms        from the receive to the end of the lease (to the last known instant while it is open).
# outcome        of the attempt; error_type, error_text and traceback as the holder said them with it.
# rule           that the outcome was judged by: 1 for journals that did not tell returns and signs of life yet.
# processing_ms  what is known of the time that the work took: up to the delete, also one that came too late to count, or to
#                where its holder failed or gave it back; where its end is not known (censored), up to the deadline or the
#                last known instant. Without the wait for a free slot, where the holder told how long it worked.
# overrun        the holder showed life after its deadline: a late delete or extension. Its work was, or will be, done twice.
# recovery_ms    for a lease that lapsed without overrun or failure and was received again: from the holder's last sign of life
#                (receive or extension) to that receive.

MESSAGES: Final = f"""{_MESSAGE}
    sent_at           timestamp,
    available_at      timestamp,
    first_received_at timestamp,
    wait_ms           bigint,
    leases            int        not null,
    extensions        int        not null,
    duplicates        int        not null,
    failures          int        not null,
    wasted_ms         bigint     not null,
    outcome           string     not null,
    ended_at          timestamp,
    end_to_end_ms     bigint,
    dead_lettered_at  timestamp,
    dead_letter_queue string,
    redriven_to       string
"""
# duplicates     leases that were overrun and whose message somebody else received; failures: attempts that failed.
# wasted_ms      time held by leases that did not end in the delete.

# Beside these the files of both tables have what a later run needs to tell the row as events again (`lives.rows_as_events`).
LEASES_STORED: Final = f"""{LEASES.rstrip()},
    duplicate         boolean    not null,
    home_rank         int        not null,
    set_at            timestamp,
    set_position      bigint,
    returned          boolean    not null,
    said              string,
    said_at           timestamp,
    undone_at         timestamp,
    deleted_at        timestamp,
    delete_refused_at timestamp,
    refused_at        timestamp,
    seen_at           timestamp,
    silent_at         timestamp,
    dead_lettered_at  timestamp,
    dead_letter_queue string,
    worked_ms         int
"""
MESSAGES_STORED: Final = f"""{MESSAGES.rstrip()},
    own               boolean    not null,
    set_at            timestamp,
    set_position      bigint,
    redriven_at       timestamp,
    purged_at         timestamp,
    expired_at        timestamp
"""

# The sums: every number adds up, and every histogram by its buckets.
COUNTS: Final = (
    "sent", "leases", *dict.fromkeys((*HOW, *ATTEMPT)), "overrun", "duplicates", "extensions", *OUTCOME.values(),
    "held_ms", "wasted_ms", "failed_ms",
)  # fmt: skip
HISTOGRAMS: Final = (
    "processing", "processing_failed", "processing_lapsed", "processing_censored", "waiting", "recovery", "recovery_unknown",
)  # fmt: skip
_SUMS: Final = (
    *(f"{name} bigint not null" for name in COUNTS),
    "window_ms bigint",
    "window_at timestamp",
    *(f"{name} array<struct<bucket: int, count: bigint>> not null" for name in HISTOGRAMS),
)
QUEUE_HOURS: Final = """
    hour         timestamp not null,
    region       string    not null,
    account      string    not null,
    queue        string    not null,
    message_type string    not null,
    """ + ",\n    ".join(_SUMS)
# hour           in which the messages were sent: all that happens to them later counts there.
# message_type   '' where a message has none.
# window_ms      the visibility that the latest lease began with, received at window_at.
# failed_ms      time that failed attempts worked, or held their message where the end of the work is not known.
# processing     of the attempts that are known to have completed, also too late; processing_failed of those that failed or were
#                given back, to when they did; processing_lapsed of those that lapsed and of which nothing tells whether their
#                holder was at work; processing_censored of the others: removed, open.
#                Crashed attempts, and failed ones that were left to lapse, are in none of them: when they ended nobody knows.
# recovery       after attempts that crashed; recovery_unknown after those of which nothing tells whether they did.
# The tables queue_days and queue_months have the same columns, with the day or month in `hour`.


@cache
def arrow_schema(ddl: str, *names: str) -> Any:
    """The columns of a table as Arrow has them, or only those of these names."""
    import pyarrow as pa

    pair = pa.struct({"bucket": pa.int32(), "count": pa.int64()})
    types = {
        "timestamp": pa.timestamp("us", tz="UTC"), "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(),
        "boolean": pa.bool_(), "array<struct<bucket:": pa.list_(pa.field("element", pair)),
    }  # fmt: skip
    lines = [line.split() for line in ddl.strip().splitlines()]
    return pa.schema(
        {name: types[kind.rstrip(",")] for name, kind, *_ in lines if not names or name in names}
    )


# ---- the two scales of the sums: buckets of length, and levels of time
#
# Every histogram has sixteen buckets an octave of milliseconds, so a bucket is 4.4 % wide. Counts on one fixed scale add up,
# over hours, queues and years; that is what makes a year of history cost no more than its buckets. Bucket b holds the lengths
# from 2^(b/16) up to, but not including, 2^((b+1)/16) milliseconds; what is shorter than a millisecond counts as one.
#
# The levels at which the same sums are kept are the hours, days and months in which messages were sent. A part is the number
# of its hour, day or month since 1970.

PER_OCTAVE: Final = 16
BUCKET_MAX: Final = 511  # 2^32 ms, 49 days: longer than anything a queue keeps


def bucket_of(length_ms: float) -> int:
    return min(BUCKET_MAX, math.floor(math.log2(max(length_ms, 1.0)) * PER_OCTAVE))


def lower_ms(bucket: int) -> float:
    return upper_ms(bucket - 1) if bucket else 0.0


def upper_ms(bucket: int) -> float:
    return math.pow(2.0, (bucket + 1) / PER_OCTAVE)


HOURS: Final = "queue_hours"
DAYS: Final = "queue_days"
MONTHS: Final = "queue_months"
HOURS_A_DAY: Final = 24
DAY_MS: Final = HOUR_MS * HOURS_A_DAY
_EPOCH: Final = date(1970, 1, 1).toordinal()


def day_of(hour: int) -> int:
    return hour // HOURS_A_DAY


def month_of(day: int) -> int:
    known = date.fromordinal(_EPOCH + day)
    return (known.year - 1970) * 12 + known.month - 1


def day_number(day: date) -> int:
    """The part of a date."""
    return day.toordinal() - _EPOCH


def instant_of(day: int) -> datetime:
    """When a day begins."""
    return datetime.fromtimestamp(day * DAY_MS / 1000, UTC)
