"""All settings of a queue, to read."""

from __future__ import annotations

import json
from collections.abc import Mapping

from veil.console.changes import Change, Difference, Done, changed_attributes, queue_command, queue_url
from veil.console.queue_form import (
    FIELDS,
    FormReader,
    differences_between,
    form_values,
    problem_at,
    read_tags,
    setting_texts,
    settings_after,
    write_tags,
)
from veil.console.queue_views import queue_head, queue_page
from veil.console.templates import length, plural
from veil.console.visit import Visit
from veil.console.web import Answer, Role, change, page, queue_link
from veil.core.errors import PolicyRefused, TagsRefused, VeilError
from veil.core.policy import POLICY_BYTES_MAX, parse_policy
from veil.core.queue import Queue, QueueSettings, check_tags
from veil.service.queues import change_settings, dead_letter_sources, tag_queue, untag_queue

_SOURCES_SHOWN = 50


@page("/queues/{region}/{name}/settings")
async def settings_page(visit: Visit) -> Answer:
    """What is set, where the queue is, and who sends dead letters here."""
    queue = await visit.queue()
    head = await queue_head(visit, queue, "settings")
    texts = setting_texts(queue.settings)
    del texts["Policy"]  # has a page of its own
    sources = await dead_letter_sources(visit.service, queue, limit=_SOURCES_SHOWN + 1)
    return await queue_page(
        visit,
        head,
        "queue_settings.html",
        texts=texts,
        url=queue_url(visit.endpoint_url, queue),
        sources=sources[:_SOURCES_SHOWN],
        more_sources=len(sources) > _SOURCES_SHOWN,
    )


@page("/queues/{region}/{name}/edit", needs=Role.ADMIN)
async def edit_page(visit: Visit) -> Answer:
    queue = await visit.queue()
    return await _form(visit, queue, form_values(queue.settings), {})


@change("/queues/{region}/{name}/edit", needs=Role.ADMIN)
async def edit(visit: Visit) -> Answer:
    """Show what would be changed, then change it."""
    queue = await visit.queue()
    before = queue.settings
    reader = FormReader(visit.form, queue.key, before)
    given = reader.read()
    problems = reader.problems
    wanted = before
    if not problems:
        try:
            wanted = await settings_after(visit.service, queue.key, before, given)
        except VeilError as refusal:
            problems = problem_at(refusal)
    if not problems and wanted == before:
        problems = {"visibility_s": "This is what the queue has already."}
    if problems:
        filled = {name: visit.form.raw(name, value) for name, value in form_values(before).items()}
        return await _form(visit, queue, filled, problems, 422)
    place = queue_link(queue.key, "settings")
    differences = differences_between(before, wanted)

    async def make() -> Done:
        await change_settings(visit.service, queue, given)
        if [each.name for each in differences] == ["Visibility timeout"]:
            return Done(
                f"The visibility timeout of {queue.name} is {length(wanted.visibility_s)} now.", place
            )
        return Done(f"{plural(len(differences), 'setting')} of {queue.name} changed.", place)

    return await Change(
        visit,
        action="edit queue",
        target=queue.name,
        title=f"Edit {queue.name}",
        button="Change the queue",
        back=queue_link(queue.key, "edit"),
        make=make,
        differences=differences,
        commands=[
            queue_command(visit, "set-queue-attributes", queue, Attributes=changed_attributes(before, wanted))
        ],
        notes=_notes(before, wanted),
    ).offer()


def _notes(before: QueueSettings, after: QueueSettings) -> list[str]:
    notes: list[str] = []
    if before.visibility_s != after.visibility_s:
        notes.append("It counts from the next receive on. Leases that are open now keep their deadlines.")
    if after.retention_s < before.retention_s:
        notes.append(
            "The shorter retention counts at once: messages that are older than that are gone, held or not."
        )
    if before.redrive is not None and after.redrive is None:
        notes.append(
            "Without dead letters a message that always fails is received again until its retention ends."
        )
    return notes


async def _form(
    visit: Visit, queue: Queue, values: Mapping[str, str], problems: Mapping[str, str], status: int = 200
) -> Answer:
    return await visit.page(
        "queue_edit.html",
        title=f"Edit {queue.name}",
        queue=queue,
        fifo=queue.settings.fifo,
        values=values,
        problems=problems,
        status=status,
        **FIELDS,
    )


@page("/queues/{region}/{name}/tags")
async def tags_page(visit: Visit) -> Answer:
    """The tags, and for who may change them the form to do so."""
    queue = await visit.queue()
    return await _tags_page(visit, queue, write_tags(queue.tags), "")


