"""Redrive chosen messages out of the dead letters, changed on the way if asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.core.message import Caller, MessageAttribute, StoredMessage
from veil.core.message_rules import Draft, body_md5, check_draft
from veil.core.queue import Queue, QueueKey
from veil.service.message_type import message_type
from veil.service.service import Service
from veil.stores.store import Chosen, NewContent

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
