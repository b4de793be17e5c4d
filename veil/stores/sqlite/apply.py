"""Write what `core.decide` came to: effects on the messages of one queue, in bulk, with the counts and events that follow."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.effect import (
    AnyEffect,
    DeadLettered,
    DeleteRefused,
    ExtensionRefused,
    HolderSign,
    LeaseChange,
    Postponed,
    Redriven,
    Removal,
    counted_as,
)
from veil.core.event import NOBODY
from veil.core.lease import State
from veil.core.limits import SECOND_MS
from veil.core.message import Caller
from veil.core.sequence import wake_at_ms
from veil.stores.sql import encode_attributes
from veil.stores.sqlite.database import CachedQueue, Database, Q

_VISIBLE = int(State.VISIBLE)


def apply(
    db: Database,
    state: CachedQueue,
    effects: Sequence[AnyEffect | Postponed],
    now_ms: int,
    caller: Caller = NOBODY,
) -> None:
    """Whatever happened to messages of the queue: of one that leaves it nothing else happened."""
    told: list[AnyEffect] = []
    changes: list[LeaseChange] = []
    removed: list[int] = []
    for effect in effects:
        if isinstance(effect, Postponed):
            db.execute(Q.set_wake, (effect.wake_at_ms, effect.message.seq))
            continue
        told.append(effect)
        is_refusal = isinstance(effect, DeleteRefused | ExtensionRefused)
        if event := counted_as(effect):
            db.notice(event, state) if is_refusal else db.counted(event, state)
        match effect:
            case LeaseChange():
                changes.append(effect)
            case Removal():
                message = effect.message
                removed.append(message.seq)
                db.shift(state, message.state, None, message.seq, None, message.group)
            case DeadLettered():
                _dead_letter(db, state, effect)
            case Redriven():
                _redrive(db, state, effect)
    if changes:
        _write_leases(db, state, changes)
    if removed:
        db.change_all(Q.delete_messages, (), removed)
    if told and db.journal is not None:
        db.journal.record(now_ms, state.queue.key, told, caller)
        if all(isinstance(effect, DeleteRefused | ExtensionRefused | HolderSign) for effect in told):
            # A refusal or a sign changes no message, and a group without a change would not be committed.
            db.execute(Q.touch_mark)


def _write_leases(db: Database, state: CachedQueue, changes: Sequence[LeaseChange]) -> None:
    retention_s = state.queue.settings.retention_s
    became = [(change.message.state, change.lease) for change in changes]
    seqs = [change.message.seq for change in changes]
    if len(became) > 1 and not state.has_groups and became.count(became[0]) == len(set(seqs)) == len(seqs):
        # As all of a receive mostly are: one statement for all.
        before, lease = became[0]
        db.change_all(Q.write_leases, (*lease, retention_s * SECOND_MS), seqs)
        first = min(seqs)  # whatever is due of them is so no later for any other
        wake_ms = wake_at_ms(first, lease.due_at_ms, retention_s)
        db.shift(state, before, lease.state, first, wake_ms, None, len(seqs))
        return
    for change, (before, lease) in zip(changes, became, strict=True):
        message = change.message
        wake_ms = wake_at_ms(message.seq, lease.due_at_ms, retention_s)
        db.execute_for(Q.write_leases, (*lease, retention_s * SECOND_MS), (message.seq,))
        db.shift(state, before, lease.state, message.seq, wake_ms, message.group)


def _dead_letter(db: Database, state: CachedQueue, effect: DeadLettered) -> None:
    message, target, seq = effect.message, db.states[effect.target.id], effect.new_seq
    source = state.queue.key.arn
    moved = (target.queue.id, source, seq, effect.deduplication_id, message.seq)
    db.execute(Q.to_dead_letters, moved)
    db.shift(state, message.state, None, message.seq, None, message.group)
    # On a FIFO target the message may join a group whose first message is in flight: the group's own row decides.
    db.shift(target, None, _VISIBLE, seq, None, message.group)
    db.counted("arrived", target)
    db.visible_from(target, seq)
    db.rank(target, message.priority)  # type: ignore[union-attr]  # what is received is a StoredMessage


def _redrive(db: Database, state: CachedQueue, effect: Redriven) -> None:
    message, moved, target = effect.message, effect.moved, db.states[effect.target.id]
    wake_ms = wake_at_ms(moved.seq, moved.due_at_ms, target.queue.settings.retention_s)
    new = (target.queue.id, moved.seq, moved.message_id, moved.sent_wall_ms, moved.deduplication_id)
    db.execute(Q.redrive_message, (*new, moved.state, wake_ms, moved.due_at_ms, message.seq))
    if effect.content is not None:
        carried = (encode_attributes(moved.attributes), moved.body_md5, moved.body, moved.body_bytes)
        db.execute(Q.change_content, (*carried, moved.message_type, moved.seq))
    db.shift(state, message.state, None, message.seq, None, message.group)
    db.shift(target, None, moved.state, moved.seq, wake_ms, moved.group)
    db.counted("arrived", target)
    if wake_ms is None:
        db.visible_from(target, moved.seq)
    db.rank(target, moved.priority)
