"""All settings of a queue, to read."""

from __future__ import annotations

from veil.console.aws_command import queue_url
from veil.console.exchange import Answer
from veil.console.queue_head import queue_head, queue_page
from veil.console.routes import link, page
from veil.console.setting_fields import setting_texts
from veil.console.visit import Visit
from veil.service.queues import dead_letter_sources

_SOURCES_SHOWN = 50


@page("/queues/{region}/{name}/settings")
async def settings_page(visit: Visit) -> Answer:
    """What is set, where the queue is, and who sends dead letters here."""
    queue = await visit.queue()
    head = await queue_head(visit, queue, "settings")
    texts = setting_texts(queue.settings)
    del texts["Policy"]  # has a page of its own
    sources = await dead_letter_sources(visit.service, queue, limit=_SOURCES_SHOWN + 1)
    return await queue_page(
        visit,
        head,
        "queue_settings.html",
        texts=texts,
        url=queue_url(visit.endpoint_url, queue),
        sources=[
            (source.name, link("queues", source.key.region, source.name))
            for source in sources[:_SOURCES_SHOWN]
        ],
        more_sources=len(sources) > _SOURCES_SHOWN,
    )
