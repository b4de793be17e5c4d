"""Receive: take what may be taken, in its order, and put what is spent with the dead letters."""

from __future__ import annotations

from dataclasses import replace

from veil.core.errors import InFlightLimit
from veil.core.lease import State
from veil.core.limits import IN_FLIGHT_MAX, RECEIVE_BYTES_MAX, RECEIVE_MAX, SECOND_MS
from veil.core.message import Caller, StoredMessage
from veil.core.queue import Queue
from veil.stores.memory import attempts, dead_letters, recording
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Row, Shelf
from veil.stores.recorder import EXTENDED, RECEIVED


def receive(
    op: Operation,
    queue: Queue,
    count: int,
    visibility_s: int | None,
    attempt_id: str | None,
    caller: Caller,
) -> list[StoredMessage]:
    """Take up to `count` messages, or give again what the attempt gave."""
    shelf = op.shelves.of(queue)
    if visibility_s is None:
        visibility_s = shelf.queue.settings.visibility_s
    if attempt_id is not None:
        again = attempts.repeat(op, shelf, attempt_id, visibility_s)
        if again:
            recording.leases(op, EXTENDED, shelf, again, caller)
            return again
    if len(shelf.of_state(State.IN_FLIGHT)) >= IN_FLIGHT_MAX and not shelf.fifo:
        raise InFlightLimit(IN_FLIGHT_MAX)
    taken = take(op, shelf, count, visibility_s, caller, RECEIVE_BYTES_MAX if count > RECEIVE_MAX else None)
    if attempt_id is not None and taken:
        attempts.remember(op, shelf, attempt_id, taken)
    return [replace(row.message) for row in taken]


def take(
    op: Operation, shelf: Shelf, count: int, visibility_s: int, caller: Caller, bytes_max: int | None = None
) -> list[Row]:
    """Take up to `count`, as many as may be in flight, and no more once the bodies have `bytes_max` bytes."""
    room = min(count, IN_FLIGHT_MAX - len(shelf.of_state(State.IN_FLIGHT)))
    taken: list[Row] = []
    taken_bytes = 0
    for row in shelf.receivable():
        if len(taken) >= room or (bytes_max is not None and taken_bytes >= bytes_max):
            break
        target = dead_letters.destination(op, shelf, row)
        if target is not None:
            dead_letters.move(op, row, shelf, target)
        else:
            _take_one(op, row, visibility_s)
            taken.append(row)
            taken_bytes += row.message.body_bytes
    if shelf.fifo:
        for group in dict.fromkeys(row.message.group for row in taken):
            shelf.turns[group] = op.shelves.next_turn()
    recording.leases(op, RECEIVED, shelf, [row.message for row in taken], caller)
    return taken


def _take_one(op: Operation, row: Row, visibility_s: int) -> None:
    message = row.message
    message.delivery += 1
    message.receive_count += 1
    message.received_at_ms = op.now_ms
    if message.first_received_wall_ms is None:
        message.first_received_wall_ms = op.wall_ms
    if visibility_s:
        row.hide(message.delivery, op.now_ms + visibility_s * SECOND_MS)
