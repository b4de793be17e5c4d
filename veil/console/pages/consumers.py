"""Consumers by worker, key, address and user agent: what each holds, and the outcomes of its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from veil.console.visit import Visit
from veil.console.web import NotFound, page, view
from veil.core.attempt import AttemptOutcome
from veil.service.attempts import CONSUMERS_MAX, KnownConsumer
from veil.wire.exchange import Response

PAGE_ROWS: Final = 100
_QUEUES_SHOWN: Final = 4


@page("/consumers/{mark}")
async def consumer_page(visit: Visit) -> Response:
    """One consumer: what it holds, and those of its attempts that did not complete."""
    attempts = visit.console.activity.attempts
    account = visit.identity.account
    own = [each for each in attempts.consumers() if each.caller.account == account]
    found = next((each for each in own if _mark(each) == visit.parts["mark"]), None)
    if found is None:
        raise NotFound("This consumer has not been seen since the server started.")
    return await visit.page(
        "consumer.html",
        title="Consumer",
        each=found,
        outcomes=[
            (outcome.label, found.outcomes[outcome])
            for outcome in AttemptOutcome
            if found.outcomes.get(outcome)
        ],
        held=[row for row in attempts.held_by(found) if row.queue.key.account == account],
        ended=[row for row in reversed(found.recent) if row.queue.key.account == account],
    )


def _mark(consumer: KnownConsumer) -> str:
    """Names the consumer in addresses: the same after a restart of the server."""
    caller = "\0".join(each or "" for each in consumer.caller).encode("utf-8", "surrogatepass")
    return blake2b(caller, digest_size=8).hexdigest()


@view("/consumers", "consumers.html", title="Consumers", live_parts={"consumer-rows": "consumers_rows.html"})
async def consumers(visit: Visit) -> Mapping[str, Any]:
    """Who receives, the one seen last first."""
    search = visit.query.text("search")[:100]
    own = [
        each
        for each in visit.console.activity.attempts.consumers()
        # A client that only sends or peeks is no consumer; one that held messages when the server was stopped is.
        if each.caller.account == visit.identity.account
        and (each.polls or each.renewals or each.outcomes or each.in_progress or each.waiting)
    ]
    matching = [each for each in own if search.lower() in "\n".join(each.caller[1:]).lower()]
    shown, pager = visit.paged(matching, PAGE_ROWS)
    names = {queue.id: queue.key for queue in await visit.own_queues()}
    rows = []
    for each in shown:
        await visit.time_slice.yield_if_spent()
        known = sorted(
            ((names[queue_id], count) for queue_id, count in each.queues.items() if queue_id in names),
            key=lambda pair: -pair[1],
        )
        rows.append((each, _mark(each), known[:_QUEUES_SHOWN], max(0, len(known) - _QUEUES_SHOWN)))
    is_full = len(own) >= CONSUMERS_MAX
    return {"rows": rows, "all": len(own), "is_full": is_full, "search": search, "pager": pager}
