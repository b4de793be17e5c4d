"""Send: each message to its place, unless it, or the whole call, was sent before."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.lease import State
from veil.core.limits import DEDUPLICATION_MS, REPEATED_SEND_MS, SECOND_MS
from veil.core.message import Caller, NewMessage, Sent, StoredMessage
from veil.core.queue import Queue
from veil.stores.memory import recording
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import FirstSend, Row, Shelf
from veil.stores.recorder import SENT


def send(
    op: Operation, queue: Queue, messages: Sequence[NewMessage], retry_key: bytes | None, caller: Caller
) -> list[Sent]:
    """Store the messages in order; what has the retry key of an earlier call gets that one's answer."""
    shelf = op.shelves.of(queue)
    known_as = (queue.id, retry_key)
    first = op.shelves.sends.get(known_as)
    if first is not None and op.now_ms < first[0]:
        op.count("repeated_send", shelf)
        return first[1]
    sent = [_send_one(op, shelf, message, caller) for message in messages]
    if retry_key is not None:
        op.shelves.sends[known_as] = (op.now_ms + REPEATED_SEND_MS, sent)
    return sent


def _send_one(op: Operation, shelf: Shelf, new: NewMessage, caller: Caller) -> Sent:
    deduplicated = shelf.fifo and new.deduplication_id is not None
    known_as = (new.group if shelf.scope == "messageGroup" else None, new.deduplication_id or "")
    if deduplicated:
        first = shelf.first_sends.get(known_as)
        if first is not None and op.now_ms < first.until_ms:
            op.count("duplicate", shelf)
            return Sent(first.message_id, first.seq, duplicate=True)
    message = _stored(op, new)
    delay_s = shelf.queue.settings.delay_s if new.delay_s is None else new.delay_s
    row = Row(message)
    row.delay_until(op.now_ms + delay_s * SECOND_MS, op.now_ms)
    shelf.put(row, op.shelves.next_turn)
    if deduplicated:
        until_ms = op.now_ms + DEDUPLICATION_MS
        shelf.first_sends[known_as] = FirstSend(message.message_id, message.seq, until_ms)
    recording.event(op, SENT, shelf, message, caller, deadline_ms=message.due_at_ms)
    return Sent(message.message_id, message.seq)


def _stored(op: Operation, new: NewMessage) -> StoredMessage:
    return StoredMessage(
        seq=op.next_seq(),
        message_id=new.message_id,
        body=new.body,
        body_md5=new.body_md5,
        attributes=new.attributes,
        trace_header=new.trace_header,
        sender=new.sender,
        sent_wall_ms=op.wall_ms,
        group=new.group,
        deduplication_id=new.deduplication_id,
        dead_letter_source=None,
        receive_count=0,
        first_received_wall_ms=None,
        delivery=0,
        state=State.VISIBLE,
        due_at_ms=None,
        received_at_ms=None,
        message_type=new.message_type,
        body_bytes=len(new.body.encode()),
        priority=new.priority,
    )
