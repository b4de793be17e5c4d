"""Give the holder of a lease more time and a new receipt, or take all time: the old receipt dies with it."""

from __future__ import annotations

from typing import NamedTuple

from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.service.service import Service
from veil.stores.store import Extension


class NewReceipt(NamedTuple):
    """The text to go on with, and the engine time at which it dies."""

    text: str
    deadline_ms: int


async def rotate_receipt(
    service: Service, queue: Queue, handle: str, visibility_s: int, *, caller: Caller = NOBODY
) -> NewReceipt:
    """Set the visibility, in seconds from now (0 releases); raises ReceiptInvalid, and MessageGone for a dead receipt."""
    receipt = service.store.receipts.read(handle, queue.id)
    (rotated,) = await service.store.rotate(queue, [Extension(receipt, visibility_s)], caller=caller)
    if isinstance(rotated, VeilError):
        raise rotated
    service.tallies.add("extended" if visibility_s else "released", queue.id)
    new = rotated.receipt
    if service.activity is not None:
        if visibility_s:
            service.activity.renewed((new.seq,), visibility_s, caller)
        else:
            service.activity.ended((new.seq,), "released", caller)
    service.ticker.look()
    text = service.store.receipts.write(new.queue_id, new.seq, new.delivery, new.rotation)
    return NewReceipt(text, rotated.deadline_ms)
