"""Delete messages by their receipts."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.errors import MessageGone, ReceiptInvalid, VeilError
from veil.core.event import NOBODY
from veil.core.lease import Deletion
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.service.service import Service


async def delete(
    service: Service,
    queue: Queue,
    handles: Sequence[str],
    *,
    strict: bool = False,
    caller: Caller = NOBODY,
) -> list[VeilError | None]:
    """Delete each on its own; a refusal stands in its place, None is success (also with nothing left).

    With `strict` a receipt dies with its deadline, and MessageGone tells of every message that was not deleted.
    """
    answers: list[VeilError | None] = [None] * len(handles)
    receipts: list[Receipt] = []
    places: list[int] = []
    read = service.store.receipts.read
    for place, text in enumerate(handles):
        try:
            receipts.append(read(text, queue.id))
            places.append(place)
        except ReceiptInvalid as refusal:
            answers[place] = refusal
    if not receipts:
        return answers
    deleted: list[int] = []
    outcomes = await service.store.delete(queue, receipts, strict=strict, caller=caller)
    for place, receipt, outcome in zip(places, receipts, outcomes, strict=True):
        if outcome is Deletion.DELETED:
            deleted.append(receipt.seq)
        elif isinstance(outcome, VeilError):
            answers[place] = outcome
        elif strict:
            answers[place] = MessageGone(handles[place])
    if deleted:
        service.tallies.add("deleted", queue.id, len(deleted))
        if service.activity is not None:
            service.activity.ended(deleted, "deleted", caller)
    return answers
