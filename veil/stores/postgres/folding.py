"""Fold the counts of a queue into one row of a new generation, now and then.

Every transaction adds to a row of the counts. PostgreSQL keeps the former states of a row for as long as any transaction
might want to see them, and whoever reads the row goes through them. Under a long transaction that would be every state
since it began; by generations it is those of the present one, a few thousand at most.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import psycopg

from veil.core.errors import VeilError

if TYPE_CHECKING:
    from veil.stores.postgres.engine import Engine
    from veil.stores.postgres.queue_state import QueueState

log = logging.getLogger("veil.store")

FOLD_AFTER: Final = 2_000  # changes
# Everybody else waits behind it, so it gives up soon; another one will come.
LOCK_WAIT_MS: Final = 50


class Folding:
    """Begins a fold beside the operations wherever a transaction saw that one is due."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._under_way: dict[int, asyncio.Task[None]] = {}

    def look(self, state: QueueState) -> None:
        """Take note of how often the counts were changed."""
        if state.changes >= FOLD_AFTER and state.id not in self._under_way:
            task = asyncio.create_task(self._fold(state.id))
            self._under_way[state.id] = task
            task.add_done_callback(lambda _: self._under_way.pop(state.id))

    async def drain(self) -> None:
        """Return when none is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way.values())

    async def _fold(self, queue_id: int) -> None:
        try:
            async with self._engine.transaction() as tx:
                await tx.fold_counts(queue_id, FOLD_AFTER, LOCK_WAIT_MS)
        except (VeilError, psycopg.Error, OSError) as error:
            log.debug("the counts of queue %d were not folded: %s", queue_id, error)
