"""Redrive dead letters, also to another queue or edited: selected ones at once, all that match in the background; cancel it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from veil.console.changes import (
    NO_COMMAND,
    Change,
    ChangeResult,
    Difference,
    NothingDone,
    aws_command,
    change,
    done_of,
    send_commands,
)
from veil.console.messages import PAGE_ROWS, chosen_of, cut
from veil.console.pages.dead_letters import LetterSelection, letter_groups, letters_page, read_selection
from veil.console.pages.queue_messages import deletion
from veil.console.visit import Visit
from veil.console.web import Form, FormRefused, NotFound, NumberField, Role, page, queue_link
from veil.core.errors import ArnRefused, VeilError
from veil.core.lease import State
from veil.core.limits import MOVE_RATE_MAX
from veil.core.message import REDRIVEN_FROM, MessageAttribute, StoredMessage
from veil.core.message_rules import Draft
from veil.core.queue import Chosen, ContentChange, Queue, QueueKey, parse_arn
from veil.core.text import seq_number
from veil.service import moves
from veil.service.dead_letters import (
    Letter,
    has_room_for_mark,
    read_letter,
    to_chosen,
    with_room_for_mark,
)
from veil.service.service import peek_one
from veil.wire.exchange import Response
from veil.words import plural

_HOME, _HOMES = "its source queue", "their source queues"
_LISTED_MAX: Final = 20
_MOVES_LOOKED_AT: Final = 10
_RATE: Final = NumberField("rate", "At most", "messages a second", 1, MOVE_RATE_MAX)
_NEW: Final = "Each becomes a new message with a receive count of zero. An attribute keeps its former id."
_NO_AWS_COMMAND: Final = "There is no aws command for this: SQS can only move a whole queue."


@change("/dead-letters/{region}/{name}/redrive", needs=Role.OPERATOR, form=letters_page)
async def redrive_dead_letters(visit: Visit) -> Change:
    queue = await visit.queue()
    selection = read_selection(visit.form)
    destination = await read_destination(visit, queue, visit.form.text("to"))
    rate_per_s = _RATE.read_optional(visit.form)
    if visit.form.text("what") != "ticked":
        return await _matching(visit, queue, selection, destination, rate_per_s)
    chosen = _ticked(visit, "No messages are selected. Select those to redrive, or redrive all that match.")
    return _ticked_redrive(visit, queue, selection, chosen, destination)


@change("/dead-letters/{region}/{name}/delete", needs=Role.OPERATOR, form=letters_page)
async def delete_dead_letters(visit: Visit) -> Change:
    queue = await visit.queue()
    selection = read_selection(visit.form)
    chosen = _ticked(visit, "No messages are selected. Select those to delete.")
    return deletion(visit, queue, chosen, selection.address(queue))


def _ticked(visit: Visit, none: str) -> list[tuple[int, str]]:
    """Key and id of each ticked message; raises FormRefused."""
    chosen = chosen_of(visit.form.all("letter"))
    if not chosen:
        raise FormRefused("ticked", none)
    if len(chosen) > PAGE_ROWS:
        expected = f"{len(chosen):,} messages are selected: expected at most {PAGE_ROWS}, a page of them."
        raise FormRefused("ticked", expected)
    return chosen


def _ticked_redrive(
    visit: Visit,
    queue: Queue,
    selection: LetterSelection,
    chosen: list[tuple[int, str]],
    destination: QueueKey | None,
) -> Change:
    async def make() -> ChangeResult:
        answers: list[object] = []
        # One by one: fifty messages may come to fifty megabytes.
        for seq, message_id in chosen:
            found = await peek_one(visit.service.store, queue, seq)
            if found is None or found.message_id != message_id:
                answers.append(NothingDone(f"message {message_id} is no longer in the queue"))
            else:
                types = visit.service.rules.type_attributes
                letter = to_chosen(read_letter(queue, found), destination, types)
                answers += await visit.service.store.redrive(queue, [letter], caller=visit.caller)
            await visit.time_slice.yield_if_spent()
        moved = sum(not isinstance(answer, VeilError) for answer in answers)
        home = _HOME if moved == 1 else _HOMES
        where = home if destination is None else destination.name
        return ChangeResult(done_of(answers, "redriven", f"redriven to {where}"))

    count = plural(len(chosen), "message")
    target = _HOME if destination is None else destination.name
    more = len(chosen) - _LISTED_MAX
    return Change(
        action="redrive messages",
        target=queue.name,
        title=f"Redrive {count}",
        button=f"Redrive {count}",
        back=selection.address(queue),
        make=make,
        differences=[
            Difference(f"Message {message_id}", queue.name, target) for _, message_id in chosen[:_LISTED_MAX]
        ],
        notes=[*([f"And {plural(more, 'more message')}."] if more > 0 else []), _NEW, _NO_AWS_COMMAND],
    )


async def _matching(
    visit: Visit,
    queue: Queue,
    selection: LetterSelection,
    destination: QueueKey | None,
    rate_per_s: int | None,
) -> Change:
    groups = await letter_groups(visit.service, queue, selection, visit.time_slice)
    if not groups.matching and groups.is_all:
        raise FormRefused("ticked", "No messages match, so there is nothing to redrive.")
    # A move task finds back only what the server itself has dead-lettered, and stops at the first that it did not.
    is_whole = not selection.filter
    as_task = is_whole and (destination is not None or groups.movable == groups.matching)
    group = groups.by_key.get(selection.filter.group)
    reason = "" if group is None else group.example.fingerprint
    letters = msgspec.structs.replace(selection.filter, reason=reason or "received too often")
    to = None if destination is None else destination.arn
    asked = {"SourceArn": queue.key.arn, "DestinationArn": to, "MaxNumberOfMessagesPerSecond": rate_per_s}
    parameters = {name: value for name, value in asked.items() if value is not None}
    command = aws_command("start-message-move-task", visit.endpoint_url, queue.key.region, parameters)
    matches = "matches" if groups.matching == 1 else "match"
    match = f"{plural(groups.matching, 'message')} {matches} at the moment"
    of = "" if groups.is_all else f", of the first {groups.rows:,} that were looked at"
    rate = f"at most {rate_per_s or MOVE_RATE_MAX} a second"
    notes = [
        f"{match}{of}. The server moves them in the background, {rate}.",
        "The redrive continues after a restart of the server, and can be cancelled.",
        *(() if as_task else (_NEW,)),
        *(() if is_whole else (_NO_AWS_COMMAND,)),
    ]
    if groups.sourceless and destination is None:
        notes.append(
            f"The source of {plural(groups.sourceless, 'message')} is not known: these stay unless you name a queue."
        )
    return Change(
        action="redrive queue" if is_whole else "redrive matching messages",
        target=queue.name,
        title=f"Redrive the dead letters of {queue.name}",
        button="Redrive all" if is_whole else "Redrive all that match",
        back=selection.address(queue),
        make=lambda: moves.start_move(
            visit.service,
            queue.key.arn,
            to,
            rate_per_s,
            account=visit.identity.account,
            letters=None if as_task else letters,
            caller=visit.caller,
        ),
        done=f"The redrive of {queue.name} has started.",
        differences=[
            Difference(
                f"Dead letters: {letters.words()}",
                queue.name,
                _HOMES if destination is None else destination.name,
            )
        ],
        commands=[command] if as_task else (),
        notes=notes,
    )


@change("/dead-letters/{region}/{name}/cancel", needs=Role.OPERATOR)
async def cancel(visit: Visit) -> Change:
    """Stop a move that runs; what it has moved stays moved."""
    queue = await visit.queue()
    task_id = visit.form.text("task")[:64]
    tasks = await moves.list_moves(visit.service, queue.key.arn, _MOVES_LOOKED_AT)
    task = next((each for each in tasks if each.id == task_id), None)
    if task is None:
        raise NotFound(f"Queue {queue.name} has no such redrive.")

    async def make() -> ChangeResult:
        moved = (await moves.cancel_move(visit.service, task.id)).moved
        return ChangeResult(f"The redrive is being stopped. It has moved {plural(moved, 'message')} so far.")

    handle = {"TaskHandle": moves.task_handle(task)}
    return Change(
        action="cancel redrive",
        target=queue.name,
        title=f"Stop the redrive of {queue.name}",
        button="Stop the redrive",
        back=LetterSelection().address(queue),
        make=make,
        differences=[Difference("Redrive", "running", "cancelled")],
        commands=[aws_command("cancel-message-move-task", visit.endpoint_url, queue.key.region, handle)],
        notes=["Messages that were moved stay moved; the others stay in the dead-letter queue."],
    )


async def read_destination(visit: Visit, queue: Queue, text: str) -> QueueKey | None:
    """The queue that a field names, by name or ARN; None where it is empty. Raises FormRefused."""
    if not text:
        return None
    try:
        key = parse_arn(text) if text.startswith("arn:") else queue.key._replace(name=text)
    except ArnRefused:
        raise FormRefused("to", f"{text[:100]!r}: expected the name or the ARN of a queue") from None
    found = await visit.service.store.find_queue(key) if key.account == queue.key.account else None
    if found is None:
        raise FormRefused("to", f"{text[:100]!r}: there is no such queue")
    if found.key == queue.key:
        raise FormRefused("to", f"{text[:100]!r}: the messages are already in this queue")
    if found.settings.fifo != queue.settings.fifo:
        kind = "FIFO" if queue.settings.fifo else "standard"
        raise FormRefused("to", f"{text[:100]!r}: expected a {kind} queue, as {queue.name} is one")
    return found.key


# ---- edited: a letter goes on as a new message, and leaves the dead letters in the same instant

_OURS: Final = ("veil.", REDRIVEN_FROM)  # written by consumers and redrives: not for people to edit
_EMPTY_ROWS: Final = 2
_SHOWN_CHARS: Final = 1_000
_SOURCE_UNKNOWN: Final = "The source of this message is not known. Name the queue to send it to."

AttributeRow = tuple[str, str, str]  # name, data type and value


@page("/dead-letters/{region}/{name}/{seq}/edit", needs=Role.OPERATOR)
async def edit_page(visit: Visit) -> Response:
    queue = await visit.queue()
    letter = await _letter(visit, queue)
    attributes = letter.message.attributes or {}
    editable = {name: each for name, each in attributes.items() if _is_editable(name, each)}
    body = letter.message.body
    rows = [(name, each.data_type, str(each.value)) for name, each in editable.items()]
    if visit.request.method == "POST":
        body, rows = _filled_in(visit.form, letter.message)
    return await visit.page(
        "dead_letter_edit.html",
        title="Edit and resend",
        queue=queue,
        letter=letter,
        body=body,
        rows=[*rows, *[("", "String", "")] * _EMPTY_ROWS],
        kept=[name for name in attributes if name not in editable],
        to=visit.form.text("to"),
        address=LetterSelection().address(queue),
    )


@change("/dead-letters/{region}/{name}/{seq}/edit", needs=Role.OPERATOR, form=edit_page)
async def edit(visit: Visit) -> Change:
    queue = await visit.queue()
    letter = await _letter(visit, queue)
    message = letter.message
    body, rows = _filled_in(visit.form, message)
    destination = await read_destination(visit, queue, visit.form.text("to")) or letter.source
    if destination is None:
        raise FormRefused("to", _SOURCE_UNKNOWN)
    target = await visit.service.store.find_queue(destination)
    if target is None:
        raise FormRefused("to", f"{destination.name[:100]!r}: this queue no longer exists; name another")
    attributes = _attributes(letter, rows)
    deduplication_id = message.message_id if target.settings.fifo else None
    draft = Draft(body, attributes, group=message.group, deduplication_id=deduplication_id)
    commands = send_commands(visit, target, [draft])

    async def make() -> ChangeResult:
        marked = has_room_for_mark(message) and len(attributes) < 10
        change = ContentChange(body, attributes, visit.service.rules.type_attributes, marked)
        chosen = Chosen(message.seq, message.message_id, target.key, change)
        (answer,) = await visit.service.store.redrive(queue, [chosen], caller=visit.caller)
        if isinstance(answer, VeilError):
            raise answer
        place = queue_link(target.key, "messages", str(answer.seq))
        return ChangeResult(f"Sent to {target.name} as message {answer.message_id}.", place)

    return Change(
        action="edit and resend message",
        target=message.message_id,
        title="Edit and resend",
        button=f"Send to {target.name}",
        back=LetterSelection().address(queue),
        make=make,
        differences=[Difference("Queue", queue.name, target.name), *_differences(letter, body, attributes)],
        commands=commands,
        notes=[
            "The command only sends the new message; here the old one also leaves the dead letters, in the same transaction."
            if commands
            else NO_COMMAND
        ],
    )


async def _letter(visit: Visit, queue: Queue) -> Letter:
    text = visit.parts["seq"]
    seq = seq_number(text)
    found = await peek_one(visit.service.store, queue, seq) if seq else None
    if found is None:
        raise NotFound(
            f"Queue {queue.name} has no message with the key {text[:40]}. It may have been deleted or moved since."
        )
    if found.state != State.VISIBLE:
        raise NotFound(f"Message {found.message_id} is not visible: a consumer holds it, or it is delayed.")
    return read_letter(queue, found)


def _filled_in(form: Form, message: StoredMessage) -> tuple[str, list[AttributeRow]]:
    columns = (form.all(f"attribute_{column}") for column in ("name", "type", "value"))
    rows = [
        (name.strip(), data_type.strip(), value)
        for name, data_type, value in zip(*columns, strict=False)
        if name.strip()
    ]
    body = form.raw("body")
    if body == message.body.replace("\r\n", "\n"):
        body = message.body  # browsers change line breaks; that is no edit
    return body, rows


def _is_editable(name: str, attribute: MessageAttribute) -> bool:
    """Whether people edit it: not bytes, and not what consumers wrote."""
    return isinstance(attribute.value, str) and not name.startswith(_OURS)


def _attributes(letter: Letter, rows: list[AttributeRow]) -> dict[str, MessageAttribute]:
    """What was filled in, and what people do not edit."""
    before = with_room_for_mark(letter.message) or letter.message.attributes or {}
    kept = {name: each for name, each in before.items() if not _is_editable(name, each)}
    filled = {name: MessageAttribute(data_type or "String", value) for name, data_type, value in rows}
    for name, each in filled.items():
        old = before.get(name)
        if old is not None and each == old._replace(value=_on_one_line(old.value)):
            filled[name] = old  # a field of one line has no line breaks; that is no edit
    return filled | kept


def _on_one_line(value: str | bytes) -> str | bytes:
    return value.replace("\r", "").replace("\n", "") if isinstance(value, str) else value


def _differences(letter: Letter, body: str, attributes: Mapping[str, MessageAttribute]) -> list[Difference]:
    found = []
    if body != letter.message.body:
        found.append(Difference("Body", letter.message.body[:_SHOWN_CHARS], body[:_SHOWN_CHARS]))
    before = letter.message.attributes or {}
    for name in dict.fromkeys((*before, *attributes)):
        old, new = before.get(name), attributes.get(name)
        if old != new:
            found.append(Difference(f"Attribute {name}", _words(old), _words(new)))
    return found


def _words(attribute: MessageAttribute | None) -> str:
    if attribute is None:
        return ""
    value = attribute.value if isinstance(attribute.value, str) else plural(len(attribute.value), "byte")
    return f"{cut(value, _SHOWN_CHARS)} ({attribute.data_type})"
