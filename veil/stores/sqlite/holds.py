"""Holds: receives that have a name (core/hold.py).

All of it stands in the database, so that there is nothing to undo in memory after a rollback and no number of holds fills
it. What reaches over many holds goes a few at a time, each step a transaction of whole holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from veil.core.errors import HoldClosed, StreamTaken
from veil.core.hold import (
    HOLD_BYTES_MAX,
    NUMBER_MAX,
    STREAM_REST_MS,
    HoldContent,
    HoldKey,
    HoldTally,
    Member,
)
from veil.core.limits import SECOND_MS
from veil.core.message import Caller, StoredMessage
from veil.core.queue import Queue
from veil.stores.room import Room
from veil.stores.sqlite import hold_members, receiving
from veil.stores.sqlite.hold_members import Kept, Window
from veil.stores.sqlite.tables import Q, QueueState, Tables, to_message

# A step ends with the hold that brings it to either: bounds how long it holds up everything else.
MEMBERS_AT_ONCE = 500
HOLDS_AT_ONCE = 100

_encode = msgspec.msgpack.Encoder().encode
decode_members = msgspec.msgpack.Decoder(list[Member]).decode

Place = tuple[int, int]  # batch and part of the hold that a step came to
START: Place = (-1, -1)


class Step(NamedTuple):
    """What a step did, and how far it came; None: to the end."""

    tally: HoldTally
    place: Place | None


def open_stream(tables: Tables, queue: Queue, stream: str, owner: str) -> None:
    """Make somebody the stream's owner."""
    state = tables.state_of(queue)
    tables.execute(Q.open_stream, (state.queue.id, stream, owner, tables.clock.now_ms()))


def receive(
    tables: Tables, queue: Queue, key: HoldKey, count: int, visibility_s: int, caller: Caller
) -> HoldContent:
    """What is under the name: taken now, or taken before and still there."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    stream = tables.execute(Q.find_stream, (queue.id, key.stream)).get
    if stream is not None and key.batch <= stream[1]:
        raise HoldClosed(key.stream, key.batch, stream[1])
    tables.execute(Q.use_stream, (queue.id, key.stream, now_ms))
    found = tables.execute(Q.find_hold, (queue.id, *key)).get
    if found is None:
        room = Room(count, HOLD_BYTES_MAX)
        messages = receiving.take(tables, state, room, visibility_s, now_ms, caller)
        taken = [(message.seq, message.delivery) for message in messages]
        tables.execute(Q.write_hold, (queue.id, *key, 0, _encode(taken)))
        return HoldContent(messages)
    lost, members = found[0], decode_members(found[1])
    window = Window(now_ms + visibility_s * SECOND_MS, now_ms, caller, anew=True)
    kept = hold_members.keep(tables, state, members, window)
    lost += _strike(tables, queue.id, key, lost, members, kept)
    return HoldContent([_message(tables, member) for member in kept.open], lost, again=True)


def _message(tables: Tables, member: Member) -> StoredMessage:
    message = to_message(tables.execute(Q.message_by_seq, (member.seq,)).get)
    # The number of the lease, which a restore may have left behind the message's own (number_gap.py).
    message.delivery = member.delivery
    return message


def _strike(tables: Tables, queue_id: int, key: HoldKey, lost: int, members: list[Member], kept: Kept) -> int:
    """Write down what is left of a hold; how many it lost just now."""
    struck = len(members) - len(kept.left)
    if struck:
        tables.execute(Q.write_hold, (queue_id, *key, lost + struck, _encode(kept.left)))
    return struck


def extend_some(
    tables: Tables, queue: Queue, stream: str, owner: str, after: Place, visibility_s: int, caller: Caller
) -> Step:
    """Extend the leases of the next holds of the stream."""
    state = tables.state_of(queue)
    if not _is_owned(tables, queue.id, stream, owner):
        return Step(HoldTally(), None)
    now_ms = tables.clock.now_ms()
    tables.execute(Q.use_stream, (queue.id, stream, now_ms))
    window = Window(now_ms + visibility_s * SECOND_MS, now_ms, caller, anew=False)

    def extend(key: HoldKey, lost: int, members: list[Member]) -> HoldTally:
        kept = hold_members.keep(tables, state, members, window)
        _strike(tables, queue.id, key, lost, members, kept)
        return HoldTally(len(kept.open), lost + len(members) - len(kept.open))

    return _step(tables, state, stream, after, NUMBER_MAX, extend)


def delete_some(
    tables: Tables, queue: Queue, stream: str, owner: str, after: Place, up_to_batch: int, caller: Caller
) -> Step:
    """Close the names up to the batch, and delete what the next of them hold."""
    state = tables.state_of(queue)
    if not _is_owned(tables, queue.id, stream, owner):
        return Step(HoldTally(), None)
    now_ms = tables.clock.now_ms()
    tables.execute(Q.use_stream, (queue.id, stream, now_ms))
    tables.execute(Q.close_stream, (queue.id, stream, up_to_batch))

    def delete(key: HoldKey, lost: int, members: list[Member]) -> HoldTally:
        deleted = hold_members.delete(tables, state, members, now_ms, caller)
        tables.execute(Q.drop_hold, (queue.id, *key))
        return HoldTally(deleted, lost + len(members) - deleted)

    return _step(tables, state, stream, after, up_to_batch, delete)


def _is_owned(tables: Tables, queue_id: int, stream: str, owner: str) -> bool:
    """False for a stream that is not known; raises StreamTaken for somebody else's."""
    found: Any = tables.execute(Q.find_stream, (queue_id, stream)).get
    if found is not None and found[0] not in (None, owner):
        raise StreamTaken(stream, owner)
    return found is not None


def _step(
    tables: Tables,
    state: QueueState,
    stream: str,
    after: Place,
    up_to_batch: int,
    do: Callable[[HoldKey, int, list[Member]], HoldTally],
) -> Step:
    tally, seen = HoldTally(), 0
    for _ in range(HOLDS_AT_ONCE):
        found = tables.execute(Q.next_hold, (state.queue.id, stream, *after, up_to_batch)).get
        if found is None:
            return Step(tally, None)
        batch, part, lost, packed = found
        members, after = decode_members(packed), (batch, part)
        tally = tally.plus(do(HoldKey(stream, batch, part), lost, members))
        seen += len(members)
        if seen >= MEMBERS_AT_ONCE:
            break
    return Step(tally, after)


def forget_stale(tables: Tables) -> None:
    """Drop the stream that was longest unused, if that is too long, and its holds."""
    stale = tables.execute(Q.stale_stream, (tables.clock.now_ms() - STREAM_REST_MS,)).get
    if stale is not None:
        tables.execute(Q.drop_stream_holds, stale)
        tables.execute(Q.drop_stream, stale)
