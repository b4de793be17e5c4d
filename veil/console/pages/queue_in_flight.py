"""What is in flight: who holds which message, since when, and how long still."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from veil.console.body_text import show_preview
from veil.console.exchange import Answer
from veil.console.kept_fragments import kept_fragments
from veil.console.leases import open_leases
from veil.console.message_search import Looked
from veil.console.queue_head import Head, live_facts, queue_head, queue_page, wall_offset_ms
from veil.console.routes import live, page
from veil.console.visit import Visit
from veil.core.message import StoredMessage
from veil.service.activity import Holder


class Row(NamedTuple):
    """One open lease."""

    message: StoredMessage
    holder: Holder | None  # None: not known
    preview: str  # the beginning of the body
    received_wall_ms: int
    window_ms: int  # from the receive or the last renewal to the deadline
    address: str

    @property
    def name(self) -> str:
        """What a form calls the lease."""
        return f"{self.message.seq}:{self.message.delivery}"

    @property
    def renewals(self) -> int | None:
        """How often the lease was renewed; None: not known."""
        return None if self.holder is None else self.holder.renewals

    @property
    def version(self) -> str:
        """Changes with all that the row tells: a row that is drawn anew must get its cells anew, too."""
        return f"{self.message.received_at_ms}-{self.message.receive_count}-{self.holder is not None}"


@page("/queues/{region}/{name}/in-flight")
async def in_flight_page(visit: Visit) -> Answer:
    """The leases, a page at a time."""
    head = await queue_head(visit, await visit.queue(), "in-flight")
    after = visit.query.number("after", 0, 0, (1 << 63) - 1)
    looked = await open_leases(visit.service, head.queue, after, visit.turn)
    return await queue_page(
        visit,
        head,
        "queue_in_flight.html",
        looked=looked,
        rows=_rows(visit, head, looked),
        after=after,
        live_path=f"{head.address}/in-flight/live" + (f"?after={after}" if after else ""),
    )


@live("/queues/{region}/{name}/in-flight/live")
async def in_flight_live(visit: Visit) -> Mapping[str, str]:
    """The counts and the leases."""
    head = await queue_head(visit, await visit.queue(), "in-flight")
    after = visit.query.number("after", 0, 0, (1 << 63) - 1)
    looked = await open_leases(visit.service, head.queue, after, visit.turn)
    kept = kept_fragments(visit)
    fragments = dict(live_facts(visit, head))
    drawn: list[str] = []
    for row in _rows(visit, head, looked):
        await visit.turn.pause()
        drawn.append(kept.get(("row", row.name, row.version), partial(_draw, visit, "row", row)))
        clock = (row.name, row.version, row.message.due_at_ms, row.window_ms, row.renewals)
        for cell in ("deadline", "renewals"):
            fragments[f"{cell}-{row.message.seq}"] = kept.get(
                (cell, *clock), partial(_draw, visit, cell, row)
            )
    kept.end_round()
    # The rows before their cells: a cell is put into a row that is there.
    return {"lease-rows": "".join(drawn) or await visit.fragment("queue_lease_none.html"), **fragments}


def _draw(visit: Visit, piece: str, row: Row) -> str:
    return visit.row(f"queue_lease_{piece}.html", row=row, is_live=True)


def _rows(visit: Visit, head: Head, looked: Looked) -> list[Row]:
    has_page = visit.has_page(f"/queues/{head.queue.key.region}/{head.queue.name}/messages/1")
    return [_row(visit, head, message, has_page) for message in looked.messages]


def _row(visit: Visit, head: Head, message: StoredMessage, has_page: bool) -> Row:
    holder = visit.console.activity.holder(head.queue.id, message)
    received_ms = message.received_at_ms or 0
    began_ms = received_ms if holder is None else holder.last_renewed_ms or received_ms
    return Row(
        message,
        holder,
        show_preview(message.body),
        received_ms + wall_offset_ms(visit),
        max(1, (message.due_at_ms or 0) - began_ms),
        f"{head.address}/messages/{message.seq}" if has_page else "",
    )
