"""Create a queue, from nothing or as a copy of another; delete, empty, pause and resume it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from veil.console.changes import (
    Change,
    Difference,
    Done,
    aws_command,
    changed_attributes,
    queue_command,
)
from veil.console.queue_form import (
    FIELDS,
    FormReader,
    differences_between,
    form_values,
    problem_at,
    read_tags,
    settings_after,
    write_tags,
)
from veil.console.templates import plural
from veil.console.visit import Visit
from veil.console.web import Answer, NotFound, Role, change, link, page, queue_link
from veil.core.errors import NameRefused, VeilError
from veil.core.queue import Queue, QueueCounts, QueueKey, QueueSettings, check_name, check_tags
from veil.service.messages import purge
from veil.service.queues import (
    counts,
    create_queue,
    dead_letter_sources,
    delete_queue,
    pause_queue,
    resume_queue,
)

_REGION: Final = re.compile(r"[a-z0-9-]{1,40}\Z")


@page("/queues/new", needs=Role.ADMIN)
async def new_page(visit: Visit) -> Answer:
    """The form, empty or filled with what another queue has."""
    source = await _source(visit, visit.query.text("clone"))
    if source is None:
        fifo = visit.query.text("type") == "fifo"
        values = form_values(QueueSettings(fifo=fifo)) | {
            "name": "",
            "region": visit.console.region,
            "tags": "",
        }
        return await _form(visit, values, {}, None, fifo)
    stem = source.name.removesuffix(".fifo")
    values = form_values(source.settings) | {
        "name": f"{stem[:70]}-copy{'.fifo' if source.settings.fifo else ''}",
        "region": source.key.region,
        "tags": write_tags(source.tags),
    }
    return await _form(visit, values, {}, source, source.settings.fifo)


@change("/queues/new", needs=Role.ADMIN)
async def create(visit: Visit) -> Answer:
    """Show what would be created, then create it."""
    form = visit.form
    source = await _source(visit, form.text("clone"))
    fifo = form.text("type") == "fifo"
    key = QueueKey(form.text("region", visit.console.region), visit.identity.account, form.text("name"))
    new = QueueSettings(fifo=fifo)
    reader = FormReader(form, key, new)
    given = reader.read()
    problems = reader.problems
    tags: dict[str, str] = {}
    wanted = new
    try:
        check_name(key.name, fifo)
        if not _REGION.match(key.region):
            problems["region"] = f"{key.region[:50]!r}: expected the name of a region, such as us-east-1"
        elif await visit.service.store.find_queue(key) is not None:
            problems["name"] = f"a queue {key.name} exists in {key.region} already"
        tags = read_tags(form.raw("tags"))
        check_tags(key.name, {}, tags)
        given = _as_own(given, source, key)
        wanted = await settings_after(visit.service, key, new, given)
    except NameRefused as refusal:
        problems["name"] = str(refusal)
    except VeilError as refusal:
        problems |= problem_at(refusal)
    if problems:
        filled = {name: form.raw(name, value) for name, value in form_values(new).items()}
        filled |= {"name": key.name, "region": key.region, "tags": form.raw("tags")}
        return await _form(visit, filled, problems, source, fifo, 422)
    return await _change(visit, key, wanted, tags).offer()


def _change(visit: Visit, key: QueueKey, wanted: QueueSettings, tags: Mapping[str, str]) -> Change:
    async def make() -> Done:
        # Every setting that is not a default is given, so that a queue made meanwhile is not taken for this one.
        queue = await create_queue(visit.service, key, _given(wanted), tags)
        return Done(f"There is a queue {queue.name} now.", queue_link(key))

    parameters: dict[str, Any] = {"QueueName": key.name}
    attributes = changed_attributes(QueueSettings(), wanted)
    if attributes:
        parameters["Attributes"] = attributes
    if tags:
        parameters["Tags"] = dict(tags)
    return Change(
        visit,
        action="create queue",
        target=key.name,
        title=f"Create {key.name}",
        button="Create the queue",
        back=link("queues"),
        make=make,
        differences=[
            Difference("Queue", "", f"{key.name} in {key.region}, {'FIFO' if wanted.fifo else 'standard'}"),
            *differences_between(None, wanted),
            *(Difference(f"Tag {name}", "", value or "(empty)") for name, value in tags.items()),
        ],
        commands=[aws_command("create-queue", visit.endpoint_url, key.region, parameters)],
        notes=[]
        if wanted.redrive
        else ["Without dead letters a message that always fails is received again and again."],
    )


def _as_own(given: dict[str, Any], source: Queue | None, key: QueueKey) -> dict[str, Any]:
    # A policy names its queue: the copy's must name the copy, or it would say nothing about it.
    if source is not None and given.get("policy"):
        given["policy"] = given["policy"].replace(source.key.arn, key.arn)
    return given


def _given(settings: QueueSettings) -> dict[str, Any]:
    """Settings as a caller would give them: those that differ from what a new queue has."""
    default = QueueSettings(fifo=settings.fifo)
    given: dict[str, Any] = {"fifo": True} if settings.fifo else {}
    for field in fields(settings):
        if getattr(settings, field.name) != getattr(default, field.name):
            given[field.name] = getattr(settings, field.name)
    return given


async def _source(visit: Visit, text: str) -> Queue | None:
    """The queue to copy, named REGION/NAME; None where none was named."""
    if not text:
        return None
    region, _, name = text.partition("/")
    queue = await visit.service.store.find_queue(QueueKey(region, visit.identity.account, name))
    if queue is None:
        raise NotFound(f"There is no queue {name[:100]} in {region[:50]} to copy.")
    return queue


async def _form(
    visit: Visit,
    values: Mapping[str, str],
    problems: Mapping[str, str],
    source: Queue | None,
    fifo: bool,
    status: int = 200,
) -> Answer:
    return await visit.page(
        "queue_new.html",
        title="Create a queue" if source is None else f"Clone {source.name}",
        source=source,
        fifo=fifo,
        values=values,
        problems=problems,
        status=status,
        **FIELDS,
    )


@page("/queues/{region}/{name}/delete", needs=Role.ADMIN)
@change("/queues/{region}/{name}/delete", needs=Role.ADMIN)
async def delete_page(visit: Visit) -> Answer:
    """Say what goes with the queue; then delete it."""
    queue = await visit.queue()
    held = await counts(visit.service, queue)

    async def make() -> Done:
        await delete_queue(visit.service, queue, caller=visit.caller)
        return Done(f"The queue {queue.name} is deleted, with {_counted(held)}.", link("queues"))

    notes = [
        f"{_counted(held, capital=True)} will be gone with it{_parts(held)}. This cannot be undone.",
        "For 60 seconds no queue of this name can be created, unless the server is set otherwise.",
    ]
    sources = await dead_letter_sources(visit.service, queue, limit=11)
    if sources:
        names = ", ".join(source.name for source in sources[:10]) + (
            " and others" if len(sources) > 10 else ""
        )
        notes.insert(
            1, f"It holds the dead letters of {names}: what is spent there stays there from then on."
        )
    return await Change(
        visit,
        action="delete queue",
        target=queue.name,
        title=f"Delete {queue.name}",
        button="Delete the queue and its messages",
        back=queue_link(queue.key),
        make=make,
        differences=[Difference("Queue", f"{queue.name} in {queue.key.region}", "")],
        commands=[queue_command(visit, "delete-queue", queue)],
        notes=notes,
        is_danger=True,
        word=queue.name,
    ).offer()


@page("/queues/{region}/{name}/purge", needs=Role.ADMIN)
@change("/queues/{region}/{name}/purge", needs=Role.ADMIN)
async def purge_page(visit: Visit) -> Answer:
    """Say what is in the queue; then empty it."""
    queue = await visit.queue()
    held = await counts(visit.service, queue)
    back = queue_link(queue.key)

    async def make() -> Done:
        await purge(visit.service, queue, caller=visit.caller)
        return Done(f"The queue {queue.name} is empty: {_counted(held)} removed.", back)

    return await Change(
        visit,
        action="purge queue",
        target=queue.name,
        title=f"Purge {queue.name}",
        button="Remove every message",
        back=back,
        make=make,
        differences=[Difference("Messages", "all that are in the queue when you confirm", "")],
        commands=[queue_command(visit, "purge-queue", queue)],
        notes=[
            f"{_counted(held, capital=True)} will be gone{_parts(held)}, also what somebody holds. "
            "This cannot be undone.",
        ],
        is_danger=True,
        word=queue.name,
    ).offer()


@page("/queues/{region}/{name}/pause", needs=Role.OPERATOR)
@change("/queues/{region}/{name}/pause", needs=Role.OPERATOR)
async def pause_page(visit: Visit) -> Answer:
    """Say what a pause means; then stop deliveries."""
    return await _offer_pause(visit, await visit.queue(), pause=True)


@page("/queues/{region}/{name}/resume", needs=Role.OPERATOR)
@change("/queues/{region}/{name}/resume", needs=Role.OPERATOR)
async def resume_page(visit: Visit) -> Answer:
    """Say what waits; then deliver again."""
    return await _offer_pause(visit, await visit.queue(), pause=False)


async def _offer_pause(visit: Visit, queue: Queue, *, pause: bool) -> Answer:
    held = await counts(visit.service, queue)
    word, back = "pause" if pause else "resume", queue_link(queue.key)

    async def make() -> Done:
        await (pause_queue if pause else resume_queue)(visit.service, queue, caller=visit.caller)
        return Done(f"Deliveries of {queue.name} are {word}d.", back)

    if pause:
        note = (
            "From then on a receive gets nothing, and long polls wait. Sends go on, and so do the "
            f"{plural(held.in_flight, 'lease')} open now. Retention goes on too: a message that gets too old is gone."
        )
    else:
        note = f"{plural(held.visible, 'visible message')} can be received again at once."
    states = ["paused" if is_paused else "running" for is_paused in (queue.settings.paused, pause)]
    where = f"--endpoint {shlex.quote(visit.endpoint_url)} --region {shlex.quote(queue.key.region)}"
    return await Change(
        visit,
        action=f"{word} queue",
        target=queue.name,
        title=f"{word.capitalize()} {queue.name}",
        button=f"{word.capitalize()} deliveries",
        back=back,
        make=make,
        differences=[Difference("Deliveries", *states)],
        commands=[f"veil queue {word} {shlex.quote(queue.name)} {where}"],
        notes=[note],
    ).offer()


def _counted(held: QueueCounts, *, capital: bool = False) -> str:
    if not sum(held):
        return "No message" if capital else "no message"
    return plural(sum(held), "message")


def _parts(held: QueueCounts) -> str:
    if not sum(held):
        return ""
    return f" ({held.visible:,} visible, {held.in_flight:,} in flight, {held.delayed:,} delayed)"
