"""A queue's tags."""

from __future__ import annotations

from typing import Any

from veil.console.aws_command import aws_command, queue_url
from veil.console.changes import Change, Difference, Done, offer
from veil.console.exchange import Answer
from veil.console.queue_head import queue_head, queue_page
from veil.console.roles import Role
from veil.console.routes import change, link, page
from veil.console.tag_lines import read_tags, write_tags
from veil.console.visit import Visit
from veil.core.errors import TagsRefused
from veil.core.queue import Queue
from veil.core.tags import check_tags
from veil.service.queues import tag_queue, untag_queue


@page("/queues/{region}/{name}/tags")
async def tags_page(visit: Visit) -> Answer:
    """The tags, and for who may change them the form to do so."""
    queue = await visit.queue()
    return await _page(visit, queue, write_tags(queue.tags), "")


@change("/queues/{region}/{name}/tags", needs=Role.ADMIN)
async def change_tags(visit: Visit) -> Answer:
    """Show which tags would come, go or change; then do it."""
    queue = await visit.queue()
    written = visit.form.raw("tags")
    try:
        wanted = read_tags(written)
        check_tags(queue.name, {}, wanted)
    except TagsRefused as refusal:
        return await _page(visit, queue, written, str(refusal), 422)
    removed = [key for key in queue.tags if key not in wanted]
    added = {key: value for key, value in wanted.items() if queue.tags.get(key) != value}
    if not removed and not added:
        return await _page(visit, queue, written, "These are the tags that the queue has already.", 422)
    back = link("queues", queue.key.region, queue.name, "tags")

    async def make() -> Done:
        # First those that go: fifty old and fifty new ones would be too many at once.
        edited = queue
        if removed:
            edited = await untag_queue(visit.service, edited, removed)
        if added:
            edited = await tag_queue(visit.service, edited, added)
        return Done(f"The tags of {queue.name} are changed.", back)

    return await offer(
        visit,
        Change(
            action="tag queue",
            target=queue.name,
            title=f"Change the tags of {queue.name}",
            button="Change the tags",
            back=back,
            make=make,
            differences=[
                *(Difference(key, queue.tags[key] or "(empty)", "") for key in removed),
                *(
                    Difference(key, _shown(queue.tags.get(key)), _shown(value))
                    for key, value in added.items()
                ),
            ],
            commands=_commands(visit, queue, removed, added),
        ),
    )


def _shown(value: str | None) -> str:
    return "" if value is None else value or "(empty)"


def _commands(visit: Visit, queue: Queue, removed: list[str], added: dict[str, str]) -> list[str]:
    url = queue_url(visit.endpoint_url, queue)
    commands: list[str] = []
    parameters: dict[str, Any]
    if removed:
        parameters = {"QueueUrl": url, "TagKeys": removed}
        commands.append(aws_command("untag-queue", visit.endpoint_url, queue.key.region, parameters))
    if added:
        parameters = {"QueueUrl": url, "Tags": added}
        commands.append(aws_command("tag-queue", visit.endpoint_url, queue.key.region, parameters))
    return commands


async def _page(visit: Visit, queue: Queue, written: str, problem: str, status: int = 200) -> Answer:
    head = await queue_head(visit, queue, "tags")
    return await queue_page(visit, head, "queue_tags.html", status=status, written=written, problem=problem)
