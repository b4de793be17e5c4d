"""Undo a receive whose answer nobody got."""

from __future__ import annotations

from collections.abc import Sequence

from veil.core.errors import QueueMissing
from veil.core.event import NOBODY
from veil.core.message import Caller, StoredMessage
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.service.service import Service


def give_back(
    service: Service, queue: Queue, messages: Sequence[StoredMessage], *, caller: Caller = NOBODY
) -> None:
    """Make the messages visible again, the receive uncounted; returns at once; `Service.stop` waits."""
    if messages:
        service.in_background(_undo(service, queue, messages, caller))


async def _undo(service: Service, queue: Queue, messages: Sequence[StoredMessage], caller: Caller) -> None:
    receipts = [Receipt(queue.id, message.seq, message.delivery) for message in messages]
    try:
        await service.store.undo_receive(queue, receipts, caller=caller)
    except QueueMissing:  # deleted meanwhile, its messages with it
        return
    service.tallies.add("given_back", queue.id, len(receipts))
    if service.activity is not None:
        service.activity.ended([message.seq for message in messages], "given_back", caller)
