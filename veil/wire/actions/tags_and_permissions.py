"""What is written on a queue: tags, and who may use it."""

from __future__ import annotations

from veil.service.queues import add_permission, remove_permission, tag_queue, untag_queue
from veil.wire.call import Call
from veil.wire.request_errors import ParameterMissing
from veil.wire.shapes import (
    AddPermissionInput,
    QueueInput,
    RemovePermissionInput,
    TagQueueInput,
    TagsOutput,
    UntagQueueInput,
)


async def tag_queue_action(call: Call, given: TagQueueInput) -> None:
    """TagQueue."""
    queue = await call.queue(given.QueueUrl)
    if not given.Tags:
        raise ParameterMissing("Tags")
    await tag_queue(call.service, queue, given.Tags)


async def untag_queue_action(call: Call, given: UntagQueueInput) -> None:
    """UntagQueue."""
    queue = await call.queue(given.QueueUrl)
    if not given.TagKeys:
        raise ParameterMissing("TagKeys")
    await untag_queue(call.service, queue, given.TagKeys)


async def list_queue_tags(call: Call, given: QueueInput) -> TagsOutput:
    """ListQueueTags."""
    queue = await call.queue(given.QueueUrl)
    return TagsOutput(dict(queue.tags) or None)


async def add_permission_action(call: Call, given: AddPermissionInput) -> None:
    """AddPermission."""
    queue = await call.queue(given.QueueUrl)
    if not given.Label:
        raise ParameterMissing("Label")
    if not given.AWSAccountIds:
        raise ParameterMissing("AWSAccountIds")
    if not given.Actions:
        raise ParameterMissing("Actions")
    await add_permission(call.service, queue, given.Label, given.AWSAccountIds, given.Actions)


async def remove_permission_action(call: Call, given: RemovePermissionInput) -> None:
    """RemovePermission."""
    queue = await call.queue(given.QueueUrl)
    if not given.Label:
        raise ParameterMissing("Label")
    await remove_permission(call.service, queue, given.Label)
