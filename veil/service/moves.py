"""Redrive dead letters: in the background, by move tasks: all of a queue, or what matches a filter."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode

from veil.core import errors
from veil.core.event import NOBODY
from veil.core.message import Caller
from veil.core.queue import MoveTask, Queue, Scan, parse_arn
from veil.core.sequence import first_seq_of
from veil.service.dead_letters import LetterFilter, write_filter
from veil.service.messages import new_id
from veil.service.service import Service


async def start_move(
    service: Service,
    source_arn: str,
    destination_arn: str | None,
    rate_per_s: int | None,
    *,
    account: str,
    letters: LetterFilter | None = None,
    caller: Caller = NOBODY,
) -> MoveTask:
    """Begin to redrive a dead-letter queue, to the destination or to where each message came from.

    With `letters` only what matches is moved, marked with the message id it had, once through the queue as it is now; a
    message that cannot be moved stays and is counted. Without, everything is, as SQS does it. Raises ArnRefused,
    ResourceMissing, NotDeadLetters, NotForQueueType (a destination of the other type), MoveToItself and MoveTaskRunning.
    """
    source = await _queue_of(service, "SourceArn", source_arn, account)
    destination = None
    if destination_arn is not None:
        destination = await _queue_of(service, "DestinationArn", destination_arn, account)
        if destination.settings.fifo != source.settings.fifo:
            raise errors.NotForQueueType("DestinationArn", destination_arn, source.settings.queue_type)
        if destination.key == source.key:
            raise errors.MoveToItself(source.name)
    if letters is None and not await service.store.dead_letter_sources(source.key, limit=1):
        raise errors.NotDeadLetters(source.name)
    scan = None
    if letters is not None:
        # What comes back meanwhile has a later key: so a message that fails again at once is not redriven for ever.
        scan = Scan(write_filter(letters), first_seq_of(service.clock.now_ms()) - 1)
    task = await service.store.start_move(
        MoveTask(
            id=new_id(),
            source=source.key,
            destination=None if destination is None else destination.key,
            rate_per_s=rate_per_s,
            status="RUNNING",
            moved=0,
            to_move=0,  # the store counts
            started_wall_ms=service.clock.wall_ms(),
            scan=scan,
        ),
        caller=caller,
    )
    service.moves.run(task)
    return task


async def cancel_move(service: Service, task_id: str) -> MoveTask:
    """Ask a running task to stop, leaving what it moved; raises MoveTaskMissing, MoveTaskNotRunning."""
    task = await service.store.cancel_move(task_id)
    service.moves.hurry(task_id)
    return task


async def list_moves(service: Service, source_arn: str, limit: int) -> list[MoveTask]:
    """The tasks of a source, newest first; raises ArnRefused, ResourceMissing."""
    key = parse_arn(source_arn, "SourceArn")
    if await service.store.find_queue(key) is None:
        raise errors.ResourceMissing("SourceArn", source_arn)
    return await service.store.list_moves(key, limit)


def task_handle(task: MoveTask) -> str:
    """The text by which a caller names the task: base64 of its id and source, as SQS's."""
    return b64encode(json.dumps({"taskId": task.id, "sourceArn": task.source.arn}).encode()).decode("ascii")


def read_task_handle(text: str) -> tuple[str, str]:
    """Task id and source ARN behind a handle; raises MoveTaskHandleInvalid."""
    try:
        content = json.loads(b64decode(text, validate=True))
        task_id, source_arn = content["taskId"], content["sourceArn"]
        if isinstance(task_id, str) and isinstance(source_arn, str):
            (task_id + source_arn).encode()  # raises for a surrogate that stands alone
            return task_id, source_arn
    except (binascii.Error, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise errors.MoveTaskHandleInvalid


async def _queue_of(service: Service, parameter: str, arn: str, account: str) -> Queue:
    key = parse_arn(arn, parameter)
    queue = await service.store.find_queue(key)
    # Another account's queue is as good as none: whether it exists is nobody else's business.
    if queue is None or key.account != account:
        raise errors.ResourceMissing(parameter, arn)
    return queue