@change("/queues/{region}/{name}/tags", needs=Role.ADMIN)
async def change_tags(visit: Visit) -> Answer:
    """Show which tags would come, go or change; then do it."""
    queue = await visit.queue()
    written = visit.form.raw("tags")
    try:
        wanted = read_tags(written)
        check_tags(queue.name, {}, wanted)
    except TagsRefused as refusal:
        return await _tags_page(visit, queue, written, str(refusal), 422)
    removed = [key for key in queue.tags if key not in wanted]
    added = {key: value for key, value in wanted.items() if queue.tags.get(key) != value}
    if not removed and not added:
        return await _tags_page(visit, queue, written, "These are the tags that the queue has already.", 422)
    back = queue_link(queue.key, "tags")

    async def make() -> Done:
        # First those that go: fifty old and fifty new ones would be too many at once.
        edited = queue
        if removed:
            edited = await untag_queue(visit.service, edited, removed)
        if added:
            edited = await tag_queue(visit.service, edited, added)
        return Done(f"The tags of {queue.name} are changed.", back)

    return await Change(
        visit,
        action="tag queue",
        target=queue.name,
        title=f"Change the tags of {queue.name}",
        button="Change the tags",
        back=back,
        make=make,
        differences=[
            *(Difference(key, queue.tags[key] or "(empty)", "") for key in removed),
            *(Difference(key, _shown(queue.tags.get(key)), _shown(value)) for key, value in added.items()),
        ],
        commands=[
            *([queue_command(visit, "untag-queue", queue, TagKeys=removed)] if removed else []),
            *([queue_command(visit, "tag-queue", queue, Tags=added)] if added else []),
        ],
    ).offer()


def _shown(value: str | None) -> str:
    return "" if value is None else value or "(empty)"


async def _tags_page(visit: Visit, queue: Queue, written: str, problem: str, status: int = 200) -> Answer:
    head = await queue_head(visit, queue, "tags")
    return await queue_page(visit, head, "queue_tags.html", status=status, written=written, problem=problem)


@page("/queues/{region}/{name}/policy")
async def policy_page(visit: Visit) -> Answer:
    """The policy laid out, and for who may change it the form to do so."""
    queue = await visit.queue()
    return await _policy_page(visit, queue, _laid_out(queue.settings.policy), "")


@change("/queues/{region}/{name}/policy", needs=Role.ADMIN)
async def change_policy(visit: Visit) -> Answer:
    """Show the policy before and after; then store it."""
    queue = await visit.queue()
    written = visit.form.raw("policy")
    before = queue.settings.policy
    try:
        after = parse_policy(written).text if written.strip() else None
    except PolicyRefused as refusal:
        return await _policy_page(visit, queue, written, str(refusal), 422)
    if after == before:
        return await _policy_page(
            visit, queue, written, "This is the policy that the queue has already.", 422
        )
    back = queue_link(queue.key, "policy")

    async def make() -> Done:
        await change_settings(visit.service, queue, {"policy": after})
        return Done(f"The policy of {queue.name} is {'changed' if after else 'removed'}.", back)

    return await Change(
        visit,
        action="change policy",
        target=queue.name,
        title=f"Change the policy of {queue.name}",
        button="Change the policy" if after else "Remove the policy",
        back=back,
        make=make,
        differences=[Difference("Policy", _laid_out(before), _laid_out(after))],
        commands=[queue_command(visit, "set-queue-attributes", queue, Attributes={"Policy": after or ""})],
        notes=[
            "It counts for the next request. The account's own keys may always do everything that no statement denies."
        ],
    ).offer()


def _laid_out(policy: str | None) -> str:
    return "" if policy is None else json.dumps(json.loads(policy), indent=2, ensure_ascii=False)


async def _policy_page(visit: Visit, queue: Queue, written: str, problem: str, status: int = 200) -> Answer:
    head = await queue_head(visit, queue, "policy")
    example = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "LetThemSend",
                "Effect": "Allow",
                "Principal": {"AWS": "111122223333"},
                "Action": "sqs:SendMessage",
                "Resource": queue.key.arn,
            }
        ],
    }
    return await queue_page(
        visit,
        head,
        "queue_policy.html",
        status=status,
        laid_out=_laid_out(queue.settings.policy),
        written=written,
        problem=problem,
        example=json.dumps(example, indent=2),
        bytes_max=POLICY_BYTES_MAX,
    )
