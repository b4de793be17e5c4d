"""What an operation does to messages: the effects that `core.decide` comes to, and that a store has to write.

An effect names the message as it was, which lease it is about (its delivery, 0 where none is concerned) and until when that
one lasts or would have lasted. A store writes effects in bulk, by their kind: a change of a lease is one row to update
whatever the reason, a removal one row to delete. The journal's events are made of the same effects (`core.event`).
"""

from __future__ import annotations

from typing import Final, final

import msgspec

from veil.core.attempt import ReportedOutcome
from veil.core.errors import VeilError
from veil.core.lease import Deletion, MessageFacts, State
from veil.core.message import LeaseState, NewContent, NewMessage, StoredMessage
from veil.core.queue import Queue


@final
class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """A message is new in its queue."""

    new: NewMessage
    seq: int
    state: int
    due_at_ms: int | None  # when its delay ends
    body_bytes: int


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Something that happens to a message which is there."""

    message: MessageFacts
    delivery: int
    deadline_ms: int | None


# ---- changes of a lease


class LeaseChange(Effect, frozen=True, gc=False):
    """The message is to have another lease, or none."""

    lease: LeaseState


class Opened(LeaseChange, frozen=True, gc=False):
    """It was received. Without a visibility the receive counts and the message stays visible."""


class Extended(LeaseChange, frozen=True, gc=False):
    """Its lease has a new deadline: extended, rotated, begun again, or taken back."""


class GivenBack(LeaseChange, frozen=True, gc=False):
    """Its holder ended the attempt and set when it is visible again: as it reported, or as a deadline moved earlier tells."""

    reported: ReportedOutcome | None = None


class DelayChanged(LeaseChange, frozen=True, gc=False):
    """Its sender changed when it becomes visible."""


class Released(LeaseChange, frozen=True, gc=False):
    """Whoever held it, or waited with it, set the visibility to zero."""

    reported: ReportedOutcome | None = None


class Undone(LeaseChange, frozen=True, gc=False):
    """The answer to its receive never left: it is visible again, and the receive does not count."""


class Graced(LeaseChange, frozen=True, gc=False):
    """Its lease would have lapsed because of Veil's own trouble, and got a grace instead."""


class Lapsed(LeaseChange, frozen=True, gc=False):
    """Its lease or its delay came to an end by itself."""


# ---- ends


class Removal(Effect, frozen=True, gc=False):
    """The message is gone."""


class Deleted(Removal, frozen=True, gc=False):
    """By a receipt."""

    reported: ReportedOutcome | None = None


class Expired(Removal, frozen=True, gc=False):
    """Its retention ended, and with that a lease that would have outlasted it."""


class Purged(Removal, frozen=True, gc=False):
    """With its queue's content, or with the queue."""


class Discarded(Removal, frozen=True, gc=False):
    """By an operator, while nobody held it."""


# ---- moves: a message is in exactly one queue at every instant


class DeadLettered(Effect, frozen=True, gc=False):
    """It was received too often and goes to the dead letters, visible, with its receipts void."""

    target: Queue
    new_seq: int  # its own where it keeps its place
    deduplication_id: str | None


class Redriven(Effect, frozen=True, gc=False):
    """It leaves the dead letters and goes on as a new message."""

    moved: StoredMessage  # as it arrives
    target: Queue
    content: NewContent | None  # None: what it had


# ---- refusals: nothing changes


class DeleteRefused(msgspec.Struct, frozen=True, gc=False):
    """A receipt that no longer counts; to the caller that is success, unless there is an error."""

    message: MessageFacts | None  # None: it is gone
    seq: int
    delivery: int
    deletion: Deletion
    error: VeilError | None
    reported: ReportedOutcome | None = None


class ExtensionRefused(msgspec.Struct, frozen=True, gc=False):
    """A receipt that has no lease to extend."""

    message: MessageFacts | None  # None: it is gone
    seq: int
    delivery: int
    error: VeilError
    reported: ReportedOutcome | None = None


# ---- signs of life: what was learned of a holder after its lease had lapsed


class HolderSeen(msgspec.Struct, frozen=True, gc=False, tag=True):
    """It went on calling, and has not come back for this message."""

    seq: int
    delivery: int
    message: None = None


class HolderSilent(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Nothing was heard of it while other callers of the queue went on."""

    seq: int
    delivery: int
    message: None = None


class HolderLate(msgspec.Struct, frozen=True, gc=False, tag=True):
    """It went on calling, and would have reported it if it had failed: it was still at work when its lease lapsed."""

    seq: int
    delivery: int
    at_ms: int  # when the lease lapsed: how much longer the work took is not known
    message: None = None


HolderSign = HolderSeen | HolderSilent | HolderLate


class Postponed(msgspec.Struct, frozen=True, gc=False):
    """It was due for a retention that was lengthened since, or its holder may be in time: nothing happens before that instant."""

    message: MessageFacts
    wake_at_ms: int


AnyEffect = Enqueued | Effect | DeleteRefused | ExtensionRefused | HolderSign


def counted_as(effect: AnyEffect) -> str | None:
    """What the owner of a store hears of an effect that only the store sees, in the words of StoreEvents."""
    event = _COUNTED.get(type(effect))  # of most there is nothing to hear
    if event is None:
        return None
    if isinstance(effect, Lapsed) and effect.message.state != State.IN_FLIGHT:
        return None
    if isinstance(effect, DeleteRefused) and effect.deletion is not Deletion.STALE:
        return None
    if isinstance(effect, ExtensionRefused) and effect.message is None:
        return None
    return event


_COUNTED: Final[dict[type, str]] = {
    Lapsed: "lapsed",
    Graced: "graced",
    Expired: "expired",
    DeadLettered: "dead_lettered",
    DeleteRefused: "stale_receipt",
    ExtensionRefused: "stale_receipt",
}
