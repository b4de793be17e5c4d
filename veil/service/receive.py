"""Receive messages, waiting for them if asked to, or under the name of a hold; and undo a receive whose answer nobody got."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any, Final, TypeVar

from veil.core.attempt import AttemptOutcome
from veil.core.errors import InFlightLimit, QueueMissing
from veil.core.event import NOBODY
from veil.core.lease import HoldContent, HoldKey, HoldTally, check_name, check_number
from veil.core.message import Caller, StoredMessage
from veil.core.message_rules import check_identifier
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.service.service import ReceiveRequest, Service

# ---- awaiting to the end what may not be cut short
#
# A receive that is cancelled while the store looks may have claimed messages, and only the store's answer tells
# which. `asyncio.shield` would do, at the price of a task for every receive, several times the cost of all else
# here. So a cancellation is held back until the answer is there, a few milliseconds at most.

T = TypeVar("T")


class _Uncancellable:
    """What a task sees in place of the future it waits for: the same, except that it cannot be cancelled.

    Future-like as `asyncio.isfuture` has it. The task keeps the cancellation in mind and raises it once the
    future is done.
    """

    __slots__ = ("_asyncio_future_blocking", "add_done_callback", "get_loop")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._asyncio_future_blocking = True
        self.add_done_callback = future.add_done_callback
        self.get_loop = future.get_loop

    def cancel(self, msg: object = None) -> bool:
        return False


@coroutine
def undisturbed(work: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> Generator[Any, None, T]:
    """The result of the work; for a caller that was cancelled meanwhile, `undo` gets it instead."""
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            future = work.send(None)
        except StopIteration as end:
            result: T = end.value
            break
        except BaseException:
            if cancelled is not None:
                raise cancelled from None  # the work failed, so there is nothing to undo, and nobody to tell
            raise
        if future is None:  # a bare turn of the loop
            shell = None
        else:
            future._asyncio_future_blocking = False
            shell = _Uncancellable(future)
        try:
            yield shell
        except GeneratorExit:
            work.close()
            raise
        except asyncio.CancelledError as error:
            if future is None or not future.cancelled():
                cancelled = error
        except BaseException:  # noqa: S110 - the future's own failure: the work learns it from the future
            pass
    if cancelled is not None:
        undo(result)
        raise cancelled
    return result


# ---- undo


def give_back(
    service: Service, queue: Queue, messages: Sequence[StoredMessage], *, caller: Caller = NOBODY
) -> None:
    """Make the messages visible again, the receive uncounted; returns at once; `Service.stop` waits."""
    if messages:
        # Here, not behind: the bodies need not wait for the commit.
        receipts = [Receipt(queue.id, message.seq, message.delivery) for message in messages]
        opened_ms = [message.received_at_ms for message in messages]
        service.in_background(undo(service, queue, receipts, opened_ms, caller))


async def undo(
    service: Service,
    queue: Queue,
    receipts: Sequence[Receipt],
    opened_ms: Sequence[int | None] | None,
    caller: Caller,
) -> None:
    """Make the messages behind the receipts visible again, the receive uncounted."""
    try:
        await service.store.undo_receive(queue, receipts, opened_ms=opened_ms, caller=caller)
    except QueueMissing:  # deleted meanwhile, its messages with it
        return
    if service.owner is not None:
        return
    if service.activity is None:
        service.tallies["undone", queue.id] += len(receipts)
    else:  # which counts the attempts that came to that
        seqs = [receipt.seq for receipt in receipts]
        service.activity.attempts.ended(queue, seqs, AttemptOutcome.UNDONE, caller)


# ---- receive

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
    wanted = ReceiveRequest(count, visibility_s, wait_s, attempt_id, caller)
    if wait_s == 0:
        messages = await _claim(service, queue, wanted)
    elif service.owner is None:
        messages = await long_poll(service, queue, wanted)
    else:
        messages = await service.owner.long_poll(queue, wanted)
    if service.owner is None:
        note_receive(service, queue, messages, visibility_s, caller)
    return messages


def note_receive(
    service: Service,
    queue: Queue,
    messages: Sequence[StoredMessage],
    visibility_s: int | None,
    caller: Caller,
    hold: HoldKey | None = None,
) -> None:
    if visibility_s is None:
        visibility_s = queue.settings.visibility_s
    if service.activity is not None:
        service.activity.attempts.received(queue, messages, visibility_s, caller, hold)
    if not messages:
        service.tallies["empty_receive", queue.id] += 1
        return
    service.tallies["received", queue.id] += len(messages)
    if visibility_s == 0:
        # Received and visible in the same instant: for the store nothing became available, for others it is.
        service.waiting.messages_available(queue.id, len(messages))


def receipt_text(service: Service, queue: Queue, message: StoredMessage) -> str:
    """The receipt of the delivery that the message was just received by."""
    return service.store.receipts.write(queue.id, message.seq, message.delivery)


async def long_poll(service: Service, queue: Queue, wanted: ReceiveRequest) -> list[StoredMessage]:
    """Up to so many messages as soon as there is one, in the line of all who wait at the queue; none once time is up."""
    clock, waiting = service.clock, service.waiting
    until_ms = clock.now_ms() + wanted.wait_s * 1000
    waiters = waiting.enter(queue.id)
    woken = was_limited = False
    try:
        while True:
            missed = waiters.missed
            limited = False
            try:
                messages = await _claim(service, queue, wanted)
            except InFlightLimit:
                messages, limited, was_limited = [], True, True
            except BaseException:
                if woken:  # the look that was owed did not happen
                    waiters.wake(1)
                raise
            if messages:
                if was_limited:  # others were turned away too, and nothing else will tell them
                    waiters.wake(1)
                return messages
            now_ms = clock.now_ms()
            if now_ms >= until_ms:
                return []
            if waiters.missed != missed and not limited:
                continue
            look_at_ms = min(until_ms, now_ms + LIMIT_LOOK_MS) if limited else until_ms
            woken = await waiters.wait(look_at_ms, at_front=woken)
            if not woken and (look_at_ms == until_ms or waiters.closed):
                return []
    finally:
        waiting.leave(queue.id, waiters)


def _claim(service: Service, queue: Queue, wanted: ReceiveRequest) -> Awaitable[list[StoredMessage]]:
    """What the store has for us now; if our caller goes away while it looks, that is given back."""
    caller = wanted.caller
    return undisturbed(
        service.store.receive(
            queue, wanted.count, visibility_s=wanted.visibility_s, attempt_id=wanted.attempt_id, caller=caller
        ),
        lambda claimed: give_back(service, queue, claimed, caller=caller),
    )


# ---- holds: a receive under a name, extended and deleted by stream (`core/lease.py`)


async def open_stream(service: Service, queue: Queue, stream: str, owner: str) -> None:
    """Make `owner` the stream's owner from now on; raises HoldNameRefused."""
    check_name("Stream", stream)
    check_name("Owner", owner)
    await service.store.open_stream(queue, stream, owner)


