"""The PostgreSQL that the benchmarks run on: one of their own on disk, or one that is named; and what it costs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.postgres_server import PostgresServer, why_no_server

_TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def a_database(dsn: str | None, *, in_memory: bool = False) -> Iterator[str]:
    """The DSN of a database to measure in: empty and on a server of its own, on disk, unless one is named."""
    if dsn is not None:
        yield dsn
        return
    reason = why_no_server()
    if reason is not None:
        raise SystemExit(f"{reason}; name a database with --dsn")
    settings = {"shared_buffers": "256MB", "max_connections": "200"}
    with PostgresServer(in_memory=in_memory, settings=settings) as server:
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE bench")
        yield server.dsn("bench")


def server_pid(dsn: str) -> int | None:
    """The process of the server if it runs on this machine, found by one of its children."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        child = row[0] if row is not None else 0
        try:
            return _parent(child) if "postgres" in Path(f"/proc/{child}/cmdline").read_text() else None
        except OSError:
            return None


def server_cpu_s(postmaster: int | None) -> float:
    """CPU seconds of the server and of its children that are alive."""
    if postmaster is None:
        return 0.0
    total = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (process / "stat").read_text().rpartition(") ")[2].split()
                if int(fields[1]) == postmaster or int(process.name) == postmaster:
                    total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def tidy(dsn: str) -> None:
    """Sweep up what the last measurement left, so that the next one does not pay for it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM")
        connection.execute("CHECKPOINT")


def sizes_mb(dsn: str, tables: tuple[str, ...]) -> tuple[float, float]:
    """How large these tables are (with what stands apart from them), and their indexes, in megabytes."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT sum(pg_table_size(name::regclass)), sum(pg_indexes_size(name::regclass)) FROM unnest(%s::text[]) AS name",
            (list(tables),),
        ).fetchone()
    table, index = row if row is not None else (0, 0)
    return float(table or 0) / 2**20, float(index or 0) / 2**20
