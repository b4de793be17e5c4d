"""What a receipt can do (delete, extend, release, rotate, undo), and what happens by itself (lapse, expire) or to all
messages at once (purge)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from veil.core import decide
from veil.core.attempt import NOTHING_SAID, Said
from veil.core.clock import Trouble
from veil.core.effect import DeleteRefused, ExtensionRefused, HolderSign
from veil.core.errors import VeilError
from veil.core.lease import Deletion, State
from veil.core.message import Caller, HeldMessage
from veil.core.queue import Queue, QueueKey
from veil.core.receipt import Receipt
from veil.core.sequence import expired_below, wake_at_ms
from veil.stores.sqlite.apply import apply, apply_leases
from veil.stores.sqlite.database import Database, Q, QueueState
from veil.stores.store import Extension, Rotated

TROUBLE = "trouble"  # the name under which the latest is kept
encode_trouble = msgspec.msgpack.Encoder().encode
decode_trouble = msgspec.msgpack.Decoder(Trouble | None).decode
CHUNK = 500  # rows per turn: bounds how long one settling holds up everything else
_IN_FLIGHT = int(State.IN_FLIGHT)


def held_message(db: Database, state: QueueState, seq: int, now_ms: int) -> HeldMessage | None:
    """What the rules need to know about the message; None where the queue has it no more."""
    if seq < expired_below(now_ms, state.queue.settings.retention_s):
        return None  # past its retention, though perhaps not yet swept
    row = db.execute(Q.held, (seq, state.queue.id)).fetchone()
    return None if row is None else decide.excused(HeldMessage._make(row), now_ms, db.lease_time)


# ---- what a receipt can do


def delete(
    db: Database,
    queue: Queue,
    receipts: Sequence[Receipt],
    strict: bool,
    caller: Caller,
    said: Mapping[int, Said] = NOTHING_SAID,
) -> list[Deletion | VeilError]:
    """Delete by receipt, each on its own."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    return [
        _delete_one(db, state, receipt, strict, now_ms, caller, said.get(receipt.seq)) for receipt in receipts
    ]


def _delete_one(
    db: Database,
    state: QueueState,
    receipt: Receipt,
    strict: bool,
    now_ms: int,
    caller: Caller,
    said: Said | None,
) -> Deletion | VeilError:
    if not state.has_groups and _delete_held(db, state, receipt, now_ms, caller, said):
        return Deletion.DELETED
    message = held_message(db, state, receipt.seq, now_ms)
    fifo = state.queue.settings.fifo
    effect = decide.decide_deletion(message, receipt, now_ms, fifo=fifo, strict=strict, said=said)
    apply(db, state, [effect], now_ms, caller)
    if isinstance(effect, DeleteRefused):
        return effect.error or effect.deletion
    return Deletion.DELETED


def _delete_held(
    db: Database, state: QueueState, receipt: Receipt, now_ms: int, caller: Caller, said: Said | None
) -> bool:
    """The shortcut `delete_held` of queries.sql; False where the receipt does not hold the message, which is then decided."""
    seq = receipt.seq
    if seq < expired_below(now_ms, state.queue.settings.retention_s):
        return False  # past its retention, though perhaps not yet swept
    journal, named = db.journal, (seq, state.queue.id, receipt.holder, now_ms)
    facts = None if journal is None else journal.lease(seq, receipt.delivery)
    if journal is None or facts is not None:
        db.execute(Q.delete_held, named)
        if not db.connection.changes():
            return False
    else:
        # Read to the end: until then the statement does not count as a change.
        facts = db.execute(Q.take_held, named).get
        if facts is None:
            return False
    if journal is not None and facts is not None:
        journal.record_deletion(now_ms, state.queue.key, seq, facts, caller, said)
    db.shift(state, _IN_FLIGHT, None, seq, None, None)
    return True


