"""Write what `core.decide` came to: effects on the messages of one queue, each kind in one statement that goes with COMMIT or
before the next query, with the counts and events that follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from veil.core.effect import (
    AnyEffect,
    DeadLettered,
    Enqueued,
    LeaseChange,
    Postponed,
    Purged,
    Redriven,
    Removal,
    counted_as,
)
from veil.core.event import NOBODY
from veil.core.lease import State
from veil.core.message import PRIORITY_DEFAULT, Caller
from veil.core.sequence import wake_at_ms
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import LockedQueue, Transaction
from veil.stores.sql import encode_attributes

_VISIBLE = int(State.VISIBLE)
_LEASES = ("states", "dues", "received", "deliveries", "holders", "receive_counts", "firsts", "wakes")
_MESSAGES = (
    "seqs", "queues", "states", "wakes", "dues", "ids", "groups", "deduplications", "traces", "senders", "types", "sizes",
    "attributes", "digests", "bodies", "priorities",
)  # fmt: skip
_REDRIVES = (
    "seqs", "targets", "new_seqs", "ids", "deduplications", "states", "wakes", "dues", "changed", "attributes", "digests",
    "bodies", "sizes", "types",
)  # fmt: skip

MessageRows = list[tuple[Any, ...]]
NO_MESSAGES: Final = {"wall_ms": 0, **{name: list[Any]() for name in _MESSAGES}}


def columns(names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Rows as lists, column by column."""
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def apply(
    tx: Transaction, state: LockedQueue, effects: Sequence[AnyEffect | Postponed], caller: Caller = NOBODY
) -> None:
    """Whatever happened to messages of the queue, in order. Of several changes of one message the last is written."""
    retention_s = state.queue.settings.retention_s
    told: list[AnyEffect] = []
    leases: dict[int, tuple[Any, ...]] = {}
    removed: list[int] = []
    postponed: dict[int, int] = {}
    dead_lettered: list[DeadLettered] = []
    redriven: list[Redriven] = []
    for effect in effects:
        if isinstance(effect, Postponed):
            postponed[effect.message.seq] = effect.wake_at_ms
            continue
        told.append(effect)
        if event := counted_as(effect):
            tx.counted(event, state)
        match effect:
            case LeaseChange():
                message, lease = effect.message, effect.lease
                wake_ms = wake_at_ms(message.seq, lease.due_at_ms, retention_s)
                leases[message.seq] = (*lease, wake_ms)
                tx.shift(state, message.state, lease.state, message.seq, wake_ms, message.group)
            case Removal():
                message = effect.message
                if not isinstance(effect, Purged):  # those are deleted by the statement that finds them
                    removed.append(message.seq)
                    leases.pop(message.seq, None)
                tx.shift(state, message.state, None, message.seq, None, message.group)
            case DeadLettered():
                dead_lettered.append(effect)
            case Redriven():
                redriven.append(effect)
    if leases:
        tx.defer(
            Q.write_leases, {"queue": state.id, "seqs": list(leases), **columns(_LEASES, leases.values())}
        )
    if removed:
        tx.defer(Q.delete_messages, {"queue": state.id, "seqs": removed})
    if postponed:
        wakes = {"seqs": list(postponed), "wakes": list(postponed.values())}
        tx.defer(Q.set_wakes, {"queue": state.id, **wakes})
    if dead_lettered:
        _dead_letter(tx, state, dead_lettered)
    if redriven:
        _redrive(tx, state, redriven)
    if told and tx.journal is not None:
        tx.journal.record(tx.now_ms, state.queue.key, told, caller)


def enqueue(
    tx: Transaction, state: LockedQueue, enqueued: Sequence[Enqueued], caller: Caller, into: MessageRows
) -> None:
    """New messages of the queue: counted and told here, and added to the rows that `insert` stores."""
    retention_s = state.queue.settings.retention_s
    for effect in enqueued:
        new, seq = effect.new, effect.seq
        wake_ms = wake_at_ms(seq, effect.due_at_ms, retention_s)
        attributes = encode_attributes(new.attributes)
        into.append(
            (
                seq, state.id, effect.state, wake_ms, effect.due_at_ms, new.message_id, new.group, new.deduplication_id,
                new.trace_header, new.sender, new.message_type, effect.body_bytes, attributes, new.body_md5, new.body,
                new.priority,
            )
        )  # fmt: skip
        is_last = new.priority >= PRIORITY_DEFAULT
        tx.shift(state, None, effect.state, seq, wake_ms, new.group, at_the_end=is_last)
    if tx.journal is not None:
        tx.journal.record(tx.now_ms, state.queue.key, enqueued, caller)


def insert(tx: Transaction, rows: MessageRows) -> None:
    """Have new messages of whatever queues stored."""
    if rows:
        tx.defer(Q.insert_messages, {"wall_ms": tx.wall_ms, **columns(_MESSAGES, rows)})


def _dead_letter(tx: Transaction, state: LockedQueue, effects: list[DeadLettered]) -> None:
    target = tx.states[effects[0].target.id]
    rows = [(effect.message.seq, effect.new_seq, effect.deduplication_id) for effect in effects]
    named = {"queue": state.id, "target": target.id, "source": state.queue.key.arn}
    tx.defer(Q.to_dead_letters, {**named, **columns(("seqs", "new_seqs", "deduplications"), rows)})
    for effect in effects:
        message = effect.message
        tx.shift(state, message.state, None, message.seq, None, message.group)
        tx.shift(target, None, _VISIBLE, effect.new_seq, None, message.group)
    tx.counted("arrived", target, len(effects))


def _redrive(tx: Transaction, state: LockedQueue, effects: list[Redriven]) -> None:
    rows = []
    for effect in effects:
        message, moved, target = effect.message, effect.moved, tx.states[effect.target.id]
        wake_ms = wake_at_ms(moved.seq, moved.due_at_ms, target.queue.settings.retention_s)
        carried: tuple[Any, ...] = (False, None, None, None, None, None)
        if effect.content is not None:
            attributes = encode_attributes(moved.attributes)
            body = (moved.body_md5, moved.body, moved.body_bytes)
            carried = (True, attributes, *body, moved.message_type)
        new = (message.seq, target.id, moved.seq, moved.message_id, moved.deduplication_id)
        rows.append((*new, moved.state, wake_ms, moved.due_at_ms, *carried))
        tx.shift(state, message.state, None, message.seq, None, message.group)
        tx.shift(target, None, moved.state, moved.seq, wake_ms, moved.group)
        tx.counted("arrived", target)
    named = {"queue": state.id, "wall_ms": tx.wall_ms}
    tx.defer(Q.redrive_messages, {**named, **columns(_REDRIVES, rows)})
