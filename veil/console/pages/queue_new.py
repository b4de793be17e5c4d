"""Create a queue, from nothing or as a copy of another; delete, empty, pause and resume it."""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

from veil.console.changes import Change, Difference, aws_command, change, queue_command
from veil.console.queue_form import (
    WITHOUT_DEAD_LETTERS,
    differences_between,
    form_values,
    problem_at,
    read_settings,
    read_tags,
    settings_after,
    write_tags,
)
from veil.console.visit import Visit
from veil.console.web import NotFound, Role, link, page, queue_link
from veil.core.errors import NameRefused, VeilError
from veil.core.queue import Queue, QueueCounts, QueueKey, QueueSettings, check_name, check_tags
from veil.service import messages
from veil.service.queues import create_queue, delete_queue, set_paused
from veil.wire.attributes import changed_attributes
from veil.wire.exchange import Response
from veil.words import plural

_REGION: Final = re.compile(r"[a-z0-9-]{1,40}\Z")


@page("/queues/new", needs=Role.ADMIN)
async def new_page(visit: Visit) -> Response:
    """The form, empty or filled with what another queue has; with what is wrong with what was filled in, after a try."""
    source = await _source(visit, visit.asked.text("clone"))
    fifo = visit.asked.text("type") == "fifo" if source is None else source.settings.fifo
    values = {"name": "", "region": visit.console.region, "tags": ""}
    if source is not None:
        name = f"{source.name.removesuffix('.fifo')[:70]}-copy{'.fifo' if fifo else ''}"
        values = {"name": name, "region": source.key.region, "tags": write_tags(source.tags)}
    values |= form_values(QueueSettings(fifo=fifo) if source is None else source.settings)
    return await visit.page(
        "queue_new.html",
        title="Create a queue" if source is None else f"Clone {source.name}",
        source=source,
        fifo=fifo,
        values={name: visit.form.raw(name, value) for name, value in values.items()},
    )


@change("/queues/new", needs=Role.ADMIN)
async def create(visit: Visit) -> Response | Change:
    form = visit.form
    source = await _source(visit, form.text("clone"))
    fifo = form.text("type") == "fifo"
    key = QueueKey(form.text("region", visit.console.region), visit.identity.account, form.text("name"))
    new = QueueSettings(fifo=fifo)
    given, problems = read_settings(form, key, new)
    visit.problems = problems
    tags: dict[str, str] = {}
    # Each is looked at, whatever is wrong with the others: people mend a form in one go.
    if not _REGION.match(key.region):
        problems["region"] = f"{key.region[:50]!r}: expected the name of a region, such as us-east-1"
    try:
        check_name(key.name, fifo)
        if "region" not in problems and await visit.service.store.find_queue(key) is not None:
            problems["name"] = f"the queue {key.name} already exists in {key.region}"
    except NameRefused as refusal:
        problems["name"] = str(refusal)
    try:
        tags = read_tags(form.raw("tags"))
        check_tags(key.name, {}, tags)
    except VeilError as refusal:
        problems |= problem_at(refusal)
    # A policy names its queue: the copy's must name the copy, or it would say nothing about it.
    if source is not None and given.get("policy"):
        given["policy"] = given["policy"].replace(source.key.arn, key.arn)
    wanted, refused = await settings_after(visit.service, key, new, given)
    problems |= refused
    if problems:
        return await new_page(visit)
    parameters: dict[str, Any] = {"QueueName": key.name}
    if attributes := changed_attributes(QueueSettings(), wanted):
        parameters["Attributes"] = attributes
    if tags:
        parameters["Tags"] = tags
    return Change(
        action="create queue",
        target=key.name,
        title=f"Create {key.name}",
        button="Create the queue",
        back=link("queues"),
        # What differs from a new queue is given, so that one made meanwhile with other settings is not taken for this one.
        make=lambda: create_queue(visit.service, key, given | ({"fifo": True} if fifo else {}), tags),
        done=f"The queue {key.name} was created.",
        then=queue_link(key),
        differences=[
            Difference("Queue", "", f"{key.name} in {key.region}, {'FIFO' if fifo else 'standard'}"),
            *differences_between(None, wanted),
            *(Difference(f"Tag {name}", "", value or "(empty)") for name, value in tags.items()),
        ],
        commands=[aws_command("create-queue", visit.endpoint_url, key.region, parameters)],
        notes=() if wanted.redrive else (WITHOUT_DEAD_LETTERS,),
    )


