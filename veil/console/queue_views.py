"""What the pages of a queue show: its head, its messages and their states, its leases."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from veil import words
from veil.console.charts import Chart, Line, Shade, time_chart
from veil.console.templates import STATES, milliseconds, rate
from veil.console.visit import Visit
from veil.console.web import Role, live, queue_link, view
from veil.core.lease import State
from veil.core.message import StoredMessage
from veil.core.queue import Queue, QueueKey, parse_arn
from veil.core.sequence import instant_of
from veil.journal.attempts import Life, tell
from veil.journal.lives import LifeEvent, Look
from veil.service.attempts import KnownHolder
from veil.service.history import HOURS, MINUTES, WEEK, QueueDepth, QueueHistory, Resolution, queue_depths
from veil.service.service import Service, peek_one
from veil.wire.exchange import Response

# ---- messages


class CurrentMessage(NamedTuple):
    """Where a message is now, and its lease if it has one."""

    queue: Queue
    message: StoredMessage
    holder: KnownHolder | None  # None: there is none, or it is not known

    @property
    def state(self) -> str:
        """Where it stands: what waits for its retry is in flight to SQS, and in nobody's hands."""
        is_over = self.holder is not None and self.holder.outcome is not None
        in_flight = self.message.state == State.IN_FLIGHT
        return "waiting for a retry" if in_flight and is_over else STATES[self.message.state]

    @property
    def address(self) -> str:
        return queue_link(self.queue.key, "messages", str(self.message.seq))

    @property
    def lease(self) -> str:
        return f"{self.message.seq}:{self.message.delivery}"

    @property
    def window_ms(self) -> int:
        """From the receive or the last renewal to the deadline."""
        renewed_ms = None if self.holder is None else self.holder.last_renewed_ms
        return max(1, (self.message.due_at_ms or 0) - (renewed_ms or self.message.received_at_ms or 0))

    @property
    def signature(self) -> tuple[object, ...]:
        """Differs once something has happened to the message."""
        message = self.message
        return self.queue.id, message.seq, message.state, message.delivery, message.due_at_ms


class MessageHistory(NamedTuple):
    """A life, and how much of it is known."""

    life: Life
    present: CurrentMessage | None
    found: Look  # at the journal


async def find_present(visit: Visit, key: QueueKey, seq: int) -> CurrentMessage | None:
    queue = await visit.service.store.find_queue(key)
    if queue is None:
        return None
    message = await peek_one(visit.service.store, queue, seq)
    if message is None:
        return None
    if message.state == State.IN_FLIGHT and (message.due_at_ms or 0) <= visit.now_ms:
        message.state, message.due_at_ms = State.VISIBLE, None  # lapsed, and the store has not looked yet
    return CurrentMessage(queue, message, visit.console.activity.attempts.holder(queue.id, message))


async def message_history(visit: Visit, key: QueueKey, seq: int, further: int = 1) -> MessageHistory | None:
    """All that is known about the message; None where neither the queue nor the journal knows it."""
    found = await visit.console.journal_lookup.life(seq, further)
    # Keys are the whole store's: what another account did is not ours to tell.
    events = [event for event in found.events if event.queue.account == key.account]
    if not any(event.queue == key and event.seq == seq for event in events) and not _led_to(events, key, seq):
        events = []
    await visit.time_slice.yield_if_spent()
    life = tell(events, visit.now_ms)
    await visit.time_slice.yield_if_spent()
    place = (key, seq) if life is None else (life.stays[-1].queue, life.stays[-1].seq)
    present = await find_present(visit, *place)
    if present is not None:
        added = _missing(present, events)
        if added:
            events = sorted([*events, *added], key=lambda event: event.at_ms)
            life = tell(events, visit.now_ms)
    await visit.time_slice.yield_if_spent()
    if life is None:
        return None
    return MessageHistory(life, present, found)


def _led_to(events: list[LifeEvent], key: QueueKey, seq: int) -> bool:
    """Whether a dead-lettering led there and nothing has happened to the message since."""
    return any(
        event.kind == "dead_lettered"
        and event.other_queue == key.name
        and event.queue.region == key.region
        and (event.other_seq or event.seq) == seq
        for event in events
    )


