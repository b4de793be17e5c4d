"""A queue's messages, in whatever state: looked at, never received."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from veil.console.body_text import Body, attributes_of, show_body
from veil.console.exchange import Answer
from veil.console.kept_fragments import kept_fragments
from veil.console.message_search import Looked, Search, read_search, search_messages
from veil.console.queue_head import Head, live_facts, queue_head, queue_page
from veil.console.routes import live, page
from veil.console.visit import Visit
from veil.core.lease import State
from veil.core.message import StoredMessage

_STATES = {State.VISIBLE: "visible", State.IN_FLIGHT: "in flight", State.DELAYED: "delayed"}
_BODY_CHARS_MAX = 4_000  # the rest is on the message's own page
_ATTRIBUTE_CHARS_MAX = 100


class Row(NamedTuple):
    """One message of the list."""

    message: StoredMessage
    state: str
    body: Body
    attributes: list[tuple[str, str, str]]
    address: str  # of the message's own page; empty where there is none


@page("/queues/{region}/{name}")
@page("/queues/{region}/{name}/messages")
async def messages_page(visit: Visit) -> Answer:
    """The messages by their age, the oldest first, a page at a time."""
    head = await queue_head(visit, await visit.queue(), "messages")
    search = read_search(visit.query)
    looked = await search_messages(visit.service, head.queue, search, visit.turn)
    # A filtered list costs a look at many rows: it moves when it is asked to. What is above it always does.
    live_path = f"{head.address}/{'live' if search.is_filtered else f'messages/live?{search.query()}'}"
    return await queue_page(
        visit,
        head,
        "queue_messages.html",
        search=search,
        looked=looked,
        rows=await _rows(visit, head, looked),
        live_path=live_path,
    )


@live("/queues/{region}/{name}/messages/live")
async def messages_live(visit: Visit) -> Mapping[str, str]:
    """The counts and the rows."""
    head = await queue_head(visit, await visit.queue(), "messages")
    search = Search(after=read_search(visit.query).after)
    looked = await search_messages(visit.service, head.queue, search, visit.turn)
    kept = kept_fragments(visit)
    fragments = dict(live_facts(visit, head))
    drawn: list[str] = []
    for message in looked.messages:
        await visit.turn.pause()
        seq = message.seq
        drawn.append(kept.get(("row", seq), partial(_draw, visit, head, "row", message)))
        state = ("state", seq, message.state, message.due_at_ms)
        fragments[f"state-{seq}"] = kept.get(state, partial(_draw, visit, head, "state", message))
        receives = ("receives", seq, message.receive_count)
        fragments[f"receives-{seq}"] = kept.get(receives, partial(_draw, visit, head, "receives", message))
    kept.end_round()
    # The rows before their cells: a cell is put into a row that is there.
    none = await visit.fragment("queue_message_none.html", search=search, looked=looked)
    return {"message-rows": "".join(drawn) or none, **fragments}


def _draw(visit: Visit, head: Head, piece: str, message: StoredMessage) -> str:
    row = _row(head, message, _has_page(visit, head))
    return visit.row(f"queue_message_{piece}.html", head=head, row=row, is_live=True)


@live("/queues/{region}/{name}/live")
async def facts_live(visit: Visit) -> Mapping[str, str]:
    """The counts alone, for the pages that have nothing else that moves."""
    return live_facts(visit, await queue_head(visit, await visit.queue(), ""))


async def _rows(visit: Visit, head: Head, looked: Looked) -> list[Row]:
    has_page = _has_page(visit, head)
    rows: list[Row] = []
    for message in looked.messages:
        rows.append(_row(head, message, has_page))
        await visit.turn.pause()
    return rows


def _row(head: Head, message: StoredMessage, has_page: bool) -> Row:
    return Row(
        message,
        _STATES[State(message.state)],
        show_body(message.body, _BODY_CHARS_MAX),
        attributes_of(message, _ATTRIBUTE_CHARS_MAX),
        f"{head.address}/messages/{message.seq}" if has_page else "",
    )


def _has_page(visit: Visit, head: Head) -> bool:
    return visit.has_page(f"/queues/{head.queue.key.region}/{head.queue.name}/messages/1")
