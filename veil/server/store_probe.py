"""Whether a store that lives elsewhere answers: asked when somebody asks us, so that a probe tells the present."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from veil.core.errors import VeilError
from veil.stores.store import Store

log = logging.getLogger("veil.server")

# Kubernetes gives a probe one second by default: the answer comes before that.
PATIENCE_S: Final = 0.8
# Probes closer together share one look.
_FRESH_S: Final = 0.25


class StoreProbe:
    """One look at a time, however many ask."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looking: asyncio.Task[str | None] | None = None
        self._looked_at_s: float = 0
        self._was_away = False

    async def problem(self) -> str | None:
        """Why the store cannot be used now; None where it can."""
        now_s = asyncio.get_running_loop().time()
        if self._looking is None or (self._looking.done() and now_s - self._looked_at_s >= _FRESH_S):
            self._looked_at_s = now_s
            self._looking = asyncio.create_task(self._look())
        # Shielded: whoever asked may go away, the others wait for the same look.
        return await asyncio.shield(self._looking)

    async def _look(self) -> str | None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._store.list_queues("", "", limit=1)
        except (TimeoutError, VeilError) as problem:
            if not self._was_away:
                log.warning("not ready: the database does not answer (%s)", problem or "it took too long")
            self._was_away = True
            return "the database does not answer"
        if self._was_away:
            log.info("ready again: the database answers")
        self._was_away = False
        return None
