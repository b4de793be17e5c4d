"""The list of queues: search, sort, hide empty; counts, ages and rates that move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from veil.console.charts import in_pairs, sparkline
from veil.console.exports import as_cloudformation, as_terraform, as_toml
from veil.console.queue_views import chosen_span, draw_charts, live_facts, queue_head, queue_page
from veil.console.templates import plural
from veil.console.visit import Visit
from veil.console.web import TEXT, Answer, download, link, live, page
from veil.core.queue import Queue, QueueCounts
from veil.service.history import MINUTES, QueueDepth

PAGE_ROWS: Final = 50
# A live list looks at its rows every second, but only now and then for queues that have come or gone.
LIVE_ORDER_MS: Final = 3_000
# What comes by a redrive or as a dead letter comes in like what was sent.
_DRAWN: Final = {"sent": ("sent", "arrived"), "received": ("received",), "deleted": ("deleted",)}

# How to sort: what each column compares, and whether its first order is the falling one.
_SORTS: Final[Mapping[str, tuple[Callable[[Queue, QueueDepth], Any], bool]]] = {
    "name": (lambda queue, _: queue.name, False),
    "visible": (lambda _, look: look.counts.visible, True),
    "in-flight": (lambda _, look: look.counts.in_flight, True),
    "delayed": (lambda _, look: look.counts.delayed, True),
    "oldest": (lambda _, look: -(look.oldest_sent_ms or 1 << 62), True),
    "timeout": (lambda queue, _: queue.settings.visibility_s, False),
}
_QUIET: Final = sparkline({}, "Nothing in the last ten minutes")
_NOTHING: Final = QueueDepth(QueueCounts(), None)


class Wish(NamedTuple):
    """Which queues to show, and how; what the address of the page says."""

    search: str
    sort: str
    falling: bool
    hide_empty: bool
    region: str
    number: int  # of the page, from 1

    def query(self, **changed: object) -> str:
        """The query of the same page, or of one that differs in this."""
        wish = self._replace(**changed)  # type: ignore[arg-type]
        fields = {
            "search": wish.search,
            "sort": wish.sort if wish.sort != "name" else "",
            "order": "other" if wish.falling != _SORTS[wish.sort][1] else "",
            "empty": "hide" if wish.hide_empty else "",
            "region": wish.region,
            "page": str(wish.number) if wish.number > 1 else "",
        }
        return urlencode({name: value for name, value in fields.items() if value})

    def sorted_by(self, column: str) -> str:
        """The address of the page sorted by that column; the other way round if it is already."""
        falling = not self.falling if column == self.sort else _SORTS[column][1]
        return f"{link('queues')}?{self.query(sort=column, falling=falling, number=1)}"

    def order_of(self, column: str) -> str | None:
        """How the column is sorted, as `aria-sort` says it."""
        return None if column != self.sort else "descending" if self.falling else "ascending"


class QueueRow(NamedTuple):
    """One queue of the list."""

    queue: Queue
    look: QueueDepth
    spark: Markup
    rates: Mapping[str, float]
    address: str
    dead_letters: str | None  # the name of its dead-letter queue
    dead_letters_address: str


class QueuesShown(NamedTuple):
    """What is on the page, and how much there is."""

    rows: list[QueueRow]
    matching: int
    all: int
    pages: int
    regions: list[str]


@page("/queues")
async def queues_page(visit: Visit) -> Answer:
    """The list."""
    wish = _wish(visit)
    found = await _find(visit, wish)
    return await visit.page("queues.html", title="Queues", wish=wish, found=found, live_query=wish.query())


@live("/queues/live")
async def queues_live(visit: Visit) -> Mapping[str, str]:
    """The rows and the line above them."""
    wish = _wish(visit)
    found = await _find(visit, wish, order_age_ms=LIVE_ORDER_MS)
    return {
        "queue-rows": await visit.fragment("queues_rows.html", found=found, wish=wish),
        "queue-sum": await visit.fragment("queues_sum.html", found=found, wish=wish),
    }


def _wish(visit: Visit) -> Wish:
    query = visit.query
    sort = query.text("sort")
    sort = sort if sort in _SORTS else "name"
    falling = _SORTS[sort][1] != (query.text("order") == "other")
    hide_empty = query.text("empty") == "hide"
    number = query.number("page", 1, 1, 1_000_000)
    return Wish(query.text("search")[:80], sort, falling, hide_empty, query.text("region")[:64], number)


async def _find(visit: Visit, wish: Wish, *, order_age_ms: int = 0) -> QueuesShown:
    """What the wish comes to; which queues, and in which order, may be as old as that."""
    matching, count, regions = await visit.console.looks.kept(
        (visit.identity.account, wish._replace(number=1)), lambda: _matching(visit, wish), order_age_ms
    )
    pages = max(1, -(-len(matching) // PAGE_ROWS))
    first = (min(wish.number, pages) - 1) * PAGE_ROWS
    shown = matching[first : first + PAGE_ROWS]
    looks = await visit.console.looks.at(shown)
    rows = [_row(visit, queue, looks[queue.id]) for queue in shown if queue.id in looks]
    return QueuesShown(rows, len(matching), count, pages, regions)


async def _matching(visit: Visit, wish: Wish) -> tuple[list[Queue], int, list[str]]:
    """The queues in their order, how many there are in all, and in which regions."""
    account = visit.identity.account
    own = [queue for queue in await visit.service.store.all_queues() if queue.key.account == account]
    search = wish.search.lower()
    matching = [
        queue
        for queue in own
        if search in queue.name.lower() and (not wish.region or queue.key.region == wish.region)
    ]
    regions = sorted({queue.key.region for queue in own})
    return await _ordered(visit, wish, matching), len(own), regions


async def _ordered(visit: Visit, wish: Wish, queues: Sequence[Queue]) -> list[Queue]:
    compared, _ = _SORTS[wish.sort]
    looks: Mapping[int, QueueDepth] = {}
    # Only these orders need a look at every queue; the usual one looks at those on the page.
    if wish.hide_empty or wish.sort not in ("name", "timeout"):
        looks = await visit.console.looks.at(queues, with_oldest=wish.sort == "oldest")
    kept = [queue for queue in queues if not wish.hide_empty or looks.get(queue.id, _NOTHING).total]
    kept.sort(key=lambda queue: (queue.name, queue.key.region))
    if wish.sort != "name" or wish.falling:
        kept.sort(key=lambda queue: compared(queue, looks.get(queue.id, _NOTHING)), reverse=wish.falling)
    return kept


def _row(visit: Visit, queue: Queue, look: QueueDepth) -> QueueRow:
    spark, rates = _recent(visit, queue)
    redrive = queue.settings.redrive
    return QueueRow(
        queue,
        look,
        spark,
        rates,
        link("queues", queue.key.region, queue.name),
        None if redrive is None else redrive.dead_letters.name,
        "" if redrive is None else link("queues", redrive.dead_letters.region, redrive.dead_letters.name),
    )


def _recent(visit: Visit, queue: Queue) -> tuple[Markup, Mapping[str, float]]:
    """What came in, was received and deleted in the last ten minutes, drawn, and the rates of the last one."""
    history = visit.console.history
    if history.is_quiet(queue.id):
        return _QUIET, dict.fromkeys(_DRAWN, 0.0)
    view = history.view(queue.id, MINUTES, {event for events in _DRAWN.values() for event in events})
    counts = {name: view.sum(*events) for name, events in _DRAWN.items()}
    if not any(map(any, counts.values())):
        return _QUIET, dict.fromkeys(_DRAWN, 0.0)
    told = ", ".join(
        f"{plural(sum(counts[name]), 'message')} {words}"
        for name, words in (("sent", "came in"), ("received", "received"), ("deleted", "deleted"))
    )
    drawn = sparkline(
        {name: in_pairs(values) for name, values in counts.items()}, f"In the last ten minutes: {told}"
    )
    minute = 60 // MINUTES.span_s
    return drawn, {name: sum(values[-minute:]) / 60 for name, values in counts.items()}


# ---- activity


@page("/queues/{region}/{name}/activity")
async def activity_page(visit: Visit) -> Answer:
    """How the queue fared: depth, age, rates and handling times."""
    queue = await visit.queue()
    head = await queue_head(visit, queue, "activity")
    over, resolution = chosen_span(visit)
    visit.console.activity.tick()
    return await queue_page(
        visit,
        head,
        "queue_activity.html",
        charts=draw_charts(visit.console.history, queue.id, resolution),
        over=over,
        resolution=resolution,
        address=f"{head.address}/activity",
        live_path=f"{head.address}/activity/live" + (f"?over={over}" if over else ""),
    )


@live("/queues/{region}/{name}/activity/live")
async def activity_live(visit: Visit) -> Mapping[str, str]:
    """The counts and the charts."""
    queue = await visit.queue()
    head = await queue_head(visit, queue, "activity")
    _, resolution = chosen_span(visit)
    visit.console.activity.tick()
    charts = draw_charts(visit.console.history, queue.id, resolution)
    return {
        **live_facts(visit, head),
        "charts": await visit.fragment("charts.html", charts=charts, resolution=resolution),
    }


# ---- export


class _Format(NamedTuple):
    words: str
    help: str
    suffix: str
    content_type: str
    write: Callable[[Sequence[Queue]], Iterator[str]]  # a piece for each queue


_FORMATS: Final[Mapping[str, _Format]] = {
    "toml": _Format(
        "veil.toml",
        "Put it into veil.toml: veil serve creates these queues at its start.",
        ".toml",
        TEXT,
        as_toml,
    ),
    "cloudformation": _Format(
        "CloudFormation",
        "A template for AWS CloudFormation.",
        ".template.json",
        "application/json; charset=utf-8",
        as_cloudformation,
    ),
    "terraform": _Format("Terraform", "Resources of Terraform's AWS provider.", ".tf", TEXT, as_terraform),
}
_SHOWN_CHARS_MAX: Final = 200_000


async def _in_turns(pieces: Iterator[str], visit: Visit) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece.encode("utf-8", "replace")
        await visit.turn.pause()


@page("/queues/export")
async def export_all(visit: Visit) -> Answer:
    """All queues of a region: no format has a place for two queues of the same name."""
    queues = [
        queue
        for queue in await visit.service.store.all_queues()
        if queue.key.account == visit.identity.account
    ]
    regions = sorted({queue.key.region for queue in queues} | {visit.console.region})
    region = visit.query.text("region")
    region = region if region in regions else visit.console.region
    chosen = sorted((queue for queue in queues if queue.key.region == region), key=lambda queue: queue.name)
    return await _exported(visit, chosen, "queues", link("queues", "export"), regions, region)


@page("/queues/{region}/{name}/export")
async def export_one(visit: Visit) -> Answer:
    """One queue."""
    queue = await visit.queue()
    address = link("queues", queue.key.region, queue.name, "export")
    return await _exported(visit, [queue], queue.name, address, [], queue.key.region)


async def _exported(
    visit: Visit, queues: Sequence[Queue], name: str, address: str, regions: Sequence[str], region: str
) -> Answer:
    chosen = visit.query.text("format")
    chosen = chosen if chosen in _FORMATS else "toml"
    form = _FORMATS[chosen]
    pieces = form.write(queues) if queues else iter(())
    if visit.query.checked("download"):
        return download(_in_turns(pieces, visit), f"{name}{form.suffix}", form.content_type)
    text = ""
    async for piece in _in_turns(pieces, visit):
        text += piece.decode()
        if len(text) > _SHOWN_CHARS_MAX:
            break
    return await visit.page(
        "queue_export.html",
        title="Export the queues" if name == "queues" and regions else f"Export {name}",
        queues=queues,
        is_all=bool(regions),
        address=address,
        formats=_FORMATS,
        chosen=chosen,
        regions=regions,
        region=region,
        text=text[:_SHOWN_CHARS_MAX],
        is_cut=len(text) > _SHOWN_CHARS_MAX,
    )
