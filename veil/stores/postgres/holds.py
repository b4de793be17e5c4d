"""Named receives: a stream's holds, each a set of leases that is extended and deleted together (core/hold.py).

What reaches over many holds goes some at a time, each step a transaction of whole holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

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
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.stores.postgres import receiving
from veil.stores.postgres.engine import Engine
from veil.stores.postgres.hold_members import Kept, Members, Window
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Transaction
from veil.stores.room import Room

# A step ends with the hold that brings it to either: bounds how long its locks are held.
MEMBERS_AT_ONCE: Final = 2_000
HOLDS_AT_ONCE: Final = 100

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Member]).decode

Place = tuple[int, int]  # batch and part of the hold that a step came to
START: Final[Place] = (-1, -1)


class Found(NamedTuple):
    """A hold as it stands in its row."""

    key: HoldKey
    lost: int
    members: list[Member]


Do = Callable[[Members, Found], HoldTally]
Step = Callable[..., Awaitable[tuple[HoldTally, Place | None]]]  # of a transaction, after a place


class Holds:
    """The holds of the store's queues."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def open_stream(self, queue: Queue, stream: str, owner: str) -> None:
        """Make `owner` the stream's owner."""

        async def open_it(tx: Transaction) -> None:
            tx.later(Q.open_stream, {**_named(tx.state_of(queue), stream, tx), "owner": owner})

        await self._engine.run(open_it, queues=[queue])

    async def receive(
        self, queue: Queue, key: HoldKey, count: int, visibility_s: int, caller: Caller
    ) -> HoldContent:
        """What is under the name: taken now, or taken before and still there."""

        async def take(tx: Transaction) -> HoldContent:
            state = tx.state_of(queue)
            # The stream's row is locked with that: two who ask for the same name at once are not both the first.
            stream = _named(state, key.stream, tx)
            [[(_, closed)], found] = await tx.many(
                (Q.use_stream, stream), (Q.find_hold, _named_hold(state, key))
            )
            if key.batch <= closed:
                raise HoldClosed(key.stream, key.batch, closed)
            if found:
                return await _again(
                    tx, state, Found(key, found[0][0], _decode(found[0][1])), visibility_s, caller
                )
            room = Room(count, HOLD_BYTES_MAX)
            messages = await receiving.take(tx, state, room, visibility_s, caller)
            _write(tx, state, key, 0, [Member(message.seq, message.delivery) for message in messages])
            return HoldContent(messages)

        return await self._engine.run(take, queues=[queue], dead_letters=True)

    async def extend(
        self, queue: Queue, stream: str, owner: str, visibility_s: int, caller: Caller
    ) -> HoldTally:
        """A new deadline for every member of the stream's holds."""

        async def step(tx: Transaction, after: Place) -> tuple[HoldTally, Place | None]:
            state = tx.state_of(queue)
            window = Window(tx.now_ms + visibility_s * SECOND_MS, caller, anew=False)

            def extend(members: Members, hold: Found) -> HoldTally:
                kept = members.keep(hold.members, window)
                _strike(tx, state, hold, kept)
                return HoldTally(len(kept.open), hold.lost + len(hold.members) - len(kept.open))

            if not await _is_owned(tx, state, stream, owner):
                return HoldTally(), None
            return await _step(tx, state, stream, after, NUMBER_MAX, extend)

        return await self._all(queue, step)

    async def delete(
        self, queue: Queue, stream: str, owner: str, up_to_batch: int, caller: Caller
    ) -> HoldTally:
        """Close the stream's names up to that batch and delete what they hold."""

        async def step(tx: Transaction, after: Place) -> tuple[HoldTally, Place | None]:
            state = tx.state_of(queue)

            def delete(members: Members, hold: Found) -> HoldTally:
                deleted = members.delete(hold.members, caller)
                tx.later(Q.drop_hold, _named_hold(state, hold.key))
                return HoldTally(deleted, hold.lost + len(hold.members) - deleted)

            if not await _is_owned(tx, state, stream, owner):
                return HoldTally(), None
            tx.later(Q.close_stream, {**_named(state, stream, tx), "batch": up_to_batch})
            return await _step(tx, state, stream, after, up_to_batch, delete)

        return await self._all(queue, step)

    async def _all(self, queue: Queue, step: Step) -> HoldTally:
        tally = HoldTally()
        place: Place | None = START
        while place is not None:
            done, place = await self._engine.run(partial(step, after=place), queues=[queue])
            tally = tally.plus(done)
        return tally

    async def forget_stale(self) -> None:
        """Drop streams that nobody has used for long; called every ten seconds or so."""

        async def forget(tx: Transaction) -> None:
            tx.later(Q.forget_streams, {"before_ms": tx.now_ms - STREAM_REST_MS})

        await self._engine.run(forget)


