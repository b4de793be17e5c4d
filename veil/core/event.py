"""What happened to a message: the event that a store records in the same transaction as the change itself.

Events are written by the hundred in one packed row (`pack`), since a row each would cost more than the change. The names
of queues and callers stand once in front of the events that mention them, so that a packed row can be read on its own,
also after the queue is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from veil.core.message import Caller
from veil.core.queue import QueueKey


class Kind(IntEnum):
    """What happened. The numbers are stored; the names, in lower case, are what readers of the journal see."""

    SENT = 1
    RECEIVED = 2
    EXTENDED = 3
    RELEASED = 4  # the holder set the visibility to zero
    UNDONE = (
        5  # the answer to the receive never left: the message is visible again and the receive does not count
    )
    DELETED = 6
    DELETE_REFUSED = 7  # by a receipt that no longer counts: somebody else holds the message, or it is gone
    EXTENSION_REFUSED = 8
    DEAD_LETTERED = 9
    REDRIVEN = 10  # left the dead letters; it goes on under a new id
    EXPIRED = 11  # its retention ended
    PURGED = 12  # with its queue's content, or with the queue
    DELAYED = 13  # its sender set anew when it becomes visible

    @property
    def label(self) -> str:
        """The kind as the journal's readers see it."""
        return self.name.lower()


class Event(NamedTuple):
    """One change of one message. `queue` and `caller` are places in the lists of the packed row it stands in."""

    kind: int
    at_ms: int  # engine time
    queue: int
    seq: int  # which message: its order key, the one thing that a receipt of a message long gone still knows
    message_id: str | None = None  # None: a refused receipt of a message that is gone
    delivery: int = 0  # which lease; 0 where none is concerned
    deadline_ms: int | None = None  # of the lease; of the delay, when sent or delayed
    receive_count: int | None = None
    body_bytes: int | None = None
    message_type: str | None = None
    caller: int = 0
    other_queue: int | None = None  # where it went: dead letters, or the redrive's destination
    other_seq: int | None = (
        None  # its key there, or (when sent by a redrive) the key it had in the dead letters
    )


class EventBatch(NamedTuple):
    """The events of one transaction, in the order in which they happened."""

    queues: list[QueueKey]
    callers: list[Caller]
    events: list[Event]


NOBODY: Final = Caller()  # what the store does by itself: retention, dead-lettering
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(EventBatch).decode


def pack(queues: Iterable[QueueKey], callers: Iterable[Caller], events: list[tuple[object, ...]]) -> bytes:
    """The packed row of one transaction; `events` holds tuples in the order of Event's fields."""
    return _encode((tuple(queues), tuple(callers), events))


def unpack(packed: bytes) -> EventBatch:
    """The events of a packed row."""
    return _decode(packed)
