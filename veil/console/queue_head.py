"""What stands above every page of a queue: its name, its counts, and the ways to its other pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from veil.console.exchange import Answer
from veil.console.queue_looks import Look
from veil.console.routes import link
from veil.console.visit import Visit
from veil.core.queue import Queue, QueueCounts

_TABS: Final = (
    ("messages", "Messages"),
    ("in-flight", "In flight"),
    ("send", "Send"),
    ("settings", "Settings"),
    ("tags", "Tags"),
    ("policy", "Policy"),
    ("activity", "Activity"),
)
_NOTHING: Final = Look(QueueCounts(), None, 0)


class Head(NamedTuple):
    """A queue, as it was a moment ago, and which of its pages this is."""

    queue: Queue
    look: Look
    tab: str  # the last part of the page's path
    address: str  # of the queue
    dead_letters_address: str
    tabs: list[tuple[str, str, bool]]  # name, address, and whether it is this page


async def queue_head(visit: Visit, queue: Queue, tab: str) -> Head:
    """The head of a page of the queue."""
    looks = await visit.console.looks.at([queue])
    redrive = queue.settings.redrive
    target = None if redrive is None else redrive.dead_letters
    address = link("queues", queue.key.region, queue.name)
    return Head(
        queue,
        looks.get(queue.id, _NOTHING),
        tab,
        address,
        "" if target is None else link("queues", target.region, target.name),
        [
            (words, f"{address}/{part}", part == tab)
            for part, words in _TABS
            if part != "send" or visit.may("operator")
        ],
    )


def live_facts(visit: Visit, head: Head) -> Mapping[str, str]:
    """The counts as a fragment, for the streams of all these pages."""
    return {"queue-facts": visit.row("queue_facts.html", head=head, is_live=True)}


_offsets_ms: WeakKeyDictionary[Visit, int] = WeakKeyDictionary()


def wall_offset_ms(visit: Visit) -> int:
    """What to add to an engine instant to read it on the wall; the same for as long as the visit lasts.

    A stream draws again and again: with a fresh difference each time, every instant in it would shake by a millisecond.
    """
    if visit not in _offsets_ms:
        _offsets_ms[visit] = visit.wall_ms - visit.now_ms
    return _offsets_ms[visit]


async def queue_page(visit: Visit, head: Head, template: str, *, status: int = 200, **values: Any) -> Answer:
    """One of the pages of the queue."""
    title = next((words for part, words in _TABS if part == head.tab), "")
    return await visit.page(
        template,
        title=f"{head.queue.name} · {title}",
        status=status,
        head=head,
        queue=head.queue,
        is_live=False,
        **values,
    )
