"""Give the holder of a lease, or the sender of a message that waits, a new time and a new receipt: the old one dies."""

from __future__ import annotations

from typing import NamedTuple

from veil.core.attempt import Outcome
from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.core.lease import WAITING
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.service.service import Service
from veil.stores.store import Extension


class NewReceipt(NamedTuple):
    """The text to go on with, and the engine time at which it dies."""

    text: str
    deadline_ms: int


async def rotate_receipt(
    service: Service, queue: Queue, handle: str, visibility_s: int, *, caller: Caller = NOBODY
) -> NewReceipt:
    """Hide the message for that many seconds from now (0 shows it); raises ReceiptInvalid, and MessageGone for a dead receipt."""
    receipt = service.store.receipts.read(handle, queue.id)
    (rotated,) = await service.store.rotate(queue, [Extension(receipt, visibility_s)], caller=caller)
    if isinstance(rotated, VeilError):
        raise rotated
    new = rotated.receipt
    if service.owner is None:
        note_rotation(service, queue, new, visibility_s, caller)
    text = service.store.receipts.write(new.queue_id, new.seq, new.delivery, new.rotation)
    return NewReceipt(text, rotated.deadline_ms)


def note_rotation(service: Service, queue: Queue, new: Receipt, visibility_s: int, caller: Caller) -> None:
    """Take note of a receipt that was replaced by this one."""
    if new.delivery == WAITING:
        return
    service.tallies["extended" if visibility_s else "released", queue.id] += 1
    if service.activity is None:
        return
    if visibility_s:
        service.activity.attempts.changed(new.seq, visibility_s, caller)
    else:
        service.activity.attempts.ended(queue, (new.seq,), Outcome.GIVEN_BACK, caller)
