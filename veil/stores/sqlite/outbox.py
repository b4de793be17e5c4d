"""The outbox: what happened to messages, written with the transaction in which it did, until it is exported.

One row for a whole transaction, as with the repeated sends. Its number and the outbox's size stand in the clock's mark,
which is written with every commit, so that a number is never used again, also when the outbox was emptied.

An export goes by a plan: a range of rows that is on disk before the first of them is written elsewhere, so that an export
that was cut short is done again with the very same rows. When it is finished, one small transaction says so; the rows are
then removed a few at a time, since many of them are megabytes, and nothing else could happen meanwhile.
"""

from __future__ import annotations

from veil.stores.outbox import PlanBuilder
from veil.stores.sqlite.database import Database, Q
from veil.stores.store import ExportPlan, OutboxRow

# What one look or one removal may come to: bounds how long it holds up everything else.
ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 20
SIZES_AT_ONCE = 4_000


class SqliteOutbox:
    """The outbox of one database as an exporter sees it; `Database.before_commit` writes its rows."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._done = 0  # rows up to this one are safe elsewhere
        self._plan: tuple[int, str] | None = None  # the plan's last row, and its day
        self.journal_id = ""

    @property
    def rows(self) -> int:
        """How many wait to be exported."""
        return self._db.outbox_last - self._done

    def oldest_ms(self) -> int | None:
        """Engine time of the oldest row that waits."""
        found = self._db.execute(Q.outbox_instant, (self._done + 1,)).get
        return None if found is None else int(found)

    def load(self) -> None:
        """At the start and after a rollback: how far the export has come."""
        self._done, last, day = self._db.execute(Q.read_export).get
        self._plan = None if last is None else (last, day)
        self.journal_id = self._db.execute(Q.read_meta, ("journal_id",)).get.decode()

    def plan(self) -> ExportPlan | None:
        """The plan that is under way."""
        if self._plan is None:
            return None
        last, day = self._plan
        return ExportPlan(self.journal_id, self._done + 1, last, day)

    def extend_plan(self, taken: PlanBuilder, rows_max: int, bytes_max: int) -> bool:
        """Take a bounded number of further rows into a plan to be; True while more may fit."""
        after = max(taken.last, self._done)
        limit = min(SIZES_AT_ONCE, rows_max - taken.rows)
        rows = self._db.execute(Q.outbox_sizes, (after, limit)).fetchall()
        for number, at_ms, size in rows:
            if not taken.take(number, at_ms, size, bytes_max):
                return False
        return len(rows) == limit and taken.rows < rows_max

    def make_plan(self, taken: PlanBuilder) -> ExportPlan | None:
        """Write the plan down, unless there is one already; None where it would be empty."""
        if self._plan is None and taken.last > self._done:
            self._db.execute(Q.write_plan, (taken.last, taken.day))
            self._plan = (taken.last, taken.day)
        return self.plan()

    def read(self, plan: ExportPlan, after: int, limit: int) -> list[OutboxRow]:
        """The next rows of the plan: as many as fit into one look, and at least one if there is any."""
        found: list[OutboxRow] = []
        size = 0
        arguments = (max(after, plan.first - 1), plan.last, min(limit, ROWS_AT_ONCE))
        for number, packed in self._db.execute(Q.outbox_rows, arguments):
            found.append(OutboxRow(number, packed))
            size += len(packed)
            if size >= BYTES_AT_ONCE:
                break
        return found

    def finish(self, plan: ExportPlan) -> None:
        """Note that the plan's rows are safe elsewhere; a plan that is not the one under way is passed over."""
        if plan == self.plan():
            self._db.execute(Q.finish_plan)
            self._done, self._plan = plan.last, None

    def sweep(self) -> bool:
        """Remove some of the rows that are safe elsewhere; True while more are left."""
        sizes = self._db.execute(Q.sweep_outbox, (self._done, ROWS_AT_ONCE)).fetchall()
        self._db.outbox_bytes -= sum(size for (size,) in sizes)
        return len(sizes) == ROWS_AT_ONCE