def extend(
    db: Database, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[VeilError | None]:
    """Change visibility by receipt, each on its own."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    return [_extend_one(db, state, extension, now_ms, caller) for extension in extensions]


def _extend_one(
    db: Database, state: QueueState, extension: Extension, now_ms: int, caller: Caller
) -> VeilError | None:
    receipt, visibility_s, said = extension
    message = held_message(db, state, receipt.seq, now_ms)
    fifo = state.queue.settings.fifo
    effect = decide.decide_extension(message, receipt, visibility_s, now_ms, fifo=fifo, said=said)
    if effect is None or isinstance(effect, VeilError):
        return effect
    if isinstance(effect, ExtensionRefused):
        apply(db, state, [effect], now_ms, caller)
        return effect.error
    apply_leases(db, state, [effect], now_ms, caller)
    return None


def rotate(
    db: Database, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[Rotated | VeilError]:
    """Change visibility and receipt, each on its own."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    answers: list[Rotated | VeilError] = []
    for receipt, visibility_s, _ in extensions:
        message = held_message(db, state, receipt.seq, now_ms)
        effect = decide.decide_rotation(message, receipt, visibility_s, now_ms)
        apply(db, state, [effect], now_ms, caller)
        if isinstance(effect, ExtensionRefused):
            answers.append(effect.error)
        else:
            answers.append(Rotated(decide.rotated_receipt(receipt), effect.lease.due_at_ms or now_ms))
    return answers


def undo_receive(
    db: Database,
    queue: Queue,
    receipts: Sequence[Receipt],
    opened_ms: Sequence[int | None] | None,
    caller: Caller,
) -> None:
    """Give back what a receive took whose answer never left."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    for receipt, at_ms in zip(receipts, opened_ms or repeat(None), strict=False):
        undone = decide.decide_undo(held_message(db, state, receipt.seq, now_ms), receipt, now_ms, at_ms)
        if undone is not None:
            apply_leases(db, state, [undone], now_ms, caller)


def note_holders(db: Database, queue: Queue, signs: Sequence[HolderSign]) -> None:
    """Record what was learned of holders whose leases had lapsed."""
    apply(db, db.state_of(queue), signs, db.clock.now_ms())


# ---- what happens by itself


def settle(db: Database, queue_id: int) -> bool:
    """Let happen what is due in the queue, one chunk of it; True while more is."""
    # By id: the work may be done again after a rollback, which makes all states anew.
    state, now_ms = db.states.get(queue_id), db.clock.now_ms()
    if state is None or state.next_due_ms > now_ms:
        return False
    settings = state.queue.settings
    rows = db.execute(Q.due, (queue_id, now_ms, CHUNK)).fetchall()
    more = len(rows) == CHUNK
    if state.next_expiry_ms <= now_ms:
        asked = (queue_id, expired_below(now_ms, settings.retention_s), CHUNK)
        expired = db.execute(Q.expired_alone, asked).fetchall()
        if state.has_groups:
            expired += db.execute(Q.expired_grouped, asked).fetchall()
        if state.ranked:
            expired += db.execute(Q.expired_ranked, asked).fetchall()
        more |= len(expired) >= CHUNK
        rows += expired
    lease_time = db.lease_time
    trouble = lease_time.trouble_at(now_ms)
    due = (decide.decide_due(HeldMessage._make(row), settings, now_ms, trouble, lease_time) for row in rows)
    apply(db, state, [effect for effect in due if effect is not None], now_ms)
    if not more:
        db.look_ahead(state)
    return more


def note_trouble(db: Database, trouble: Trouble) -> None:
    """Keep what leases are excused by, for the next start, and tell the journal of the trouble."""
    db.execute(Q.write_meta, (TROUBLE, encode_trouble(db.lease_time.last)))
    if db.journal is not None:
        db.journal.record_trouble(trouble)


def note_end(db: Database) -> None:
    """Keep until when the server ran, and since when it took no more requests."""
    db.execute(Q.touch_mark)
    if (trouble := db.lease_time.trouble_at(db.clock.now_ms())) is not None:
        db.execute(Q.write_meta, (TROUBLE, encode_trouble(trouble)))


def reschedule_hidden(db: Database, state: QueueState, *, new_delay: bool) -> None:
    """After an edit: retention counts anew, and on FIFO queues a new delay reaches the messages that are waiting."""
    settings = state.queue.settings
    for seq, message_state, due_at_ms in db.execute(Q.hidden_rows, (state.queue.id,)).fetchall():
        if new_delay and message_state == State.DELAYED:
            due_at_ms = decide.new_delay_end_ms(seq, settings)
        wake_ms = wake_at_ms(seq, due_at_ms, settings.retention_s)
        db.execute(Q.reschedule, (wake_ms, due_at_ms, seq))
    db.look_ahead(state)


def forget_old(db: Database, now_ms: int) -> None:
    """Drop a bounded number of records of sends and receives whose five minutes are over."""
    db.execute(Q.forget_deduplication, (now_ms, CHUNK))
    db.execute(Q.forget_attempts, (now_ms, CHUNK))
    db.repeatable.forget_old(db, now_ms)


# ---- removing everything


class Purge(NamedTuple):
    """What is to go, since when, and by whose wish."""

    queue_id: int
    key: QueueKey
    up_to_seq: int
    at_ms: int
    caller: Caller


def sweep(db: Database, purge: Purge, state: QueueState | None) -> bool:
    """Remove one chunk of a queue's messages; True while more are left. `state` is None for a deleted queue."""
    asked = (purge.queue_id, purge.up_to_seq, CHUNK)
    rows: list[Any] = []
    for query in (Q.sweep_alone, Q.sweep_grouped, Q.sweep_ranked, Q.sweep_hidden):
        rows += db.execute(query, asked).fetchall()
    purged = [decide.purge(HeldMessage._make(row)) for row in rows]
    if state is not None:
        apply(db, state, purged, purge.at_ms, purge.caller)
    elif db.journal is not None and purged:
        db.journal.record(purge.at_ms, purge.key, purged, purge.caller)
    return bool(rows)
