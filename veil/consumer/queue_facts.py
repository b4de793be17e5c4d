"""What the consumer knows about its queue: the URL, the window it gives, and where its dead letters go."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from veil.consumer.queue_api import ApiError, Failure, QueueApi

logger = logging.getLogger(__name__)

_FRESH_S: Final = 60.0
_VISIBILITY_DEFAULT_S: Final = 30  # what SQS gives a queue for which nobody said


class QueueFacts:
    """Read at the start, and again now and then, since queues are edited while consumers run."""

    def __init__(
        self, api: QueueApi, url: str, *, visibility_s: int | None, monotonic: Callable[[], float]
    ) -> None:
        self._api, self._monotonic = api, monotonic
        self._given_s = visibility_s
        self._read_at_s = float("-inf")
        self.url = url
        self.visibility_s = visibility_s or _VISIBILITY_DEFAULT_S
        self.dead_letters_url: str | None = None

    @property
    def fifo(self) -> bool:
        return self.url.endswith(".fifo")

    @property
    def is_fresh(self) -> bool:
        """Whether they were read so lately that they need not be read again."""
        return self._monotonic() - self._read_at_s < _FRESH_S

    async def read(self) -> None:
        """Read them now; raises ApiError unless the consumer can do without."""
        try:
            attributes = await self._api.attributes(self.url)
        except ApiError as error:
            # With a window of its own the consumer needs no attributes, and a narrow policy may not let it read them.
            if self._given_s is None or error.code.endswith("QueueDoesNotExist"):
                raise
            if error.failure is not Failure.FATAL:
                raise
            logger.warning(
                "the attributes of %s cannot be read, so its dead letters are unknown: %s", self.url, error
            )
            attributes = {}
        self._read_at_s = self._monotonic()
        if self._given_s is None:
            self.visibility_s = int(attributes.get("VisibilityTimeout", _VISIBILITY_DEFAULT_S))
        self.dead_letters_url = _dead_letters(self.url, attributes.get("RedrivePolicy", ""))

    async def refresh(self) -> None:
        """Read them again if they are old; when that fails, what was known goes on counting."""
        if self.is_fresh:
            return
        try:
            await self.read()
        except ApiError as error:
            self._read_at_s = self._monotonic()
            logger.warning("the attributes of %s could not be read again: %s", self.url, error)


def _dead_letters(url: str, redrive_policy: str) -> str | None:
    try:
        arn = json.loads(redrive_policy)["deadLetterTargetArn"]
        name = arn.rsplit(":", 1)[1]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return None
    # Dead letters lie in the account and region of their queue, so its URL differs in the name alone. Asking for it would
    # take one more permission on one more queue.
    return f"{url.rsplit('/', 1)[0]}/{name}"
