"""The open leases of a queue, and what may be done to them from outside."""

from __future__ import annotations

from typing import Final, NamedTuple

from veil.console.message_search import Looked, Search, search_messages
from veil.console.turns import Turn
from veil.core.errors import VeilError
from veil.core.lease import State
from veil.core.message import StoredMessage
from veil.core.numbers import seq_number, whole_number
from veil.core.queue import Queue
from veil.service.messages import peek
from veil.service.service import Service

PAGE_LEASES: Final = 100
# Looked at once a second for as long as somebody watches: less than what a single search may cost.
_ROWS_MAX: Final = 2_000
_BYTES_MAX: Final = 4 << 20


class LeaseOver(VeilError):
    """The lease that was looked at has ended: deleted, released, lapsed, or received anew."""

    def __init__(self, message_id: str) -> None:
        super().__init__(
            f"the lease of message {message_id} has ended since it was shown"
            if message_id
            else "the message is gone"
        )


class LeaseName(NamedTuple):
    """Which lease is meant: one delivery of one message."""

    seq: int
    delivery: int

    @classmethod
    def read(cls, text: str) -> LeaseName | None:
        """The name in a form's field, or None."""
        seq, _, delivery = text.partition(":")
        numbers = seq_number(seq), whole_number(delivery)
        return None if numbers[0] is None or numbers[1] is None else cls(numbers[0], numbers[1])


async def open_leases(service: Service, queue: Queue, after: int, turn: Turn) -> Looked:
    """The messages in flight behind that seq, the oldest first; no more rows are looked at than needed to find them all."""
    in_flight = (await service.store.counts(queue)).in_flight
    return await search_messages(
        service,
        queue,
        Search(state="in-flight", after=after),
        turn,
        page_rows=PAGE_LEASES,
        rows_max=_ROWS_MAX,
        bytes_max=_BYTES_MAX,
        enough=None if after else in_flight,
    )


async def leased_message(service: Service, queue: Queue, name: LeaseName) -> StoredMessage:
    """The message of an open lease; raises LeaseOver where the lease is not open any more."""
    messages = await peek(service, queue, after_seq=name.seq - 1, up_to_seq=name.seq, limit=1)
    if not messages:
        raise LeaseOver("")
    message = messages[0]
    is_open = message.state == State.IN_FLIGHT and (message.due_at_ms or 0) > service.clock.now_ms()
    if not is_open or message.delivery != name.delivery:
        raise LeaseOver(message.message_id)
    return message
