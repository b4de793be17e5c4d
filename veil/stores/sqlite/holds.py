"""Holds: receives that have a name (core/lease.py).

All of it stands in the database, so that there is nothing to undo in memory after a rollback and no number of holds fills
it. What reaches over many holds goes a few at a time, each step a transaction of whole holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from veil.core import decide
from veil.core.effect import Deleted
from veil.core.errors import HoldClosed, StreamTaken
from veil.core.lease import NUMBER_MAX, STREAM_REST_MS, HoldContent, HoldKey, HoldTally, Member
from veil.core.message import Caller, StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import expired_below
from veil.stores.sql import HOLDS_AT_ONCE, HoldCursor, HoldStep, decode_members, encode_members, to_message
from veil.stores.sqlite.apply import apply
from veil.stores.sqlite.database import CachedQueue, Database, Q
from veil.stores.sqlite.leases import delete_held, held_messages
from veil.stores.sqlite.messages import take

# A step ends with the hold that brings it to so many members: bounds how long it holds up everything else. To delete a member
# takes less than to receive one, of which a hold may have as many; and each step is a commit, which everybody waits for.
EXTENDED_AT_ONCE = 500
DELETED_AT_ONCE = 1_000


def open_stream(db: Database, queue: Queue, stream: str, owner: str) -> None:
    """Make somebody the stream's owner."""
    state = db.state_of(queue)
    db.execute(Q.open_stream, (state.queue.id, stream, owner, db.clock.now_ms()))


def receive_hold(
    db: Database, queue: Queue, key: HoldKey, count: int, visibility_s: int, caller: Caller
) -> HoldContent | None:
    """What is under the name: taken now, or taken before and still there; None where it wants to be asked again (`take`)."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    stream = db.execute(Q.find_stream, (queue.id, key.stream)).get
    if stream is not None:
        _, closed = stream
        if key.batch <= closed:
            raise HoldClosed(key.stream, key.batch, closed)
    db.execute(Q.use_stream, (queue.id, key.stream, now_ms))
    found = db.execute(Q.find_hold, (queue.id, *key)).get
    if found is None:
        messages = take(db, state, count, visibility_s, now_ms, caller, hold=True)
        if messages is None:
            return None
        taken = [(message.seq, message.delivery) for message in messages]
        db.execute(Q.write_hold, (queue.id, *key, 0, encode_members(taken)))
        return HoldContent(messages)
    lost, packed = found
    members = decode_members(packed)
    kept = _keep(db, state, members, visibility_s, now_ms, caller, again=True)
    lost += _strike(db, queue.id, key, lost, members, kept)
    return HoldContent([_message(db, member) for member in kept.open], lost, again=True)


def extend_holds(
    db: Database, queue: Queue, stream: str, owner: str, visibility_s: int, caller: Caller, after: HoldCursor
) -> HoldStep:
    """Extend the leases of the next holds of the stream."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()

    def extend(key: HoldKey, lost: int, members: list[Member]) -> HoldTally:
        kept = _keep(db, state, members, visibility_s, now_ms, caller, again=False)
        _strike(db, queue.id, key, lost, members, kept)
        # What has reached its twelve hours is not struck, only not there for now.
        return HoldTally(len(kept.open), lost + len(members) - len(kept.open))

    if not _is_owned(db, queue.id, stream, owner):
        return HoldStep(HoldTally(), None)
    db.execute(Q.use_stream, (queue.id, stream, now_ms))
    return _step(db, state, stream, after, NUMBER_MAX, EXTENDED_AT_ONCE, extend)


