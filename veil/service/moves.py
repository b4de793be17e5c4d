"""Start, cancel and list move tasks, and redrive chosen messages out of the dead letters."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from veil.core.errors import (
    MoveTaskHandleInvalid,
    MoveToItself,
    NotDeadLetters,
    NotForQueueType,
    ResourceMissing,
    VeilError,
)
from veil.core.event import NOBODY
from veil.core.message import Caller, MessageAttribute, StoredMessage
from veil.core.message_rules import Draft, body_md5, check_draft
from veil.core.move_task import MoveTask
from veil.core.queue import Queue, QueueKey, parse_arn
from veil.service.messages import message_type, new_id
from veil.service.service import Service
from veil.stores.store import Chosen, NewContent

# ---- move tasks


async def start_move(
    service: Service,
    source_arn: str,
    destination_arn: str | None,
    rate_per_s: int | None,
    *,
    account: str,
    caller: Caller = NOBODY,
) -> MoveTask:
    """Begin to empty a dead-letter queue, to the destination or to where each message came from.

    Raises ArnRefused, ResourceMissing, NotDeadLetters, NotForQueueType (a destination of the other type), MoveToItself
    and MoveTaskRunning.
    """
    source = await _queue_of(service, "SourceArn", source_arn, account)
    destination = None
    if destination_arn is not None:
        destination = await _queue_of(service, "DestinationArn", destination_arn, account)
        if destination.settings.fifo != source.settings.fifo:
            raise NotForQueueType("DestinationArn", destination_arn, fifo=source.settings.fifo)
        if destination.key == source.key:
            raise MoveToItself(source.name)
    if not await service.store.dead_letter_sources(source.key, limit=1):
        raise NotDeadLetters(source.name)
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
        raise ResourceMissing("SourceArn", source_arn)
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
    raise MoveTaskHandleInvalid


async def _queue_of(service: Service, parameter: str, arn: str, account: str) -> Queue:
    key = parse_arn(arn, parameter)
    queue = await service.store.find_queue(key)
    # Another account's queue is as good as none: whether it exists is nobody else's business.
    if queue is None or key.account != account:
        raise ResourceMissing(parameter, arn)
    return queue


# ---- redriving chosen messages

REDRIVEN_FROM: Final = "Veil.RedrivenFrom"


class Wanted(NamedTuple):
    """A message to be redriven, and what is to be another on it; None leaves it as it is."""

    seq: int
    message_id: str
    destination: QueueKey | None = None  # None: where it was dead-lettered from
    body: str | None = None
    attributes: dict[str, MessageAttribute] | None = None


class Redriven(NamedTuple):
    """The message that goes on in place of the old one."""

    message_id: str
    seq: int


async def redrive(
    service: Service, queue: Queue, wanted: Sequence[Wanted], *, mark: bool = False, caller: Caller = NOBODY
) -> list[Redriven | VeilError]:
    """Move each, in that order and in one transaction; a refusal stands in its place and holds up no other.

    `mark` writes the old message id on the new message, as the attribute Veil.RedrivenFrom. What is changed must pass
    the checks of a send to its destination.
    """
    types = service.rules.type_attributes
    chosen = [
        Chosen(one.seq, one.message_id, one.destination, _change(one, mark=mark, type_attributes=types))
        for one in wanted
    ]
    answers = await service.store.redrive(queue, chosen, caller=caller)
    moved: list[Redriven | VeilError] = [
        answer if isinstance(answer, VeilError) else Redriven(answer.message_id, answer.seq)
        for answer in answers
    ]
    service.ticker.look()
    return moved


def _change(
    wanted: Wanted, *, mark: bool, type_attributes: Sequence[str]
) -> Callable[[StoredMessage, Queue], NewContent] | None:
    if wanted.body is None and wanted.attributes is None and not mark:
        return None

    def change(message: StoredMessage, target: Queue) -> NewContent:
        body = message.body if wanted.body is None else wanted.body
        attributes = dict((message.attributes if wanted.attributes is None else wanted.attributes) or {})
        if mark:
            attributes[REDRIVEN_FROM] = MessageAttribute("String", message.message_id)
        # On a FIFO queue its new id will be its deduplication id, so what stands here is of no account.
        deduplication_id = message.message_id if target.settings.fifo else None
        draft = Draft(body, attributes or None, message.trace_header, None, message.group, deduplication_id)
        body_utf8 = check_draft(draft, target.settings)
        found = message_type(attributes, type_attributes) if attributes else None
        return NewContent(body, body_md5(body_utf8), len(body_utf8), attributes or None, found)

    return change
