"""Take messages out of sight: the receive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from veil.core.errors import InFlightLimit
from veil.core.fairness import noisy_groups
from veil.core.lease import State, is_spent
from veil.core.limits import ATTEMPT_MS, IN_FLIGHT_MAX
from veil.core.message import Caller, StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import expires_at_ms
from veil.stores.codec import decode_attributes
from veil.stores.postgres import dead_letters, lanes
from veil.stores.postgres.held import held_rows
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Row, Transaction
from veil.stores.recorder import EXTENDED, RECEIVED
from veil.stores.room import Room

_RUN: Final = 10  # rows of a FIFO group that are read at once

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int, int | None]]).decode


def to_message(row: Row) -> StoredMessage:
    """A row of any of the message queries."""
    message = StoredMessage(*row)
    if row[4] is not None:
        message.attributes = decode_attributes(row[4])
    return message


async def receive(
    tx: Transaction,
    queue: Queue,
    count: int,
    visibility_s: int | None,
    attempt_id: str | None,
    caller: Caller,
) -> list[StoredMessage]:
    """Claim up to `count` visible messages, after everything due has been settled."""
    state = tx.state_of(queue)
    window_s = state.queue.settings.visibility_s if visibility_s is None else visibility_s
    if attempt_id is not None and (again := await _repeat(tx, state, attempt_id, window_s)):
        record(tx, state, EXTENDED, again, window_s, caller)
        return again
    if state.in_flight >= IN_FLIGHT_MAX and not state.fifo:
        raise InFlightLimit(IN_FLIGHT_MAX)
    messages = await take(tx, state, Room.of(count), window_s, caller)
    if attempt_id is not None and messages:
        _remember(tx, state, attempt_id, messages)
    return messages


async def take(
    tx: Transaction, state: QueueState, room: Room, window_s: int, caller: Caller
) -> list[StoredMessage]:
    """Claim what is visible, as much as there is room for and the limit of messages in flight allows."""
    room.count = min(room.count, IN_FLIGHT_MAX - state.in_flight)
    if not room.is_left() or not state.visible:
        return []
    lanes.tell(tx, state)
    candidates = _fifo_order(tx, state, room) if state.fifo else _standard_order(tx, state, room)
    taken = await _without_spent(tx, state, candidates, room)
    messages = _claim(tx, state, taken, window_s)
    record(tx, state, RECEIVED, messages, window_s, caller)
    return messages


async def peek_next(tx: Transaction, queue: Queue, limit: int) -> list[StoredMessage]:
    """What a receive would come to first."""
    state, room, found = tx.state_of(queue), Room(limit), list[StoredMessage]()
    if not state.visible or not room.is_left():
        return []
    candidates = _fifo_order(tx, state, room) if state.fifo else _standard_order(tx, state, room)
    async for row in candidates:
        found.append(to_message(row))
        if room.took(row):
            break
    return found


# ---- choosing


async def _without_spent(
    tx: Transaction, state: QueueState, candidates: AsyncIterator[Row], room: Room
) -> list[Row]:
    target = dead_letters.destination(tx, state)
    taken, spent = list[Row](), list[Row]()
    async for row in candidates:
        if target is not None and is_spent(row[11], state.queue.settings.redrive):
            spent.append(row)
        else:
            taken.append(row)
            if room.took(row):
                break
    if target is not None and spent:
        await dead_letters.move(tx, state, target, spent)
    return taken


async def _pages(tx: Transaction, query: str, page: int, **named: object) -> AsyncIterator[Row]:
    """Rows of one of the queries that are ordered by priority and age, page by page."""
    priority = seq = 0
    while True:
        rows = await tx.rows(query, {**named, "priority": priority, "after": seq, "limit": page})
        for row in rows:
            yield row
        if len(rows) < page:
            return
        seq, priority = rows[-1][0], rows[-1][19]


async def _standard_order(tx: Transaction, state: QueueState, room: Room) -> AsyncIterator[Row]:
    """Quiet groups first; then the noisy ones, the one with the fewest in flight first. Within that by priority, then age."""
    page, noisy = min(room.count, room.page_max), list[str]()
    if state.has_lanes:
        loud = await tx.rows(Q.loud_lanes, {"queue": state.id})
        noisy = noisy_groups(dict(loud), state.in_flight)
    quiet = (
        _pages(tx, Q.visible_quiet, page, queue=state.id, noisy=noisy)
        if noisy
        else _pages(tx, Q.visible_in_order, page, queue=state.id)
    )
    async for row in quiet:
        yield row
    for group in noisy:
        async for row in _pages(tx, Q.visible_of_group, page, queue=state.id, group=group):
            yield row


async def _fifo_order(tx: Transaction, state: QueueState, room: Room) -> AsyncIterator[Row]:
    """From the group whose turn it is as many as fit, then from the next."""
    # One more group than messages never helps: each open lane has at least one to give, unless that is spent.
    limit, served = room.count, 0
    while True:
        lanes_now = await tx.rows(Q.open_lanes, {"queue": state.id, "limit": served + limit})
        groups = [group for (group,) in lanes_now[served:]]
        runs: dict[str, list[Row]] = {group: [] for group in groups}
        if groups:
            named = {"queue": state.id, "groups": groups, "after": 0, "limit": _RUN}
            for row in await tx.rows(Q.of_groups, named):
                runs[row[8]].append(row)
        for group, rows in runs.items():
            async for row in _leading_run(tx, state, group, rows):
                yield row
        served += len(groups)
        if len(groups) < limit:
            return


async def _leading_run(tx: Transaction, state: QueueState, group: str, rows: list[Row]) -> AsyncIterator[Row]:
    while rows:
        for row in rows:
            if row[14] != State.VISIBLE:
                return
            yield row
        if len(rows) < _RUN:
            return
        named = {"queue": state.id, "groups": [group], "after": rows[-1][0], "limit": _RUN}
        rows = await tx.rows(Q.of_groups, named)


# ---- claiming


def _claim(tx: Transaction, state: QueueState, rows: list[Row], window_s: int) -> list[StoredMessage]:
    if not rows:
        return []
    deadline_ms = tx.now_ms + window_s * 1000
    messages = [to_message(row) for row in rows]
    for message in messages:
        message.received_at_ms = tx.now_ms
        message.delivery += 1
        message.receive_count += 1
        if message.first_received_wall_ms is None:
            message.first_received_wall_ms = tx.wall_ms
        if window_s:
            message.state, message.due_at_ms = State.IN_FLIGHT, deadline_ms
            state.hidden_until(min(deadline_ms, expires_at_ms(message.seq, state.queue.settings.retention_s)))
            lanes.change(state, message.group, in_flight=1)
    named = {"queue": state.id, "seqs": [message.seq for message in messages]}
    instants = {"now_ms": tx.now_ms, "wall_ms": tx.wall_ms}
    if window_s:
        tx.later(
            Q.open_leases, {**named, **instants, "due_ms": deadline_ms, "retention_ms": state.retention_ms}
        )
        tx.count(state, visible=-len(messages), in_flight=len(messages))
    else:
        tx.later(Q.count_looks, {**named, **instants})
    if state.fifo:
        lanes.serve(tx, state, list(dict.fromkeys(message.group or "" for message in messages)))
    return messages


def record(
    tx: Transaction,
    state: QueueState,
    kind: int,
    messages: list[StoredMessage],
    window_s: int,
    caller: Caller,
) -> None:
    """Tell the journal of leases that were opened, or begun again."""
    journal = tx.journal
    if journal is None or not messages:
        return
    place, who = journal.places(state.queue.key, caller)
    for m in messages:
        # Without a window the lease is over at once.
        deadline_ms = m.due_at_ms if window_s else tx.now_ms
        facts = (m.message_id, m.delivery, deadline_ms, m.receive_count, m.body_bytes, m.message_type)
        journal.events.append((kind, tx.now_ms, place, m.seq, *facts, who))


# ---- repeating


async def _repeat(
    tx: Transaction, state: QueueState, attempt_id: str, window_s: int
) -> list[StoredMessage] | None:
    """What the attempt returned before, with its windows started again; None unless all of it is still as it was."""
    if not window_s:
        return None  # there is no window to start again
    named = {"queue": state.id, "attempt": attempt_id, "now_ms": tx.now_ms}
    found = await tx.row(Q.find_attempt, named)
    if found is None:
        return None
    claims = _decode(found[0])
    present = await held_rows(tx, state, [seq for seq, _, _ in claims])
    for seq, delivery, due_at_ms in claims:
        row = present.get(seq)
        # The bare delivery: a receipt that was rotated since is another one.
        if due_at_ms is None or row is None or row.state != State.IN_FLIGHT:
            return None
        if row.holder != delivery or row.due_at_ms != due_at_ms or due_at_ms <= tx.now_ms:
            return None
    seqs = [seq for seq, _, _ in claims]
    rows = {row[0]: row for row in await tx.rows(Q.messages_by_seq, {"queue": state.id, "seqs": seqs})}
    messages = [to_message(rows[seq]) for seq in seqs]
    restart(tx, state, messages, window_s)
    _remember(tx, state, attempt_id, messages)
    return messages


def restart(tx: Transaction, state: QueueState, messages: list[StoredMessage], window_s: int) -> None:
    """Begin the windows of open leases anew, as if their messages were received now."""
    deadline_ms = tx.now_ms + window_s * 1000
    for message in messages:
        message.due_at_ms, message.received_at_ms = deadline_ms, tx.now_ms
        state.hidden_until(min(deadline_ms, expires_at_ms(message.seq, state.queue.settings.retention_s)))
    tx.later(
        Q.restart_leases,
        {
            "queue": state.id,
            "seqs": [message.seq for message in messages],
            "due_ms": deadline_ms,
            "retention_ms": state.retention_ms,
            "now_ms": tx.now_ms,
        },
    )


def _remember(tx: Transaction, state: QueueState, attempt_id: str, messages: list[StoredMessage]) -> None:
    claims = _encode([(m.seq, m.delivery, m.due_at_ms) for m in messages])
    until_ms = tx.now_ms + ATTEMPT_MS
    named = {"queue": state.id, "attempt": attempt_id}
    tx.later(Q.remember_attempt, {**named, "until_ms": until_ms, "claims": claims})
