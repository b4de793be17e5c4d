"""SQS's actions, each from its input's shape to its output's; this table is all that the protocols know of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from veil.wire import shapes
from veil.wire.actions import extensions, messages, move_tasks, queues
from veil.wire.call import Call
from veil.wire.shapes import Shape


class Action(NamedTuple):
    """One action of the API."""

    name: str
    input: type[Shape]
    run: Callable[[Call, Any], Awaitable[Shape | None]]

    @property
    def on_queue(self) -> bool:
        """Whether it may be asked at a queue's own URL."""
        return "QueueUrl" in self.input.__struct_fields__ or self.name == "GetQueueUrl"

    @property
    def only_reads(self) -> bool:
        """Whether it leaves everything as it was; a receive does not, since it hides what it gives."""
        return self.name.startswith(("Get", "List", "Describe"))


ACTIONS: Final[Mapping[str, Action]] = {
    name: Action(name, given, run)
    for name, given, run in (
        ("AddPermission", shapes.AddPermissionInput, queues.add_permission_action),
        ("CancelMessageMoveTask", shapes.CancelMessageMoveTaskInput, move_tasks.cancel_message_move_task),
        ("ChangeMessageVisibility", shapes.ChangeMessageVisibilityInput, messages.change_message_visibility),
        (
            "ChangeMessageVisibilityBatch",
            shapes.ChangeMessageVisibilityBatchInput,
            messages.change_message_visibility_batch,
        ),
        ("CreateQueue", shapes.CreateQueueInput, queues.create_queue_action),
        ("DeleteMessage", shapes.DeleteMessageInput, messages.delete_message),
        ("DeleteMessageBatch", shapes.DeleteMessageBatchInput, messages.delete_message_batch),
        ("DeleteQueue", shapes.QueueInput, queues.delete_queue_action),
        ("GetQueueAttributes", shapes.GetQueueAttributesInput, queues.get_queue_attributes),
        ("GetQueueUrl", shapes.GetQueueUrlInput, queues.get_queue_url),
        (
            "ListDeadLetterSourceQueues",
            shapes.ListDeadLetterSourceQueuesInput,
            queues.list_dead_letter_source_queues,
        ),
        ("ListMessageMoveTasks", shapes.ListMessageMoveTasksInput, move_tasks.list_message_move_tasks),
        ("ListQueueTags", shapes.QueueInput, queues.list_queue_tags),
        ("ListQueues", shapes.ListQueuesInput, queues.list_queues_action),
        ("PurgeQueue", shapes.QueueInput, queues.purge_queue),
        ("ReceiveMessage", shapes.ReceiveMessageInput, messages.receive_message),
        ("RemovePermission", shapes.RemovePermissionInput, queues.remove_permission_action),
        ("SendMessage", shapes.SendMessageInput, messages.send_message),
        ("SendMessageBatch", shapes.SendMessageBatchInput, messages.send_message_batch),
        ("SetQueueAttributes", shapes.SetQueueAttributesInput, queues.set_queue_attributes),
        ("StartMessageMoveTask", shapes.StartMessageMoveTaskInput, move_tasks.start_message_move_task),
        ("TagQueue", shapes.TagQueueInput, queues.tag_queue_action),
        ("UntagQueue", shapes.UntagQueueInput, queues.untag_queue_action),
    )
}

# Veil's own, under a target prefix that no AWS client uses.
EXTENSIONS: Final[Mapping[str, Action]] = {
    name: Action(name, given, run)
    for name, given, run in (
        ("DeleteHolds", shapes.DeleteHoldsInput, extensions.delete_holds),
        ("DescribeMessage", shapes.DescribeMessageInput, extensions.describe_message),
        ("DescribeQueues", shapes.ListQueuesInput, extensions.describe_queues),
        ("ExtendHolds", shapes.ExtendHoldsInput, extensions.extend_holds),
        ("OpenStream", shapes.OpenStreamInput, extensions.open_stream),
        ("PauseQueue", shapes.QueueInput, extensions.pause_queue_action),
        ("PeekMessages", shapes.PeekMessagesInput, extensions.peek_messages),
        ("ReceiveHold", shapes.ReceiveHoldInput, extensions.receive_hold),
        ("RedriveMessages", shapes.RedriveMessagesInput, extensions.redrive_messages),
        ("ResumeQueue", shapes.QueueInput, extensions.resume_queue_action),
        ("StartRedrive", shapes.StartRedriveInput, extensions.start_redrive),
    )
}
