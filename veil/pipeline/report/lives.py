"""Single messages' lives, drawn: each lease a bar from its receive to its end, with extensions and how it ended."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from veil.pipeline import words
from veil.pipeline.report.drawing import percent
from veil.pipeline.report.facts import Example, ExampleLease
from veil.pipeline.report.markup import Child, Markup, el, prose

_LEASES_MAX: Final = 6

_TITLES: Final = {
    "duplicate": "Done twice",
    "crash": "Lost with its holder, and back after the timeout",
    "dead_letter": "Given up: dead letters",
    "renewed": "Kept by renewal",
}
_ENDS: Final = {
    "deleted": "deleted",
    "released": "released",
    "expired": "lapsed",
    "superseded": "lapsed, received again",
    "dead_lettered": "lapsed, to the dead letters",
    "undone": "undone: the answer never left",
    "removed": "the message was removed",
    "open": "still held",
}


def life(example: Example) -> Markup:
    """The life of one message as a card."""
    leases = example.leases[:_LEASES_MAX]
    begin = example.sent_at
    end = max([_shown_until(lease) for lease in leases] + [begin + timedelta(milliseconds=1)])
    whole = end - begin
    rows: list[Child] = [_row(lease, begin, whole) for lease in leases]
    left_out = len(example.leases) - len(leases)
    more = (
        el("p", f"and {words.plural(left_out, 'further lease')}", class_="muted small") if left_out else None
    )
    facts = [
        el("span", example.queue, class_="name"),
        el("span", f"type {example.message_type}") if example.message_type else None,
        el("span", example.message_id or "id unknown", class_="mono"),
    ]
    axis = el(
        "svg",
        el("text", f"sent {example.sent_at:%-d %b %H:%M:%S}", x="0", y="13", class_="tick start"),
        el("text", f"+{words.length(whole.total_seconds())}", x="100%", y="13", class_="tick end"),
        width="100%",
        height="18",
    )
    return el(
        "article",
        el("h3", _TITLES.get(example.kind, example.kind)),
        el("p", *facts, class_="facts"),
        el("p", prose(_story(example)), class_="story"),
        *rows,
        el("div", axis, class_="axis"),
        more,
        class_="life card",
    )


def _shown_until(lease: ExampleLease) -> datetime:
    known = [at for at in (lease.deadline, lease.ended_at, _work_ended(lease)) if at is not None]
    return max([lease.received_at, *known])


def _work_ended(lease: ExampleLease) -> datetime | None:
    """When the work is known to have ended: at the delete, in time or late."""
    if lease.processing_ms is None or not (lease.overrun or lease.how == "deleted"):
        return None
    return lease.received_at + timedelta(milliseconds=lease.processing_ms)


def _row(lease: ExampleLease, begin: datetime, whole: timedelta) -> Markup:
    def at(moment: datetime) -> float:
        return min(1.0, max(0.0, (moment - begin) / whole))

    start = at(lease.received_at)
    ended = at(lease.ended_at or lease.deadline or lease.received_at + timedelta(milliseconds=lease.held_ms))
    parts: list[Child] = [el("line", x1="0", x2="100%", y1="50%", y2="50%", class_="rail")]
    if lease.deadline is not None and at(lease.deadline) > ended:
        parts.append(_bar(start, at(lease.deadline), "granted"))
    parts.append(_bar(start, ended, f"held {lease.how}"))
    work_ended = _work_ended(lease)
    if lease.overrun and work_ended is not None and at(work_ended) > ended:
        parts.append(_bar(ended, at(work_ended), "overrun"))
    if lease.extensions and lease.first_deadline is not None:
        parts.append(_tick(at(lease.first_deadline), "first", "the first deadline, passed by renewal"))
    if lease.extensions and lease.last_extended_at is not None:
        parts.append(_tick(at(lease.last_extended_at), "extension", "the last extension"))
    if lease.deadline is not None:
        parts.append(_tick(at(lease.deadline), "deadline", "the deadline"))
    words_ = _lease_words(lease)
    drawn = el("svg", *parts, role="img", aria_label=words_, width="100%", height="18")
    return el("div", el("p", prose(words_)), drawn, class_="lease")


def _bar(start: float, end: float, class_: str) -> Markup:
    # A lease of a millisecond in an hour is still there.
    width = percent(end - start) if end - start >= 0.01 else "3"
    return el(
        "rect", x=percent(min(start, 0.995)), y="3", width=width, height="12", rx="2", class_=f"bar {class_}"
    )


def _tick(x: float, class_: str, title: str) -> Markup:
    place = percent(x)
    return el("line", el("title", title), x1=place, x2=place, y1="0", y2="18", class_=f"at {class_}")


def _lease_words(lease: ExampleLease) -> str:
    parts = [f"lease {lease.delivery}", f"held {words.length(lease.held_ms / 1000)}"]
    if lease.extensions:
        parts.append(words.plural(lease.extensions, "extension"))
    parts.append(_ENDS.get(lease.how, lease.how))
    work_ended = _work_ended(lease)
    if (
        lease.overrun
        and work_ended is not None
        and lease.deadline is not None
        and work_ended > lease.deadline
    ):
        late = (work_ended - lease.deadline).total_seconds()
        parts.append(f"its holder was done {words.length(late)} later")
    if lease.user_agent:
        agent = lease.user_agent if len(lease.user_agent) <= 40 else lease.user_agent[:39] + "…"
        parts.append(agent)
    return " · ".join(parts)


def _story(example: Example) -> str:
    leases = example.leases
    first = leases[0]
    if example.kind == "duplicate":
        late = next((lease for lease in leases if lease.overrun), first)
        took = words.length((late.processing_ms or late.held_ms) / 1000)
        return (
            f"The work took {took}, the lease lasted {words.length(late.held_ms / 1000)}: somebody else received the "
            "message in between and did it again."
        )
    if example.kind == "crash":
        lost = next((lease for lease in leases if lease.how in ("superseded", "expired")), first)
        again = next((lease for lease in leases if lease.delivery > lost.delivery), None)
        if again is None:
            return "Its holder was not heard of again; the message stayed hidden until the deadline."
        waited = (again.received_at - (lost.last_extended_at or lost.received_at)).total_seconds()
        return (
            "Its holder was not heard of again. The message stayed hidden until the deadline and was received anew "
            f"{words.length(waited)} after the last sign of life."
        )
    if example.kind == "dead_letter":
        return f"Received {words.plural(len(leases), 'time')} without being deleted, then moved to the dead letters."
    longest = max(leases, key=lambda lease: lease.extensions)
    granted = (
        words.length((longest.first_deadline - longest.received_at).total_seconds())
        if longest.first_deadline
        else "shorter"
    )
    return (
        f"The work took {words.length(longest.held_ms / 1000)} under a timeout of {granted}: "
        f"{words.plural(longest.extensions, 'extension')} kept the message hidden, and nobody did it twice."
    )
