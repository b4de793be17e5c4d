"""The first page: queues that need attention, totals, and charts of all queues together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from veil.console.queue_views import charts_of, chosen_span
from veil.console.visit import Visit
from veil.console.web import view
from veil.core.limits import IN_FLIGHT_MAX
from veil.core.queue import Queue, QueueCounts
from veil.service.history import HOURS, MINUTES, QueueDepth, QueueHistory
from veil.words import exact_length, plural, rough_length

TROUBLES_SHOWN: Final = 20
TOP_SHOWN: Final = 5
_FRESH_MS: Final = 1_000
_UNATTENDED_S: Final = 60  # a message that nobody has received for so long, of a queue that nobody reads
_GROWN_MIN: Final = 10
_GROWN_PART: Final = 0.1
_EXPIRING_PART: Final = 0.8  # of the retention
ENDS: Final = ("failed", "given_back", "overran", "crashed")


class QueueHealth(NamedTuple):
    """What is known of a queue, for the rules below: how it stands, and what happened in the last ten minutes."""

    queue: Queue
    depth: QueueDepth
    oldest_s: int
    grown: int  # messages more than ten minutes ago, or than when it was first looked at
    happened: Mapping[str, int]
    ended: int = 0  # attempts of the last four hours whose end is known, if leases lapsed lately
    error: str = ""  # the commonest of its failed attempts
    holds_dead_letters: bool = False


class QueueTrouble(NamedTuple):
    """One thing that is wrong with a queue; the weight says which to look at first."""

    weight: int
    kind: str
    words: str


def troubles_of(facts: QueueHealth) -> Iterator[QueueTrouble]:
    """What is wrong with a queue, by its facts alone, the worst first."""
    happened, visible, settings = facts.happened, facts.depth.counts.visible, facts.queue.settings
    left_s = settings.retention_s - facts.oldest_s
    if visible and facts.oldest_s >= settings.retention_s * _EXPIRING_PART:
        left = rough_length(left_s)
        yield QueueTrouble(
            100, "expiring", f"Its oldest message will be deleted in {left}, when its retention ends."
        )
    if (in_flight := facts.depth.counts.in_flight) >= IN_FLIGHT_MAX * 0.9:
        yield QueueTrouble(
            95, "full", f"{in_flight:,} messages are in flight; {IN_FLIGHT_MAX:,} is the limit."
        )
    if dead := happened.get("dead_lettered", 0):
        target = settings.redrive.dead_letters.name if settings.redrive else "its dead letters"
        yield QueueTrouble(
            90, "dead-letters", f"{plural(dead, 'message')} moved to {target} after too many receives."
        )
    if crashed := happened.get("crashed", 0):
        yield QueueTrouble(80, "crashed", f"{plural(crashed, 'consumer')} crashed while holding a message.")
    if failed := happened.get("failed", 0):
        # Of those that were begun, not that were deleted: a message that its handler gave up on has failed and is deleted.
        attempts = max(failed, happened.get("received", 0))
        most = f"; most often {facts.error}" if facts.error else ""
        yield QueueTrouble(70, "failing", f"{failed:,} of {plural(attempts, 'attempt')} failed{most}.")
    if overran := happened.get("overran", 0):
        words = f"{plural(overran, 'attempt')} took longer than the visibility timeout of {exact_length(settings.visibility_s)}."
        yield QueueTrouble(65, "overran", words)
    # A message that waited for its retry or was given back comes back by a lapse too, perhaps long after.
    unexplained = happened.get("lapsed", 0) - facts.ended
    if unexplained > 0:
        words = f"{plural(unexplained, 'lease')} lapsed: the message became visible again."
        yield QueueTrouble(60, "lapsed", words)
    is_read = happened.get("received", 0) or facts.oldest_s < _UNATTENDED_S or facts.holds_dead_letters
    if settings.paused:
        words = f"Deliveries are paused; {plural(visible, 'message')} will be available again when they are resumed."
        yield QueueTrouble(55, "paused", words)
    elif visible and not is_read:
        waiting = f"{plural(visible, 'message')} {'is' if visible == 1 else 'are'} waiting"
        words = f"No consumer is receiving: {waiting}, the oldest for {rough_length(facts.oldest_s)}."
        yield QueueTrouble(50, "unattended", words)
    elif facts.grown >= max(_GROWN_MIN, (facts.depth.total - facts.grown) * _GROWN_PART):
        yield QueueTrouble(
            40, "growing", f"It is growing: {facts.grown:,} more messages than ten minutes ago."
        )


def ended_attempts(history: QueueHistory, queue_id: int) -> int:
    """How many attempts of the last four hours have ended in another way than by the delete of their message."""
    return sum(history.view(queue_id, HOURS, ENDS).sum(*ENDS))


async def look(visit: Visit) -> Mapping[str, Any]:
    """How the account's queues stand, charts aside. Of ten thousand most are quiet: they cost a look into a dictionary each."""
    history, account = visit.console.history, visit.identity.account
    visit.console.activity.tick()
    await history.refresh()
    own = await visit.own_queues()
    errors = _errors(visit)
    letters = {queue.settings.redrive.dead_letters for queue in own if queue.settings.redrive is not None}
    now_ms = visit.now_ms
    failed = 0
    troubled: list[tuple[int, int, str, QueueHealth]] = []
    known: list[QueueHealth] = []
    for queue in own:
        depth = history.depths.get(queue.id, QueueDepth())
        total = depth.total
        if not total and not queue.settings.paused and history.is_quiet(queue.id):
            continue
        await visit.time_slice.yield_if_spent()
        happened, before = history.lately(queue.id)
        facts = QueueHealth(
            queue,
            depth,
            oldest_s=0 if depth.oldest_sent_ms is None else max(0, now_ms - depth.oldest_sent_ms) // 1000,
            grown=0 if before is None else total - before,
            happened=happened,
            ended=ended_attempts(history, queue.id) if happened.get("lapsed") else 0,
            error=errors.get(queue.id, ""),
            holds_dead_letters=queue.key in letters,
        )
        failed += facts.happened.get("failed", 0)
        if total:
            known.append(facts)
        # The first is the worst; the others are worked out for those that are shown.
        if worst := next(troubles_of(facts), None):
            troubled.append((-worst.weight, -total, queue.name, facts))
    aged = nsmallest(
        TOP_SHOWN,
        (each for each in known if each.depth.oldest_sent_ms is not None),
        key=lambda each: (-each.oldest_s, each.queue.name),
    )
    largest = nsmallest(TOP_SHOWN, known, key=lambda each: (-each.depth.total, each.queue.name))
    counts = [each.depth.counts for each in known]
    return {
        "queues": len(own),
        "paused": sum(queue.settings.paused for queue in own),
        "total": QueueCounts(*map(sum, zip(*counts, strict=True))),
        "oldest": (aged[0].queue, aged[0].oldest_s) if aged else None,
        "in_per_s": sum(history.recent(account, event, 60) for event in ("sent", "arrived")) / 60,
        "done_per_s": history.recent(account, "deleted", 60) / 60,
        "failed": failed,
        "troubled": [
            (facts, list(troubles_of(facts)))
            for *_, facts in nsmallest(TROUBLES_SHOWN, troubled, key=lambda each: each[:3])
        ],
        "more_troubled": max(0, len(troubled) - TROUBLES_SHOWN),
        "largest": [(each.queue, each.depth) for each in largest],
        "longest": [(each.queue, each.oldest_s) for each in aged],
    }


