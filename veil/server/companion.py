"""A server that keeps another process company: it takes orders on stdin, answers on stdout, and ends when stdin does.

Test suites start one. However the suite ends, its end of the pipe closes, so no server is left behind; and a
reset needs no endpoint that somebody else could call.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping

from veil.service.queues import delete_queue
from veil.service.service import Service


class Companion:
    """Speaks lines of JSON with the process that started the server."""

    def __init__(self, service: Service, leave: Callable[[], None]) -> None:
        self._service = service
        self._leave = leave

    async def attend(self, ready: Mapping[str, object]) -> None:
        """Tell that the server is ready, then do as told until the other end is gone."""
        self._say(ready)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        try:
            while line := await reader.readline():
                if line.strip() == b"reset":
                    self._say({"reset": await self._reset()})
        finally:
            self._leave()

    async def _reset(self) -> int:
        queues = await self._service.store.all_queues()
        for queue in queues:
            await delete_queue(self._service, queue)
        return len(queues)

    def _say(self, fact: Mapping[str, object]) -> None:
        print(json.dumps(fact), flush=True)  # noqa: T201  # stdout is the channel
