"""The outbox: what happened to messages, written with the transaction in which it did, until it is exported.

Transactions end in another order than they begin in. A plan of an export therefore holds only rows of transactions older than
every one that is still open, and gives them their numbers: whatever is committed later comes after them, so nothing is passed
over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from veil.stores.outbox import OutboxBound, PlanBuilder
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import Transaction
from veil.stores.store import ExportPlan, OutboxRow, OutboxSize

if TYPE_CHECKING:
    from veil.stores.postgres.engine import Engine

WRITES_A_TURN: Final = 2_000
TURNS: Final = 30_000
SLOTS_MAX: Final = 1 << 16  # of all nodes: their numbers go up to a thousand
# Rows that are read or removed in one statement: each may be a megabyte.
ROWS_AT_ONCE: Final = 256
COUNTS_MAX: Final = 200  # rows of counts, before they are folded into one
# Rows that no plan has numbered are shown, to whoever only looks, as if numbered from here: no plan ever comes so far.
UNNUMBERED: Final = 1 << 62


class SharedBound(OutboxBound):
    """The bound, with what this node last knew of the outbox's size."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.present_bytes = 0
        self.writes = 0


def write(tx: Transaction, bound: SharedBound) -> None:
    """Put what the transaction recorded into one row, with COMMIT."""
    if tx.journal is None or not tx.journal.events:
        return
    if bound.present_bytes >= bound.bytes_max:
        bound.give_up(tx.journal.count, tx.now_ms)
        return
    packed = tx.journal.pack()
    bound.present_bytes += len(packed)
    tx.defer(Q.add_to_outbox, {"at_ms": tx.now_ms, "packed": packed})
    # After a while to another row: a long transaction elsewhere keeps every former state of a row, and each change of it would
    # go through all of them.
    turn = bound.writes // WRITES_A_TURN % TURNS
    bound.writes += 1
    slot = turn * SLOTS_MAX + tx.slot
    tx.defer(Q.add_outbox_count, {"slot": slot, "rows": 1, "packed_bytes": len(packed)})


class Exports:
    """The outbox as an exporter sees it."""

    def __init__(self, engine: Engine, journal_id: str) -> None:
        self._engine, self._journal_id = engine, journal_id

    async def plan(self, rows_max: int, bytes_max: int) -> ExportPlan | None:
        """The plan that was made and not finished, else a new one."""

        async def decide(tx: Transaction) -> ExportPlan | None:
            [(done, last, day)] = await tx.rows(Q.read_export)
            if last is not None:
                return ExportPlan(self._journal_id, done + 1, last, day)
            taken, ids = PlanBuilder(), list[int]()
            for row_id, at_ms, size in await tx.rows(Q.outbox_sizes, {"limit": rows_max}):
                if not taken.take(done + len(ids) + 1, at_ms, size, bytes_max):
                    break
                ids.append(row_id)
            if not ids:
                return None
            tx.defer(Q.number_outbox, {"done": done, "ids": ids})
            tx.defer(Q.write_plan, {"last": taken.last, "day": taken.day})
            return ExportPlan(self._journal_id, done + 1, taken.last, taken.day)

        return await self._engine.run(decide)

    async def rows(self, plan: ExportPlan, after: int, limit: int) -> list[OutboxRow]:
        """Rows of the plan by rising number; of one that goes up to the end of all numbers, those that have none yet too."""
        after = max(after, plan.first - 1)
        found = await self._pages(Q.outbox_rows, after, limit, {"last": plan.last})
        if plan.last >= UNNUMBERED and len(found) < limit:
            after = max(after, UNNUMBERED)
            found += await self._pages(Q.waiting_rows, after, limit - len(found), {"from": UNNUMBERED})
        return found

    async def _pages(self, query: str, after: int, limit: int, named: dict[str, int]) -> list[OutboxRow]:
        found: list[OutboxRow] = []
        while len(found) < limit:
            page = min(limit - len(found), ROWS_AT_ONCE)
            asked = await self._engine.ask(query, {**named, "after": after, "limit": page})
            rows = [OutboxRow(*row) for row in asked]
            found += rows
            if len(rows) < page:
                break
            after = rows[-1].number
        return found

    async def finish(self, plan: ExportPlan) -> None:
        """The rows of the plan are safe elsewhere: this is noted at once, and they are removed a few at a time."""

        async def note(tx: Transaction) -> None:
            [(done, last, day)] = await tx.rows(Q.read_export)
            if last is not None and plan == ExportPlan(self._journal_id, done + 1, last, day):
                tx.defer(Q.finish_plan, {})

        await self._engine.run(note)
        while await self._engine.run(_sweep):
            pass
        await self.size()

    async def size(self) -> OutboxSize:
        """How much waits to be exported."""
        [(rows, packed_bytes, oldest_ms, counts)] = await self._engine.ask(Q.outbox_size, {})
        if counts > COUNTS_MAX:
            await self._engine.run(_fold_counts)
        # The other nodes write to it and take from it too.
        self._engine.bound.present_bytes = packed_bytes
        return OutboxSize(rows, packed_bytes, oldest_ms, self._engine.bound.lost_events)


async def _fold_counts(tx: Transaction) -> None:
    tx.defer(Q.fold_outbox_counts, {})


async def _sweep(tx: Transaction) -> bool:
    """Remove some of the rows that are safe elsewhere; True while more are left."""
    sizes = [size for (size,) in await tx.rows(Q.sweep_outbox, {"limit": ROWS_AT_ONCE})]
    if sizes:
        gone = {"slot": tx.slot, "rows": -len(sizes), "packed_bytes": -sum(sizes)}
        tx.defer(Q.add_outbox_count, gone)
    return len(sizes) == ROWS_AT_ONCE
