"""A queue's settings, tags and policy: show and change them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from veil.console.changes import Change, Difference, change, queue_command, queue_url
from veil.console.queue_form import (
    WITHOUT_DEAD_LETTERS,
    differences_between,
    form_values,
    read_settings,
    read_tags,
    setting_texts,
    settings_after,
    write_tags,
)
from veil.console.queue_views import queue_view
from veil.console.visit import Visit
from veil.console.web import FormRefused, Role, page, queue_link
from veil.core.errors import PolicyRefused, TagsRefused
from veil.core.policy import POLICY_BYTES_MAX, parse_policy
from veil.core.queue import Queue, QueueSettings, check_tags
from veil.service.queues import change_settings, tag_queue, untag_queue
from veil.wire.attributes import changed_attributes
from veil.wire.exchange import Response
from veil.words import exact_length, plural

_SOURCES_SHOWN = 50


@queue_view("settings")
async def settings_page(visit: Visit, queue: Queue) -> Mapping[str, Any]:
    texts = setting_texts(queue.settings)
    del texts["Policy"]  # has a page of its own
    sources = await visit.service.store.dead_letter_sources(queue.key, limit=_SOURCES_SHOWN + 1)
    return {
        "texts": texts,
        "url": queue_url(visit.endpoint_url, queue),
        "sources": sources[:_SOURCES_SHOWN],
        "more_sources": len(sources) > _SOURCES_SHOWN,
    }


@page("/queues/{region}/{name}/edit", needs=Role.ADMIN)
async def edit_page(visit: Visit) -> Response:
    queue = await visit.queue()
    values = {name: visit.form.raw(name, value) for name, value in form_values(queue.settings).items()}
    return await visit.page(
        "queue_edit.html",
        title=f"Edit {queue.name}",
        queue=queue,
        fifo=queue.settings.fifo,
        values=values,
    )


@change("/queues/{region}/{name}/edit", needs=Role.ADMIN)
async def edit(visit: Visit) -> Response | Change:
    queue = await visit.queue()
    wanted = before = queue.settings
    given, problems = read_settings(visit.form, queue.key, before)
    if not problems:
        wanted, problems = await settings_after(visit.service, queue.key, before, given)
    if not problems and wanted == before:
        problems = {"visibility_s": "The queue already has these settings."}
    if problems:
        visit.problems = problems
        return await edit_page(visit)
    differences = differences_between(before, wanted)
    if [each.name for each in differences] == ["Visibility timeout"]:
        done = f"The visibility timeout of {queue.name} is now {exact_length(wanted.visibility_s)}."
    else:
        done = f"{plural(len(differences), 'setting')} of {queue.name} {'was' if len(differences) == 1 else 'were'} changed."
    attributes = changed_attributes(before, wanted)
    return Change(
        action="edit queue",
        target=queue.name,
        title=f"Edit {queue.name}",
        button="Change the queue",
        back=queue_link(queue.key, "edit"),
        make=lambda: change_settings(visit.service, queue, given),
        done=done,
        then=queue_link(queue.key, "settings"),
        differences=differences,
        commands=[queue_command(visit, "set-queue-attributes", queue, Attributes=attributes)],
        notes=_notes(before, wanted),
    )


def _notes(before: QueueSettings, after: QueueSettings) -> list[str]:
    notes: list[str] = []
    if before.visibility_s != after.visibility_s:
        notes.append(
            "The new timeout applies from the next receive. Leases that are open now keep their deadlines."
        )
    if after.retention_s < before.retention_s:
        notes.append(
            "The shorter retention applies at once: older messages are deleted, even those that a consumer holds."
        )
    if before.redrive is not None and after.redrive is None:
        notes.append(WITHOUT_DEAD_LETTERS)
    return notes


@queue_view("tags")
async def tags_page(visit: Visit, queue: Queue) -> Mapping[str, Any]:
    return {"written": visit.form.raw("tags", write_tags(queue.tags))}


@change("/queues/{region}/{name}/tags", needs=Role.ADMIN, form=tags_page)
async def change_tags(visit: Visit) -> Change:
    queue = await visit.queue()
    written = visit.form.raw("tags")
    try:
        wanted = read_tags(written)
        check_tags(queue.name, {}, wanted)
    except TagsRefused as refusal:
        raise FormRefused("tags", str(refusal)) from None
    removed = [key for key in queue.tags if key not in wanted]
    added = {key: value for key, value in wanted.items() if queue.tags.get(key) != value}
    if not removed and not added:
        raise FormRefused("tags", "The queue already has these tags.")

    async def make() -> None:
        # First those that go: fifty old and fifty new ones would be too many at once.
        edited = await untag_queue(visit.service, queue, removed) if removed else queue
        if added:
            await tag_queue(visit.service, edited, added)

    commands = []
    if removed:
        commands.append(queue_command(visit, "untag-queue", queue, TagKeys=removed))
    if added:
        commands.append(queue_command(visit, "tag-queue", queue, Tags=added))
    return Change(
        action="tag queue",
        target=queue.name,
        title=f"Change the tags of {queue.name}",
        button="Change the tags",
        back=queue_link(queue.key, "tags"),
        make=make,
        done=f"The tags of {queue.name} were changed.",
        differences=[
            Difference(key, _shown(queue.tags.get(key)), _shown(added.get(key))) for key in (*removed, *added)
        ],
        commands=commands,
    )


def _shown(value: str | None) -> str:
    return "" if value is None else value or "(empty)"


@queue_view("policy")
async def policy_page(visit: Visit, queue: Queue) -> Mapping[str, Any]:
    laid_out = _laid_out(queue.settings.policy)
    written = visit.form.raw("policy", laid_out)
    return {"laid_out": laid_out, "written": written, "bytes_max": POLICY_BYTES_MAX}


@change("/queues/{region}/{name}/policy", needs=Role.ADMIN, form=policy_page)
async def change_policy(visit: Visit) -> Change:
    queue = await visit.queue()
    written = visit.form.raw("policy")
    before = queue.settings.policy
    try:
        after = parse_policy(written).text if written.strip() else None
    except PolicyRefused as refusal:
        raise FormRefused("policy", str(refusal)) from None
    if after == before:
        raise FormRefused("policy", "The queue already has this policy.")
    return Change(
        action="change policy",
        target=queue.name,
        title=f"Change the policy of {queue.name}",
        button="Change the policy" if after else "Remove the policy",
        back=queue_link(queue.key, "policy"),
        make=lambda: change_settings(visit.service, queue, {"policy": after}),
        done=f"The policy of {queue.name} was {'changed' if after else 'removed'}.",
        differences=[Difference("Policy", _laid_out(before), _laid_out(after))],
        commands=[queue_command(visit, "set-queue-attributes", queue, Attributes={"Policy": after or ""})],
        notes=[
            "The policy applies from the next request. Keys of this account may do everything that no statement denies."
        ],
    )


def _laid_out(policy: str | None) -> str:
    return "" if policy is None else json.dumps(json.loads(policy), indent=2, ensure_ascii=False)
