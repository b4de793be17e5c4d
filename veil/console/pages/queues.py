"""The list of queues, live: search, sort, counts, ages and rates; and the charts of one queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from veil.console.charts import in_pairs, sparkline
from veil.console.queue_views import charts_of, chosen_span, queue_view
from veil.console.visit import Visit
from veil.console.web import view
from veil.core.queue import Queue
from veil.service.history import MINUTES, QueueDepth
from veil.words import plural

PAGE_ROWS: Final = 50
# A live list reads its rows every second, but only now and then for queues that have come or gone.
LIVE_ORDER_MS: Final = 3_000
# Of each line its words and its events: what comes by a redrive or as a dead letter comes in like what was sent.
_DRAWN: Final = {
    "sent": ("came in", ("sent", "arrived")),
    "received": ("received", ("received",)),
    "deleted": ("deleted", ("deleted",)),
}
_QUIET: Final = sparkline({}, "Nothing in the last ten minutes")


class _Column(NamedTuple):
    words: str
    compared: Callable[[Queue, QueueDepth], Any]
    falls_first: bool  # whether its first order is the falling one


_COLUMNS: Final[Mapping[str, _Column]] = {
    "name": _Column("Name", lambda queue, _: queue.name, False),
    "visible": _Column("Visible", lambda _, depth: depth.counts.visible, True),
    "in-flight": _Column("In flight", lambda _, depth: depth.counts.in_flight, True),
    "delayed": _Column("Delayed", lambda _, depth: depth.counts.delayed, True),
    "oldest": _Column("Oldest", lambda _, depth: -(depth.oldest_sent_ms or 1 << 62), True),
    "timeout": _Column("Visibility timeout", lambda queue, _: queue.settings.visibility_s, False),
}


class QueueFilter(NamedTuple):
    """Which queues to show, and in which order; what the address of the page says."""

    search: str
    region: str
    hide_empty: bool
    sort: str
    falling: bool


@view(
    "/queues",
    "queues.html",
    title="Queues",
    live_parts={"queue-rows": "queues_rows.html", "queue-sum": "queues_sum.html"},
)
async def queues(visit: Visit) -> Mapping[str, Any]:
    """The queues of the page; in a stream which queues, and in which order, may be a little old."""
    wanted = _filter(visit)
    headings = []
    for name, column in _COLUMNS.items():
        falling = not wanted.falling if name == wanted.sort else column.falls_first
        order = "other" if falling != column.falls_first else ""
        sorted_now = None if name != wanted.sort else "descending" if wanted.falling else "ascending"
        headings.append((name, column.words, visit.query_with(sort=name, order=order, page=""), sorted_now))
    matching, count, regions = await visit.console.depths.kept(
        (visit.identity.account, wanted),
        lambda: _matching(visit, wanted),
        LIVE_ORDER_MS if visit.is_live else 0,
    )
    shown, pager = visit.paged(matching, PAGE_ROWS)
    depths = await visit.console.depths.at(shown)
    return {
        "rows": [(queue, depths[queue.id], *_recent(visit, queue)) for queue in shown if queue.id in depths],
        "wanted": wanted,
        "headings": headings,
        "matching": len(matching),
        "all": count,
        "regions": regions,
        "pager": pager,
    }


def _filter(visit: Visit) -> QueueFilter:
    text = visit.query.text
    sort = text("sort") if text("sort") in _COLUMNS else "name"
    falling = _COLUMNS[sort].falls_first != (text("order") == "other")
    return QueueFilter(text("search")[:80], text("region")[:64], text("empty") == "hide", sort, falling)


async def _matching(visit: Visit, wanted: QueueFilter) -> tuple[list[Queue], int, list[str]]:
    """The queues in their order, how many there are in all, and in which regions."""
    own = await visit.own_queues()
    search = wanted.search.lower()
    matching = [
        queue
        for queue in own
        if search in queue.name.lower() and (not wanted.region or queue.key.region == wanted.region)
    ]
    regions = sorted({queue.key.region for queue in own})
    return await _ordered(visit, wanted, matching), len(own), regions


async def _ordered(visit: Visit, wanted: QueueFilter, queues: Sequence[Queue]) -> list[Queue]:
    depths: Mapping[int, QueueDepth] = {}
    # Only these orders need a look at every queue; the usual one reads those on the page.
    if wanted.hide_empty or wanted.sort not in ("name", "timeout"):
        depths = await visit.console.depths.at(queues, with_oldest=wanted.sort == "oldest")
    kept = [queue for queue in queues if not wanted.hide_empty or depths.get(queue.id, QueueDepth()).total]
    kept.sort(key=lambda queue: (queue.name, queue.key.region))
    if wanted.sort != "name" or wanted.falling:
        compared = _COLUMNS[wanted.sort].compared
        kept.sort(
            key=lambda queue: compared(queue, depths.get(queue.id, QueueDepth())), reverse=wanted.falling
        )
    return kept


def _recent(visit: Visit, queue: Queue) -> tuple[Markup, Mapping[str, float]]:
    """What came in, was received and deleted in the last ten minutes, drawn, and the rates of the last one."""
    history = visit.console.history
    counts: dict[str, list[int]] = {}
    if not history.is_quiet(queue.id):
        view = history.view(queue.id, MINUTES, {event for _, events in _DRAWN.values() for event in events})
        counts = {name: view.sum(*events) for name, (_, events) in _DRAWN.items()}
    if not any(map(any, counts.values())):
        return _QUIET, dict.fromkeys(_DRAWN, 0.0)
    told = ", ".join(f"{plural(sum(counts[name]), 'message')} {words}" for name, (words, _) in _DRAWN.items())
    lines = {name: in_pairs(values) for name, values in counts.items()}
    drawn = sparkline(lines, f"In the last ten minutes: {told}")
    minute = 60 // MINUTES.span_s
    return drawn, {name: sum(values[-minute:]) / 60 for name, values in counts.items()}


@queue_view("activity", live_parts={"charts": "charts.html"})
async def activity(visit: Visit, queue: Queue) -> Mapping[str, Any]:
    return {"over": chosen_span(visit)[0], **charts_of(visit, queue.id)}