async def _again(
    tx: Transaction, state: QueueState, hold: Found, visibility_s: int, caller: Caller
) -> HoldContent:
    window = Window(tx.now_ms + visibility_s * SECOND_MS, caller, anew=True)
    members = await Members.read(tx, state, hold.members)
    kept = members.keep(hold.members, window)
    members.write()
    lost = hold.lost + _strike(tx, state, hold, kept)
    seqs = [member.seq for member in kept.open]
    rows = {row[0]: row for row in await tx.rows(Q.messages_by_seq, {"queue": state.id, "seqs": seqs})}
    messages = []
    for member in kept.open:
        message = receiving.to_message(rows[member.seq])
        message.delivery = member.delivery  # the number of the lease, which is the receipt's
        messages.append(message)
    return HoldContent(messages, lost, again=True)


async def _step(
    tx: Transaction, state: QueueState, stream: str, after: Place, up_to_batch: int, do: Do
) -> tuple[HoldTally, Place | None]:
    """Do it to the next holds; what that came to, and how far it came (None: to the end)."""
    place = {"batch": after[0], "part": after[1], "up_to": up_to_batch, "limit": HOLDS_AT_ONCE}
    rows = await tx.rows(Q.next_holds, {"queue": state.id, "stream": stream, **place})
    found: list[Found] = []
    for batch, part, lost, packed in rows:
        found.append(Found(HoldKey(stream, batch, part), lost, _decode(packed)))
        if sum(len(hold.members) for hold in found) >= MEMBERS_AT_ONCE:
            break
    members = await Members.read(tx, state, [member for hold in found for member in hold.members])
    tally = HoldTally()
    for hold in found:
        tally = tally.plus(do(members, hold))
    members.write()
    is_end = len(found) == len(rows) < HOLDS_AT_ONCE
    return tally, None if is_end or not found else (found[-1].key.batch, found[-1].key.part)


async def _is_owned(tx: Transaction, state: QueueState, stream: str, owner: str) -> bool:
    """False for a stream that is not known; raises StreamTaken for somebody else's. An owned one is used now."""
    row = await tx.row(Q.touch_stream, {**_named(state, stream, tx), "owner": owner})
    if row is None:
        return False
    if row[0] not in (None, owner):
        raise StreamTaken(stream, owner)
    return True


def _strike(tx: Transaction, state: QueueState, hold: Found, kept: Kept) -> int:
    """Write down what is left of a hold; how many it lost just now."""
    struck = len(hold.members) - len(kept.left)
    if struck:
        _write(tx, state, hold.key, hold.lost + struck, kept.left)
    return struck


def _write(tx: Transaction, state: QueueState, key: HoldKey, lost: int, members: list[Member]) -> None:
    tx.later(Q.write_hold, {**_named_hold(state, key), "lost": lost, "members": _encode(members)})


def _named(state: QueueState, stream: str, tx: Transaction) -> dict[str, object]:
    return {"queue": state.id, "stream": stream, "now_ms": tx.now_ms}


def _named_hold(state: QueueState, key: HoldKey) -> dict[str, object]:
    return {"queue": state.id, "stream": key.stream, "batch": key.batch, "part": key.part}
