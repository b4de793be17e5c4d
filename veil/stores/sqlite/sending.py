"""Put messages into a queue."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.lease import State
from veil.core.limits import DEDUPLICATION_MS
from veil.core.message import Caller, NewMessage, Sent
from veil.core.priority import PRIORITY_DEFAULT
from veil.core.queue import Queue
from veil.core.sequence import expires_at_ms
from veil.stores.codec import encode_attributes
from veil.stores.recorder import SENT
from veil.stores.sqlite import lanes
from veil.stores.sqlite.repeats import Repeats
from veil.stores.sqlite.tables import Q, QueueState, Tables

_INSERT = Q.insert_message


def send(tables: Tables, queue: Queue, messages: Sequence[NewMessage], caller: Caller) -> list[Sent]:
    """Store the messages in order; a FIFO duplicate is answered with the first one's id and place."""
    state = tables.state_of(queue)
    settings = state.queue.settings
    now_ms, wall_ms = tables.clock.now_ms(), tables.clock.wall_ms()
    visible = delayed = 0
    journal, place, who = tables.journal, 0, 0
    if journal is not None:
        place, who = journal.places(state.queue.key, caller)
    sent = []
    for message in messages:
        if settings.fifo and (first := _duplicate_of(tables, state, message, now_ms)):
            sent.append(first)
            continue
        seq = tables.sequence.next(now_ms)
        delay_s = settings.delay_s if message.delay_s is None else message.delay_s
        if delay_s:
            message_state, due_at_ms = State.DELAYED, now_ms + delay_s * 1000
            wake_at_ms = min(due_at_ms, expires_at_ms(seq, settings.retention_s))
            tables.hidden_until(state, wake_at_ms)
            delayed += 1
        else:
            message_state, due_at_ms, wake_at_ms = State.VISIBLE, None, None
            tables.sent_visible(state, seq)
            visible += 1
        group, body, message_type = message.group, message.body, message.message_type
        body_bytes = len(body) if body.isascii() else len(body.encode())
        tables.execute(
            _INSERT,
            (
                seq,
                queue.id,
                int(message_state),
                wake_at_ms,
                due_at_ms,
                wall_ms,
                message.message_id,
                group,
                message.deduplication_id,
                message.trace_header,
                message.sender,
                message_type,
                body_bytes,
                encode_attributes(message.attributes) if message.attributes else None,
                message.body_md5,
                body,
                message.priority,
            ),
        )
        if message.priority != PRIORITY_DEFAULT:
            tables.rank(state, message.priority)
        if journal is not None:
            journal.events.append(
                (SENT, now_ms, place, seq, message.message_id, 0, due_at_ms, 0, body_bytes, message_type, who)
            )
        if group is not None:
            lanes.join(tables, state, group, seq, message_state)
        if settings.fifo:
            _remember(tables, state, message, seq, now_ms)
        sent.append(Sent(message.message_id, seq))
    if visible or delayed:
        state.visible += visible
        state.delayed += delayed
        tables.touch(state)
    if visible:
        tables.available(state, visible)
    return sent


def send_once(
    tables: Tables,
    repeats: Repeats,
    queue: Queue,
    messages: Sequence[NewMessage],
    retry_key: bytes,
    caller: Caller,
) -> list[Sent]:
    """The same, unless the call of that key was stored before: then what that one was answered with."""
    state, now_ms = tables.state_of(queue), tables.clock.now_ms()
    first = repeats.find(queue.id, retry_key, now_ms)
    if first is not None:
        tables.noticed("repeated_send", state)
        return first
    sent = send(tables, queue, messages, caller)
    repeats.remember(queue.id, retry_key, sent, now_ms)
    return sent


def _scope(state: QueueState, message: NewMessage) -> str:
    return (message.group or "") if state.scope == "messageGroup" else ""


def _duplicate_of(tables: Tables, state: QueueState, message: NewMessage, now_ms: int) -> Sent | None:
    key = (state.queue.id, _scope(state, message), message.deduplication_id or "", now_ms)
    first = tables.execute(Q.find_duplicate, key).fetchone()
    if first is None:
        return None
    tables.noticed("duplicate", state)
    return Sent(first[1], first[0], duplicate=True)


def _remember(tables: Tables, state: QueueState, message: NewMessage, seq: int, now_ms: int) -> None:
    tables.execute(
        Q.remember_duplicate,
        (
            state.queue.id,
            _scope(state, message),
            message.deduplication_id or "",
            now_ms + DEDUPLICATION_MS,
            seq,
            message.message_id,
        ),
    )
