"""What a receipt can do (delete, extend, release, rotate, undo), and what happens by itself (lapse, expire) or to all
messages at once (purge)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from veil.core import decide
from veil.core.attempt import ReportedOutcome
from veil.core.clock import LeaseTime, Trouble, TroubleKind
from veil.core.effect import HolderSign
from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.core.lease import Deletion, Extension, Rotated
from veil.core.message import Caller, HeldMessage
from veil.core.queue import Queue, QueueKey
from veil.core.receipt import Receipt
from veil.core.sequence import expired_below
from veil.stores.postgres.apply import apply
from veil.stores.postgres.pipeline import Q
from veil.stores.postgres.transaction import LockedQueue, SharedOperation, Transaction

CHUNK = 1_000  # rows per transaction: bounds how long the locks are held


async def held_messages(tx: Transaction, state: LockedQueue, seqs: Iterable[int]) -> decide.HeldMessages:
    """Those of the messages that are in the queue, locked until the transaction ends."""
    # A message past its retention is gone, even if it was not swept yet.
    below = expired_below(tx.now_ms, state.queue.settings.retention_s)
    wanted = sorted({seq for seq in seqs if seq >= below})
    if not wanted:
        return {}
    found = map(HeldMessage._make, await tx.rows(Q.held, {"queue": state.id, "seqs": wanted}))
    return {message.seq: decide.excused(message, tx.now_ms, tx.lease_time) for message in found}


# ---- what a receipt can do


@dataclass(slots=True, eq=False, kw_only=True)
class DeleteOperation(SharedOperation):
    """Delete by receipt, each on its own."""

    receipts: Sequence[Receipt]
    strict: bool
    reported: Mapping[int, ReportedOutcome]

    async def work(self, tx: Transaction) -> list[Deletion | VeilError]:
        state = tx.state_of(self.queue)
        messages = await held_messages(tx, state, (receipt.seq for receipt in self.receipts))
        effects, answers = decide.decide_deletions(
            messages, self.receipts, tx.now_ms, fifo=state.fifo, strict=self.strict, reported=self.reported
        )
        apply(tx, state, effects, self.caller)
        return answers


@dataclass(slots=True, eq=False, kw_only=True)
class ExtendOperation(SharedOperation):
    """Change visibility by receipt, each on its own."""

    extensions: Sequence[Extension]

    async def work(self, tx: Transaction) -> list[VeilError | None]:
        state = tx.state_of(self.queue)
        return self.extended(
            tx, state, await held_messages(tx, state, (e.receipt.seq for e in self.extensions))
        )

    def extended(
        self, tx: Transaction, state: LockedQueue, messages: decide.HeldMessages, *, more_follow: bool = False
    ) -> list[VeilError | None]:
        """Apply it to messages that were already read; `more_follow`: for other operations too."""
        effects, answers = decide.decide_extensions(
            messages, self.extensions, tx.now_ms, fifo=state.fifo, more_follow=more_follow
        )
        apply(tx, state, effects, self.caller)
        return answers


async def rotate(
    tx: Transaction, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
) -> list[Rotated | VeilError]:
    """Change visibility and receipt, each on its own."""
    state = tx.state_of(queue)
    messages = await held_messages(tx, state, (each.receipt.seq for each in extensions))
    effects, answers = decide.decide_rotations(messages, extensions, tx.now_ms)
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
    """Give back the messages of a receive whose answer was never sent."""
    state = tx.state_of(queue)
    messages = await held_messages(tx, state, (receipt.seq for receipt in receipts))
    apply(tx, state, decide.decide_undos(messages, receipts, opened_ms, tx.now_ms), caller)


async def note_holders(tx: Transaction, queue: Queue, signs: Sequence[HolderSign]) -> None:
    """Record what was learned of holders whose leases had lapsed."""
    apply(tx, tx.state_of(queue), signs)


# ---- what happens by itself


async def settle(tx: Transaction, state: LockedQueue) -> bool:
    """Settle one chunk of what is due in the queue; True if there is more."""
    named = {"queue": state.id, "limit": CHUNK}
    settings = state.queue.settings
    below = expired_below(tx.now_ms, settings.retention_s)
    hidden, visible, [lease_time] = await tx.rows_of_each(
        (Q.due, {**named, "now_ms": tx.now_ms}),
        (Q.expired, {**named, "below": below}),
        (Q.lease_time, {**SILENT, "now_ms": tx.now_ms}),
    )
    excused = shared_trouble(tx.lease_time, tx.now_ms, *lease_time)
    messages = map(HeldMessage._make, [*hidden, *visible])
    due = (decide.decide_due(message, settings, tx.now_ms, excused, tx.lease_time) for message in messages)
    apply(tx, state, [effect for effect in due if effect is not None])
    return len(hidden) == CHUNK or len(visible) == CHUNK


# A gap this long in all heartbeats means that the database was down, or all nodes were.
BEAT_GAP_MS: Final = 3_000
DEAD_AFTER_MS: Final = 5_000
_SILENT_MS: Final = 2_500
# A node not seen for this long takes no renewals, whether it is declared dead or comes back.
SILENT: Final = {"silent_ms": _SILENT_MS, "silent_max_ms": DEAD_AFTER_MS + _SILENT_MS}


def shared_trouble(
    lease_time: LeaseTime, now_ms: int, beat_ms: int, silent_since_ms: int | None, *latest: Any
) -> Trouble | None:
    """The trouble that excuses a lapse: one that this node or another one noticed, a node that fell silent, or a time when no
    node was running."""
    if latest[0] is not None:
        lease_time.learn(Trouble(*latest))
    trouble = lease_time.trouble_at(now_ms)
    if not lease_time.is_on:
        return None
    if now_ms - beat_ms > BEAT_GAP_MS:
        return Trouble(beat_ms, now_ms, TroubleKind.DATABASE).after(trouble)
    if silent_since_ms is not None:
        return Trouble(silent_since_ms, now_ms, TroubleKind.NODE).after(trouble)
    return trouble


# ---- removing everything


async def sweep(
    tx: Transaction, queue: LockedQueue | tuple[int, QueueKey], up_to_seq: int, at_ms: int, caller: Caller
) -> bool:
    """Remove one chunk of messages from a queue, or from a deleted one, as of the given instant and caller; True if more are
    left."""
    queue_id, key = (queue.id, queue.queue.key) if isinstance(queue, LockedQueue) else queue
    rows = await tx.rows(Q.sweep, {"queue": queue_id, "up_to": up_to_seq, "limit": CHUNK})
    purged = [decide.purge(HeldMessage._make(row)) for row in rows]
    if isinstance(queue, LockedQueue):
        apply(tx, queue, purged, caller)
    elif tx.journal is not None and purged:
        tx.journal.record(at_ms, key, purged, caller)
    return len(rows) == CHUNK
