"""All dead-letter queues: whose they are, how much rests there, and what is on its way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from veil.console.letters import (
    GROUPED_ROWS,
    GROUPED_ROWS_MAX,
    GROUPS_SHOWN_MAX,
    SAMPLED_GROUPS,
    LetterWish,
    active_moves,
    letter_groups,
    letter_page,
    moves_of,
    read_wish,
)
from veil.console.queue_views import NOTHING, STATES
from veil.console.visit import Visit
from veil.console.web import live, page
from veil.core.limits import MOVE_RATE_MAX
from veil.core.queue import Queue, QueueKey
from veil.service.queues import dead_letter_sources
from veil.wire.exchange import Response

PAGE_ROWS: Final = 50
_SOURCES_SHOWN: Final = 5


@page("/dead-letters")
async def dead_letters_page(visit: Visit) -> Response:
    """All dead-letter queues, and those that a redrive policy names but that do not exist."""
    found = await _find(visit)
    return await visit.page("dead_letters.html", title="Dead letters", is_live=False, **found)


@live("/dead-letters/live")
async def dead_letters_live(visit: Visit) -> Mapping[str, str]:
    found = await _find(visit)
    return {"dead-rows": await visit.fragment("dead_letters_rows.html", is_live=True, **found)}


async def _find(visit: Visit) -> dict[str, Any]:
    search, hide_empty = visit.query.text("search")[:80], visit.query.text("empty") == "hide"
    own = {queue.key: queue for queue in await visit.own_queues()}
    sources: dict[QueueKey, list[str]] = {}
    for queue in sorted(own.values(), key=lambda queue: queue.name):
        if queue.settings.redrive is not None:
            sources.setdefault(queue.settings.redrive.dead_letters, []).append(queue.name)
    queues = sorted(
        (own[key] for key in sources if key in own and search.lower() in key.name.lower()),
        key=lambda queue: (queue.name, queue.key.region),
    )
    if hide_empty:
        looks = await visit.console.looks.at(queues, with_oldest=False)
        queues = [queue for queue in queues if looks.get(queue.id, NOTHING).total]
    shown, pager = visit.paged(queues, PAGE_ROWS)
    looks = await visit.console.looks.at(shown)
    moves = await active_moves(visit)
    return {
        "rows": [
            (queue, looks.get(queue.id, NOTHING), sources[queue.key], moves.get(queue.key, []))
            for queue in shown
        ],
        "sources_max": _SOURCES_SHOWN,
        "missing": [(key, names) for key, names in sorted(sources.items()) if key not in own][:PAGE_ROWS],
        "all": sum(key in own for key in sources),
        "search": search,
        "hide_empty": hide_empty,
        "pager": pager,
    }


_SOURCES_OF_QUEUE_SHOWN: Final = 20
_QUEUES_LISTED_MAX: Final = 300


@page("/dead-letters/{region}/{name}")
async def dead_letter_queue_page(visit: Visit) -> Response:
    """The dead letters that match, and what can be done about them."""
    return await letters_shown(visit, await visit.queue(), read_wish(visit.query), {})


@live("/dead-letters/{region}/{name}/live")
async def dead_letter_queue_live(visit: Visit) -> Mapping[str, str]:
    queue = await visit.queue()
    values = {
        "queue": queue,
        "look": (await visit.console.looks.at([queue])).get(queue.id, NOTHING),
        "moves": await moves_of(visit, queue),
        "is_live": True,
    }
    return {
        "letter-facts": await visit.fragment("dead_letter_facts.html", **values),
        "letter-moves": await visit.fragment("dead_letter_moves.html", **values),
    }


async def letters_shown(
    visit: Visit, queue: Queue, wish: LetterWish, problems: Mapping[str, str]
) -> Response:
    """The page; with what is wrong with the form, after a try."""
    rows_max = visit.query.number("rows", GROUPED_ROWS, GROUPED_ROWS, GROUPED_ROWS_MAX)
    groups = await letter_groups(visit.service, queue, wish, visit.turn, rows_max)
    found = await letter_page(visit.service, queue, wish, visit.turn)
    asked = {each.message.seq for each in found.letters if not each.reason}
    asked.update(seq for group in groups.groups[:SAMPLED_GROUPS] for seq in group.sample)
    errors = await visit.console.journal_looks.errors(asked)
    sources = await dead_letter_sources(visit.service, queue, limit=_SOURCES_OF_QUEUE_SHOWN)
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
        chosen_group=groups.by_key.get(wish.filter.group),
        found=found,
        errors=errors,
        sources=sources,
        targets=[
            each.name for each in own if each.settings.fifo == queue.settings.fifo and each.key != queue.key
        ],
        look=looks.get(queue.id, NOTHING),
        moves=await moves_of(visit, queue),
        address=LetterWish().address(queue),
        states=STATES,
        ticked=set(visit.form.all("letter")),
        values={"to": visit.form.text("to"), "rate": visit.form.text("rate")},
        problems=problems,
        rate_max=MOVE_RATE_MAX,
        is_live=False,
        status=422 if problems else 200,
    )
