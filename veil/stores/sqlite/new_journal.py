"""Begin a new journal where older data takes up again.

The numbers of outbox rows say which events were exported. Data that went back in time would give them out a second time
for other events; under a new journal id they tell another story, and nobody mixes the two up.
"""

from __future__ import annotations

import apsw

from veil.stores.sqlite.opening import new_journal_id
from veil.stores.sqlite.tables import Q


def begin_journal(connection: apsw.Connection) -> None:
    """An empty outbox under a new journal id, numbered from 1."""
    connection.execute("DELETE FROM outbox")
    connection.execute("UPDATE export SET done = 0, last = NULL, day = NULL")
    connection.execute("UPDATE clock_mark SET outbox_last = 0, outbox_bytes = 0")
    connection.execute(Q.write_meta, ("journal_id", new_journal_id()))
