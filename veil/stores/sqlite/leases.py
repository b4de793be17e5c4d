"""What a receipt can do (delete, extend, release, rotate, undo), and what happens by itself (lapse, expire) or to all
messages at once (purge)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from veil.core import decide
from veil.core.attempt import NOTHING_REPORTED, ReportedOutcome
from veil.core.clock import Trouble
from veil.core.effect import HolderSign
from veil.core.errors import VeilError
from veil.core.event import NOBODY, Kind, LeaseFacts
from veil.core.lease import Deletion, Extension, Rotated, State, begun_after_ms
from veil.core.limits import SECOND_MS
from veil.core.message import Caller, HeldMessage
from veil.core.queue import Queue, QueueKey
from veil.core.receipt import Receipt
from veil.core.sequence import SEQ_MAX, expired_below
from veil.stores.sqlite.apply import apply
from veil.stores.sqlite.database import CachedQueue, Database, Q
from veil.stores.sqlite.lease_log import NEVER, CachedLease

TROUBLE = "trouble"  # the name under which the latest is kept
encode_trouble = msgspec.msgpack.Encoder().encode
decode_trouble = msgspec.msgpack.Decoder(Trouble | None).decode
_IN_FLIGHT = int(State.IN_FLIGHT)
# Rows per turn, and bytes of their bodies, all of which SQLite reads to change or remove a row: they bound how long one settling
# holds up everything else.
CHUNK = 500
CHUNK_BYTES = 8 << 20


def held_messages(db: Database, state: CachedQueue, seqs: Sequence[int], now_ms: int) -> decide.HeldMessages:
    """What the rules need to know about those of the messages that the queue still has."""
    # What is past its retention is gone, though perhaps not yet swept.
    alive_from = expired_below(now_ms, state.queue.settings.retention_s)
    db.write_back(state, seqs)
    rows = db.execute_for(Q.held, (state.queue.id,), seqs)
    lease_time = db.lease_time
    return {
        row[0]: decide.excused(HeldMessage._make(row), now_ms, lease_time)
        for row in rows
        if row[0] >= alive_from
    }


# ---- what a receipt can do


def delete(
    db: Database,
    queue: Queue,
    receipts: Sequence[Receipt],
    strict: bool,
    caller: Caller,
    reported: Mapping[int, ReportedOutcome] = NOTHING_REPORTED,
) -> list[Deletion | VeilError]:
    """Delete by receipt, each on its own."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    answers: list[Deletion | VeilError] = [Deletion.DELETED] * len(receipts)
    seqs, holders = [receipt.seq for receipt in receipts], [receipt.holder for receipt in receipts]
    if places := delete_held(db, state, seqs, holders, now_ms, caller, reported):
        left = [receipts[place] for place in places]
        messages = held_messages(db, state, [receipt.seq for receipt in left], now_ms)
        effects, verdicts = decide.decide_deletions(
            messages, left, now_ms, fifo=state.queue.settings.fifo, strict=strict, reported=reported
        )
        apply(db, state, effects, now_ms, caller)
        for place, verdict in zip(places, verdicts, strict=True):
            answers[place] = verdict
    return answers


def delete_held(
    db: Database,
    state: CachedQueue,
    seqs: Sequence[int],
    holders: Sequence[int],
    now_ms: int,
    caller: Caller,
    reported: Mapping[int, ReportedOutcome] = NOTHING_REPORTED,
) -> Sequence[int]:
    """The shortcut `may_delete` of queries.sql, for messages and who says to hold each; the places of those that are to be
    decided: they are not held so, or the queue has groups."""
    if state.has_groups:
        return range(len(seqs))
    queue = state.queue
    cached, taken, places = _held_open(db, state, Q.may_delete, seqs, holders, now_ms)
    if cached:
        db.lease_log.forget(state.leases, [facts[0] for facts, _ in cached])
        taken += [facts for facts, _ in cached]
    if taken:
        db.change_all(Q.delete_messages, (), [facts[0] for facts in taken])
        db.shift(state, _IN_FLIGHT, None, 0, None, None, len(taken))
        if db.journal is not None:
            db.journal.record_facts(Kind.DELETED, now_ms, queue.key, taken, caller, reported)
    return places


class _DeadlineBounds(NamedTuple):
    """What `may_extend` asks of a lease besides that it is open: the new deadline, the earliest receive from which an extension
    reaches that, the latest deadline that may be changed."""

    deadline_ms: int
    received_from_ms: int
    deadline_max_ms: int


