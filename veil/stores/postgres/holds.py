"""Named receives: a stream's holds, each a set of leases that is extended and deleted together (core/lease.py).

Operations on many holds run in steps, each a transaction over a few whole holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from veil.core import decide
from veil.core.effect import Deleted
from veil.core.errors import HoldClosed, StreamTaken
from veil.core.lease import NUMBER_MAX, HoldContent, HoldKey, HoldTally, Member
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.core.sequence import expired_below
from veil.stores.postgres.apply import apply
from veil.stores.postgres.leases import held_messages
from veil.stores.postgres.messages import messages_by_seq, take
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import LockedQueue, Transaction
from veil.stores.sql import HOLDS_AT_ONCE, HoldCursor, HoldStep, decode_members, encode_members

# A step ends with the hold that reaches either limit, so that locks are not held for long.
MEMBERS_AT_ONCE: Final = 2_000


class StoredHold(NamedTuple):
    """A hold as stored."""

    key: HoldKey
    lost: int
    members: list[Member]


async def open_stream(tx: Transaction, queue: Queue, stream: str, owner: str) -> None:
    """Make `owner` the stream's owner."""
    tx.defer(Q.open_stream, {**_named(tx, tx.state_of(queue), stream), "owner": owner})


async def receive_hold(
    tx: Transaction, queue: Queue, key: HoldKey, count: int, visibility_s: int, caller: Caller
) -> HoldContent | None:
    """The messages under the name: taken now, or taken earlier and still there; None if it must be repeated (see `take`)."""
    state = tx.state_of(queue)
    # This locks the stream's row, so that of two concurrent receives under one name only one is the first.
    [[(_, closed)], found] = await tx.rows_of_each(
        (Q.use_stream, _named(tx, state, key.stream)), (Q.find_hold, _named_hold(state, key))
    )
    if key.batch <= closed:
        raise HoldClosed(key.stream, key.batch, closed)
    for lost, packed in found:
        hold = StoredHold(key, lost, decode_members(packed))
        return await _receive_again(tx, state, hold, visibility_s, caller)
    messages = await take(tx, state, count, visibility_s, caller, hold=True)
    if messages is None:
        return None
    _write(tx, state, key, 0, [Member(message.seq, message.delivery) for message in messages])
    return HoldContent(messages)


async def _receive_again(
    tx: Transaction, state: LockedQueue, hold: StoredHold, visibility_s: int, caller: Caller
) -> HoldContent:
    messages = await held_messages(tx, state, (member.seq for member in hold.members))
    group_seqs = await _group_seqs(tx, state, messages)
    kept = _keep(tx, state, hold, messages, group_seqs, visibility_s, caller, again=True)
    found = await messages_by_seq(tx, state, [member.seq for member in kept.open])
    for member in kept.open:
        found[member.seq].delivery = member.delivery  # the delivery number of the lease, as in the receipt
    lost = hold.lost + len(hold.members) - len(kept.left)
    return HoldContent([found[member.seq] for member in kept.open], lost, again=True)


async def extend_holds(
    tx: Transaction,
    queue: Queue,
    stream: str,
    owner: str,
    visibility_s: int,
    caller: Caller,
    after: HoldCursor,
) -> HoldStep:
    """Extend the leases of the next holds of the stream."""
    state, tally = tx.state_of(queue), HoldTally()
    holds, messages, cursor = await _next_holds(tx, state, stream, owner, after, NUMBER_MAX)
    group_seqs = await _group_seqs(tx, state, messages)
    for hold in holds:
        kept = _keep(tx, state, hold, messages, group_seqs, visibility_s, caller, again=False)
        # A member that has reached its twelve hours is not struck, just not available for now.
        lost = hold.lost + len(hold.members) - len(kept.open)
        tally = tally.plus(HoldTally(len(kept.open), lost))
    return HoldStep(tally, cursor)


