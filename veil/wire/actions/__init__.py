"""SQS's actions, each from its input's shape to its output's; this table is all that the protocols know of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, get_type_hints

from veil.wire.actions import extensions, messages, move_tasks, queues
from veil.wire.call import Call
from veil.wire.shapes import Shape


class Action(NamedTuple):
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


def _table(*runs: Callable[[Call, Any], Awaitable[Shape | None]]) -> Mapping[str, Action]:
    """Actions by name: a function is named after its action, and its second argument has the shape of the action's input."""
    names = ["".join(map(str.capitalize, run.__name__.split("_"))) for run in runs]
    return {
        name: Action(name, get_type_hints(run)["given"], run) for name, run in zip(names, runs, strict=True)
    }


# fmt: off
ACTIONS: Final = _table(
    messages.send_message, messages.receive_message, messages.delete_message, messages.change_message_visibility,
    messages.send_message_batch, messages.delete_message_batch, messages.change_message_visibility_batch,
    queues.create_queue, queues.get_queue_url, queues.list_queues, queues.delete_queue, queues.purge_queue,
    queues.get_queue_attributes, queues.set_queue_attributes, queues.list_dead_letter_source_queues,
    queues.tag_queue, queues.untag_queue, queues.list_queue_tags, queues.add_permission, queues.remove_permission,
    move_tasks.start_message_move_task, move_tasks.cancel_message_move_task, move_tasks.list_message_move_tasks,
)
# Veil's own, under a target prefix that no AWS client uses.
EXTENSIONS: Final = _table(
    extensions.open_stream, extensions.receive_hold, extensions.extend_holds, extensions.delete_holds,
    extensions.peek_messages, extensions.describe_message, extensions.describe_queues, extensions.pause_queue,
    extensions.resume_queue, extensions.redrive_messages, extensions.start_redrive,
)
# fmt: on