async def receive_hold(
    service: Service, queue: Queue, key: HoldKey, count: int, *, visibility_s: int, caller: Caller = NOBODY
) -> HoldContent:
    """What is under that name, without waiting; raises HoldNameRefused, HoldClosed.

    Nothing is given back when the caller leaves: whoever asks under the name again gets the same.
    """
    check_name("Stream", key.stream)
    check_number("Batch", key.batch)
    check_number("Part", key.part)
    content = await service.store.receive_hold(queue, key, count, visibility_s=visibility_s, caller=caller)
    if service.owner is not None:
        return content
    if not content.again:
        note_receive(service, queue, content.messages, visibility_s, caller, key)
    elif content.messages:
        service.tallies["extended", queue.id] += len(content.messages)
        if service.activity is not None:
            seqs = [message.seq for message in content.messages]
            service.activity.attempts.renewed(queue, seqs, visibility_s, caller)
    return content


async def extend_holds(
    service: Service, queue: Queue, stream: str, owner: str, visibility_s: int, *, caller: Caller = NOBODY
) -> HoldTally:
    """A new deadline for all that the stream holds; raises HoldNameRefused, StreamTaken."""
    check_name("Stream", stream)
    check_name("Owner", owner)
    tally = await service.store.extend_holds(queue, stream, owner, visibility_s=visibility_s, caller=caller)
    if tally.messages and service.owner is None:
        service.tallies["extended", queue.id] += tally.messages
        if service.activity is not None:
            service.activity.attempts.stream_renewed(queue, stream, visibility_s, caller)
    return tally


async def delete_holds(
    service: Service, queue: Queue, stream: str, owner: str, up_to_batch: int, *, caller: Caller = NOBODY
) -> HoldTally:
    """Close the stream's names up to that batch and delete what they hold; raises HoldNameRefused, StreamTaken."""
    check_name("Stream", stream)
    check_name("Owner", owner)
    check_number("UpToBatch", up_to_batch)
    tally = await service.store.delete_holds(queue, stream, owner, up_to_batch=up_to_batch, caller=caller)
    if tally.messages and service.owner is None:
        service.tallies["deleted", queue.id] += tally.messages
        if service.activity is not None:
            service.activity.attempts.stream_completed(queue, stream, up_to_batch, caller)
    return tally
