"""Lifecycles in DuckDB: the same tables from the same segments, as somebody who writes SQL all day would make them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb

from veil.core.attempt import AttemptOutcome
from veil.pipeline.lifecycles.tables import ATTEMPT, BUCKET_MAX, HOW, OUTCOME, PER_OCTAVE

# The rule of core.attempt in SQL, over columns named like its facts; `{now}` is the last known instant, of the columns' type.
OUTCOME_SQL: Final = f"""case
    when undone_at is not null then '{AttemptOutcome.UNDONE}'
    when said is not null then said
    when deleted_at is not null then '{AttemptOutcome.COMPLETED}'
    when is_returned then '{AttemptOutcome.GIVEN_BACK}'
    when gone_at < deadline then '{AttemptOutcome.REMOVED}'
    when deadline > {{now}} then '{AttemptOutcome.OPEN}'
    when refused_at is not null then '{AttemptOutcome.OVERRAN}'
    when seen_at >= deadline then '{AttemptOutcome.FAILED}'
    when silent_at >= deadline then '{AttemptOutcome.CRASHED}'
    else '{AttemptOutcome.UNKNOWN}' end"""

_MACROS: Final = f"""
create macro ms_between(start, stop) as
    case when start is not null and stop is not null then greatest(0, (epoch_us(stop) - epoch_us(start)) // 1000) end;
create macro bucket(ms) as least({BUCKET_MAX}, floor(log2(greatest(ms::double, 1.0)) * {PER_OCTAVE}))::int;
create macro hour_of(seq) as make_timestamptz((seq >> 20) // 3600000 * 3600000000);
"""

_EVENTS: Final = """
create view events as
select * exclude (account, region, "at"), "at" as t, region, account from read_parquet({files}, hive_partitioning = false)
"""

# The place of a row is where the first of sent or received, then dead_lettered, then anything else says.
_PLACE: Final = """
    arg_min((region, account, queue),
        case when kind in ('sent', 'received') then 0 when kind = 'dead_lettered' then 1 else 2 end) as place
"""

_MESSAGE_FACTS: Final = f"""
create temp table message_facts as
select
    seq,
    {_PLACE},
    max(message_id) as message_id,
    max(message_type) as message_type,
    max(body_bytes) as body_bytes,
    min(t) filter (kind = 'sent') as sent_at,
    min(coalesce(deadline, t)) filter (kind = 'sent') as available_at,
    min(t) filter (kind = 'redriven') as redriven_at,
    max(other_queue) filter (kind = 'redriven') as redriven_to,
    min(t) filter (kind = 'expired') as expired_at,
    min(t) filter (kind = 'purged') as purged_at
from events
where kind in ('sent', 'redriven', 'expired', 'purged')
group by seq
"""

_LEASE_FACTS: Final = f"""
create temp table lease_facts as
select
    seq,
    delivery,
    {_PLACE},
    max(message_id) as message_id,
    max(message_type) as message_type,
    max(body_bytes) as body_bytes,
    min(t) filter (kind = 'received') as received_at,
    min(deadline) filter (kind = 'received') as first_deadline,
    max(receive_count) filter (kind = 'received') as receive_count,
    max(caller_key) filter (kind = 'received') as caller_key,
    max(caller_address) filter (kind = 'received') as caller_address,
    max(user_agent) filter (kind = 'received') as user_agent,
    count(*) filter (kind = 'extended') as extensions,
    max(t) filter (kind = 'extended') as last_extended_at,
    max((t, position, case when kind = 'released' then t else deadline end, kind in ('released', 'given_back')))
        filter (kind in ('received', 'extended', 'released', 'given_back')) as setting,
    max((t, position, outcome, error_type, error_text, traceback)) filter (outcome is not null) as saying,
    max(t) filter (kind = 'holder_seen') as seen_at,
    max(t) filter (kind = 'holder_silent') as silent_at,
    greatest(max(rule), 1) as rule,
    min(t) filter (kind = 'undone') as undone_at,
    min(t) filter (kind = 'deleted') as deleted_at,
    min(t) filter (kind = 'delete_refused') as delete_refused_at,
    max(t) filter (kind in ('delete_refused', 'extension_refused')) as refused_at,
    min(t) filter (kind = 'dead_lettered') as dead_lettered_at,
    max(other_queue) filter (kind = 'dead_lettered') as dead_letter_queue
from events
where kind not in ('sent', 'redriven', 'expired', 'purged')
group by seq, delivery
"""

_LEASES: Final = """
create temp table leases as
with together as (
    select
        l.* exclude (message_id, message_type, body_bytes),
        setting[1] as set_at,
        setting[3] as deadline,
        setting[4] as is_returned,
        saying[1] as said_at,
        saying[3] as said,
        coalesce(m.message_id, max(l.message_id) over message) as message_id,
        coalesce(m.message_type, max(l.message_type) over message) as message_type,
        coalesce(m.body_bytes, max(l.body_bytes) over message) as body_bytes,
        least(min(l.deleted_at) over message, m.expired_at, m.purged_at, m.redriven_at) as gone_at,
        lead(case when l.undone_at is null then l.received_at end ignore nulls)
            over (partition by l.seq order by l.delivery) as next_received_at
    from lease_facts l left join message_facts m using (seq)
    window message as (partition by l.seq)
), judged as (
    select
        *,
        case
            when undone_at is not null then 'undone'
            when deleted_at is not null then 'deleted'
            when is_returned then 'released'
            when gone_at < deadline then 'removed'
            when dead_lettered_at is not null then 'dead_lettered'
            when next_received_at is not null then 'superseded'
            when deadline is null or deadline <= newest then 'expired'
            else 'open'
        end as how,
        case how
            when 'undone' then undone_at
            when 'deleted' then deleted_at
            when 'released' then set_at
            when 'removed' then gone_at
            when 'open' then null
            else deadline
        end as ended_at,
        case when how = 'open' then newest else ended_at end as until,
        {outcome} as outcome,
        case when outcome in ('failed', 'given_back')
            then coalesce(said_at, case when is_returned then set_at end)
            else coalesce(deleted_at, delete_refused_at) end as done_at,
        how <> 'undone' and (coalesce(coalesce(deleted_at, refused_at) > deadline, false)
            or coalesce(last_extended_at > next_received_at, false)) as overrun
    from together, (select max(t) as newest from events)
)
select
    hour_of(seq) as hour, place[1] as region, place[2] as account, place[3] as queue, seq, message_id, message_type,
    body_bytes, delivery, receive_count, received_at, first_deadline, deadline, extensions::int as extensions,
    last_extended_at, ended_at, how, outcome, rule,
    saying[4] as error_type, saying[5] as error_text, saying[6] as traceback,
    ms_between(received_at, until) as held_ms,
    case when how <> 'undone' then ms_between(received_at, coalesce(done_at, greatest(until, refused_at))) end as processing_ms,
    how = 'undone' or done_at is null as censored,
    overrun,
    case when how = 'superseded' and not overrun and outcome <> 'failed'
        then ms_between(greatest(received_at, last_extended_at), next_received_at) end as recovery_ms,
    caller_key, caller_address, user_agent,
    overrun and next_received_at is not null and outcome not in ('failed', 'given_back') as duplicate,
    case when undone_at is null then received_at end as counted_at,
    deleted_at, dead_lettered_at, dead_letter_queue, place
from judged
""".replace("{outcome}", OUTCOME_SQL.format(now="newest"))

_MESSAGES: Final = """
create temp table messages as
with of_leases as (
    select
        seq,
        arg_min(place, delivery) as place,
        any_value(message_id) as message_id,
        any_value(message_type) as message_type,
        any_value(body_bytes) as body_bytes,
        min(counted_at) as first_received_at,
        count(*)::int as leases,
        sum(extensions)::int as extensions,
        count(*) filter (duplicate)::int as duplicates,
        count(*) filter (outcome = 'failed')::int as failures,
        coalesce(sum(held_ms) filter (how not in ('deleted', 'open')), 0)::bigint as wasted_ms,
        max(deleted_at) as deleted_at,
        max(dead_lettered_at) as dead_lettered_at,
        arg_max(dead_letter_queue, delivery) as dead_letter_queue
    from leases
    group by seq
)
select
    hour_of(seq) as hour,
    coalesce(m.place, l.place)[1] as region, coalesce(m.place, l.place)[2] as account, coalesce(m.place, l.place)[3] as queue,
    seq,
    coalesce(l.message_id, m.message_id) as message_id,
    coalesce(l.message_type, m.message_type) as message_type,
    coalesce(l.body_bytes, m.body_bytes) as body_bytes,
    sent_at, available_at, first_received_at,
    ms_between(available_at, first_received_at) as wait_ms,
    coalesce(leases, 0) as leases,
    coalesce(extensions, 0) as extensions,
    coalesce(duplicates, 0) as duplicates,
    coalesce(failures, 0) as failures,
    coalesce(wasted_ms, 0) as wasted_ms,
    case
        when deleted_at is not null then 'deleted'
        when redriven_at is not null then 'redriven'
        when purged_at is not null then 'purged'
        when expired_at is not null then 'expired'
        when dead_lettered_at is not null then 'dead_lettered'
        else 'open'
    end as outcome,
    coalesce(deleted_at, redriven_at, purged_at, expired_at) as ended_at,
    ms_between(sent_at, ended_at) as end_to_end_ms,
    dead_lettered_at, dead_letter_queue, redriven_to
from message_facts m full join of_leases l using (seq)
"""

_KEYS: Final = "{begin} as hour, region, account, queue, coalesce(message_type, '') as message_type"
_SUMS: Final = {
    "queue_hours": "hour",
    "queue_days": "date_trunc('day', hour)",
    "queue_months": "date_trunc('month', hour)",
}


def _histogram(name: str, table: str, length: str, condition: str) -> str:
    return f"""
    {name}_counts as (
        select {_KEYS}, bucket({length}) as bucket, count(*) as count from {table}
        where {length} is not null and {condition} group by all
    ), {name}_lists as (
        select hour, region, account, queue, message_type,
            list({{{{'bucket': bucket, 'count': count}}}} order by bucket) as {name}
        from {name}_counts group by all
    )"""


_OUTCOMES: Final = {name: name.removesuffix("_lettered") for name in OUTCOME}
_ATTEMPTS: Final = tuple(name for name in ATTEMPT if name not in HOW)
_LEASE_NUMBERS: Final = (
    "leases", *HOW, *_ATTEMPTS, "overrun", "duplicates", "extensions", "held_ms", "wasted_ms", "failed_ms",
)  # fmt: skip
_MESSAGE_NUMBERS: Final = ("sent", *(f"messages_{name}" for name in _OUTCOMES.values()))
_HISTOGRAMS: Final = (
    "processing",
    "processing_failed",
    "processing_lapsed",
    "processing_censored",
    "waiting",
    "recovery",
    "recovery_unknown",
)
_LET_GO: Final = "outcome in ('failed', 'given_back')"
_LAPSED: Final = "how in ('expired', 'superseded', 'dead_lettered')"

_QUEUE_SUMS: Final = f"""
create temp table {{name}} as
with of_leases as (
    select
        {_KEYS},
        count(*) as leases,
        {" ".join(f"count(*) filter (how = '{how}') as {how}," for how in HOW)}
        {" ".join(f"count(*) filter (outcome = '{name}') as {name}," for name in _ATTEMPTS)}
        count(*) filter (overrun) as overrun,
        count(*) filter (duplicate) as duplicates,
        sum(extensions)::bigint as extensions,
        coalesce(sum(held_ms), 0)::bigint as held_ms,
        coalesce(sum(held_ms) filter (how not in ('deleted', 'open')), 0)::bigint as wasted_ms,
        coalesce(sum(case when censored then held_ms else processing_ms end) filter (outcome = 'failed'), 0)::bigint as failed_ms,
        arg_max(ms_between(received_at, first_deadline), received_at) as window_ms,
        max(received_at) as window_at
    from leases
    group by all
), of_messages as (
    select
        {_KEYS},
        {", ".join(f"count(*) filter (outcome = '{outcome}') as messages_{name}" for outcome, name in _OUTCOMES.items())},
        count(sent_at) as sent
    from messages
    group by all
), {_histogram("processing", "leases", "processing_ms", f"not censored and not {_LET_GO}")},
{_histogram("processing_failed", "leases", "processing_ms", f"not censored and {_LET_GO}")},
{_histogram("processing_lapsed", "leases", "processing_ms", f"censored and {_LAPSED} and outcome not in ('failed', 'crashed')")},
{_histogram("processing_censored", "leases", "processing_ms", f"censored and not {_LAPSED}")},
{_histogram("waiting", "messages", "wait_ms", "true")},
{_histogram("recovery", "leases", "recovery_ms", "outcome = 'crashed'")},
{_histogram("recovery_unknown", "leases", "recovery_ms", "outcome = 'unknown'")}
select
    hour, region, account, queue, message_type,
    {", ".join(f"coalesce({name}, 0)::bigint as {name}" for name in (*_MESSAGE_NUMBERS, *_LEASE_NUMBERS))},
    window_ms, window_at,
    {", ".join(f"coalesce({name}, []) as {name}" for name in _HISTOGRAMS)}
from of_leases
full join of_messages using (hour, region, account, queue, message_type)
{" ".join(f"left join {name}_lists using (hour, region, account, queue, message_type)" for name in _HISTOGRAMS)}
"""

_HIDDEN: Final = {
    "leases": "exclude (duplicate, counted_at, deleted_at, dead_lettered_at, dead_letter_queue, place)"
}


def make_tables(files: list[str], folder: Path, threads: int) -> None:
    """Write the tables as Parquet into the folder."""
    with duckdb.connect() as db:
        db.execute(f"set threads = {threads}; set memory_limit = '4GB'; set timezone = 'UTC'")
        db.execute(f"set temp_directory = '{folder / 'spill'}'; set preserve_insertion_order = false")
        db.execute(_MACROS)
        db.execute(_EVENTS.format(files=files))
        sums = (_QUEUE_SUMS.format(name=name, begin=begin) for name, begin in _SUMS.items())
        for step in (_MESSAGE_FACTS, _LEASE_FACTS, _LEASES, _MESSAGES, *sums):
            db.execute(step)
        for table in ("leases", "messages", *_SUMS):
            db.execute(
                f"copy (select * {_HIDDEN.get(table, '')} from {table})"
                f" to '{folder / table}.parquet' (format parquet, compression zstd)"
            )
