"""Send messages to a queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from veil.core.errors import DeduplicationMissing, GroupMissing, MessageRefused, VeilError
from veil.core.event import NOBODY
from veil.core.message import Caller, NewMessage
from veil.core.message_rules import Draft, body_md5, check_draft, content_deduplication_id
from veil.core.priority import PRIORITY_DEFAULT
from veil.core.queue import Queue, QueueSettings
from veil.service.ids import new_id
from veil.service.message_type import message_type
from veil.service.service import Service


class SentMessage(NamedTuple):
    """A message that is stored, or whose duplicate is: the id and seq are then the first one's."""

    message_id: str
    seq: int
    body_md5: str


_TO_COME: Final = SentMessage("", 0, "")  # keeps the place of a draft that is on its way to the store


async def send(
    service: Service,
    queue: Queue,
    drafts: Sequence[Draft],
    *,
    sender: str,
    retry_key: bytes | None = None,
    caller: Caller = NOBODY,
) -> list[SentMessage | VeilError]:
    """Store the drafts, in order and together; a refused one is answered in its place and holds up no other.

    A call that comes again under the same retry key is answered like the first one and stores nothing.
    Raises GroupMissing and DeduplicationMissing for the whole call, and what the store raises.
    """
    answers: list[SentMessage | VeilError] = []
    messages: list[NewMessage] = []
    for draft in drafts:
        try:
            message = _checked(draft, queue.settings, sender)
            if message.attributes is not None:
                message.message_type = message_type(message.attributes, service.rules.type_attributes)
        except (GroupMissing, DeduplicationMissing):
            raise
        except MessageRefused as refusal:
            answers.append(refusal)
        else:
            answers.append(_TO_COME)
            messages.append(message)
    if not messages:
        return answers
    stored = await service.store.send(queue, messages, retry_key=retry_key, caller=caller)
    place = duplicates = 0
    for message, sent in zip(messages, stored, strict=True):
        while answers[place] is not _TO_COME:
            place += 1
        answers[place] = SentMessage(sent.message_id, sent.seq, message.body_md5)
        duplicates += sent.duplicate
    service.tallies.add("sent", queue.id, len(stored) - duplicates)
    service.ticker.look()
    return answers


def _checked(draft: Draft, settings: QueueSettings, sender: str) -> NewMessage:
    """The message to store; raises a MessageRefused member unless the queue takes the draft."""
    body_utf8 = check_draft(draft, settings)
    deduplication_id, delay_s = draft.deduplication_id, draft.delay_s
    if settings.fifo:
        delay_s = None  # a FIFO message has no delay of its own: 0 means the queue's
        if deduplication_id is None:
            deduplication_id = content_deduplication_id(body_utf8)
    return NewMessage(
        new_id(),
        draft.body,
        body_md5(body_utf8),
        draft.attributes or None,
        draft.trace_header,
        sender,
        delay_s,
        draft.group,
        deduplication_id,
        priority=PRIORITY_DEFAULT if draft.priority is None else draft.priority,
    )
