"""What must be done once after a database was restored to an earlier time.

The data then knows nothing of the deliveries made since. Counting on from where it stands would write receipts that are out
in the world already, and a consumer of before could touch the lease of one of after; so numbers jump ahead, as they do when a
backup of a data directory is restored (stores/sqlite/number_gap.py). And the journal begins anew, under another id.
"""

from __future__ import annotations

import secrets
from typing import Final

from veil.stores.postgres.at_rest import at_rest, need_store
from veil.stores.postgres.sql import Q

NUMBER_GAP: Final = 1_000


def mark_restored(dsn: str) -> None:
    """Let numbers jump ahead and begin a new journal, in one transaction; raises StoreError."""
    with at_rest(dsn) as connection:
        need_store(connection)
        with connection.transaction():
            run = connection.execute
            # Leases that were open go on: their holder is noted apart.
            run("UPDATE veil.message SET delivery = delivery + %s", (NUMBER_GAP,))
            # A repeated receive would answer with numbers from before the jump.
            run("DELETE FROM veil.attempt")
            run(
                "SELECT setval(pg_get_serial_sequence('veil.queue', 'id'),"
                " coalesce(pg_sequence_last_value(pg_get_serial_sequence('veil.queue', 'id')), 0) + %s)",
                (NUMBER_GAP,),
            )
            run("DELETE FROM veil.outbox")
            run("DELETE FROM veil.outbox_count")
            run("UPDATE veil.export SET done = 0, last = NULL, day = NULL")
            run(Q.write_meta, {"name": "journal_id", "value": secrets.token_hex(8).encode()})
