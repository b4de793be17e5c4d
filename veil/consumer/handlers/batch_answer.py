"""What a batch handler says about its messages by returning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from veil.consumer.handlers.errors import AnswerRefused
from veil.consumer.message import Message


def failed_ids(answer: Any, messages: Sequence[Message]) -> set[str]:
    """The ids of those that failed; raises AnswerRefused for an answer that cannot be understood.

    None and an empty list mean that all are done. Otherwise ids, messages, or the shape that Lambda uses. An id that is
    not in the batch makes the whole answer doubtful: whoever wrote it meant a message that would be deleted instead.
    """
    named = _named(answer)
    known = {message.id for message in messages}
    strangers = sorted(named - known)
    if strangers:
        raise AnswerRefused(
            f"the batch handler named {', '.join(map(repr, strangers[:3]))} as failed, "
            f"expected ids of its {len(known)} messages; all are taken as failed"
        )
    return named


def _named(answer: Any) -> set[str]:
    if answer is None:
        return set()
    if isinstance(answer, Mapping):
        if answer and "batchItemFailures" not in answer:
            raise _refused(answer)
        items = answer.get("batchItemFailures") or ()
        if not isinstance(items, Iterable) or isinstance(items, str):
            raise _refused(answer)
        return {_item_identifier(item) for item in items}
    if isinstance(answer, list | tuple | set | frozenset):
        return {_one(each) for each in answer}
    raise _refused(answer)


def _item_identifier(item: Any) -> str:
    identifier = item.get("itemIdentifier") if isinstance(item, Mapping) else None
    if isinstance(identifier, str):
        return identifier
    raise _refused(item)


def _one(each: Any) -> str:
    if isinstance(each, Message):
        return each.id
    if isinstance(each, str):
        return each
    raise _refused(each)


def _refused(answer: Any) -> AnswerRefused:
    return AnswerRefused(
        f"the batch handler returned {type(answer).__name__}, expected None, a list of failed ids or messages, or "
        '{"batchItemFailures": [{"itemIdentifier": id}]}; all are taken as failed'
    )
