"""Edit a dead letter and send it again: it goes on as a new message, and leaves the dead letters in the same instant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from veil.console.changes import NO_COMMAND, Change, Difference, Done, offer, send_commands
from veil.console.pages.dead_letter_redrive import read_destination
from veil.console.visit import Visit
from veil.console.web import Answer, FormRefused, NotFound, Role, change, link, page
from veil.core.errors import VeilError
from veil.core.lease import State
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft
from veil.core.queue import Queue
from veil.core.text import seq_number
from veil.service.dead_letters import (
    REDRIVEN_FROM,
    Letter,
    has_room_for_mark,
    read_letter,
    with_room_for_mark,
)
from veil.service.moves import Wanted, redrive

_OURS = ("veil.", REDRIVEN_FROM)  # written by consumers and redrives: not for people to edit
_EMPTY_ROWS = 2
_SHOWN_CHARS = 1_000


class AttributeRow(NamedTuple):
    """One attribute in the form."""

    name: str
    data_type: str
    value: str


@page("/dead-letters/{region}/{name}/{seq}/edit", needs=Role.OPERATOR)
async def edit_page(visit: Visit) -> Answer:
    """The form, filled with what is."""
    queue = await visit.queue()
    letter = await _letter(visit, queue)
    rows = [
        AttributeRow(name, each.data_type, each.value)
        for name, each in (letter.message.attributes or {}).items()
        if isinstance(each.value, str) and not name.startswith(_OURS)
    ]
    return await _form(visit, queue, letter, letter.message.body, rows, "", {})


@change("/dead-letters/{region}/{name}/{seq}/edit", needs=Role.OPERATOR)
async def edit(visit: Visit) -> Answer:
    """Show what would be changed, then send it."""
    queue = await visit.queue()
    letter = await _letter(visit, queue)
    form = visit.form
    rows = [
        AttributeRow(name.strip(), data_type.strip(), value)
        for name, data_type, value in zip(
            form.all("attribute_name"), form.all("attribute_type"), form.all("attribute_value"), strict=False
        )
        if name.strip()
    ]
    body, to = form.raw("body"), form.text("to")
    if body == letter.message.body.replace("\r\n", "\n"):
        body = letter.message.body  # browsers change line breaks; that is no edit
    try:
        destination = await read_destination(visit, queue, to)
        if destination is None:
            destination = letter.source
        if destination is None:
            raise FormRefused(
                {"to": "It is not known where this message came from: name the queue to send it to."}
            )
        target = await visit.service.store.find_queue(destination)
        if target is None:
            raise FormRefused(
                {"to": f"{destination.name[:100]!r}: there is no such queue any more; name another"}
            )
    except FormRefused as refusal:
        return await _form(visit, queue, letter, body, rows, to, refusal.problems, 422)
    attributes = _attributes(letter, rows)
    back = link("dead-letters", queue.key.region, queue.name)
    commands = send_commands(visit.endpoint_url, target, [_draft(letter, target, body, attributes)])

    async def make() -> Done:
        message = letter.message
        marked = has_room_for_mark(message) and len(attributes) < 10
        wanted = Wanted(message.seq, message.message_id, target.key, body, attributes)
        (answer,) = await redrive(visit.service, queue, [wanted], mark=marked, caller=visit.caller)
        if isinstance(answer, VeilError):
            raise answer
        place = link("queues", target.key.region, target.name, "messages", str(answer.seq))
        return Done(f"Sent to {target.name} as message {answer.message_id}.", place)

    return await offer(
        visit,
        Change(
            action="edit and resend message",
            target=letter.message.message_id,
            title="Edit and resend",
            button=f"Send to {target.name}",
            back=back,
            make=make,
            differences=[
                Difference("Queue", queue.name, target.name),
                *_differences(letter, body, attributes),
            ],
            commands=commands,
            notes=[
                "The command only sends the new message; here the old one also leaves the dead letters, in the same transaction."
                if commands
                else NO_COMMAND
            ],
        ),
    )


async def _letter(visit: Visit, queue: Queue) -> Letter:
    text = visit.parts["seq"]
    seq = seq_number(text)
    found = await visit.service.store.peek(queue, after_seq=seq - 1, up_to_seq=seq, limit=1) if seq else []
    if not found:
        raise NotFound(f"Queue {queue.name} has no message with the key {text[:40]} (any more).")
    if found[0].state != State.VISIBLE:
        raise NotFound(
            f"Message {found[0].message_id} is not visible: somebody holds it, or it waits out a delay."
        )
    return read_letter(queue, found[0])


def _attributes(letter: Letter, rows: list[AttributeRow]) -> dict[str, MessageAttribute]:
    """What was filled in, after what people do not edit: bytes, and what consumers wrote."""
    before = with_room_for_mark(letter.message) or letter.message.attributes or {}
    kept = {
        name: each
        for name, each in before.items()
        if name.startswith(_OURS) or not isinstance(each.value, str)
    }
    return {row.name: MessageAttribute(row.data_type or "String", row.value) for row in rows} | kept


def _differences(letter: Letter, body: str, attributes: Mapping[str, MessageAttribute]) -> list[Difference]:
    message = letter.message
    found = []
    if body != message.body:
        found.append(Difference("Body", message.body[:_SHOWN_CHARS], body[:_SHOWN_CHARS]))
    before = message.attributes or {}
    for name in dict.fromkeys((*before, *attributes)):
        old, new = before.get(name), attributes.get(name)
        if old != new:
            found.append(Difference(f"Attribute {name}", _words(old), _words(new)))
    return found


def _words(attribute: MessageAttribute | None) -> str:
    if attribute is None:
        return ""
    value = attribute.value if isinstance(attribute.value, str) else f"{len(attribute.value):,} bytes"
    return f"{value[:_SHOWN_CHARS]} ({attribute.data_type})"


def _draft(letter: Letter, target: Queue, body: str, attributes: dict[str, MessageAttribute]) -> Draft:
    """The new message as a client would send it."""
    group = letter.message.group
    deduplication_id = letter.message.message_id if target.settings.fifo else None
    return Draft(body, attributes, group=group, deduplication_id=deduplication_id)


async def _form(
    visit: Visit,
    queue: Queue,
    letter: Letter,
    body: str,
    rows: list[AttributeRow],
    to: str,
    problems: Mapping[str, str],
    status: int = 200,
) -> Answer:
    return await visit.page(
        "dead_letter_edit.html",
        title="Edit and resend",
        queue=queue,
        letter=letter,
        body=body,
        rows=[*rows, *[AttributeRow("", "String", "")] * _EMPTY_ROWS],
        kept=[
            name
            for name, each in (letter.message.attributes or {}).items()
            if name.startswith(_OURS) or not isinstance(each.value, str)
        ],
        to=to,
        problems=problems,
        address=link("dead-letters", queue.key.region, queue.name),
        status=status,
    )