def _held_open(
    db: Database,
    state: CachedQueue,
    query: str,
    seqs: Sequence[int],
    holders: Sequence[int],
    now_ms: int,
    bounds: _DeadlineBounds | tuple[()] = (),
) -> tuple[list[CachedLease], list[LeaseFacts], Sequence[int]]:
    """Of messages whose open leases are held so: those that are not in their rows, and the facts of those that one of the
    shortcuts of queries.sql finds in them; and the places of all others."""
    # Of two receipts of one message, each finds what the one before it left: they are decided in their order.
    if not seqs or len(set(seqs)) < len(seqs):
        return [], [], range(len(seqs))
    # What is past its retention is gone, though perhaps not yet swept.
    alive_from = expired_below(now_ms, state.queue.settings.retention_s)
    cached: list[CachedLease] = []
    places: Sequence[int] = range(len(seqs))
    if state.leases.by_seq:
        cached, places = state.leases.held(seqs, holders, now_ms, alive_from, *bounds[1:])
        if not places:
            return cached, [], places
        seqs, holders = [seqs[place] for place in places], [holders[place] for place in places]
    given = (state.queue.id, now_ms, alive_from, *bounds)
    found: list[LeaseFacts] = []
    if holders.count(holders[0]) == len(holders):  # as all of a first delivery have
        found = db.execute_for(query, (holders[0], *given), seqs)
    else:
        alike: dict[int, list[int]] = {}  # seqs by holder: those of one delivery are looked at together
        for seq, holder in zip(seqs, holders, strict=True):
            alike.setdefault(holder, []).append(seq)
        for holder, own in alike.items():
            found += db.execute_for(query, (holder, *given), own)
        found.sort(key=itemgetter(0))  # keys without a gap are changed at once
    if len(found) == len(seqs):
        return cached, found, ()
    known = {facts[0] for facts in found}
    return cached, found, [place for place, seq in zip(places, seqs, strict=True) if seq not in known]


def extend(
    db: Database, queue: Queue, extensions: Sequence[Extension], caller: Caller
) -> list[VeilError | None]:
    """Change visibility by receipt, each on its own."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    settings = state.queue.settings
    answers: list[VeilError | None] = [None] * len(extensions)
    places: Sequence[int] = range(len(extensions))
    receipts, lengths_s, told = zip(*extensions, strict=True) if extensions else ((), (0,), ())
    length_s = lengths_s[0]
    if length_s and lengths_s.count(length_s) == len(lengths_s):
        reported = NOTHING_REPORTED
        if are_over := told.count(None) < len(told):
            reported = {receipt.seq: each for receipt, each in zip(receipts, told, strict=True) if each}
            are_over = len(reported) == len(told) and None not in [each.outcome for each in reported.values()]
        if are_over or not reported:
            deadline_ms = now_ms + length_s * SECOND_MS
            # An earlier deadline than before ends an attempt too, unless that is over anyway.
            latest_ms = NEVER if are_over else deadline_ms
            bounds = _DeadlineBounds(deadline_ms, begun_after_ms(deadline_ms), latest_ms)
            seqs, holders = [each.seq for each in receipts], [each.holder for each in receipts]
            cached, changed, places = _held_open(db, state, Q.may_extend, seqs, holders, now_ms, bounds)
            if changed:
                seqs = [facts[0] for facts in changed]
                db.change_all(Q.move_deadlines, (deadline_ms, settings.retention_s * SECOND_MS), seqs)
            if cached:
                changed += db.lease_log.extend(queue.id, state.leases, cached, deadline_ms)
            if changed:
                if are_over:
                    db.hidden_until(state, deadline_ms)
                if db.journal is not None:
                    kind = Kind.GIVEN_BACK if are_over else Kind.EXTENDED
                    db.journal.record_facts(kind, now_ms, state.queue.key, changed, caller, reported)
    if places:
        left = [extensions[place] for place in places]
        messages = held_messages(db, state, [each.receipt.seq for each in left], now_ms)
        effects, verdicts = decide.decide_extensions(messages, left, now_ms, fifo=settings.fifo)
        apply(db, state, effects, now_ms, caller)
        for place, verdict in zip(places, verdicts, strict=True):
            answers[place] = verdict
    return answers


def rotate(
    db: Database, queue: Queue, extensions: Sequence[Extension], *, caller: Caller = NOBODY
) -> list[Rotated | VeilError]:
    """Change visibility and receipt, each on its own."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    messages = held_messages(db, state, [each.receipt.seq for each in extensions], now_ms)
    effects, answers = decide.decide_rotations(messages, extensions, now_ms)
    apply(db, state, effects, now_ms, caller)
    return answers


