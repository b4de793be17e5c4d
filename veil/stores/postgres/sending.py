"""Put messages into a queue."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from veil.core.lease import State
from veil.core.limits import DEDUPLICATION_MS, REPEATED_SEND_MS
from veil.core.message import Caller, NewMessage, Sent
from veil.core.priority import PRIORITY_DEFAULT
from veil.core.queue import Queue
from veil.core.sequence import expires_at_ms
from veil.stores.codec import encode_attributes
from veil.stores.postgres import lanes, queues
from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Transaction
from veil.stores.recorder import SENT

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Sent]).decode

Known = dict[tuple[str, str], Sent]  # by scope and deduplication id


async def send(
    tx: Transaction, queue: Queue, messages: Sequence[NewMessage], retry_key: bytes | None, caller: Caller
) -> list[Sent]:
    """Store the messages in order, unless the call of that retry key was stored before."""
    state = tx.state_of(queue)
    if retry_key is None:
        return await _send(tx, state, messages, caller)
    named = {"queue": queue.id, "retry_key": retry_key, "now_ms": tx.now_ms}
    first = await tx.row(Q.find_send, named)
    if first is not None:
        tx.counted("repeated_send", state)
        return _decode(first[0])
    sent = await _send(tx, state, messages, caller)
    tx.later(Q.forget_send, named)
    until_ms = tx.now_ms + REPEATED_SEND_MS
    tx.later(Q.remember_send, {**named, "until_ms": until_ms, "sent": _encode(sent)})
    return sent


async def _send(
    tx: Transaction, state: QueueState, messages: Sequence[NewMessage], caller: Caller
) -> list[Sent]:
    if not state.has_lanes and any(message.group is not None for message in messages):
        await queues.give_lanes(tx, state)
    known = await _known_duplicates(tx, state, messages) if state.fifo else {}
    numbers = await tx.numbers(len(messages))
    sent, fresh = list[Sent](), Rows(tx, state, caller)
    for message, number in zip(messages, numbers, strict=True):
        key = (scope_of(state, message), message.deduplication_id or "")
        if state.fifo and key in known:
            tx.counted("duplicate", state)
            sent.append(known[key]._replace(duplicate=True))
            continue
        seq = tx.seq(state, number)
        fresh.add(message, seq)
        sent.append(Sent(message.message_id, seq))
        known[key] = sent[-1]
    fresh.write()
    return sent


def scope_of(state: QueueState, message: NewMessage) -> str:
    """Within what its deduplication id is known: the group, or the queue."""
    return (message.group or "") if state.scope == "messageGroup" else ""


async def _known_duplicates(tx: Transaction, state: QueueState, messages: Sequence[NewMessage]) -> Known:
    keys = {(scope_of(state, message), message.deduplication_id or "") for message in messages}
    scopes, dedup_ids = (list(column) for column in zip(*keys, strict=True))
    rows = await tx.rows(
        Q.find_duplicates,
        {"queue": state.id, "scopes": scopes, "dedup_ids": dedup_ids, "now_ms": tx.now_ms},
    )
    return {(scope, dedup_id): Sent(message_id, seq) for scope, dedup_id, seq, message_id in rows}


class Rows:
    """New messages of one queue, collected to be written together."""

    def __init__(self, tx: Transaction, state: QueueState, caller: Caller) -> None:
        self._tx, self._state, self._caller = tx, state, caller
        self._rows: list[tuple[object, ...]] = []
        self._duplicates: list[tuple[str, str, int, str]] = []
        self._visible = self._delayed = 0
        self._is_ahead = False  # of what was sent before

    def add(self, message: NewMessage, seq: int) -> None:
        """One more, at that place."""
        tx, state, settings = self._tx, self._state, self._state.queue.settings
        delay_s = settings.delay_s if message.delay_s is None else message.delay_s
        message_state, due_at_ms, wake_at_ms = State.VISIBLE, None, None
        if delay_s:
            message_state, due_at_ms = State.DELAYED, tx.now_ms + delay_s * 1000
            wake_at_ms = min(due_at_ms, expires_at_ms(seq, settings.retention_s))
            state.hidden_until(wake_at_ms)
            self._delayed += 1
        else:
            state.visible_from(seq)
            self._visible += 1
        body = message.body
        body_bytes = len(body) if body.isascii() else len(body.encode())
        self._rows.append(
            (
                seq,
                state.id,
                int(message_state),
                wake_at_ms,
                due_at_ms,
                message.message_id,
                message.group,
                message.deduplication_id,
                message.trace_header,
                message.sender,
                message.message_type,
                body_bytes,
                encode_attributes(message.attributes),
                message.body_md5,
                body,
                message.priority,
            )
        )
        self._is_ahead |= message.priority < PRIORITY_DEFAULT
        lanes.change(state, message.group, members=1)
        if state.fifo:
            key = (scope_of(state, message), message.deduplication_id or "")
            self._duplicates.append((*key, seq, message.message_id))
        if tx.journal is not None:
            place, who = tx.journal.places(state.queue.key, self._caller)
            facts = (due_at_ms, 0, body_bytes, message.message_type)
            tx.journal.events.append((SENT, tx.now_ms, place, seq, message.message_id, 0, *facts, who))

    def write(self, into: list[tuple[object, ...]] | None = None) -> None:
        """Have them all stored, counted and announced; stored by the caller, where they go into a list of it."""
        tx, state = self._tx, self._state
        if not self._rows:
            return
        if into is None:
            insert(tx, self._rows)
        else:
            into += self._rows
        if self._duplicates:
            scopes, dedup_ids, seqs, ids = (list(column) for column in zip(*self._duplicates, strict=True))
            remembered = {"scopes": scopes, "dedup_ids": dedup_ids, "seqs": seqs, "ids": ids}
            until_ms = tx.now_ms + DEDUPLICATION_MS
            tx.later(Q.remember_duplicates, {"queue": state.id, "until_ms": until_ms, **remembered})
        tx.count(state, visible=self._visible, delayed=self._delayed, at_the_end=not self._is_ahead)
        if self._visible:
            tx.available(state, self._visible)


def insert(tx: Transaction, rows: list[tuple[object, ...]]) -> None:
    """Have rows of whatever queues stored."""
    tx.later(Q.insert_messages, {"wall_ms": tx.wall_ms, **columns(rows)})


_COLUMNS = (
    "seqs",
    "queues",
    "states",
    "wakes",
    "dues",
    "ids",
    "groups",
    "deduplications",
    "traces",
    "senders",
    "types",
    "sizes",
    "attributes",
    "digests",
    "bodies",
    "priorities",
)


def columns(rows: list[tuple[object, ...]]) -> dict[str, list[object]]:
    """The rows of `insert_messages`, column by column."""
    return {name: list(column) for name, column in zip(_COLUMNS, zip(*rows, strict=True), strict=True)}
