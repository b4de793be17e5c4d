"""Look at a queue without receiving from it, page by page, and follow what is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from veil.cli.client import Client
from veil.cli.failures import CommandFailed, ServiceError
from veil.cli.message_text import Message

_PAGE = 100


def peek_messages(client: Client, queue: str, limit: int) -> Iterator[Message]:
    """Up to that many messages of the queue, oldest first."""
    token: str | None = None
    left = limit
    while left > 0:
        messages, token = _page(client, queue, token, min(left, _PAGE))
        yield from messages
        left -= len(messages)
        if token is None:
            return


def follow(
    client: Client, queue: str, pause: Callable[[], object], *, from_start: bool = False
) -> Iterator[Message]:
    """Messages as they arrive, for ever; `pause` is called between two looks."""
    token: str | None = None
    known: set[str] = set()  # the ids on the last page, which is looked at again until a next one follows
    quiet = not from_start
    while True:
        messages, following = _page(client, queue, token, _PAGE)
        for message in messages:
            if not quiet and message["MessageId"] not in known:
                yield message
        if following is not None:
            token, known = following, set()
            continue
        known = {str(message["MessageId"]) for message in messages}
        quiet = False
        pause()


def _page(client: Client, queue: str, token: str | None, size: int) -> tuple[list[Message], str | None]:
    parameters: dict[str, Any] = {"MaxResults": size}
    if token is not None:
        parameters["NextToken"] = token
    try:
        answer = client.on_queue("PeekMessages", queue, parameters)
    except ServiceError as error:
        if error.code in ("UnknownOperationException", "InvalidAction"):
            raise CommandFailed(
                f"{client.place.endpoint} cannot peek: that is an extension of Veil's, not of SQS"
            ) from None
        raise
    return list(answer.get("Messages") or ()), answer.get("NextToken")
