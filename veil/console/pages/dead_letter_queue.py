"""The dead letters of one queue: as groups by source, type and reason, one by one, and what is on its way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from veil.console.exchange import Answer
from veil.console.letter_looks import (
    GROUPED_ROWS,
    GROUPED_ROWS_MAX,
    GROUPS_SHOWN_MAX,
    letter_groups,
    letter_page,
)
from veil.console.letters import LetterWish, read_wish
from veil.console.message_state import STATES
from veil.console.move_rows import moves_of
from veil.console.queue_looks import Look
from veil.console.routes import link, live, page
from veil.console.visit import Visit
from veil.core.limits import MOVE_RATE_MAX
from veil.core.queue import Queue, QueueCounts
from veil.service.queues import dead_letter_sources

_SOURCES_SHOWN: Final = 20
_QUEUES_LISTED_MAX: Final = 300
_NOTHING: Final = Look(QueueCounts(), None, 0)


@page("/dead-letters/{region}/{name}")
async def dead_letter_queue_page(visit: Visit) -> Answer:
    """The dead letters that match, and what can be done about them."""
    return await letters_shown(visit, await visit.queue(), read_wish(visit.query))


@live("/dead-letters/{region}/{name}/live")
async def dead_letter_queue_live(visit: Visit) -> Mapping[str, str]:
    """The counts and the moves."""
    queue = await visit.queue()
    values = {
        "queue": queue,
        "look": (await visit.console.looks.at([queue])).get(queue.id, _NOTHING),
        "moves": await moves_of(visit, queue),
        "is_live": True,
    }
    return {
        "letter-facts": await visit.fragment("dead_letter_facts.html", **values),
        "letter-moves": await visit.fragment("dead_letter_moves.html", **values),
    }


async def letters_shown(
    visit: Visit,
    queue: Queue,
    wish: LetterWish,
    problems: Mapping[str, str] | None = None,
    status: int = 200,
) -> Answer:
    """The page; with what is wrong with the form, after a try."""
    rows_max = visit.query.number("rows", GROUPED_ROWS, GROUPED_ROWS, GROUPED_ROWS_MAX)
    groups = await letter_groups(visit.service, queue, wish, visit.turn, rows_max)
    found = await letter_page(visit.service, queue, wish, visit.turn)
    sources = await dead_letter_sources(visit.service, queue, limit=_SOURCES_SHOWN)
    own = await visit.service.store.list_queues(queue.key.region, queue.key.account, limit=_QUEUES_LISTED_MAX)
    looks = await visit.console.looks.at([queue])
    return await visit.page(
        "dead_letter_queue.html",
        title=f"Dead letters of {queue.name}",
        queue=queue,
        wish=wish,
        groups=groups,
        groups_max=GROUPS_SHOWN_MAX,
        more_rows=min(rows_max * 5, GROUPED_ROWS_MAX) if rows_max < GROUPED_ROWS_MAX else None,
        chosen_group=groups.by_key.get(wish.group),
        found=found,
        sources=sources,
        targets=[
            each.name for each in own if each.settings.fifo == queue.settings.fifo and each.key != queue.key
        ],
        look=looks.get(queue.id, _NOTHING),
        moves=await moves_of(visit, queue),
        address=link("dead-letters", queue.key.region, queue.name),
        states=STATES,
        ticked=set(visit.form.all("letter")),
        values={"to": visit.form.text("to"), "rate": visit.form.text("rate")},
        problems=problems or {},
        rate_max=MOVE_RATE_MAX,
        is_live=False,
        status=status,
    )