async def _source(visit: Visit, text: str) -> Queue | None:
    """The queue to copy, named REGION/NAME; None where none was named."""
    if not text:
        return None
    region, _, name = text.partition("/")
    queue = await visit.service.store.find_queue(QueueKey(region, visit.identity.account, name))
    if queue is None:
        raise NotFound(f"There is no queue {name[:100]} in {region[:50]} to copy.")
    return queue


@change("/queues/{region}/{name}/delete", needs=Role.ADMIN, is_page=True)
async def delete(visit: Visit) -> Change:
    queue = await visit.queue()
    held = await visit.service.store.counts(queue)
    notes = [
        f"{_held(held)} will be deleted with it. This cannot be undone.",
        "For 60 seconds no queue of this name can be created, unless the server's rest_rules are off.",
    ]
    sources = await visit.service.store.dead_letter_sources(queue.key, limit=11)
    if sources:
        names = ", ".join(source.name for source in sources[:10]) + (" and others" if sources[10:] else "")
        notes.insert(
            1, f"It holds the dead letters of {names}: their failing messages will stay where they are."
        )
    return Change(
        action="delete queue",
        target=queue.name,
        title=f"Delete {queue.name}",
        button="Delete the queue and its messages",
        back=queue_link(queue.key),
        make=lambda: delete_queue(visit.service, queue, caller=visit.caller),
        done=f"The queue {queue.name} was deleted, with {plural(sum(held), 'message')}.",
        then=link("queues"),
        differences=[Difference("Queue", f"{queue.name} in {queue.key.region}", "")],
        commands=[queue_command(visit, "delete-queue", queue)],
        notes=notes,
        is_danger=True,
        word=queue.name,
    )


@change("/queues/{region}/{name}/purge", needs=Role.ADMIN, is_page=True)
async def purge(visit: Visit) -> Change:
    queue = await visit.queue()
    held = await visit.service.store.counts(queue)
    return Change(
        action="purge queue",
        target=queue.name,
        title=f"Purge {queue.name}",
        button="Delete every message",
        back=queue_link(queue.key),
        make=lambda: messages.purge(visit.service, queue, caller=visit.caller),
        done=f"The queue {queue.name} was purged of {plural(sum(held), 'message')}.",
        differences=[Difference("Messages", "every message in the queue when you confirm", "")],
        commands=[queue_command(visit, "purge-queue", queue)],
        notes=[
            f"{_held(held)} will be deleted, including those that a consumer holds. This cannot be undone."
            if sum(held)
            else "The queue is empty now. Messages that arrive before you confirm will be deleted."
        ],
        is_danger=True,
        word=queue.name,
    )


@change("/queues/{region}/{name}/pause", needs=Role.OPERATOR, is_page=True)
@change("/queues/{region}/{name}/resume", needs=Role.OPERATOR, is_page=True)
async def pause(visit: Visit) -> Change:
    queue = await visit.queue()
    held = await visit.service.store.counts(queue)
    word, state = "resume", "running"
    note = f"{plural(held.visible, 'visible message')} can be received again at once."
    if visit.request.path.endswith("/pause"):
        word, state = "pause", "paused"
        open_now = plural(held.in_flight, "open lease")
        note = (
            f"Consumers get nothing until the queue is resumed, and long polls wait. Sends continue, and so do the {open_now}. "
            "Retention continues too: a message that gets too old is deleted."
        )
    where = f"--endpoint {shlex.quote(visit.endpoint_url)} --region {shlex.quote(queue.key.region)}"
    return Change(
        action=f"{word} queue",
        target=queue.name,
        title=f"{word.capitalize()} {queue.name}",
        button=f"{word.capitalize()} deliveries",
        back=queue_link(queue.key),
        make=lambda: set_paused(visit.service, queue, word == "pause", caller=visit.caller),
        done=f"Deliveries of {queue.name} are {word}d.",
        differences=[Difference("Deliveries", "paused" if queue.settings.paused else "running", state)],
        commands=[f"veil queue {word} {shlex.quote(queue.name)} {where}"],
        notes=[note],
    )


def _held(held: QueueCounts) -> str:
    states = f" ({held.visible:,} visible, {held.in_flight:,} in flight, {held.delayed:,} delayed)"
    return plural(sum(held), "message") + (states if sum(held) else "")
