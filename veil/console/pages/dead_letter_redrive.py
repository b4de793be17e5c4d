"""Send dead letters back, or elsewhere, or edited: the ticked ones at once, those that match in the background; and stop that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from veil.console.changes import NO_COMMAND, Change, Difference, Done, aws_command, send_commands
from veil.console.letters import PAGE_ROWS, LetterWish, chosen_of, letter_groups, read_wish
from veil.console.pages.dead_letters import letters_shown
from veil.console.pages.queue_messages import offer_deletion
from veil.console.templates import plural
from veil.console.visit import Visit
from veil.console.web import Answer, FormRefused, NotFound, Role, change, link, page
from veil.core.errors import ArnRefused, VeilError
from veil.core.lease import State
from veil.core.limits import MOVE_RATE_MAX
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft
from veil.core.queue import Queue, QueueKey, parse_arn
from veil.core.text import seq_number, whole_number
from veil.service.dead_letters import (
    REDRIVEN_FROM,
    Letter,
    has_room_for_mark,
    read_letter,
    with_room_for_mark,
)
from veil.service.moves import (
    Wanted,
    cancel_move,
    list_moves,
    redrive,
    redrive_letters,
    start_move,
    task_handle,
)

_HOME, _HOMES = "its source queue", "their source queues"
_LISTED_MAX = 20
_MOVES_LOOKED_AT = 10


class NothingMoved(VeilError):
    """None of the messages could be redriven."""


@change("/dead-letters/{region}/{name}/redrive", needs=Role.OPERATOR)
async def redrive_dead_letters(visit: Visit) -> Answer:
    """Show what would be moved, then move it."""
    queue = await visit.queue()
    wish = read_wish(visit.form)
    try:
        destination = await read_destination(visit, queue, visit.form.text("to"))
        rate_per_s = _rate(visit.form.text("rate"))
        if visit.form.text("what") != "ticked":
            return await _offer_matching(visit, queue, wish, destination, rate_per_s)
        chosen = _ticked(visit, "No message is ticked. Tick those to be redriven, or redrive all that match.")
    except FormRefused as refusal:
        return await letters_shown(visit, queue, wish, refusal.problems, 422)
    return await _offer_ticked(visit, queue, wish, chosen, destination)


@change("/dead-letters/{region}/{name}/delete", needs=Role.OPERATOR)
async def delete_dead_letters(visit: Visit) -> Answer:
    """Show which of the ticked messages would be deleted, then delete them."""
    queue = await visit.queue()
    wish = read_wish(visit.form)
    try:
        chosen = _ticked(visit, "No message is ticked. Tick those to be deleted.")
    except FormRefused as refusal:
        return await letters_shown(visit, queue, wish, refusal.problems, 422)
    return await offer_deletion(visit, queue, chosen, _back(queue, wish))


def _ticked(visit: Visit, none: str) -> list[tuple[int, str]]:
    """Key and id of each ticked message; raises FormRefused."""
    chosen = chosen_of(visit.form.all("letter"))
    if not chosen:
        raise FormRefused({"ticked": none})
    if len(chosen) > PAGE_ROWS:
        expected = f"{len(chosen):,} messages are ticked: expected at most {PAGE_ROWS}, a page of them."
        raise FormRefused({"ticked": expected})
    return chosen


async def _offer_ticked(
    visit: Visit, queue: Queue, wish: LetterWish, chosen: list[tuple[int, str]], destination: QueueKey | None
) -> Answer:
    back = _back(queue, wish)
    target = _HOME if destination is None else destination.name

    async def make() -> Done:
        moved, gone, refusals = 0, 0, list[str]()
        # One by one: fifty messages may come to fifty megabytes.
        for seq, message_id in chosen:
            found = await visit.service.store.peek(queue, after_seq=seq - 1, up_to_seq=seq, limit=1)
            letters = [read_letter(queue, each) for each in found if each.message_id == message_id]
            gone += not letters
            for answer in await redrive_letters(visit.service, queue, letters, destination, visit.caller):
                if isinstance(answer, VeilError):
                    refusals.append(str(answer))
                else:
                    moved += 1
            await visit.turn.pause()
        told = [*refusals[:3], *([f"{plural(gone, 'message')} gone meanwhile"] if gone else [])]
        if not moved:
            raise NothingMoved("; ".join(told))
        rest = f" Not redriven: {'; '.join(told)}." if told else ""
        where = _HOMES if destination is None and moved > 1 else target
        return Done(f"{plural(moved, 'message')} redriven to {where}.{rest}", back)

    count = plural(len(chosen), "message")
    return await Change(
        visit,
        action="redrive messages",
        target=queue.name,
        title=f"Redrive {count}",
        button=f"Redrive {count}",
        back=back,
        make=make,
        differences=[
            Difference(f"Message {message_id}", queue.name, target) for _, message_id in chosen[:_LISTED_MAX]
        ],
        notes=[
            *(
                [f"And {plural(len(chosen) - _LISTED_MAX, 'more message')}."]
                if len(chosen) > _LISTED_MAX
                else []
            ),
            "Each becomes a new message with a receive count of zero, marked with its former id.",
            "There is no aws command for this: SQS moves a whole queue or nothing.",
        ],
    ).offer()


async def _offer_matching(
    visit: Visit, queue: Queue, wish: LetterWish, destination: QueueKey | None, rate_per_s: int | None
) -> Answer:
    groups = await letter_groups(visit.service, queue, wish, visit.turn)
    if not groups.matching and groups.is_all:
        raise FormRefused({"ticked": "No message matches, so there is nothing to redrive."})
    # A move task finds back only what the server itself has dead-lettered, and stops at the first that it did not.
    is_whole = not wish.filter
    as_task = is_whole and (destination is not None or groups.movable == groups.matching)
    back = _back(queue, wish)
    group = groups.by_key.get(wish.filter.group)
    reason = "" if group is None else group.example.fingerprint
    letters = msgspec.structs.replace(wish.filter, reason=reason or "received too often")
    target = _HOMES if destination is None else destination.name
    rate = f"at most {rate_per_s or MOVE_RATE_MAX} a second"

    async def make() -> Done:
        await start_move(
            visit.service,
            queue.key.arn,
            None if destination is None else destination.arn,
            rate_per_s,
            account=visit.identity.account,
            letters=None if as_task else letters,
            caller=visit.caller,
        )
        return Done(f"The redrive of {queue.name} has begun.", back)

    seen = plural(groups.matching, "message")
    of = "" if groups.is_all else f", of the first {groups.rows:,} that were looked at"
    match = "matches" if groups.matching == 1 else "match"
    notes = [
        f"{seen} {match} at the moment{of}. The server moves them in the background, {rate}.",
        "It continues after a restart, and can be cancelled.",
    ]
    if not as_task:
        notes.append("Each becomes a new message, marked with its former id.")
    if not is_whole:
        notes.append("There is no aws command for this: SQS moves a whole queue or nothing.")
    if groups.sourceless and destination is None:
        notes.append(
            f"The source of {plural(groups.sourceless, 'message')} is not known: these stay unless you name a queue."
        )
    parameters: dict[str, Any] = {"SourceArn": queue.key.arn}
    if destination is not None:
        parameters["DestinationArn"] = destination.arn
    if rate_per_s is not None:
        parameters["MaxNumberOfMessagesPerSecond"] = rate_per_s
    command = aws_command("start-message-move-task", visit.endpoint_url, queue.key.region, parameters)
    return await Change(
        visit,
        action="redrive queue" if is_whole else "redrive matching messages",
        target=queue.name,
        title=f"Redrive the dead letters of {queue.name}",
        button="Redrive all" if is_whole else "Redrive all that match",
        back=back,
        make=make,
        differences=[Difference(f"Dead letters: {letters.words()}", queue.name, target)],
        commands=[command] if as_task else (),
        notes=notes,
    ).offer()


@change("/dead-letters/{region}/{name}/cancel", needs=Role.OPERATOR)
async def cancel(visit: Visit) -> Answer:
    """Stop a move that runs; what it has moved stays moved."""
    queue = await visit.queue()
    task_id = visit.form.text("task")[:64]
    tasks = await list_moves(visit.service, queue.key.arn, _MOVES_LOOKED_AT)
    task = next((each for each in tasks if each.id == task_id), None)
    if task is None:
        raise NotFound(f"Queue {queue.name} has no such redrive.")
    back = _back(queue, LetterWish())

    async def make() -> Done:
        moved = (await cancel_move(visit.service, task.id)).moved
        return Done(f"The redrive stops; {plural(moved, 'message')} moved so far.", back)

    command = aws_command(
        "cancel-message-move-task", visit.endpoint_url, queue.key.region, {"TaskHandle": task_handle(task)}
    )
    return await Change(
        visit,
        action="cancel redrive",
        target=queue.name,
        title=f"Stop the redrive of {queue.name}",
        button="Stop the redrive",
        back=back,
        make=make,
        differences=[Difference("Redrive", "running", "cancelled")],
        commands=[command],
        notes=["Messages that were moved stay moved; the others stay in the dead-letter queue."],
    ).offer()


async def read_destination(visit: Visit, queue: Queue, text: str) -> QueueKey | None:
    """The queue that a field names, by name or ARN; None where it is empty. Raises FormRefused."""
    if not text:
        return None
    try:
        key = parse_arn(text) if text.startswith("arn:") else queue.key._replace(name=text)
    except ArnRefused:
        raise FormRefused({"to": f"{text[:100]!r}: expected the name or the ARN of a queue"}) from None
    found = await visit.service.store.find_queue(key) if key.account == queue.key.account else None
    if found is None:
        raise FormRefused({"to": f"{text[:100]!r}: there is no such queue"})
    if found.key == queue.key:
        raise FormRefused({"to": f"{text[:100]!r}: the messages are there already"})
    if found.settings.fifo != queue.settings.fifo:
        kind = "FIFO" if queue.settings.fifo else "standard"
        raise FormRefused({"to": f"{text[:100]!r}: expected a {kind} queue, as {queue.name} is one"})
    return found.key


def _rate(text: str) -> int | None:
    if not text:
        return None
    rate_per_s = whole_number(text)
    if rate_per_s is None or not 1 <= rate_per_s <= MOVE_RATE_MAX:
        expected = f"a whole number from 1 to {MOVE_RATE_MAX}, or nothing"
        raise FormRefused({"rate": f"{text[:40]!r}: expected {expected}"})
    return rate_per_s


def _back(queue: Queue, wish: LetterWish) -> str:
    query = wish.query()
    return link("dead-letters", queue.key.region, queue.name) + (f"?{query}" if query else "")


# ---- edited: a letter goes on as a new message, and leaves the dead letters in the same instant

_OURS = ("veil.", REDRIVEN_FROM)  # written by consumers and redrives: not for people to edit
_EMPTY_ROWS = 2
_SHOWN_CHARS = 1_000


AttributeRow = tuple[str, str, str]  # name, data type and value


@page("/dead-letters/{region}/{name}/{seq}/edit", needs=Role.OPERATOR)
async def edit_page(visit: Visit) -> Answer:
    queue = await visit.queue()
    letter = await _letter(visit, queue)
    rows = [
        (name, each.data_type, each.value)
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
        (name.strip(), data_type.strip(), value)
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

    return await Change(
        visit,
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
    ).offer()


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
    return {name: MessageAttribute(data_type or "String", value) for name, data_type, value in rows} | kept


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
        rows=[*rows, *[("", "String", "")] * _EMPTY_ROWS],
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
