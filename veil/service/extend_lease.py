"""Give the holders of leases more time, or take it all: release."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.errors import ReceiptInvalid, VeilError
from veil.core.event import NOBODY
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.service.service import Service
from veil.stores.store import Extension


async def extend_lease(
    service: Service, queue: Queue, changes: Sequence[tuple[str, int]], *, caller: Caller = NOBODY
) -> list[VeilError | None]:
    """Set each visibility (receipt, seconds from now; 0 releases) on its own; a refusal takes its place."""
    answers: list[VeilError | None] = [None] * len(changes)
    extensions: list[Extension] = []
    places: list[int] = []
    read = service.store.receipts.read
    for place, (text, visibility_s) in enumerate(changes):
        try:
            extensions.append(Extension(read(text, queue.id), visibility_s))
            places.append(place)
        except ReceiptInvalid as refusal:
            answers[place] = refusal
    if not extensions:
        return answers
    extended: list[Extension] = []
    released: list[int] = []
    outcomes = await service.store.extend(queue, extensions, caller=caller)
    for place, extension, refused in zip(places, extensions, outcomes, strict=True):
        if refused is not None:
            answers[place] = refused
        elif extension.visibility_s:
            extended.append(extension)
        else:
            released.append(extension.receipt.seq)
    if extended:
        service.tallies.add("extended", queue.id, len(extended))
    if released:
        service.tallies.add("released", queue.id, len(released))
    if service.activity is not None:
        for one in extended:
            service.activity.renewed((one.receipt.seq,), one.visibility_s, caller)
        if released:
            service.activity.ended(released, "released", caller)
    service.ticker.look()
    return answers
