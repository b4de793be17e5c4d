"""Spread the tables over a distributed PostgreSQL: those whose keys begin with the queue, each queue's rows on one node.

The small tables (queues, names, nodes, tasks, the outbox) stay where the nodes of Veil connect to.
"""

from __future__ import annotations

from typing import Final

import psycopg

from veil.core.errors import StoreError

_FIRST: Final = "message"  # the others follow it, so that what an operation touches stands together
_BY_QUEUE: Final = """
SELECT c.relname FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
WHERE c.relnamespace = to_regnamespace('veil') AND a.attname = 'queue_id'
ORDER BY c.relname <> %s, c.relname
"""
_DISTRIBUTED: Final = """
SELECT c.relname FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid
WHERE c.relnamespace = to_regnamespace('veil')
"""


async def calls_to_distribute(connection: psycopg.AsyncConnection) -> list[str]:
    """The statements that distribute what is not yet distributed; raises StoreError where the extension is missing."""
    cursor = await connection.execute(
        "SELECT to_regproc('create_distributed_table'), to_regclass('pg_dist_partition')"
    )
    function, partitions = await cursor.fetchone() or (None, None)
    if function is None:
        raise StoreError(
            "the extension citus is not in this database: CREATE EXTENSION citus, then run this again"
        )
    done = set()
    if partitions is not None:
        cursor = await connection.execute(_DISTRIBUTED)
        done = {str(name) for (name,) in await cursor.fetchall()}
    tables = [name for (name,) in await (await connection.execute(_BY_QUEUE, (_FIRST,))).fetchall()]
    calls = []
    for name in tables:
        if name not in done:
            with_whom = "" if name == _FIRST else f", colocate_with => 'veil.{_FIRST}'"
            calls.append(f"SELECT create_distributed_table('veil.{name}', 'queue_id'{with_whom})")
    return calls