def delete_holds(
    db: Database, queue: Queue, stream: str, owner: str, up_to_batch: int, caller: Caller, after: HoldCursor
) -> HoldStep:
    """Close the names up to the batch, and delete what the next of them hold."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()

    def delete(key: HoldKey, lost: int, members: list[Member]) -> HoldTally:
        # Most hold what they were received with, and go in one statement; the rest is read and decided.
        seqs, deliveries = zip(*members, strict=True) if members else ((), ())
        left = [members[place] for place in delete_held(db, state, seqs, deliveries, now_ms, caller)]
        messages = held_messages(db, state, [member.seq for member in left], now_ms) if left else {}
        # Taken out: a member that a hold has twice is gone the second time.
        found = [(member, messages.pop(member.seq, None)) for member in left]
        effects = [decide.delete_member(*each, state.queue, now_ms) for each in found]
        apply(db, state, effects, now_ms, caller)
        db.execute(Q.drop_hold, (queue.id, *key))
        deleted = len(members) - len(left) + sum(isinstance(effect, Deleted) for effect in effects)
        return HoldTally(deleted, lost + len(members) - deleted)

    if not _is_owned(db, queue.id, stream, owner):
        return HoldStep(HoldTally(), None)
    db.execute(Q.use_stream, (queue.id, stream, now_ms))
    db.execute(Q.close_stream, (queue.id, stream, up_to_batch))
    return _step(db, state, stream, after, up_to_batch, DELETED_AT_ONCE, delete)


def forget_stale_stream(db: Database) -> None:
    """Drop the stream that was longest unused, if that is too long, and its holds."""
    stale = db.execute(Q.stale_stream, (db.clock.now_ms() - STREAM_REST_MS,)).get
    if stale is not None:
        db.execute(Q.drop_stream_holds, stale)
        db.execute(Q.drop_stream, stale)


def _keep(
    db: Database,
    state: CachedQueue,
    members: list[Member],
    visibility_s: int,
    now_ms: int,
    caller: Caller,
    *,
    again: bool,
) -> decide.HoldDecision:
    messages = held_messages(db, state, [member.seq for member in members], now_ms)
    group_seqs: dict[str, list[int]] = {}
    if state.queue.settings.fifo and messages:
        groups = msgspec.json.encode(sorted({each.group or "" for each in messages.values()})).decode()
        alive_from = expired_below(now_ms, state.queue.settings.retention_s)
        for group, seq in db.execute(Q.group_seqs, (state.queue.id, groups, alive_from, max(messages))):
            group_seqs.setdefault(group, []).append(seq)
    kept = decide.keep_hold(state.queue, members, messages, group_seqs, visibility_s, now_ms, again=again)
    apply(db, state, kept.effects, now_ms, caller)
    return kept


def _message(db: Database, member: Member) -> StoredMessage:
    message = to_message(db.execute(Q.message_by_seq, (member.seq,)).get)
    # The number of the lease, which a restore may have left behind the message's own (recovery/backup.py).
    message.delivery = member.delivery
    return message


def _strike(
    db: Database, queue_id: int, key: HoldKey, lost: int, members: list[Member], kept: decide.HoldDecision
) -> int:
    """Write down what is left of a hold; how many it lost just now."""
    struck = len(members) - len(kept.left)
    if struck:
        db.execute(Q.write_hold, (queue_id, *key, lost + struck, encode_members(kept.left)))
    return struck


def _is_owned(db: Database, queue_id: int, stream: str, owner: str) -> bool:
    """False for a stream that is not known; raises StreamTaken for somebody else's."""
    found: Any = db.execute(Q.find_stream, (queue_id, stream)).get
    if found is None:
        return False
    present, _ = found
    if present not in (None, owner):
        raise StreamTaken(stream, owner)
    return True


def _step(
    db: Database,
    state: CachedQueue,
    stream: str,
    after: HoldCursor,
    up_to_batch: int,
    members_max: int,
    do: Callable[[HoldKey, int, list[Member]], HoldTally],
) -> HoldStep:
    tally, seen = HoldTally(), 0
    for _ in range(HOLDS_AT_ONCE):
        found = db.execute(Q.next_hold, (state.queue.id, stream, *after, up_to_batch)).get
        if found is None:
            return HoldStep(tally, None)
        batch, part, lost, packed = found
        members, after = decode_members(packed), (batch, part)
        tally = tally.plus(do(HoldKey(stream, batch, part), lost, members))
        seen += len(members)
        if seen >= members_max:
            break
    return HoldStep(tally, after)