def _missing(present: CurrentMessage, events: list[LifeEvent]) -> list[LifeEvent]:
    """What the store tells and the journal does not: it is off, was off, or has not been exported yet."""
    queue, message = present.queue, present.message
    facts: dict[str, Any] = {
        "message_id": message.message_id,
        "message_type": message.message_type,
        "body_bytes": message.body_bytes,
        "receive_count": message.receive_count,
    }
    added: list[LifeEvent] = []
    if not events:
        sent_ms = instant_of(message.seq)
        source = None if message.dead_letter_source is None else parse_arn(message.dead_letter_source)
        sent_to = queue.key if source is None else source
        added.append(LifeEvent(0, sent_ms, "sent", sent_to, message.seq, **facts))
        if source is not None:
            # When it was moved the store does not say: not before it was last received there.
            moved_ms = max(sent_ms, message.first_received_wall_ms or sent_ms)
            added.append(LifeEvent(1, moved_ms, "dead_lettered", source, message.seq, other_queue=queue.name))
    known = max((event.delivery for event in events if event.seq == message.seq), default=0)
    if message.state == State.IN_FLIGHT and message.delivery > known and message.received_at_ms is not None:
        facts |= {"delivery": message.delivery, "deadline_ms": message.due_at_ms}
        if present.holder is not None:
            caller = present.holder.caller
            facts |= {
                "caller_key": caller.key_id,
                "caller_address": caller.peer,
                "user_agent": caller.user_agent,
            }
        added.append(LifeEvent(2, message.received_at_ms, "received", queue.key, message.seq, **facts))
    return added


# ---- counts

FRESH_MS: Final = 900
# Sums over all queues are for sorting and hiding: they may be a little older.
_ALL_FRESH_MS: Final = 5_000
_KEPT_MAX: Final = 20_000
_MADE_MAX: Final = 50

_NEVER: Final = (-1 << 62, QueueDepth())

T = TypeVar("T")


