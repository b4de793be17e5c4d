"""Delete a queue or empty it: how much that is, said and confirmed by the queue's name."""

from __future__ import annotations

from veil.console.aws_command import aws_command, queue_url
from veil.console.changes import Change, Difference, Done, offer
from veil.console.exchange import Answer
from veil.console.formatting import plural
from veil.console.roles import Role
from veil.console.routes import change, link, page
from veil.console.visit import Visit
from veil.core.queue import Queue, QueueCounts
from veil.service.messages import purge
from veil.service.queues import counts, dead_letter_sources, delete_queue


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
    return await offer(
        visit,
        Change(
            action="delete queue",
            target=queue.name,
            title=f"Delete {queue.name}",
            button="Delete the queue and its messages",
            back=link("queues", queue.key.region, queue.name),
            make=make,
            differences=[Difference("Queue", f"{queue.name} in {queue.key.region}", "")],
            commands=[_command(visit, queue, "delete-queue")],
            notes=notes,
            is_danger=True,
            word=queue.name,
        ),
    )


@page("/queues/{region}/{name}/purge", needs=Role.ADMIN)
@change("/queues/{region}/{name}/purge", needs=Role.ADMIN)
async def purge_page(visit: Visit) -> Answer:
    """Say what is in the queue; then empty it."""
    queue = await visit.queue()
    held = await counts(visit.service, queue)
    back = link("queues", queue.key.region, queue.name)

    async def make() -> Done:
        await purge(visit.service, queue, caller=visit.caller)
        return Done(f"The queue {queue.name} is empty: {_counted(held)} removed.", back)

    return await offer(
        visit,
        Change(
            action="purge queue",
            target=queue.name,
            title=f"Purge {queue.name}",
            button="Remove every message",
            back=back,
            make=make,
            differences=[Difference("Messages", "all that are in the queue when you confirm", "")],
            commands=[_command(visit, queue, "purge-queue")],
            notes=[
                f"{_counted(held, capital=True)} will be gone{_parts(held)}, also what somebody holds. "
                "This cannot be undone.",
            ],
            is_danger=True,
            word=queue.name,
        ),
    )


def _counted(held: QueueCounts, *, capital: bool = False) -> str:
    if not sum(held):
        return "No message" if capital else "no message"
    return plural(sum(held), "message")


def _parts(held: QueueCounts) -> str:
    if not sum(held):
        return ""
    return f" ({held.visible:,} visible, {held.in_flight:,} in flight, {held.delayed:,} delayed)"


def _command(visit: Visit, queue: Queue, operation: str) -> str:
    url = queue_url(visit.endpoint_url, queue)
    return aws_command(operation, visit.endpoint_url, queue.key.region, {"QueueUrl": url})
