"""Holds: receives that have a name (core/hold.py)."""

from __future__ import annotations

from dataclasses import replace

from veil.core.errors import HoldClosed, StreamTaken
from veil.core.hold import HOLD_BYTES_MAX, STREAM_REST_MS, HoldContent, HoldKey, HoldTally, Member
from veil.core.lease import Deletion
from veil.core.limits import SECOND_MS
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.stores.memory import hold_members, leases, receiving, recording
from veil.stores.memory.hold_members import Hold, Stream
from veil.stores.memory.operation import Operation
from veil.stores.memory.shelf import Row, Shelf
from veil.stores.recorder import EXTENDED


def open_stream(op: Operation, queue: Queue, stream: str, owner: str) -> None:
    """Make somebody the stream's owner."""
    _used_now(op, op.shelves.of(queue), stream).owner = owner


def receive(
    op: Operation, queue: Queue, key: HoldKey, count: int, visibility_s: int, caller: Caller
) -> HoldContent:
    """What is under the name: taken now, or taken before and still there."""
    shelf = op.shelves.of(queue)
    known = op.shelves.streams.get((queue.id, key.stream))
    if known is not None and key.batch <= known.closed:
        raise HoldClosed(key.stream, key.batch, known.closed)
    stream = _used_now(op, shelf, key.stream)
    hold = stream.holds.get((key.batch, key.part))
    if hold is None:
        taken = receiving.take(op, shelf, count, visibility_s, caller, HOLD_BYTES_MAX)
        members = [Member(row.message.seq, row.message.delivery) for row in taken]
        stream.holds[key.batch, key.part] = Hold(members)
        return HoldContent([replace(row.message) for row in taken])
    kept = keep_or_strike(op, shelf, hold, visibility_s, caller, anew=True)
    messages = [replace(row.message, delivery=member.delivery) for member, row in kept]
    return HoldContent(messages, hold.lost, again=True)


def extend(
    op: Operation, queue: Queue, stream: str, owner: str, visibility_s: int, caller: Caller
) -> HoldTally:
    """A new deadline for every member of the stream's holds."""
    shelf = op.shelves.of(queue)
    tally = HoldTally()
    for _, hold in _own_holds(op, shelf, stream, owner):
        kept = keep_or_strike(op, shelf, hold, visibility_s, caller, anew=False)
        # What has reached its twelve hours is not struck, only not there for now.
        tally = tally.plus(HoldTally(len(kept), hold.lost + len(hold.members) - len(kept)))
    return tally


def delete(
    op: Operation, queue: Queue, stream: str, owner: str, up_to_batch: int, caller: Caller
) -> HoldTally:
    """Close the names up to that batch and delete what they hold."""
    shelf, streams = op.shelves.of(queue), op.shelves.streams
    tally = HoldTally()
    for (batch, part), hold in _own_holds(op, shelf, stream, owner):
        if batch > up_to_batch:
            continue
        deleted = sum(
            leases.delete_one(op, shelf, _receipt_now(shelf, member), caller) is Deletion.DELETED
            for member in hold.members
        )
        tally = tally.plus(HoldTally(deleted, hold.lost + len(hold.members) - deleted))
        del streams[queue.id, stream].holds[batch, part]
    if (queue.id, stream) in streams:
        known = streams[queue.id, stream]
        known.closed = max(known.closed, up_to_batch)
    return tally


def keep_or_strike(
    op: Operation, shelf: Shelf, hold: Hold, visibility_s: int, caller: Caller, *, anew: bool
) -> list[tuple[Member, Row]]:
    """Keep what can be kept of a hold and strike the rest."""
    deadline_ms = op.now_ms + visibility_s * SECOND_MS
    kept = hold_members.keep(shelf, hold.members, deadline_ms, op.now_ms, anew=anew)
    hold.members = [member for member in hold.members if member not in kept.lost]
    hold.lost += len(kept.lost)
    for member in kept.lost:
        row, receipt = shelf.rows.get(member.seq), Receipt(shelf.queue.id, *member)
        leases.refuse_extension(op, shelf, receipt, row, caller)
    for member, row in kept.open:
        receipt = Receipt(shelf.queue.id, *member)
        recording.by_receipt(op, EXTENDED, shelf, row, receipt, caller, row.message.due_at_ms)
    return kept.open


def forget_stale(op: Operation) -> None:
    """Drop the streams that nobody has used for too long, and those whose queue is gone."""
    for key, stream in list(op.shelves.streams.items()):
        if key[0] not in op.shelves.by_id or op.now_ms - stream.used_at_ms >= STREAM_REST_MS:
            del op.shelves.streams[key]


def _used_now(op: Operation, shelf: Shelf, name: str) -> Stream:
    """The stream of that name, which is used now; a new one if there is none."""
    stream = op.shelves.streams.setdefault((shelf.queue.id, name), Stream(op.now_ms))
    stream.used_at_ms = op.now_ms
    return stream


def _own_holds(op: Operation, shelf: Shelf, name: str, owner: str) -> list[tuple[tuple[int, int], Hold]]:
    """The stream's holds by batch and part; raises StreamTaken for somebody else's."""
    stream = op.shelves.streams.get((shelf.queue.id, name))
    if stream is None:
        return []
    if stream.owner not in (None, owner):
        raise StreamTaken(name, owner)
    return sorted(_used_now(op, shelf, name).holds.items(), key=lambda item: item[0])


def _receipt_now(shelf: Shelf, member: Member) -> Receipt:
    """A hold goes by its leases: whatever receipt has come to belong to one."""
    row = shelf.rows.get(member.seq)
    return Receipt(shelf.queue.id, *member, rotation=0 if row is None else row.rotation)
