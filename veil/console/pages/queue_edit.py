"""Edit a queue's settings: the visibility timeout first, with what it means and what it may be."""

from __future__ import annotations

from collections.abc import Mapping

from veil.console.aws_attributes import changed_attributes
from veil.console.aws_command import aws_command, queue_url
from veil.console.changes import Change, Done, offer
from veil.console.exchange import Answer
from veil.console.formatting import length, plural
from veil.console.queue_form import FormReader, differences_between, form_values, problem_at, settings_after
from veil.console.roles import Role
from veil.console.routes import change, link, page
from veil.console.setting_fields import KMS_REUSE, NUMBERS, RECEIVES_MAX
from veil.console.visit import Visit
from veil.core.errors import VeilError
from veil.core.queue import Queue, QueueSettings
from veil.service.queues import change_settings


@page("/queues/{region}/{name}/edit", needs=Role.ADMIN)
async def edit_page(visit: Visit) -> Answer:
    """The form, filled with what is."""
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
    place = link("queues", queue.key.region, queue.name, "settings")
    differences = differences_between(before, wanted)

    async def make() -> Done:
        await change_settings(visit.service, queue, given)
        if [each.name for each in differences] == ["Visibility timeout"]:
            return Done(
                f"The visibility timeout of {queue.name} is {length(wanted.visibility_s)} now.", place
            )
        return Done(f"{plural(len(differences), 'setting')} of {queue.name} changed.", place)

    return await offer(
        visit,
        Change(
            action="edit queue",
            target=queue.name,
            title=f"Edit {queue.name}",
            button="Change the queue",
            back=link("queues", queue.key.region, queue.name, "edit"),
            make=make,
            differences=differences,
            commands=[
                aws_command(
                    "set-queue-attributes",
                    visit.endpoint_url,
                    queue.key.region,
                    {
                        "QueueUrl": queue_url(visit.endpoint_url, queue),
                        "Attributes": changed_attributes(before, wanted),
                    },
                )
            ],
            notes=_notes(before, wanted),
        ),
    )


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
        numbers=NUMBERS,
        receives_max=RECEIVES_MAX,
        kms_reuse=KMS_REUSE,
        status=status,
    )
