"""All dead-letter queues: whose they are, how much rests there, and what is on its way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlencode

from veil.console.letters import (
    GROUPED_ROWS,
    GROUPED_ROWS_MAX,
    GROUPS_SHOWN_MAX,
    SAMPLED_GROUPS,
    LetterWish,
    MoveRow,
    active_moves,
    letter_groups,
    letter_page,
    moves_of,
    read_wish,
)
from veil.console.queue_views import STATES
from veil.console.visit import Visit
from veil.console.web import Answer, link, live, page
from veil.core.limits import MOVE_RATE_MAX
from veil.core.queue import Queue, QueueCounts, QueueKey
from veil.service.history import QueueDepth
from veil.service.queues import dead_letter_sources

PAGE_ROWS: Final = 50
_SOURCES_SHOWN: Final = 5
_NOTHING: Final = QueueDepth(QueueCounts(), None)


class Wish(NamedTuple):
    """Which of them to show; what the address of the page says."""

    search: str = ""
    empty: str = ""  # hide
    number: int = 1

    def query(self, **changed: object) -> str:
        """The query of the same page, or of one that differs in this."""
        wish = self._replace(**changed)  # type: ignore[arg-type]
        fields = {
            "search": wish.search,
            "empty": wish.empty,
            "page": str(wish.number) if wish.number > 1 else "",
        }
        return urlencode({name: value for name, value in fields.items() if value})


class DeadLetterQueueRow(NamedTuple):
    """One dead-letter queue."""

    queue: Queue
    look: QueueDepth
    sources: list[Queue]
    more_sources: int
    moves: list[MoveRow]
    address: str


class Missing(NamedTuple):
    """A dead-letter queue that a policy names and that is not there."""

    key: QueueKey
    sources: list[Queue]


class DeadLetterQueues(NamedTuple):
    """What is on the page, and how much there is."""

    rows: list[DeadLetterQueueRow]
    missing: list[Missing]
    matching: int
    all: int
    pages: int


@page("/dead-letters")
async def dead_letters_page(visit: Visit) -> Answer:
    """The list."""
    wish = _wish(visit)
    found = await _find(visit, wish)
    return await visit.page("dead_letters.html", title="Dead letters", wish=wish, found=found, is_live=False)


@live("/dead-letters/live")
async def dead_letters_live(visit: Visit) -> Mapping[str, str]:
    """The rows."""
    found = await _find(visit, _wish(visit))
    return {"dead-rows": await visit.fragment("dead_letters_rows.html", found=found, is_live=True)}


def _wish(visit: Visit) -> Wish:
    query = visit.query
    empty = "hide" if query.text("empty") == "hide" else ""
    return Wish(query.text("search")[:80], empty, query.number("page", 1, 1, 1_000_000))


async def _find(visit: Visit, wish: Wish) -> DeadLetterQueues:
    account = visit.identity.account
    own = {
        queue.key: queue for queue in await visit.service.store.all_queues() if queue.key.account == account
    }
    sources: dict[QueueKey, list[Queue]] = {}
    for queue in own.values():
        if queue.settings.redrive is not None:
            sources.setdefault(queue.settings.redrive.dead_letters, []).append(queue)
    search = wish.search.lower()
    queues = sorted(
        (own[key] for key in sources if key in own and search in key.name.lower()),
        key=lambda queue: (queue.name, queue.key.region),
    )
    if wish.empty:
        looks = await visit.console.looks.at(queues, with_oldest=False)
        queues = [queue for queue in queues if looks.get(queue.id, _NOTHING).total]
    pages = max(1, -(-len(queues) // PAGE_ROWS))
    first = (min(wish.number, pages) - 1) * PAGE_ROWS
    shown = queues[first : first + PAGE_ROWS]
    looks = await visit.console.looks.at(shown)
    moves = await active_moves(visit)
    rows = [
        _row(queue, looks.get(queue.id, _NOTHING), sources[queue.key], moves.get(queue.key, []))
        for queue in shown
    ]
    missing = [
        Missing(key, sorted(named, key=lambda queue: queue.name)[:_SOURCES_SHOWN])
        for key, named in sorted(sources.items())
        if key not in own
    ]
    return DeadLetterQueues(rows, missing[:PAGE_ROWS], len(queues), sum(key in own for key in sources), pages)


def _row(queue: Queue, look: QueueDepth, sources: list[Queue], moves: list[MoveRow]) -> DeadLetterQueueRow:
    sources.sort(key=lambda source: source.name)
    return DeadLetterQueueRow(
        queue,
        look,
        sources[:_SOURCES_SHOWN],
        max(0, len(sources) - _SOURCES_SHOWN),
        moves,
        link("dead-letters", queue.key.region, queue.name),
    )


# ---- the dead letters of one queue

_SOURCES_OF_QUEUE_SHOWN: Final = 20
_QUEUES_LISTED_MAX: Final = 300


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
