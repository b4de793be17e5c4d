"""One message: where it is, who holds it until when, and its whole life as a drawn timeline; also when it is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from veil.console.app import Console
from veil.console.body_text import attributes_of, cut, show_body
from veil.console.exchange import Answer
from veil.console.journal_looks import FURTHER_MAX, journal_looks
from veil.console.letters import read_letter
from veil.console.life_drawing import HOW, WENT, draw
from veil.console.message_state import Present, Told, find_present, tell_message
from veil.console.refusals import NotFound
from veil.console.routes import link, live, page
from veil.console.visit import Visit
from veil.core.numbers import seq_number
from veil.core.queue import QueueKey

_BODY_CHARS_MAX: Final = 100_000
_ATTRIBUTE_CHARS_MAX: Final = 10_000
_TRACE_CHARS_MAX: Final = 1_000
_EVENTS_SHOWN: Final = 200
_DRAWN_MAX: Final = 200

# What the streams have drawn: a life is read again only when the store says that something has happened.
_Drawn = tuple[tuple[object, ...], tuple[QueueKey, int], dict[str, str]]
_drawn: WeakKeyDictionary[Console, dict[tuple[QueueKey, int], _Drawn]] = WeakKeyDictionary()

WHAT: Final = {
    "sent": "Sent",
    "received": "Received",
    "extended": "Renewed",
    "released": "Released",
    "undone": "Given back: the answer never left",
    "deleted": "Deleted",
    "delete_refused": "Delete refused: the receipt no longer counts",
    "extension_refused": "Renewal refused: the receipt no longer counts",
    "dead_lettered": "Dead-lettered",
    "redriven": "Redriven",
    "expired": "Expired: its retention ended",
    "purged": "Purged",
    "delayed": "Delay set anew",
}


@page("/queues/{region}/{name}/messages/{seq}")
async def message_page(visit: Visit) -> Answer:
    """The message of that key in the queue, or what is known of it."""
    key, seq = _named(visit)
    further = visit.query.number("further", 1, 1, FURTHER_MAX)
    told = await tell_message(visit, key, seq, further)
    if told is None:
        kept = journal_looks(visit.console).is_kept
        raise NotFound(
            f"Neither queue {key.name[:100]} nor the journal knows a message with the key {seq}."
            if kept
            else f"Queue {key.name[:100]} has no message with the key {seq}. It is gone, and no journal tells its life."
        )
    message = None if told.present is None else told.present.message
    return await visit.page(
        "message.html",
        title="Message",
        key=key,
        seq=seq,
        further=further,
        body=None if message is None else show_body(message.body, _BODY_CHARS_MAX),
        attributes=[] if message is None else attributes_of(message, _ATTRIBUTE_CHARS_MAX),
        letter=None if message is None else read_letter(told.present.queue, message),  # type: ignore[union-attr]
        body_chars_max=_BODY_CHARS_MAX,
        trace_header="" if message is None else cut(message.trace_header or "", _TRACE_CHARS_MAX),
        is_live=False,
        live_path=link("queues", key.region, key.name, "messages", str(seq), "live"),
        **_values(visit, told),
    )


@live("/queues/{region}/{name}/messages/{seq}/live")
async def message_live(visit: Visit) -> Mapping[str, str]:
    """Where it is now; the timeline is drawn anew when something has happened."""
    key, seq = _named(visit)
    kept = _drawn.setdefault(visit.console, {})
    known = kept.get((key, seq))
    if known is not None:
        signature, place, fragments = known
        if _signature(await find_present(visit, *place)) == signature:
            return fragments
    told = await tell_message(visit, key, seq)
    if told is None:
        raise NotFound("The message is gone.")
    values = _values(visit, told)
    await visit.turn.pause()
    fragments = {
        "message-state": await visit.fragment("message_state.html", key=key, is_live=True, **values),
        "message-life": await visit.fragment("message_life.html", key=key, is_live=True, **values),
    }
    last = told.life.stays[-1]
    if len(kept) >= _DRAWN_MAX:
        kept.clear()
    kept[key, seq] = _signature(told.present), (last.queue, last.seq), fragments
    return fragments


def _values(visit: Visit, told: Told) -> dict[str, Any]:
    return {
        "told": told,
        "life": told.life,
        "present": told.present,
        "last": told.life.stays[-1],
        "drawing": draw(told.life, visit.now_ms),
        "events": list(reversed(told.life.events))[:_EVENTS_SHOWN],
        "what": WHAT,
        "went": WENT,
        "how": HOW,
        "is_journal_kept": journal_looks(visit.console).is_kept,
    }


def _signature(present: Present | None) -> tuple[object, ...]:
    return () if present is None else present.signature


def _named(visit: Visit) -> tuple[QueueKey, int]:
    text = visit.parts["seq"]
    seq = seq_number(text)
    if seq is None:
        raise NotFound(f"{text[:40]!r} is not the key of a message: expected a whole number.")
    return QueueKey(visit.parts["region"], visit.identity.account, visit.parts["name"]), seq
