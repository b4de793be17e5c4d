"""What happened in a queue lately: sends, receives, deletes, lapses, dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from veil.console.activity_chart import Chart, activity_chart
from veil.console.exchange import Answer
from veil.console.queue_head import live_facts, queue_head, queue_page
from veil.console.routes import live, page
from veil.console.visit import Visit
from veil.core.queue import Queue
from veil.service.activity import COARSE_S, FINE_S

_EVENTS: Final = (
    ("sent", "Sent"),
    ("received", "Received"),
    ("deleted", "Deleted"),
    ("lapsed", "Lapsed"),
    ("dead_lettered", "Dead-lettered"),
    ("extended", "Leases extended"),
)


@page("/queues/{region}/{name}/activity")
async def activity_page(visit: Visit) -> Answer:
    """A chart for each kind of event, over the last ten minutes or the last four hours."""
    queue = await visit.queue()
    head = await queue_head(visit, queue, "activity")
    is_long = _is_long(visit)
    return await queue_page(
        visit,
        head,
        "queue_activity.html",
        charts=_charts(visit, queue, is_long),
        is_long=is_long,
        live_path=f"{head.address}/activity/live" + ("?over=hours" if is_long else ""),
    )


@live("/queues/{region}/{name}/activity/live")
async def activity_live(visit: Visit) -> Mapping[str, str]:
    """The counts and the charts."""
    queue = await visit.queue()
    head = await queue_head(visit, queue, "activity")
    is_long = _is_long(visit)
    charts = await visit.fragment("queue_charts.html", charts=_charts(visit, queue, is_long), is_long=is_long)
    return {**live_facts(visit, head), "charts": charts}


def _is_long(visit: Visit) -> bool:
    return visit.query.text("over") == "hours"


def _charts(visit: Visit, queue: Queue, is_long: bool) -> list[Chart]:
    activity = visit.console.activity
    counts, span_s = (activity.coarse, COARSE_S) if is_long else (activity.fine, FINE_S)
    return [activity_chart(event, words, counts(event, queue.id), span_s) for event, words in _EVENTS]
