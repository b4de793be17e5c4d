"""Takes handled messages out of the queue, and remembers those it could not take out."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from veil.consumer.collector import Collector
from veil.consumer.message import Message
from veil.consumer.queue_api import ApiError, Failure, QueueApi

logger = logging.getLogger(__name__)

_REMEMBERED_MAX: Final = 10_000


class Acks:
    """Deletes, in batches; a message whose delete failed is known when it comes back, and is not handled again."""

    def __init__(
        self, api: QueueApi, url: str, *, sleep: Callable[[float], Awaitable[None]], random: Random
    ) -> None:
        async def delete(receipts: Sequence[str]) -> list[ApiError | None]:
            return await api.delete(url, receipts)

        self._collector = Collector(delete, sleep=sleep, random=random)
        self._handled: OrderedDict[str, None] = OrderedDict()
        self._url = url

    @property
    def pending(self) -> int:
        """Deletes that wait for a call."""
        return self._collector.pending

    def was_handled(self, message_id: str) -> bool:
        """Whether the message was handled before and only its delete failed."""
        return message_id in self._handled

    async def delete(self, message: Message) -> bool:
        """Take the message out; False when it may still be there. Its lease must have been let go of."""
        error = await self._collector.add(message.raw.receipt)
        if error is None:
            self._handled.pop(message.id, None)
            return True
        # Also after LOST: its handler has succeeded, and if whoever holds it now fails, it may come back to us.
        self._handled[message.id] = None
        self._handled.move_to_end(message.id)
        if len(self._handled) > _REMEMBERED_MAX:
            self._handled.popitem(last=False)
        if error.failure is Failure.LOST:
            logger.warning(
                "message %s of %s was handled, but its lease had ended before the delete: %s",
                message.id,
                self._url,
                error,
            )
        else:
            logger.error(
                "message %s of %s was handled, but not deleted: %s; when it comes back it is deleted, not handled again",
                message.id,
                self._url,
                error,
            )
        return False

    def hurry(self) -> None:
        """Try nothing again from now on."""
        self._collector.hurry()
