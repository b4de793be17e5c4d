"""Message move tasks: the redrive of dead letters, by the ARN of their queue."""

from __future__ import annotations

from typing import Final

from veil.core.errors import MoveTaskHandleInvalid, MoveTaskMissing, ResourceMissing
from veil.core.limits import MOVE_RATE_MAX, MOVE_TASKS_LISTED_MAX
from veil.core.queue import DESTINATION_MISSING, SOURCE_UNKNOWN, MoveTask, parse_arn
from veil.service.moves import cancel_move, list_moves, read_task_handle, start_move, task_handle
from veil.wire import shapes
from veil.wire.call import Call
from veil.wire.request_errors import check_range, required
from veil.words import plural

_HANDLE_CHARS_MAX = 1_024


async def start_message_move_task(
    call: Call, given: shapes.StartMessageMoveTaskInput
) -> shapes.StartMessageMoveTaskOutput:
    _own_arn(call, "SourceArn", given.SourceArn)
    if given.DestinationArn is not None:
        _own_arn(call, "DestinationArn", given.DestinationArn)
    check_rate(given.MaxNumberOfMessagesPerSecond)
    task = await start_move(
        call.service,
        given.SourceArn,
        given.DestinationArn,
        given.MaxNumberOfMessagesPerSecond,
        account=call.owner(),
        caller=call.caller,
    )
    return shapes.StartMessageMoveTaskOutput(task_handle(task))


async def cancel_message_move_task(
    call: Call, given: shapes.CancelMessageMoveTaskInput
) -> shapes.CancelMessageMoveTaskOutput:
    call.owner()
    required("TaskHandle", given.TaskHandle)
    if len(given.TaskHandle) > _HANDLE_CHARS_MAX:
        raise MoveTaskHandleInvalid
    task_id, source_arn = read_task_handle(given.TaskHandle)
    _own_arn(call, "SourceArn", source_arn)
    # Anybody can write a handle that pairs a queue of theirs with a stranger's task: believe it only if the queue has it.
    # The task that runs is the newest, so it is always among those listed.
    if all(task.id != task_id for task in await list_moves(call.service, source_arn, MOVE_TASKS_LISTED_MAX)):
        raise MoveTaskMissing
    task = await cancel_move(call.service, task_id)
    return shapes.CancelMessageMoveTaskOutput(task.moved)


async def list_message_move_tasks(
    call: Call, given: shapes.ListMessageMoveTasksInput
) -> shapes.ListMessageMoveTasksOutput:
    _own_arn(call, "SourceArn", given.SourceArn)
    limit = given.MaxResults
    if limit is None:
        limit = 1
    check_range("MaxResults", limit, 1, MOVE_TASKS_LISTED_MAX)
    tasks = await list_moves(call.service, given.SourceArn, limit)
    return shapes.ListMessageMoveTasksOutput([_entry(task) for task in tasks] or None)


def check_rate(rate_per_s: int | None) -> None:
    """Raises ParameterRefused for a rate that no task can have."""
    if rate_per_s is not None:
        check_range("MaxNumberOfMessagesPerSecond", rate_per_s, 1, MOVE_RATE_MAX)


def _own_arn(call: Call, parameter: str, arn: str) -> None:
    required(parameter, arn)
    # Another account's queue is as good as none: whether it exists is nobody else's business.
    if parse_arn(arn, parameter).account != call.owner():
        raise ResourceMissing(parameter, arn)


# Tasks that failed under an older version have SQS's words in their data.
_FAILURES: Final = {
    DESTINATION_MISSING: "AWS.SimpleQueueService.NonExistentQueue",
    SOURCE_UNKNOWN: "CouldNotDetermineMessageSource",
}


def _entry(task: MoveTask) -> shapes.MoveTaskEntry:
    return shapes.MoveTaskEntry(
        Status=task.status,
        SourceArn=task.source.arn,
        ApproximateNumberOfMessagesMoved=task.moved,
        ApproximateNumberOfMessagesToMove=task.to_move,
        StartedTimestamp=task.started_wall_ms,
        # A task at its end cannot be cancelled, so it shows no handle.
        TaskHandle=task_handle(task) if task.status == "RUNNING" else None,
        DestinationArn=task.destination.arn if task.destination is not None else None,
        MaxNumberOfMessagesPerSecond=task.rate_per_s,
        FailureReason=_failure(task),
    )


def _failure(task: MoveTask) -> str | None:
    if task.scan is not None and task.scan.refused:
        return f"{plural(task.scan.refused, 'message')} stayed; the last because {task.scan.refusal}"
    return None if task.failure is None else _FAILURES.get(task.failure, task.failure)