async def delete_holds(
    tx: Transaction,
    queue: Queue,
    stream: str,
    owner: str,
    up_to_batch: int,
    caller: Caller,
    after: HoldCursor,
) -> HoldStep:
    """Close the names up to the batch, and delete the messages of the next holds."""
    state, tally = tx.state_of(queue), HoldTally()
    holds, messages, cursor = await _next_holds(tx, state, stream, owner, after, up_to_batch)
    # Of a stream that is not known, this finds nothing to close.
    tx.defer(Q.close_stream, {**_named(tx, state, stream), "batch": up_to_batch})
    for hold in holds:
        effects = []
        for member in hold.members:
            message = messages.get(member.seq)
            effect = decide.delete_member(member, message, state.queue, tx.now_ms)
            decide.take_in(messages, effect)
            effects.append(effect)
        apply(tx, state, effects, caller)
        tx.defer(Q.drop_hold, _named_hold(state, hold.key))
        deleted = sum(isinstance(effect, Deleted) for effect in effects)
        tally = tally.plus(HoldTally(deleted, hold.lost + len(hold.members) - deleted))
    return HoldStep(tally, cursor)


async def _next_holds(
    tx: Transaction, state: LockedQueue, stream: str, owner: str, after: HoldCursor, up_to_batch: int
) -> tuple[list[StoredHold], decide.HeldMessages, HoldCursor | None]:
    """The holds of the next step with their messages, and the cursor after them (None: the end); none of an unknown stream.
    Marks the stream as used; raises StreamTaken if another owner has it."""
    batch, part = after
    named = {"batch": batch, "part": part, "up_to": up_to_batch, "limit": HOLDS_AT_ONCE}
    known, rows = await tx.rows_of_each(
        (Q.touch_stream, _named(tx, state, stream)),
        (Q.next_holds, {"queue": state.id, "stream": stream, **named}),
    )
    if not known:
        return [], {}, None
    [(present, _)] = known
    if present not in (None, owner):
        raise StreamTaken(stream, owner)
    holds: list[StoredHold] = []
    members = 0
    for batch, part, lost, packed in rows:
        holds.append(StoredHold(HoldKey(stream, batch, part), lost, decode_members(packed)))
        members += len(holds[-1].members)
        if members >= MEMBERS_AT_ONCE:
            break
    is_end = len(holds) == len(rows) < HOLDS_AT_ONCE
    messages = await held_messages(tx, state, (member.seq for hold in holds for member in hold.members))
    return holds, messages, None if is_end or not holds else (holds[-1].key.batch, holds[-1].key.part)


async def _group_seqs(
    tx: Transaction, state: LockedQueue, messages: decide.HeldMessages
) -> dict[str, list[int]]:
    """FIFO: all messages, in any state, of the groups of these messages."""
    groups = sorted({message.group for message in messages.values() if message.group is not None})
    if not state.fifo or not groups:
        return {}
    alive_from = expired_below(tx.now_ms, state.queue.settings.retention_s)
    named = {"queue": state.id, "groups": groups, "from": alive_from, "up_to": max(messages)}
    found: dict[str, list[int]] = {}
    for group, seq in await tx.rows(Q.group_seqs, named):
        found.setdefault(group, []).append(seq)
    return found


def _keep(
    tx: Transaction,
    state: LockedQueue,
    hold: StoredHold,
    messages: decide.HeldMessages,
    group_seqs: dict[str, list[int]],
    visibility_s: int,
    caller: Caller,
    *,
    again: bool,
) -> decide.HoldDecision:
    kept = decide.keep_hold(
        state.queue, hold.members, messages, group_seqs, visibility_s, tx.now_ms, again=again
    )
    for effect in kept.effects:
        decide.take_in(messages, effect)
    apply(tx, state, kept.effects, caller)
    struck = len(hold.members) - len(kept.left)
    if struck:
        _write(tx, state, hold.key, hold.lost + struck, kept.left)
    return kept


def _write(tx: Transaction, state: LockedQueue, key: HoldKey, lost: int, members: Sequence[Member]) -> None:
    tx.defer(Q.write_hold, {**_named_hold(state, key), "lost": lost, "members": encode_members(members)})


def _named(tx: Transaction, state: LockedQueue, stream: str) -> dict[str, Any]:
    return {"queue": state.id, "stream": stream, "now_ms": tx.now_ms}


def _named_hold(state: LockedQueue, key: HoldKey) -> dict[str, Any]:
    return {"queue": state.id, **key._asdict()}
