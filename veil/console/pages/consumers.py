"""Who receives: by worker, key, address and user agent, with what each holds, and what came of its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple
from urllib.parse import urlencode

from veil.console.visit import Visit
from veil.console.web import Answer, NotFound, link, live, page
from veil.core.attempt import Outcome
from veil.service.attempts import CONSUMERS_MAX, Consumer, EndedAttempt, HeldMessageNow

PAGE_ROWS: Final = 100
_QUEUES_SHOWN: Final = 4


class Wish(NamedTuple):
    """Which consumers; what the address of the page says."""

    search: str = ""
    number: int = 1

    def query(self, **changed: object) -> str:
        """The query of the same page, or of one that differs in this."""
        wish = self._replace(**changed)  # type: ignore[arg-type]
        fields = {"search": wish.search, "page": str(wish.number) if wish.number > 1 else ""}
        return urlencode({name: value for name, value in fields.items() if value})


class ConsumerRow(NamedTuple):
    """One consumer."""

    consumer: Consumer
    mark: str  # the row's id on the page
    queues: list[tuple[str, str, int]]  # name, address, messages received
    more_queues: int


class ConsumersShown(NamedTuple):
    """What is on the page, and how much there is."""

    rows: list[ConsumerRow]
    matching: int
    all: int
    pages: int

    @property
    def is_full(self) -> bool:
        return self.all >= CONSUMERS_MAX


@page("/consumers")
async def consumers_page(visit: Visit) -> Answer:
    """The list, the one seen last first."""
    wish = _wish(visit)
    found = await _find(visit, wish)
    return await visit.page("consumers.html", title="Consumers", wish=wish, found=found, is_live=False)


@live("/consumers/live")
async def consumers_live(visit: Visit) -> Mapping[str, str]:
    """The rows."""
    found = await _find(visit, _wish(visit))
    return {"consumer-rows": await visit.fragment("consumers_rows.html", found=found, is_live=True)}


@page("/consumers/{mark}")
async def consumer_page(visit: Visit) -> Answer:
    """One consumer: what it holds, and those of its attempts that did not complete."""
    attempts = visit.console.activity.attempts
    account = visit.identity.account
    own = [each for each in attempts.consumers() if each.caller.account == account]
    found = next((each for each in own if _mark(each) == visit.parts["mark"]), None)
    if found is None:
        raise NotFound("No such consumer has been seen since the server started.")
    return await visit.page(
        "consumer.html",
        title="Consumer",
        each=found,
        outcomes=[
            (outcome.label, found.outcomes[outcome]) for outcome in Outcome if found.outcomes.get(outcome)
        ],
        held=[row for row in attempts.held_by(found) if row.queue.key.account == account],
        ended=[row for row in reversed(found.recent) if row.queue.key.account == account],
        address=_message_address,
    )


def _mark(consumer: Consumer) -> str:
    """Names the consumer in addresses: the same after a restart of the server."""
    return blake2b(
        "\0".join(each or "" for each in consumer.caller).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


def _message_address(row: HeldMessageNow | EndedAttempt) -> str:
    return link("queues", row.queue.key.region, row.queue.name, "messages", str(row.seq))


def _wish(visit: Visit) -> Wish:
    return Wish(visit.query.text("search")[:100], visit.query.number("page", 1, 1, 1_000_000))


async def _find(visit: Visit, wish: Wish) -> ConsumersShown:
    account = visit.identity.account
    own = [
        each
        for each in visit.console.activity.attempts.consumers()
        # Whoever only sends or looks is no consumer.
        if each.caller.account == account and (each.polls or each.renewals or each.outcomes)
    ]
    search = wish.search.lower()
    matching = [each for each in own if search in "\n".join(each.caller[1:]).lower()]
    pages = max(1, -(-len(matching) // PAGE_ROWS))
    first = (min(wish.number, pages) - 1) * PAGE_ROWS
    names = {
        queue.id: queue.key
        for queue in await visit.service.store.all_queues()
        if queue.key.account == account
    }
    rows = []
    for each in matching[first : first + PAGE_ROWS]:
        await visit.turn.pause()
        known = sorted(
            ((names[queue_id], count) for queue_id, count in each.queues.items() if queue_id in names),
            key=lambda pair: -pair[1],
        )
        queues = [(key.name, link("queues", key.region, key.name), count) for key, count in known]
        rows.append(
            ConsumerRow(each, _mark(each), queues[:_QUEUES_SHOWN], max(0, len(queues) - _QUEUES_SHOWN))
        )
    return ConsumersShown(rows, len(matching), len(own), pages)
