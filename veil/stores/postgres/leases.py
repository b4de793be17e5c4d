"""What a receipt can do (delete, extend, release, rotate, undo), and what happens by itself (lapse, expire) or to all
messages at once (purge)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from veil.core import decide
from veil.core.attempt import NOTHING_SAID, Said
from veil.core.clock import LeaseTime, Trouble, TroubleKind
from veil.core.effect import AnyEffect, Deleted, DeleteRefused, ExtensionRefused, HolderSign, LeaseChange
from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.core.lease import Deletion
from veil.core.message import Caller, HeldMessage
from veil.core.queue import Queue, QueueKey
from veil.core.receipt import Receipt
from veil.core.sequence import expired_below
from veil.stores.postgres.apply import apply
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import QueueState, Transaction
from veil.stores.store import Extension, Rotated

CHUNK = 1_000  # rows per transaction: bounds how long the locks are held

# The messages of a call by seq: what each receipt finds is what the one before it left.
HeldMessages = dict[int, HeldMessage]


async def held_messages(tx: Transaction, state: QueueState, seqs: Iterable[int]) -> HeldMessages:
    """What the queue has of these messages, each locked until the transaction ends."""
    # What is past its retention is gone, though perhaps not yet swept.
    below = expired_below(tx.now_ms, state.queue.settings.retention_s)
    wanted = sorted({seq for seq in seqs if seq >= below})
    if not wanted:
        return {}
    found = map(HeldMessage._make, await tx.rows(Q.held, {"queue": state.id, "seqs": wanted}))
    return {message.seq: decide.excused(message, tx.now_ms, tx.lease_time) for message in found}


def take_in(messages: HeldMessages, effect: object) -> None:
    """What an effect makes of its message, for the next receipt of the same call."""
    if isinstance(effect, LeaseChange):
        message = messages[effect.message.seq]
        messages[message.seq] = message._replace(**effect.lease._asdict())
    elif isinstance(effect, Deleted):
        del messages[effect.message.seq]


# ---- what a receipt can do


async def delete(
    tx: Transaction,
    queue: Queue,
    receipts: Sequence[Receipt],
    strict: bool,
    caller: Caller,
    said: Mapping[int, Said] = NOTHING_SAID,
) -> list[Deletion | VeilError]:
    """Delete by receipt, each on its own."""
    state = tx.state_of(queue)
    messages = await held_messages(tx, state, (receipt.seq for receipt in receipts))
    effects: list[Deleted | DeleteRefused] = []
    for receipt in receipts:
        message = messages.get(receipt.seq)
        effect = decide.decide_deletion(
            message, receipt, tx.now_ms, fifo=state.fifo, strict=strict, said=said.get(receipt.seq)
        )
        take_in(messages, effect)
        effects.append(effect)
    apply(tx, state, effects, caller)
    return [
        effect.error or effect.deletion if isinstance(effect, DeleteRefused) else Deletion.DELETED
        for effect in effects
    ]


async def extend(
    tx: Transaction, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[VeilError | None]:
    """Change visibility by receipt, each on its own."""
    state = tx.state_of(queue)
    messages = await held_messages(tx, state, (each.receipt.seq for each in extensions))
    return extend_held(tx, state, messages, extensions, caller)


def extend_held(
    tx: Transaction,
    state: QueueState,
    messages: HeldMessages,
    extensions: Sequence[Extension],
    caller: Caller,
) -> list[VeilError | None]:
    """The same on messages that were read before."""
    effects: list[AnyEffect] = []
    answers: list[VeilError | None] = []
    for receipt, visibility_s, said in extensions:
        message = messages.get(receipt.seq)
        effect = decide.decide_extension(
            message, receipt, visibility_s, tx.now_ms, fifo=state.fifo, said=said
        )
        if effect is None or isinstance(effect, VeilError):
            answers.append(effect)
            continue
        take_in(messages, effect)
        effects.append(effect)
        answers.append(effect.error if isinstance(effect, ExtensionRefused) else None)
    apply(tx, state, effects, caller)
    return answers


async def rotate(
    tx: Transaction, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
) -> list[Rotated | VeilError]:
    """Change visibility and receipt, each on its own."""
    state = tx.state_of(queue)
    messages = await held_messages(tx, state, (each.receipt.seq for each in extensions))
    effects: list[AnyEffect] = []
    answers: list[Rotated | VeilError] = []
    for receipt, visibility_s, _ in extensions:
        effect = decide.decide_rotation(messages.get(receipt.seq), receipt, visibility_s, tx.now_ms)
        take_in(messages, effect)
        effects.append(effect)
        if isinstance(effect, ExtensionRefused):
            answers.append(effect.error)
        else:
            answers.append(Rotated(decide.rotated_receipt(receipt), effect.lease.due_at_ms or tx.now_ms))
    apply(tx, state, effects, caller)
    return answers


async def undo_receive(
    tx: Transaction,
    queue: Queue,
    receipts: Sequence[Receipt],
    *,
    opened_ms: Sequence[int | None] | None = None,
    caller: Caller = NOBODY,
) -> None:
    """Give back what a receive took whose answer never left."""
    state = tx.state_of(queue)
    messages = await held_messages(tx, state, (receipt.seq for receipt in receipts))
    effects: list[AnyEffect] = []
    for receipt, at_ms in zip(receipts, opened_ms or repeat(None), strict=False):
        undone = decide.decide_undo(messages.get(receipt.seq), receipt, tx.now_ms, at_ms)
        if undone is not None:
            take_in(messages, undone)
            effects.append(undone)
    apply(tx, state, effects, caller)


async def note_holders(tx: Transaction, queue: Queue, signs: Sequence[HolderSign]) -> None:
    """Record what was learned of holders whose leases had lapsed."""
    apply(tx, tx.state_of(queue), signs)


# ---- what happens by itself


async def settle(tx: Transaction, state: QueueState) -> bool:
    """Let happen what is due in the queue, one chunk of it; True while more is."""
    named = {"queue": state.id, "limit": CHUNK}
    settings = state.queue.settings
    below = expired_below(tx.now_ms, settings.retention_s)
    hidden, visible, [(beat_ms, *trouble)] = await tx.many(
        (Q.due, {**named, "now_ms": tx.now_ms}), (Q.expired, {**named, "below": below}), (Q.lease_time, {})
    )
    excused = shared_trouble(tx.lease_time, tx.now_ms, beat_ms, trouble)
    messages = map(HeldMessage._make, [*hidden, *visible])
    due = (decide.decide_due(message, settings, tx.now_ms, excused, tx.lease_time) for message in messages)
    apply(tx, state, [effect for effect in due if effect is not None])
    return len(hidden) == CHUNK or len(visible) == CHUNK


# No node ran for so long: the database was away, or all of them were.
BEAT_GAP_MS = 3_000


def shared_trouble(lease_time: LeaseTime, now_ms: int, beat_ms: int, latest: Sequence[Any]) -> Trouble | None:
    """The trouble that a lapse has to reckon with: what this node noticed, what others noted, or that no node ran."""
    if latest[0] is not None:
        lease_time.learn(Trouble(*latest))
    trouble = lease_time.trouble_at(now_ms)
    if lease_time.is_on and now_ms - beat_ms > BEAT_GAP_MS:
        return Trouble(beat_ms, now_ms, TroubleKind.DATABASE).after(trouble)
    return trouble


# ---- removing everything


class Purge(NamedTuple):
    """What is to go, since when, and by whose wish."""

    queue_id: int
    key: QueueKey
    up_to_seq: int
    at_ms: int
    caller: Caller


async def sweep(tx: Transaction, purge: Purge, state: QueueState | None) -> bool:
    """Remove one chunk of a queue's messages; True while more are left. `state` is None for a deleted queue."""
    rows = await tx.rows(Q.sweep, {"queue": purge.queue_id, "up_to": purge.up_to_seq, "limit": CHUNK})
    purged = [decide.purge(HeldMessage._make(row)) for row in rows]
    if state is not None:
        apply(tx, state, purged, purge.caller)
    elif tx.journal is not None and purged:
        tx.journal.record(purge.at_ms, purge.key, purged, purge.caller)
    return len(rows) == CHUNK
