"""Receive messages, waiting for them if asked to."""

from __future__ import annotations

from typing import Final

from veil.core.errors import InFlightLimit
from veil.core.event import NOBODY
from veil.core.message import Caller, StoredMessage
from veil.core.message_rules import check_identifier
from veil.core.queue import Queue
from veil.service.give_back import give_back
from veil.service.service import Service
from veil.service.undisturbed import undisturbed

# A full queue becomes free by deletes, which wake nobody, so receivers that met the limit look again by
# themselves.
LIMIT_LOOK_MS: Final = 1_000


async def receive(
    service: Service,
    queue: Queue,
    *,
    count: int,
    visibility_s: int | None,
    wait_s: int | None,
    attempt_id: str | None = None,
    caller: Caller = NOBODY,
) -> list[StoredMessage]:
    """Up to `count` messages as soon as there is one; none once the wait (None: the queue's own) is over.

    A caller that is cancelled gets no messages and leaves none behind: what was claimed for it is given back.
    """
    if not queue.settings.fifo:
        attempt_id = None
    elif attempt_id is not None:
        check_identifier("ReceiveRequestAttemptId", attempt_id)
    if wait_s is None:
        wait_s = queue.settings.wait_s
    if wait_s == 0:
        messages = await _claim(service, queue, count, visibility_s, attempt_id, caller)
    else:
        messages = await _long_poll(service, queue, count, visibility_s, wait_s, attempt_id, caller)
    if visibility_s is None:
        visibility_s = queue.settings.visibility_s
    if service.activity is not None:
        service.activity.received(queue.id, messages, visibility_s, caller)
    if not messages:
        service.tallies.add("empty_receive", queue.id)
        return messages
    service.tallies.add("received", queue.id, len(messages))
    if visibility_s == 0:
        # Received and visible in the same instant: for the store nothing became available, for others it is.
        service.waiting.messages_available(queue.id, len(messages))
    return messages


def receipt_text(service: Service, queue: Queue, message: StoredMessage) -> str:
    """The receipt of the delivery that the message was just received by."""
    return service.store.receipts.write(queue.id, message.seq, message.delivery)


async def _long_poll(
    service: Service,
    queue: Queue,
    count: int,
    visibility_s: int | None,
    wait_s: int,
    attempt_id: str | None,
    caller: Caller,
) -> list[StoredMessage]:
    clock, waiting = service.clock, service.waiting
    until_ms = clock.now_ms() + wait_s * 1000
    room = waiting.enter(queue.id)
    woken = was_limited = False
    try:
        while True:
            missed = room.missed
            limited = False
            try:
                messages = await _claim(service, queue, count, visibility_s, attempt_id, caller)
            except InFlightLimit:
                messages, limited, was_limited = [], True, True
            except BaseException:
                if woken:  # the look that was owed did not happen
                    room.wake(1)
                raise
            if messages:
                if was_limited:  # others were turned away too, and nothing else will tell them
                    room.wake(1)
                return messages
            now_ms = clock.now_ms()
            if now_ms >= until_ms:
                return []
            if room.missed != missed and not limited:
                continue
            look_at_ms = min(until_ms, now_ms + LIMIT_LOOK_MS) if limited else until_ms
            woken = await room.wait(look_at_ms, at_front=woken)
            if not woken and (look_at_ms == until_ms or room.closed):
                return []
    finally:
        waiting.leave(queue.id, room)


async def _claim(
    service: Service,
    queue: Queue,
    count: int,
    visibility_s: int | None,
    attempt_id: str | None,
    caller: Caller,
) -> list[StoredMessage]:
    """What the store has for us now; if our caller goes away while it looks, that is given back."""
    messages = await undisturbed(
        service.store.receive(queue, count, visibility_s=visibility_s, attempt_id=attempt_id, caller=caller),
        lambda claimed: give_back(service, queue, claimed, caller=caller),
    )
    service.ticker.look()
    return messages
