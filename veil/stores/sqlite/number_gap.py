"""Keep numbers from being given out twice after data went back in time.

After a restore the data knows nothing of the deliveries made since the backup. Counting on from where the backup stood
would write receipts that are out in the world already, and a consumer of before could touch the lease of one of after.
So delivery numbers jump ahead. Leases that were open go on, since their holder is noted apart; and a receipt from the
lost time lies below the jump, so where nobody else holds the message it still deletes what its consumer has handled.
"""

from __future__ import annotations

import apsw

NUMBER_GAP = 1_000


def leave_gap(connection: apsw.Connection) -> None:
    """Let delivery numbers and queue ids jump ahead of any that may have been given out since the data was this old."""
    connection.execute("UPDATE message SET delivery = delivery + ?", (NUMBER_GAP,))
    connection.execute("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = 'queue'", (NUMBER_GAP,))
    # A repeated receive would answer with numbers from before the jump. Holds need nothing: they go by the holder while a
    # lease is open, and what has lapsed may have been received in the lost time, so that it counts as lost.
    connection.execute("DELETE FROM attempt")
