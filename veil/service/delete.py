"""Delete messages by their receipts."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.errors import ReceiptInvalid, VeilError
from veil.core.event import NOBODY
from veil.core.lease import Deletion
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.service.service import Service


async def delete(
    service: Service, queue: Queue, handles: Sequence[str], *, caller: Caller = NOBODY
) -> list[VeilError | None]:
    """Delete each on its own; a refusal stands in its place, None is success (also with nothing left)."""
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
    deleted = 0
    outcomes = await service.store.delete(queue, receipts, caller=caller)
    for place, outcome in zip(places, outcomes, strict=True):
        if outcome is Deletion.DELETED:
            deleted += 1
        elif isinstance(outcome, VeilError):
            answers[place] = outcome
    if deleted:
        service.tallies.add("deleted", queue.id, deleted)
    return answers