def undo_receive(
    db: Database,
    queue: Queue,
    receipts: Sequence[Receipt],
    *,
    opened_ms: Sequence[int | None] | None = None,
    caller: Caller = NOBODY,
) -> None:
    """Give back what a receive took whose answer never left."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    messages = held_messages(db, state, [receipt.seq for receipt in receipts], now_ms)
    apply(db, state, decide.decide_undos(messages, receipts, opened_ms, now_ms), now_ms, caller)


def note_holders(db: Database, queue: Queue, signs: Sequence[HolderSign]) -> None:
    """Record what was learned of holders whose leases had lapsed."""
    apply(db, db.state_of(queue), signs, db.clock.now_ms())


# ---- what happens by itself


def settle(db: Database, queue_id: int) -> bool:
    """Let happen what is due in the queue, one chunk of it; True while more is."""
    # By id: the work may be done again after a rollback, which makes new states.
    state, now_ms = db.states.get(queue_id), db.clock.now_ms()
    if state is None or state.next_due_ms > now_ms:
        return False
    if write_some_back(db, state):
        return True
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
    messages = _of_one_turn(rows)
    more |= len(messages) < len(rows)
    lease_time = db.lease_time
    trouble = lease_time.trouble_at(now_ms)
    due = [decide.decide_due(message, settings, now_ms, trouble, lease_time) for message in messages]
    apply(db, state, [effect for effect in due if effect is not None], now_ms)
    if not more:
        db.look_ahead(state)
    return more


def write_some_back(db: Database, state: CachedQueue, up_to_seq: int = SEQ_MAX) -> bool:
    """Write the leases of messages up to a seq that are not in their rows yet, one chunk of them; True while more may be left."""
    some = [*takewhile(up_to_seq.__ge__, islice(state.leases.by_seq, CHUNK))]
    db.write_back(state, some)
    return len(some) == CHUNK


def _of_one_turn(rows: Sequence[Any]) -> list[HeldMessage]:
    """The first of the messages, as far as their bytes allow; one in any case."""
    messages: list[HeldMessage] = []
    bytes_left = CHUNK_BYTES
    for row in rows:
        message = HeldMessage._make(row)
        messages.append(message)
        bytes_left -= message.body_bytes
        if bytes_left <= 0:
            break
    return messages


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


def reschedule_hidden(db: Database, state: CachedQueue, *, new_delay: bool) -> None:
    """After an edit: the new retention counts, and on FIFO queues a new delay reaches the messages that are waiting."""
    settings = state.queue.settings
    retention_ms = settings.retention_s * SECOND_MS
    if new_delay:
        db.execute(Q.change_delay, (state.queue.id, settings.delay_s * SECOND_MS, retention_ms))
    db.execute(Q.shorten_wakes, (state.queue.id, retention_ms))
    db.look_ahead(state)


def forget_old(db: Database, now_ms: int) -> bool:
    """Drop a bounded number of records of sends and receives whose five minutes are over; True while more are left."""
    more = db.repeatable.forget_old(db, now_ms)
    for query in (Q.forget_deduplication, Q.forget_attempts):
        db.execute(query, (now_ms, CHUNK))
        more |= db.connection.changes() == CHUNK
    db.remembers = more or bool(db.execute(Q.remembers).get)
    return more


# ---- removing everything


class Purge(NamedTuple):
    """What is to go, since when, and by whose wish."""

    queue_id: int
    key: QueueKey
    up_to_seq: int
    at_ms: int
    caller: Caller


def sweep(db: Database, purge: Purge, state: CachedQueue | None) -> bool:
    """Remove one chunk of a queue's messages; True while more are left. `state` is None for a deleted queue."""
    asked = (purge.queue_id, purge.up_to_seq + 1, CHUNK)
    if state is not None and write_some_back(db, state, purge.up_to_seq):
        return True
    rows: list[Any] = []
    for query in (Q.expired_alone, Q.expired_grouped, Q.expired_ranked, Q.hidden_below):
        rows += db.execute(query, asked).fetchall()
    purged = [decide.purge(message) for message in _of_one_turn(rows)]
    if state is not None:
        apply(db, state, purged, purge.at_ms, purge.caller)
    elif purged:
        db.change_all(Q.delete_messages, (), [each.message.seq for each in purged])
        if db.journal is not None:
            db.journal.record(purge.at_ms, purge.key, purged, purge.caller)
    return bool(rows)
