"""The tables as plain Python makes them from all events at once: slow, obvious, and with nothing of the pipeline's in it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from tests.pipeline.journal_kit import HOUR_MS, JournalEvent
from veil.core.attempt import AttemptFacts, outcome_of

Row = dict[str, Any]
Tables = dict[str, list[Row]]
OF_MESSAGE = ("sent", "delayed", "redriven", "expired", "purged")
HOWS = ("deleted", "released", "expired", "superseded", "dead_lettered", "undone", "removed", "open")
ATTEMPTS = ("completed", "failed", "given_back", "overran", "crashed", "unknown", "removed", "undone", "open")
LAPSED = ("expired", "superseded", "dead_lettered")
OUTCOMES = ("deleted", "expired", "purged", "redriven", "dead_lettered", "open")


def model_tables(events: Iterable[JournalEvent]) -> Tables:
    """All tables, with instants in milliseconds."""
    events = list(events)
    now = max((event.at for event in events), default=0)
    by_message: dict[int, list[JournalEvent]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.at, event.position)):
        by_message[event.seq].append(event)
    leases: list[Row] = []
    messages: list[Row] = []
    for seq, own in by_message.items():
        found = _leases_of(seq, own, now)
        messages.append(_message_of(seq, own, found))
        leases.extend(found)
    sums = {
        "queue_hours": _sums(leases, messages, lambda hour: hour),
        "queue_days": _sums(leases, messages, lambda hour: hour // (24 * HOUR_MS) * 24 * HOUR_MS),
        "queue_months": _sums(leases, messages, _month),
    }
    public = [{name: value for name, value in lease.items() if name[0] != "_"} for lease in leases]
    return {"leases": public, "messages": messages, **sums}


def _first(events: list[JournalEvent], kind: str) -> JournalEvent | None:
    return next((event for event in events if event.kind == kind), None)


def _last(events: list[JournalEvent], *kinds: str) -> JournalEvent | None:
    return next((event for event in reversed(events) if event.kind in kinds), None)


def _any(events: list[JournalEvent], name: str) -> Any:
    return max((value for event in events if (value := getattr(event, name)) is not None), default=None)


def _home(events: list[JournalEvent]) -> JournalEvent:
    """The event that says which queue it was."""

    def rank(event: JournalEvent) -> tuple[Any, ...]:
        order = {"sent": 0, "received": 0, "dead_lettered": 1}
        known = 2 if event.message_id is not None else 3  # a receipt of a message that is gone
        return (order.get(event.kind, known), event.region, event.account, event.queue)

    return min(events, key=rank)


def _between(start: int | None, end: int | None) -> int | None:
    return None if start is None or end is None else max(0, end - start)


def _leases_of(seq: int, events: list[JournalEvent], now: int) -> list[Row]:
    by_delivery: dict[int, list[JournalEvent]] = defaultdict(list)
    for event in events:
        if event.kind not in OF_MESSAGE:
            by_delivery[event.delivery].append(event)
    by_delivery.pop(0, None)
    gone = [event.at for event in events if event.kind in ("deleted", "redriven", "expired", "purged")]
    gone_at = min(gone, default=None)
    rows = []
    for delivery, own in sorted(by_delivery.items()):
        later = [
            receive.at
            for other in sorted(by_delivery)
            if other > delivery and (receive := _first(by_delivery[other], "received")) is not None
            if _first(by_delivery[other], "undone") is None
        ]
        rows.append(_lease(seq, delivery, events, own, later[0] if later else None, gone_at, now))
    return rows


def _lease(
    seq: int,
    delivery: int,
    message: list[JournalEvent],
    own: list[JournalEvent],
    next_receive: int | None,
    gone_at: int | None,
    now: int,
) -> Row:
    received, undone, deleted = _first(own, "received"), _first(own, "undone"), _first(own, "deleted")
    setting = _last(own, "received", "extended", "given_back", "released")
    deadline = None
    if setting is not None:
        deadline = setting.at if setting.kind == "released" else setting.deadline
    returned = setting is not None and setting.kind in ("released", "given_back")
    saying = next((event for event in reversed(own) if event.outcome is not None), None)
    if undone is not None:
        how, ended = "undone", undone.at
    elif deleted is not None:
        how, ended = "deleted", deleted.at
    elif setting is not None and returned:
        how, ended = "released", setting.at
    elif gone_at is not None and deadline is not None and gone_at < deadline:
        how, ended = "removed", gone_at
    elif _first(own, "dead_lettered") is not None:
        how, ended = "dead_lettered", deadline
    elif next_receive is not None:
        how, ended = "superseded", deadline
    elif deadline is None or deadline <= now:
        how, ended = "expired", deadline
    else:
        how, ended = "open", None

    received_at = received.at if received else None
    until = now if how == "open" else ended
    refusals = [event for event in own if event.kind in ("delete_refused", "extension_refused")]
    refused_delete = _first(own, "delete_refused")
    seen, silent = _last(own, "holder_seen"), _last(own, "holder_silent")
    outcome = outcome_of(
        AttemptFacts(
            deadline=deadline,
            undone_at=undone.at if undone else None,
            said=saying.outcome if saying else None,
            deleted_at=deleted.at if deleted else None,
            is_returned=returned
            or (deadline is not None and received is not None and deadline <= received.at),
            gone_at=gone_at,
            refused_at=refusals[-1].at if refusals else None,
            seen_at=seen.at if seen else None,
            silent_at=silent.at if silent else None,
        ),
        now,
    )
    let_go = outcome in ("failed", "given_back")
    done = deleted or refused_delete
    if let_go:
        done = saying or (setting if returned else None)
    extended = [event for event in own if event.kind == "extended"]
    last_extended = extended[-1].at if extended else None
    if how == "undone":
        work_until = None
    elif done is not None:
        work_until = done.at
    else:
        work_until = max(
            [at for at in (until, *(event.at for event in refusals)) if at is not None], default=None
        )
    work_ms = _between(received_at, work_until)
    worked = [event.worked_ms for event in own if event.worked_ms is not None]
    if worked and done is not None and work_ms is not None:
        work_ms = min(work_ms, *worked)  # it waited for a free slot before
    overrun = False
    if how != "undone":
        signs = [deleted.at] if deleted else [event.at for event in refusals]
        overrun = deadline is not None and any(sign > deadline for sign in signs)
        if last_extended is not None and next_receive is not None and last_extended > next_receive:
            overrun = True
    recovery = None
    if (
        how == "superseded"
        and not overrun
        and not let_go
        and (received_at is not None or last_extended is not None)
    ):
        recovery = _between(max(at for at in (received_at, last_extended) if at is not None), next_receive)
    home = _home(own)
    return {
        "hour": (seq >> 20) // HOUR_MS * HOUR_MS,
        "region": home.region,
        "account": home.account,
        "queue": home.queue,
        "seq": seq,
        "message_id": _any(message, "message_id"),
        "message_type": _any(message, "message_type"),
        "body_bytes": _any(message, "body_bytes"),
        "delivery": delivery,
        "receive_count": received.receive_count if received else None,
        "received_at": received_at,
        "first_deadline": received.deadline if received else None,
        "deadline": deadline,
        "extensions": len(extended),
        "last_extended_at": last_extended,
        "ended_at": ended,
        "how": how,
        "outcome": outcome.value,
        "rule": max([event.rule for event in own if event.rule is not None], default=1),
        "error_type": saying.error_type if saying else None,
        "error_text": saying.error_text if saying else None,
        "traceback": saying.traceback if saying else None,
        "held_ms": _between(received_at, until),
        "processing_ms": work_ms,
        "censored": how == "undone" or done is None,
        "overrun": overrun,
        "recovery_ms": recovery,
        "caller_key": received.caller_key if received else None,
        "caller_address": received.caller_address if received else None,
        "user_agent": received.user_agent if received else None,
        "_known": home.message_id is not None,
        "_duplicate": overrun and next_receive is not None and not let_go,
        "_dead_letters": [(event.at, event.other_queue) for event in own if event.kind == "dead_lettered"],
    }


def _message_of(seq: int, events: list[JournalEvent], leases: list[Row]) -> Row:
    own = [event for event in events if event.kind in OF_MESSAGE]
    home = _home(own) if own else None
    lease = next((lease for lease in leases if lease["_known"]), leases[0] if leases else {})
    sent = _first(events, "sent")
    delayed = _last(events, "delayed")
    available = None if sent is None else sent.deadline or sent.at
    if delayed is not None:
        available = delayed.deadline
    receives = [
        lease["received_at"]
        for lease in leases
        if lease["how"] != "undone" and lease["received_at"] is not None
    ]
    first_received = min(receives, default=None)
    ends = {
        kind: [event.at for event in events if event.kind == kind]
        for kind in ("deleted", "redriven", "purged", "expired")
    }
    dead_letters = [each for lease in leases for each in lease["_dead_letters"]]
    outcome, ended = ("dead_lettered", None) if dead_letters else ("open", None)
    for kind in reversed(ends):
        if ends[kind]:
            outcome, ended = kind, max(ends[kind])
    redriven = _first(events, "redriven")
    return {
        "hour": (seq >> 20) // HOUR_MS * HOUR_MS,
        "region": home.region if home else lease["region"],
        "account": home.account if home else lease["account"],
        "queue": home.queue if home else lease["queue"],
        "seq": seq,
        "message_id": _any(events, "message_id"),
        "message_type": _any(events, "message_type"),
        "body_bytes": _any(events, "body_bytes"),
        "sent_at": sent.at if sent else None,
        "available_at": available,
        "first_received_at": first_received,
        "wait_ms": _between(available, first_received),
        "leases": len(leases),
        "extensions": sum(lease["extensions"] for lease in leases),
        "duplicates": sum(lease["_duplicate"] for lease in leases),
        "failures": sum(lease["outcome"] == "failed" for lease in leases),
        "wasted_ms": sum(
            lease["held_ms"] or 0 for lease in leases if lease["how"] not in ("deleted", "open")
        ),
        "outcome": outcome,
        "ended_at": ended,
        "end_to_end_ms": _between(sent.at if sent else None, ended),
        "dead_lettered_at": max((at for at, _ in dead_letters), default=None),
        "dead_letter_queue": dead_letters[-1][1] if dead_letters else None,
        "redriven_to": redriven.other_queue if redriven else None,
    }


def _month(hour: int) -> int:
    first = datetime.fromtimestamp(hour / 1000, UTC).replace(day=1, hour=0)
    return int(first.timestamp() * 1000)


def _sums(leases: list[Row], messages: list[Row], begin: Callable[[int], int]) -> list[Row]:
    groups: dict[tuple[Any, ...], tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for place, rows in enumerate((leases, messages)):
        for row in rows:
            key = (begin(row["hour"]), row["region"], row["account"], row["queue"], row["message_type"] or "")
            groups[key][place].append(row)
    return [_sum(key, *rows) for key, rows in groups.items()]


def _sum(key: tuple[Any, ...], leases: list[Row], messages: list[Row]) -> Row:
    hows = Counter(lease["how"] for lease in leases)
    attempts = Counter(lease["outcome"] for lease in leases)
    outcomes = Counter(message["outcome"] for message in messages)
    windows = [
        (lease["received_at"], lease["first_deadline"] - lease["received_at"])
        for lease in leases
        if lease["received_at"] is not None
    ]
    window_at, window_ms = max(windows, default=(None, None))
    work = [lease for lease in leases if lease["processing_ms"] is not None]
    return {
        **dict(zip(("hour", "region", "account", "queue", "message_type"), key, strict=True)),
        "sent": sum(message["sent_at"] is not None for message in messages),
        "leases": len(leases),
        **{attempt: attempts[attempt] for attempt in ATTEMPTS},
        **{how: hows[how] for how in HOWS},
        "overrun": sum(lease["overrun"] for lease in leases),
        "duplicates": sum(lease["_duplicate"] for lease in leases),
        "extensions": sum(lease["extensions"] for lease in leases),
        **{
            f"messages_{'dead' if outcome == 'dead_lettered' else outcome}": outcomes[outcome]
            for outcome in OUTCOMES
        },
        "held_ms": sum(lease["held_ms"] or 0 for lease in leases),
        "wasted_ms": sum(
            lease["held_ms"] or 0 for lease in leases if lease["how"] not in ("deleted", "open")
        ),
        "failed_ms": sum(
            (lease["held_ms"] if lease["censored"] else lease["processing_ms"]) or 0
            for lease in leases
            if lease["outcome"] == "failed"
        ),
        "window_ms": window_ms,
        "window_at": window_at,
        "processing": _histogram(lease["processing_ms"] for lease in work if _ended(lease) == "done"),
        "processing_failed": _histogram(
            lease["processing_ms"] for lease in work if _ended(lease) == "let go"
        ),
        "processing_lapsed": _histogram(
            lease["processing_ms"] for lease in work if _ended(lease) == "lapsed"
        ),
        "processing_censored": _histogram(
            lease["processing_ms"] for lease in work if _ended(lease) == "else"
        ),
        "waiting": _histogram(message["wait_ms"] for message in messages),
        "recovery": _histogram(lease["recovery_ms"] for lease in leases if lease["outcome"] == "crashed"),
        "recovery_unknown": _histogram(
            lease["recovery_ms"] for lease in leases if lease["outcome"] == "unknown"
        ),
    }


def _ended(lease: Row) -> str:
    """What is known of the end of an attempt's work."""
    outcome = lease["outcome"]
    if not lease["censored"]:
        return "let go" if outcome in ("failed", "given_back") else "done"
    if lease["how"] not in LAPSED:
        return "else"
    return "nobody knows when" if outcome in ("failed", "given_back", "crashed") else "lapsed"


def _histogram(lengths: Iterable[int | None]) -> list[tuple[int, int]]:
    buckets = Counter(
        min(511, math.floor(math.log2(max(length, 1)) * 16)) for length in lengths if length is not None
    )
    return sorted(buckets.items())
