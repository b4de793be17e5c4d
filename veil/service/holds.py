"""Receive under a name, and extend and delete by stream: see `core.hold`."""

from __future__ import annotations

from veil.core.event import NOBODY
from veil.core.lease import HoldContent, HoldKey, HoldTally, check_name, check_number
from veil.core.message import Caller
from veil.core.queue import Queue
from veil.service.service import Service


async def open_stream(service: Service, queue: Queue, stream: str, owner: str) -> None:
    """Make `owner` the stream's owner from now on; raises HoldNameRefused."""
    check_name("Stream", stream)
    check_name("Owner", owner)
    await service.store.open_stream(queue, stream, owner)


async def receive_hold(
    service: Service,
    queue: Queue,
    key: HoldKey,
    *,
    count: int,
    visibility_s: int,
    caller: Caller = NOBODY,
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
    if content.messages:
        service.tallies["extended" if content.again else "received", queue.id] += len(content.messages)
        if service.activity is not None:
            if content.again:
                for message in content.messages:
                    service.activity.attempts.changed(message.seq, visibility_s, caller)
            else:
                service.activity.attempts.received(queue, content.messages, visibility_s, caller)
    elif not content.again:
        service.tallies["empty_receive", queue.id] += 1
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
    return tally