def _errors(visit: Visit) -> dict[int, str]:
    """The commonest error of each queue's attempts that failed lately, as far as their holders said it."""
    since_ms = visit.now_ms - MINUTES.span_s * MINUTES.spans * 1000
    counted: dict[int, Counter[str]] = {}
    for consumer in visit.console.activity.attempts.consumers():
        for ended in consumer.recent:
            if ended.reported is not None and ended.reported.error_type and ended.at_ms >= since_ms:
                counted.setdefault(ended.queue.id, Counter())[ended.reported.error_type] += 1
    return {queue_id: errors.most_common(1)[0][0] for queue_id, errors in counted.items()}


@view(
    "/overview",
    "overview.html",
    title="Overview",
    live_parts={
        "overview-facts": "overview_facts.html",
        "overview-troubles": "overview_troubles.html",
        "overview-tops": "overview_tops.html",
        "charts": "charts.html",
    },
)
async def overview(visit: Visit) -> Mapping[str, Any]:
    # Those who watch other spans of time share the look.
    key = ("overview", visit.identity.account)
    overview_now = await visit.console.depths.kept(
        key, lambda: look(visit), _FRESH_MS if visit.is_live else 0
    )
    over, _ = chosen_span(visit)
    return {"over": over, "overview": overview_now, **charts_of(visit, visit.identity.account)}