class DepthCache:
    """Looks at queues, and remembers for a moment what it saw."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kept: dict[tuple[int, bool], tuple[int, QueueDepth]] = {}
        self._made: dict[Hashable, tuple[int, object]] = {}
        self._looking = asyncio.Lock()

    async def at(self, queues: Sequence[Queue], *, with_oldest: bool = True) -> Mapping[int, QueueDepth]:
        """How each of the queues stood a moment ago, by id; those deleted meanwhile are left out, and empty where asked for."""
        fresh_ms = FRESH_MS if with_oldest else _ALL_FRESH_MS
        async with self._looking:
            now_ms = self._service.clock.now_ms()
            since_ms = now_ms - fresh_ms
            stale = [each for each in queues if self._kept.get((each.id, with_oldest), _NEVER)[0] <= since_ms]
            if len(self._kept) + len(stale) > _KEPT_MAX:
                self._kept.clear()
                stale = list(queues)
            found = await queue_depths(self._service, stale, with_oldest=with_oldest)
            for queue in stale:
                self._kept.pop((queue.id, with_oldest), None)
            self._kept |= {(queue_id, with_oldest): (now_ms, depth) for queue_id, depth in found.items()}
        kept = ((queue.id, self._kept.get((queue.id, with_oldest))) for queue in queues)
        return defaultdict(QueueDepth, {queue_id: seen[1] for queue_id, seen in kept if seen is not None})

    async def kept(self, key: Hashable, make: Callable[[], Awaitable[T]], age_ms_max: int) -> T:
        """What `make` gives, or gave under that key no longer ago than that."""
        now_ms = self._service.clock.now_ms()
        made = self._made.get(key)
        if made is not None and now_ms - made[0] < age_ms_max:
            return cast(T, made[1])
        fresh = await make()
        if len(self._made) >= _MADE_MAX:
            self._made.clear()
        self._made[key] = (now_ms, fresh)
        return fresh


# ---- heads of pages

FACTS: Final = {"queue-facts": "queue_facts.html"}  # what moves on all these pages
QueueValues = Callable[[Visit, Queue], Awaitable[Mapping[str, Any]]]


async def queue_now(visit: Visit) -> dict[str, Any]:
    """The queue that the path names, as it was a moment ago."""
    queue = await visit.queue()
    return {"queue": queue, "depth": (await visit.console.depths.at([queue]))[queue.id]}


def queue_view(
    tab: str, *, needs: Role = Role.VIEWER, live_parts: Mapping[str, str] | None = None
) -> Callable[[QueueValues], Callable[[Visit], Awaitable[Response]]]:
    """The page of a queue's tab, by the tab's own template, and its stream, which draws the counts and the parts again. Values
    that say `is_still` have a page whose parts do not move."""

    def put(values: QueueValues) -> Callable[[Visit], Awaitable[Response]]:
        async def with_head(visit: Visit) -> Mapping[str, Any]:
            now = await queue_now(visit)
            queue, address = now["queue"], queue_link(now["queue"].key)
            found = await values(visit, queue)
            sources = visit.service.store.dead_letter_sources
            moves = live_parts and not found.get("is_still")
            return {
                **now,
                "title": f"{queue.name} · {tab.replace('-', ' ').capitalize()}",
                "tab": tab,
                "address": address,
                "holds_dead_letters": not visit.is_live and await sources(queue.key, limit=1),
                "live_path": f"{address}/{tab}/live?{visit.query_with()}" if moves else f"{address}/live",
                **found,
            }

        path, template = f"/queues/{{region}}/{{name}}/{tab}", f"queue_{tab.replace('-', '_')}.html"
        parts = {**FACTS, **live_parts} if live_parts else {}
        return view(path, template, live_parts=parts, needs=needs)(with_head)

    return put


@live("/queues/{region}/{name}/live")
async def facts_live(visit: Visit) -> Mapping[str, str]:
    """The counts alone, for the pages that have nothing else that moves."""
    now = await queue_now(visit)
    return {name: await visit.fragment(part, **now) for name, part in FACTS.items()}


# ---- charts

OVER: Final = {"": MINUTES, "hours": HOURS, "week": WEEK}
RATES: Final = (
    ("sent", "in", ("sent", "arrived")),
    ("received", "received", ("received",)),
    ("deleted", "deleted", ("deleted",)),
    ("failed", "failed", ("failed",)),
    ("lapsed", "overran or crashed", ("overran", "crashed")),
    ("dead_lettered", "dead-lettered", ("dead_lettered",)),
)


def chosen_span(visit: Visit) -> tuple[str, Resolution]:
    over = visit.query.text("over")
    return (over, OVER[over]) if over in OVER else ("", MINUTES)


def charts_of(visit: Visit, key: int | str) -> dict[str, Any]:
    """What charts.html needs to draw a queue, or an account's queues together, over the span that the address says."""
    _, resolution = chosen_span(visit)
    visit.console.activity.tick()
    return {"charts": draw_charts(visit.console.history, key, resolution), "resolution": resolution}


def draw_charts(history: QueueHistory, key: int | str, resolution: Resolution) -> list[Chart]:
    """Depth, age, rates on one scale, and how long handling took: of a queue, or of an account's queues together."""
    view, span_s = history.view(key, resolution), resolution.span_s
    column = view.columns
    shades = [
        Shade(begin, end, words.trouble(trouble.kind, trouble.length_s))
        for begin, end, trouble in history.troubles(resolution)
    ]
    rates: list[Line] = []
    for name, label, events in RATES:
        counts = view.sum(*events)
        # While the server was away nothing is known. And the last span is not over: a part of it would look as if
        # everything had slowed down.
        per_s: list[float | None] = [
            None if not count and visible is None else count / span_s
            for count, visible in zip(counts, column["visible"], strict=True)
        ]
        per_s[-1] = None
        rates.append(Line(name, label, per_s, f"{sum(counts):,}"))
    depth = [
        Line(name, name.replace("-", " "), column[name.replace("-", "_")])
        for name in ("visible", "in-flight", "delayed")
    ]
    oldest = [Line("oldest", "oldest", column["oldest_s"])]
    handling = [Line("p50", "half within", column["p50_ms"]), Line("p99", "99 % within", column["p99_ms"])]
    draw = partial(time_chart, span_s=span_s, shades=shades)
    return [
        draw("depth", "Messages", depth),
        draw("oldest", "Age of the oldest visible message", oldest, say=words.rough_length, per_s=1),
        draw("rates", "Activity", rates, say=rate),
        draw("handling", "Time from receive to delete", handling, say=milliseconds, per_s=1_000),
    ]
