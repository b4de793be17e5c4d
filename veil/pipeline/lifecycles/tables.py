"""The tables that the pipeline keeps, written out: `leases`, `messages`, `queue_hours` (and `queue_days` and `queue_months`,
the same by day and by month).

Instants are UTC timestamps, lengths are whole milliseconds with the unit in the name. A message is known by `seq`; its
rows stand in the partition of the hour in which it was sent (`hour`), which is a function of `seq`, so every event of a
message, however late it comes, belongs to one partition.
"""

from __future__ import annotations

from typing import Final

# How a lease ended. `expired`: the deadline passed, and nobody has received the message since. `superseded`: the deadline
# passed and a later receive has it. `dead_lettered`: the deadline passed and the message went to the dead letters.
# `removed`: retention, a purge or somebody else's delete took the message away during the lease.
HOW: Final = ("deleted", "released", "expired", "superseded", "dead_lettered", "undone", "removed", "open")

# What became of a message. `dead_lettered`: it rests in the dead letters now.
OUTCOME: Final = ("deleted", "expired", "purged", "redriven", "dead_lettered", "open")

LEASES: Final = """
    hour             timestamp  not null,
    region           string     not null,
    account          string     not null,
    queue            string     not null,
    seq              bigint     not null,
    message_id       string,
    message_type     string,
    body_bytes       int,
    delivery         int        not null,
    receive_count    int,
    received_at      timestamp,
    first_deadline   timestamp,
    deadline         timestamp,
    extensions       int        not null,
    last_extended_at timestamp,
    ended_at         timestamp,
    how              string     not null,
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
# processing_ms  what is known of the time that the work took: up to the delete, also one that came too late to count;
#                where there was none (censored), up to the deadline, the release, or the last known instant.
# overrun        the holder showed life after its deadline: a late delete or extension. Its work was, or will be, done twice.
# recovery_ms    for a lease that lapsed without overrun and was received again: from the holder's last sign of life
#                (receive or extension) to that receive.

MESSAGES: Final = """
    hour              timestamp  not null,
    region            string     not null,
    account           string     not null,
    queue             string     not null,
    seq               bigint     not null,
    message_id        string,
    message_type      string,
    body_bytes        int,
    sent_at           timestamp,
    available_at      timestamp,
    first_received_at timestamp,
    wait_ms           bigint,
    leases            int        not null,
    extensions        int        not null,
    duplicates        int        not null,
    wasted_ms         bigint     not null,
    outcome           string     not null,
    ended_at          timestamp,
    end_to_end_ms     bigint,
    dead_lettered_at  timestamp,
    dead_letter_queue string,
    redriven_to       string
"""
# duplicates     leases that were overrun and whose message somebody else received.
# wasted_ms      time held by leases that did not end in the delete.

_HISTOGRAM = "array<struct<bucket: int, count: bigint>>"
QUEUE_HOURS: Final = f"""
    hour                timestamp  not null,
    region              string     not null,
    account             string     not null,
    queue               string     not null,
    message_type        string     not null,
    sent                bigint     not null,
    leases              bigint     not null,
    deleted             bigint     not null,
    released            bigint     not null,
    expired             bigint     not null,
    superseded          bigint     not null,
    dead_lettered       bigint     not null,
    undone              bigint     not null,
    removed             bigint     not null,
    open                bigint     not null,
    overrun             bigint     not null,
    duplicates          bigint     not null,
    extensions          bigint     not null,
    messages_deleted    bigint     not null,
    messages_expired    bigint     not null,
    messages_purged     bigint     not null,
    messages_redriven   bigint     not null,
    messages_dead       bigint     not null,
    messages_open       bigint     not null,
    held_ms             bigint     not null,
    wasted_ms           bigint     not null,
    window_ms           bigint,
    window_at           timestamp,
    processing          {_HISTOGRAM} not null,
    processing_lapsed   {_HISTOGRAM} not null,
    processing_censored {_HISTOGRAM} not null,
    waiting             {_HISTOGRAM} not null,
    recovery            {_HISTOGRAM} not null
"""
# hour           in which the messages were sent: all that happens to them later counts there.
# message_type   '' where a message has none.
# window_ms      the visibility that the latest lease began with, received at window_at.
# processing     of the leases whose work is known to have ended; processing_lapsed of those that lapsed before that;
#                processing_censored of the others: released, removed, open.
# Every number but window_ms adds up; queue_days and queue_months have the same columns with the day or month in `hour`.
