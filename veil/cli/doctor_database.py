"""What `veil doctor` says of a PostgreSQL: whether it can be reached, whether it keeps promises, what slows it down."""

from __future__ import annotations

from typing import Final

from veil.cli.failures import CommandFailed
from veil.cli.finding import Finding
from veil.cli.postgres_driver import need_driver
from veil.server.shown_url import without_password

_CONNECT_TIMEOUT_S: Final = 3
_OLD_TRANSACTION_S: Final = 300
_LOOK: Final = """
SELECT current_setting('server_version'), current_setting('server_version_num')::int, current_setting('fsync'),
       current_setting('synchronous_commit'), pg_is_in_recovery(),
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
       current_setting('synchronous_standby_names'),
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::int FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid())
"""


def check_database(dsn: str) -> list[Finding]:
    """Could a node work on this database, and does anything about it want attention?"""
    try:
        need_driver(dsn)
    except CommandFailed as problem:
        return [Finding("database", "fail", str(problem))]
    import psycopg

    from veil.stores.postgres.dsn import parse_dsn

    try:
        text = parse_dsn(dsn).text
        with psycopg.connect(text, connect_timeout=_CONNECT_TIMEOUT_S, prepare_threshold=None) as connection:
            row = connection.execute(_LOOK).fetchone()
    except psycopg.Error as error:
        reason = (str(error).strip().splitlines() or ["no answer"])[0]
        return [
            Finding(
                "database", "fail", f"{without_password(dsn)}: {reason}", "check VEIL_STORE and the server"
            )
        ]
    assert row is not None
    return _findings(dsn, *row)


def _findings(
    dsn: str,
    version: str,
    version_number: int,
    fsync: str,
    synchronous_commit: str,
    is_standby: bool,
    standbys: int,
    standby_names: str,
    oldest_s: int,
) -> list[Finding]:
    from veil.stores.postgres.opening import VERSION_MIN

    where = f"PostgreSQL {version.split()[0]} at {without_password(dsn)}"
    found = [Finding("database", "ok", where)]
    if version_number < VERSION_MIN * 10_000:
        found = [Finding("database", "fail", where, f"use PostgreSQL {VERSION_MIN} or newer")]
    elif is_standby:
        found = [Finding("database", "fail", f"{where} is a standby", "add target_session_attrs=read-write")]
    if fsync != "on":
        found.append(Finding("durability", "fail", "fsync=off", "set fsync=on: a crash would lose messages"))
    elif synchronous_commit in ("off", "local") and (synchronous_commit == "off" or standby_names):
        advice = "set synchronous_commit=on: the last moments before a crash or a failover are lost"
        found.append(Finding("durability", "warn", f"synchronous_commit={synchronous_commit}", advice))
    elif not standby_names:
        advice = "a failover would lose what a standby lacks; see docs/postgresql.md"
        found.append(Finding("durability", "ok", f"one machine, no synchronous standby: {advice}"))
    elif not standbys:
        found.append(
            Finding("durability", "warn", "no synchronous standby is connected", "commits wait until one is")
        )
    else:
        found.append(Finding("durability", "ok", f"{standbys} synchronous standby(s) connected"))
    if oldest_s >= _OLD_TRANSACTION_S:
        advice = "end it: vacuum can remove nothing that died since, and receives get slower"
        found.append(Finding("transactions", "warn", f"one has been open for {oldest_s} s", advice))
    return found
