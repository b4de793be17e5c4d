"""The queue of dead letters through Veil's own actions: to look without receiving, and to redrive what was chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import msgspec

from veil.consumer.message import ApiError, Failure
from veil.pipeline.dead_letters.failures import NotVeil
from veil.pipeline.queues.client import QueueClient
from veil.pipeline.queues.own_actions import Value
from veil.pipeline.queues.queue_place import QueuePlace

PAGE_MAX: Final = 1_000
ENTRIES_MAX: Final = 1_000
# Half of what a server takes in one request unless it is told otherwise, as JSON.
REQUEST_BYTES_MAX: Final = 4 << 20
_REDRIVE_TIMEOUT_S: Final = 120.0


class Peeked(msgspec.Struct, rename="pascal"):
    """A message that was looked at."""

    message_id: str
    body: str
    state: str
    sequence_number: str
    attributes: dict[str, str] = {}
    message_attributes: dict[str, Value] | None = None


class Page(msgspec.Struct, rename="pascal"):
    """Some messages, oldest first, and how to go on."""

    messages: list[Peeked] | None = None
    next_token: str | None = None


class Moved(msgspec.Struct, rename="pascal"):
    """An entry that was redriven: it is another message now."""

    id: str
    new_message_id: str = ""


class Left(msgspec.Struct, rename="pascal"):
    """An entry that was not, and why."""

    id: str
    code: str = ""
    message: str | None = None


class Redriven(msgspec.Struct, rename="pascal"):
    """What became of each entry of a call."""

    successful: list[Moved] | None = None
    failed: list[Left] | None = None


def opened(where: QueuePlace, queue: str) -> DeadLetterQueue:
    """The queue of that name at the service, open; raises NotVeil, and ApiError where there is no such queue."""
    found = DeadLetterQueue(replace(where, queue=queue), user_agent="pipeline dead-letters")
    try:
        found.peek(1)
    except ApiError as error:
        found.close()
        # The queue is there, yet the service will not let it be looked at: it does not know how.
        raise (NotVeil(found.endpoint) if error.failure is Failure.REFUSED else error) from None
    except BaseException:
        found.close()
        raise
    return found


class DeadLetterQueue(QueueClient):
    """A queue of dead letters that is open."""

    def __enter__(self) -> DeadLetterQueue:
        return self

    def url_of(self, queue: str) -> str:
        """The URL of another queue of the same service, by name, ARN or URL."""
        return self._loop.run(self._client.queue_url(queue))

    def peek(
        self, count: int, *, token: str | None = None, after: int | None = None, up_to: int | None = None
    ) -> Page:
        """A page of messages in whatever state, by rising `seq`: from the token on, or after the one `seq`, up to the other.

        `up_to` is included, `after` is not, so that ranges lie side by side. The server's limits by time (SentAfter,
        SentBefore) are not used here: both are included, and two ranges by time would share the messages of an instant.
        """
        given: dict[str, Any] = {"MaxResults": count}
        if token is not None:
            given["NextToken"] = token
        elif after is not None:
            given["After"] = str(after)
        if up_to is not None:
            given["UpTo"] = str(up_to)
        return self.own("PeekMessages", given, Page)

    def redrive(self, entries: list[dict[str, Any]]) -> Redriven:
        """Take the entries out of the dead letters, all in one transaction; each that cannot be moved fails alone.

        Asked once. Where no answer came (ApiError UNREACHABLE) nobody knows whether it was done: repeated, the call finds
        what it had moved gone, and moves nothing twice.
        """
        given = {"QueueUrl": self.url, "Entries": entries, "MarkRedriven": True}
        return self._loop.run(
            self._client.ask(
                "Veil.RedriveMessages", given, Redriven, repeatable=False, timeout_s=_REDRIVE_TIMEOUT_S
            )
        )
