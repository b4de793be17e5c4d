"""Take messages out of sight: the receive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import eq
from typing import Any

import msgspec

from veil.core.errors import InFlightLimit
from veil.core.fairness import noisy_groups
from veil.core.lease import State, is_spent
from veil.core.limits import ATTEMPT_MS, IN_FLIGHT_MAX
from veil.core.message import Caller, StoredMessage
from veil.core.priority import PRIORITY_DEFAULT, PRIORITY_LAST
from veil.core.queue import Queue
from veil.core.sequence import expires_at_ms
from veil.stores.recorder import EXTENDED, RECEIVED
from veil.stores.room import PAGE_MAX, Room
from veil.stores.sqlite import dead_letters, lanes
from veil.stores.sqlite.tables import Q, QueueState, Tables, to_message

_MANY = 32  # from so many on, one statement for all is quicker than one for each
_LAST_SEQ = (1 << 63) - 1
_ALONE, _GROUPED = Q.visible_alone, Q.visible_grouped
_OPEN_LEASE, _OPEN_LEASES = Q.open_lease, Q.open_leases


def receive(
    tables: Tables,
    queue: Queue,
    count: int,
    visibility_s: int | None,
    attempt_id: str | None,
    caller: Caller,
) -> list[StoredMessage]:
    """Claim up to `count` visible messages, after everything due has been settled."""
    state = tables.state_of(queue)
    now_ms = tables.clock.now_ms()
    window_s = state.queue.settings.visibility_s if visibility_s is None else visibility_s
    if attempt_id is not None and (again := _repeat(tables, state, attempt_id, window_s, now_ms)):
        _record(tables, state, EXTENDED, again, window_s, now_ms, caller)
        return again
    _check_limit(state)
    messages = take(tables, state, Room.of(count), window_s, now_ms, caller)
    if attempt_id is not None and messages:
        claims = msgspec.json.encode([(m.seq, m.delivery, m.due_at_ms) for m in messages]).decode()
        tables.execute(Q.remember_attempt, (queue.id, attempt_id, now_ms + ATTEMPT_MS, claims))
    return messages


def _check_limit(state: QueueState) -> None:
    if state.in_flight >= IN_FLIGHT_MAX and not state.queue.settings.fifo:
        raise InFlightLimit(IN_FLIGHT_MAX)


def take(
    tables: Tables, state: QueueState, room: Room, window_s: int, now_ms: int, caller: Caller
) -> list[StoredMessage]:
    """Claim what is visible, as much as there is room for and the limit of messages in flight allows."""
    room.count = min(room.count, IN_FLIGHT_MAX - state.in_flight)
    if not room.is_left() or not state.visible:
        return []
    fifo = state.queue.settings.fifo
    taken = _take_fifo(tables, state, room, now_ms) if fifo else _take_standard(tables, state, room, now_ms)
    messages = _claim(tables, state, taken, window_s, now_ms)
    _record(tables, state, RECEIVED, messages, window_s, now_ms, caller)
    return messages


# ---- choosing


def _take_standard(tables: Tables, state: QueueState, room: Room, now_ms: int) -> list[Any]:
    """The first visible messages, spent ones moved out of the way."""
    if not state.has_lanes and state.queue.settings.redrive is None and not state.ranked:
        # By far the most common queue.
        first = tables.execute(_ALONE, (state.queue.id, 0, room.count))
        return list(first) if room.bytes is None else _while_there_is_room(first, room)
    candidates = _standard_order(tables, state, min(room.count, room.page_max))
    return _without_spent(tables, state, candidates, room, now_ms)


def _while_there_is_room(rows: Iterator[Any], room: Room) -> list[Any]:
    taken = []
    for row in rows:
        taken.append(row)
        if room.took(row):
            break
    return taken


def _without_spent(
    tables: Tables, state: QueueState, candidates: Iterator[Any], room: Room, now_ms: int
) -> list[Any]:
    target = dead_letters.destination(tables, state)
    taken = []
    for row in candidates:
        if target is not None and is_spent(row[11], state.queue.settings.redrive):
            dead_letters.move(tables, state, target, row, now_ms)
        else:
            taken.append(row)
            if room.took(row):
                break
    return taken


def _in_order(tables: Tables, state: QueueState, query: str, page: int, *between: str) -> Iterator[Any]:
    """Rows of one of the ordered queries, page by page: a moved row leaves the page behind it as it was."""
    after = 0
    while rows := tables.execute(query, (state.queue.id, *between, after, page)).fetchall():
        yield from rows
        after = rows[-1][0]


def _standard_order(tables: Tables, state: QueueState, page: int) -> Iterator[Any]:
    """Quiet groups first; then the noisy ones, the one with the fewest in flight first. Within that by priority, then age."""
    noisy: list[str] = []
    if state.has_lanes:
        loud = dict(tables.execute(Q.loud_lanes, (state.queue.id,)).fetchall())
        noisy = noisy_groups(loud, state.in_flight)
    yield from _by_priority(
        tables, state, page, _quiet_order(tables, state, page, noisy), lambda group: group not in noisy
    )
    for group in noisy:
        ordinary = _in_order(tables, state, Q.visible_of_group, page, group)
        yield from _by_priority(tables, state, page, ordinary, partial(eq, group))


def _quiet_order(tables: Tables, state: QueueState, page: int, noisy: list[str]) -> Iterator[Any]:
    alone = _in_order(tables, state, _ALONE, page)
    if not state.has_lanes:
        return alone
    if not noisy:
        return _merged(alone, _in_order(tables, state, _GROUPED, page))
    return _merged(alone, _of_quiet_groups(tables, state, page, noisy))


def _by_priority(
    tables: Tables,
    state: QueueState,
    page: int,
    ordinary: Iterator[Any],
    belongs: Callable[[str | None], bool],
) -> Iterator[Any]:
    """Those that go before the ordinary ones, these, and those that go behind them."""
    if not state.ranked:
        yield from ordinary
        return
    first = _ranked(tables, state, page, 0, PRIORITY_DEFAULT)
    last = _ranked(tables, state, page, PRIORITY_DEFAULT, PRIORITY_LAST)
    yield from (row for row in first if belongs(row[8]))
    yield from (row for row in ordinary if row[19] == PRIORITY_DEFAULT)
    yield from (row for row in last if belongs(row[8]))


def _ranked(tables: Tables, state: QueueState, page: int, above: int, up_to: int) -> Iterator[Any]:
    priority, seq = above, _LAST_SEQ
    while rows := tables.execute(Q.visible_ranked, (state.queue.id, priority, seq, up_to, page)).fetchall():
        yield from rows
        priority, seq = rows[-1][19], rows[-1][0]


def _of_quiet_groups(tables: Tables, state: QueueState, page: int, noisy: list[str]) -> Iterator[Any]:
    # The oldest `page` messages of the quiet groups stand in the `page` groups with the oldest heads.
    after, excluded = 0, msgspec.json.encode(noisy).decode()
    while heads := tables.execute(Q.quiet_heads, (state.queue.id, after, excluded, page)).fetchall():
        rows = [
            row
            for group, _ in heads
            for row in tables.execute(Q.visible_of_group, (state.queue.id, group, after, page)).fetchall()
        ]
        rows.sort(key=_seq)
        yield from rows[:page]
        after = rows[:page][-1][0]


def _merged(one: Iterator[Any], other: Iterator[Any]) -> Iterator[Any]:
    left, right = next(one, None), next(other, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            yield left
            left = next(one, None)
        else:
            yield right
            right = next(other, None)


def _seq(row: Any) -> int:
    return int(row[0])


def _take_fifo(tables: Tables, state: QueueState, room: Room, now_ms: int) -> list[Any]:
    """From the group whose turn it is as many as fit, then from the next."""
    taken: list[Any] = []
    served: set[str] = set()
    while room.is_left():
        groups = tables.execute(Q.open_lanes, (state.queue.id, len(served) + room.count)).fetchall()
        fresh = [group for (group,) in groups if group not in served]
        if not fresh:
            break
        for group in fresh:
            served.add(group)
            taken += _without_spent(tables, state, _leading_run(tables, state, group), room, now_ms)
            if not room.is_left():
                break
    return taken


def _leading_run(tables: Tables, state: QueueState, group: str) -> Iterator[Any]:
    for row in _in_order(tables, state, Q.of_group, 10, group):
        if row[14] != State.VISIBLE:
            return
        yield row


def peek_next(tables: Tables, queue: Queue, limit: int) -> list[StoredMessage]:
    """What a receive would come to first."""
    state = tables.state_of(queue)
    if not state.visible or limit < 1:
        return []
    if not state.queue.settings.fifo:
        rows = _standard_order(tables, state, min(limit, PAGE_MAX))
        return [to_message(row) for row in islice(rows, limit)]
    groups = tables.execute(Q.open_lanes, (state.queue.id, limit)).fetchall()
    runs = (row for (group,) in groups for row in _leading_run(tables, state, group))
    return [to_message(row) for row in islice(runs, limit)]


# ---- claiming


def _claim(
    tables: Tables, state: QueueState, rows: list[Any], window_s: int, now_ms: int
) -> list[StoredMessage]:
    if not rows:
        return []
    wall_ms = tables.clock.wall_ms()
    deadline_ms = now_ms + window_s * 1000
    retention_s = state.queue.settings.retention_s
    messages = [to_message(row) for row in rows]
    many = window_s > 0 and len(messages) >= _MANY
    for message in messages:
        message.received_at_ms = now_ms
        message.delivery += 1
        message.receive_count += 1
        if message.first_received_wall_ms is None:
            message.first_received_wall_ms = wall_ms
        if window_s:
            message.state, message.due_at_ms = State.IN_FLIGHT, deadline_ms
            wake_at_ms = min(deadline_ms, expires_at_ms(message.seq, retention_s))
            tables.hidden_until(state, wake_at_ms)
            if not many:
                tables.execute(_OPEN_LEASE, (wake_at_ms, deadline_ms, now_ms, wall_ms, message.seq))
        else:
            tables.execute(Q.count_look, (now_ms, wall_ms, message.seq))
    if many:
        seqs = msgspec.json.encode([message.seq for message in messages]).decode()
        tables.execute(_OPEN_LEASES, (deadline_ms, retention_s * 1000, now_ms, wall_ms, seqs))
    if window_s:
        state.visible -= len(messages)
        state.in_flight += len(messages)
        tables.touch(state)
    if state.has_lanes:
        _tell_lanes(tables, state, messages, now_ms, hidden=window_s > 0)
    return messages


def _tell_lanes(
    tables: Tables, state: QueueState, messages: list[StoredMessage], now_ms: int, *, hidden: bool
) -> None:
    groups: dict[str, int] = {}
    for message in messages:
        if message.group is not None:
            groups[message.group] = groups.get(message.group, 0) + 1
    for group, count in groups.items():
        if hidden:
            lanes.hide(tables, state, group, count)
        if state.queue.settings.fifo:
            lanes.serve(tables, state, group, now_ms)
            lanes.refresh(tables, state, group)


def _record(
    tables: Tables,
    state: QueueState,
    kind: int,
    messages: list[StoredMessage],
    window_s: int,
    now_ms: int,
    caller: Caller,
) -> None:
    journal = tables.journal
    if journal is None or not messages:
        return
    place, who = journal.places(state.queue.key, caller)
    events, keep = journal.events, tables.lease_facts.keep
    for m in messages:
        seq = m.seq
        # Without a window the lease is over at once.
        deadline_ms = m.due_at_ms if window_s else now_ms
        facts = (m.message_id, m.delivery, deadline_ms, m.receive_count, m.body_bytes, m.message_type)
        keep(seq, facts)
        events.append((kind, now_ms, place, seq, *facts, who))


# ---- repeating


def _repeat(
    tables: Tables, state: QueueState, attempt_id: str, window_s: int, now_ms: int
) -> list[StoredMessage] | None:
    """What the attempt returned before, with its windows started again; None unless all of it is still as it was."""
    if not window_s:
        return None  # there is no window to start again
    found = tables.execute(Q.find_attempt, (state.queue.id, attempt_id, now_ms)).fetchone()
    if found is None:
        return None
    messages = []
    for seq, delivery, due_at_ms in msgspec.json.decode(found[0], type=list[tuple[int, int, int | None]]):
        held = tables.execute(Q.held, (seq, state.queue.id)).fetchone()
        if due_at_ms is None or due_at_ms <= now_ms or held is None or held[0] != State.IN_FLIGHT:
            return None
        if held[2] != delivery or held[4] != due_at_ms:
            return None
        messages.append(to_message(tables.execute(Q.message_by_seq, (seq,)).fetchone()))
    deadline_ms = now_ms + window_s * 1000
    for message in messages:
        message.due_at_ms, message.received_at_ms = deadline_ms, now_ms
        wake_at_ms = min(deadline_ms, expires_at_ms(message.seq, state.queue.settings.retention_s))
        tables.hidden_until(state, wake_at_ms)
        tables.execute(Q.restart_lease, (wake_at_ms, deadline_ms, now_ms, message.seq))
    renewed = msgspec.json.encode([(m.seq, m.delivery, m.due_at_ms) for m in messages]).decode()
    tables.execute(Q.remember_attempt, (state.queue.id, attempt_id, now_ms + ATTEMPT_MS, renewed))
    return messages
