"""A PostgreSQL as the source of a copy, and as its target."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from veil.core.clock import Clock
from veil.core.errors import StoreError
from veil.core.lease import State
from veil.stores.copying.copy import (
    ATTEMPT,
    REPEATABLE_SEND,
    TABLES,
    CopiedRow,
    CopyMark,
    Source,
    StoreFacts,
    Table,
    decode_mark,
    encode_mark,
)
from veil.stores.postgres.connection import parse_dsn
from veil.stores.postgres.opening import (
    COPYING,
    NOW_MS,
    Connection,
    StoreIdentity,
    identity_in,
    migrate,
    need_store,
    offline,
    refuse_use,
)
from veil.stores.postgres.pipeline import Q

_PACKED: Final = {ATTEMPT.name, REPEATABLE_SEND.name}  # whose last column is a list, kept as msgpack


class PostgresSource(Source):
    """The schema `veil` of a database that no node uses."""

    schema = "veil."
    placeholder = "%s"

    def __init__(self, connection: Connection, identity: StoreIdentity, clock: Clock | None) -> None:
        self._connection, self._identity, self._clock = connection, identity, clock

    def facts(self) -> StoreFacts:
        return StoreFacts(
            store_id=self._identity.store_id.decode(),
            receipt_key=self._identity.receipt_key,
            now_ms=_now_ms(self._connection, self._clock),
            last_seq=self.one(
                "SELECT greatest(max(last_seq), (SELECT max(seq) FROM veil.message), 0) FROM veil.queue_count"
            ),
            last_queue_id=self._last("queue", "id"),
            last_move=self._last("move_task", "number"),
            rows=sum(self.one(f"SELECT count(*) FROM veil.{table.name}") for table in TABLES),  # noqa: S608
            waiting_events=self.one("SELECT count(*) FROM veil.outbox"),
        )

    def _last(self, table: str, column: str) -> int:
        sequence = f"pg_get_serial_sequence('veil.{table}', '{column}')"
        return self.one(f"SELECT coalesce(pg_sequence_last_value({sequence}), 0)")

    def rows(self, query: str, arguments: Sequence[Any] = ()) -> list[CopiedRow]:
        return self._connection.execute(query.encode(), arguments).fetchall()

    def stored_as(self, table: Table) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        # Of a queue that was swept nothing is left but its row.
        return *super().stored_as(table)[:2], "NOT swept" if table.name == "queue" else "true"

    def unpacked(self, table: Table, rows: list[CopiedRow]) -> list[CopiedRow]:
        if table.name not in _PACKED:
            return rows
        return [(*row[:-1], msgspec.msgpack.decode(row[-1])) for row in rows]


class PostgresTarget:
    """A database whose schema `veil` comes to be; nodes refuse to open it until all of it is there."""

    def __init__(self, connection: Connection, dsn: str, clock: Clock | None) -> None:
        self._connection, self._dsn, self._clock = connection, dsn, clock

    def mark(self) -> CopyMark | None:
        row = self._connection.execute("SELECT to_regclass('veil.meta')").fetchone()
        if row is None or row[0] is None:
            return None
        found = self._connection.execute(Q.read_meta, {"name": COPYING}).fetchone()
        if found is not None:
            return decode_mark(bytes(found[0]))
        queues = self._connection.execute("SELECT count(*) FROM veil.queue").fetchone()
        if queues is not None and queues[0]:
            raise StoreError(f"the database holds {queues[0]:,} queues already: copy into one that has none")
        return None

    def begin(self, mark: CopyMark) -> None:
        asyncio.run(migrate(self._dsn))
        with self._connection.transaction():
            self._connection.execute(Q.write_meta, {"name": COPYING, "value": encode_mark(mark)})

    def now_ms(self, source: StoreFacts) -> int:
        return _now_ms(self._connection, self._clock)

    def write(self, table: Table, rows: list[CopiedRow], mark: CopyMark) -> None:
        if table.name in _PACKED:
            rows = [(*row[:-1], msgspec.msgpack.encode(row[-1])) for row in rows]
        elif table.name == "lane":
            open_at = table.index_of("is_open")
            rows = [(*row[:open_at], bool(row[open_at]), *row[open_at + 1 :]) for row in rows]
        columns = table.columns
        if table.name == "queue":
            columns = (*columns, "version")
            rows = [(*row, 1) for row in rows]
        with self._connection.transaction():
            copy = f"COPY veil.{table.name} ({', '.join(columns)}) FROM STDIN"
            with self._connection.cursor() as cursor, cursor.copy(copy.encode()) as lines:
                for row in rows:
                    lines.write_row(row)
            self._connection.execute(Q.write_meta, {"name": COPYING, "value": encode_mark(mark)})

    def finish(self, facts: StoreFacts) -> None:
        states = {state.name.lower(): state for state in State}
        with self._connection.transaction():
            run = self._connection.execute
            run(
                """INSERT INTO veil.queue_count (queue_id, slot, visible, in_flight, delayed, last_seq, returns)
                   SELECT q.id, 0, count(m.seq) FILTER (WHERE m.state = %(visible)s),
                          count(m.seq) FILTER (WHERE m.state = %(in_flight)s),
                          count(m.seq) FILTER (WHERE m.state = %(delayed)s), %(last_seq)s, 0
                   FROM veil.queue q LEFT JOIN veil.message m ON m.queue_id = q.id GROUP BY q.id""",
                {**states, "last_seq": facts.last_seq},
            )
            run("UPDATE veil.queue SET has_lanes = true WHERE id IN (SELECT queue_id FROM veil.lane)")
            # Turns come of another source here: their order is what counts.
            run(
                """UPDATE veil.lane SET turn = t.place FROM (
                       SELECT queue_id, group_name, row_number() OVER (ORDER BY turn) AS place FROM veil.lane) t
                   WHERE lane.queue_id = t.queue_id AND lane.group_name = t.group_name"""
            )
            run(
                "SELECT setval('veil.counter', greatest(nextval('veil.counter'), (SELECT count(*) FROM veil.lane)))"
            )
            for table, column, last in (
                ("queue", "id", facts.last_queue_id),
                ("move_task", "number", facts.last_move),
            ):
                if last:
                    run(
                        f"SELECT setval(pg_get_serial_sequence('veil.{table}', '{column}'), %s)".encode(),
                        (last,),
                    )
            run("UPDATE veil.epoch SET epoch = epoch + 1")
            run(Q.write_meta, {"name": "store_id", "value": facts.store_id.encode()})
            run(Q.write_meta, {"name": "receipt_key", "value": facts.receipt_key})
            run("DELETE FROM veil.meta WHERE name = %s", (COPYING,))
        # What was just filled has no statistics yet, and the first plans would be made without.
        for filled in TABLES:
            self._connection.execute(f"ANALYZE veil.{filled.name}".encode())


def _now_ms(connection: Connection, clock: Clock | None) -> int:
    if clock is not None:
        return clock.now_ms()
    row = connection.execute(NOW_MS).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def postgres_source(dsn: str, clock: Clock | None = None) -> Iterator[PostgresSource]:
    """The store in the database, which no node may use meanwhile; raises StoreError."""
    with offline(dsn) as connection:
        known = need_store(connection)
        if "home" in known:
            raise StoreError(
                "the database is one of several servers: the queues of the others would be left behind"
            )
        yield PostgresSource(connection, identity_in(known), clock)
        refuse_use(connection)  # one that was started meanwhile has changed what was copied


@contextmanager
def postgres_target(dsn: str, clock: Clock | None = None) -> Iterator[PostgresTarget]:
    """The database as a target; raises StoreError."""
    with offline(dsn) as connection:
        yield PostgresTarget(connection, parse_dsn(dsn).text, clock)
