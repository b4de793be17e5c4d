"""Judges a history: what was lost, invented, early, resurrected, stuck or misordered.

The clients know only when a call began and when it ended; what it did happened at some instant between. So every judgement
works with bounds and accuses only what no order of events could excuse: a window is *surely* open until the begin of the
receive plus its length, and a message is *surely* available from the end of the call that let it go.

* **lost**: acknowledged or delivered, and yet gone at the end without a delete that could have removed it. Only meaningful
  when the queue was drained at the end. A delete by a receipt whose message somebody else surely held is no excuse.
* **invented**: delivered, but never sent, sent to another queue, or refused.
* **early**: delivered while a window was surely open that a client had been told of.
* **resurrected**: delivered after an acknowledged delete that surely removed it.
* **stuck**: surely available for more than a second, and a receive that looked after that came back empty.
* **misordered** (FIFO): delivered before an earlier message of its group that was not deleted.

`duplicated` (delivered more than once) and `recovered` (delivered though its send ended unknown) are counted, not accused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from tests.faults.evidence import NEVER_NS, SECOND_NS, Call, Delivery, Message, read_calls, read_messages
from tests.faults.history import Event

GRACE_NS = SECOND_NS  # availability is promised within a second of the deadline
TICK_NS = 1_000_000  # servers count whole milliseconds, and a window may begin within one

FAULTS = ("lost", "invented", "early", "resurrected", "stuck", "misordered")


@dataclass(slots=True)
class Verdict:
    """The faults by class, each with a line that says what happened, and the counts of the run."""

    faults: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in FAULTS})
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing is held against the server."""
        return not any(self.faults.values())

    def __str__(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in self.counts.items())
        faults = " ".join(f"{name}={len(found)}" for name, found in self.faults.items())
        examples = "".join(f"\n  {name}: {line}" for name, found in self.faults.items() for line in found[:5])
        return f"{counts} | {faults}{examples}"


def check(events: Iterable[Event], *, drained: bool = True) -> Verdict:
    """Judge a whole history; what is lost can only be told if the queues were drained at the end."""
    verdict = Verdict()
    calls = read_calls(events)
    messages, strays = read_messages(calls)
    verdict.faults["invented"] += strays
    if drained:
        _find_lost(messages, verdict)
    _find_early_and_resurrected(messages, verdict)
    _find_stuck(calls, messages, verdict)
    _find_misordered(messages, verdict)
    _count(calls, messages, verdict)
    return verdict


# ---- the classes


def _find_lost(messages: dict[str, Message], verdict: Verdict) -> None:
    for message in messages.values():
        acknowledged = message.send is not None and message.send.kind == "ok"
        if (acknowledged or message.deliveries) and not message.possible_deletes():
            how = f"delivered {len(message.deliveries)} times" if message.deliveries else "never delivered"
            verdict.faults["lost"].append(f"{message.tag!r} on {message.queue}: {how}, gone without a delete")


def _find_early_and_resurrected(messages: dict[str, Message], verdict: Verdict) -> None:
    for message in messages.values():
        for index, second in enumerate(message.deliveries):
            began, ended = second.receive.began, second.receive.ended
            for first in message.deliveries[:index]:
                if _was_deleted_by(first, second, message):
                    verdict.faults["resurrected"].append(
                        f"{message.tag!r} on {message.queue} came back after an acknowledged delete"
                    )
                    break
                ahead_ns = first.surely_open_until(began, ended) - ended
                in_order = first.receive.ended <= began
                # Neither order excuses two windows that each were open when the other was opened.
                either_way = (
                    second.surely_open_until(first.receive.began, first.receive.ended) > first.receive.ended
                )
                if ahead_ns > TICK_NS and (in_order or either_way):
                    verdict.faults["early"].append(
                        f"{message.tag!r} on {message.queue} was delivered {ahead_ns // 1_000_000} ms before its deadline"
                    )
                    break


def _was_deleted_by(first: Delivery, second: Delivery, message: Message) -> bool:
    for delete in first.deletes:
        if delete.kind != "ok" or second.receive.began < delete.began:
            continue
        if first.surely_open_until(delete.began, delete.ended) > delete.ended:
            return True
        # A standard queue says yes to late receipts too. A FIFO queue does so only where the message is gone, which it may be
        # by whoever received it while the late delete was under way.
        if message.queue.endswith(".fifo") and not (
            second.receive.began < delete.ended
            and any(
                other.began < delete.ended and other.kind != "fail"
                for delivery in message.deliveries
                if delivery is not first
                for other in delivery.deletes
            )
        ):
            return True
    return False


def _find_stuck(calls: list[Call], messages: dict[str, Message], verdict: Verdict) -> None:
    """Look for empty answers at a time when something had surely been available for longer than allowed."""
    unknown: dict[str, list[tuple[int, int]]] = defaultdict(list)  # receives that may have taken anything
    empty: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.facts["op"] == "receive" and call.kind == "info":
            unknown[call.facts["queue"]].append((call.began, call.ended + call.facts["window_s"] * SECOND_NS))
        elif call.facts["op"] == "receive" and call.kind == "ok" and not call.facts["messages"]:
            empty[call.facts["queue"]].append(call)
    free: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for tags in _units(messages).values():
        first = messages[tags[0]]
        # Of a FIFO group only the whole is judged: one that is held blocks the others, by rule.
        holds = [hold for tag in tags for hold in _holds(messages[tag])]
        holds.sort()
        for tag in tags:
            message = messages[tag]
            if message.send is None or message.send.kind != "ok":
                continue
            deletes = message.possible_deletes()
            until = min((delete.began for delete in deletes), default=NEVER_NS)
            for start, end in _gaps(message.send.ended, until, holds):
                free[first.queue].append((start, end, tag))
    for queue, gaps in free.items():
        gaps = _without(gaps, unknown[queue])
        gaps.sort()
        starts = [start for start, _, _ in gaps]
        longest = list(accumulate(gaps, _later_end))
        for call in empty[queue]:
            looked_until = min(call.ended, call.began + call.facts["wait_s"] * SECOND_NS)
            before = bisect_right(starts, looked_until - GRACE_NS)
            if before and longest[before - 1][1] >= call.ended:
                start, _, tag = longest[before - 1]
                verdict.faults["stuck"].append(
                    f"{tag!r} on {queue} was available for {(looked_until - start) // 1_000_000} ms and a receive came back empty"
                )


_Gap = tuple[int, int, str]


def _later_end(one: _Gap, other: _Gap) -> _Gap:
    return other if other[1] > one[1] else one


def _units(messages: dict[str, Message]) -> dict[tuple[str, str], list[str]]:
    units: dict[tuple[str, str], list[str]] = defaultdict(list)
    for message in messages.values():
        group = message.send.facts.get("group") if message.send is not None else None
        units[message.queue, group or message.tag].append(message.tag)
    return units


def _holds(message: Message) -> list[tuple[int, int]]:
    return [(each.receive.began, each.open_at_most_until()) for each in message.deliveries]


def _gaps(start: int, until: int, holds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The stretches between start and until that no hold touches, as far as they are long enough to matter."""
    gaps = []
    for hold_start, hold_end in holds:
        if hold_start >= until:
            break
        if hold_start - start >= GRACE_NS:
            gaps.append((start, hold_start))
        start = max(start, hold_end)
    if until - start >= GRACE_NS:
        gaps.append((start, until))
    return gaps


def _without(gaps: list[tuple[int, int, str]], unknown: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    unknown = _merged(unknown)
    begins = [begin for begin, _ in unknown]
    left = []
    for start, end, tag in gaps:
        nearby = unknown[max(0, bisect_right(begins, start) - 1) : bisect_right(begins, end)]
        left += [(a, b, tag) for a, b in _gaps(start, end, nearby)]
    return left


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _find_misordered(messages: dict[str, Message], verdict: Verdict) -> None:
    groups: dict[tuple[str, str], list[Message]] = defaultdict(list)
    for message in messages.values():
        if message.send is not None and message.send.facts.get("group") is not None:
            groups[message.queue, message.send.facts["group"]].append(message)
    for (queue, group), members in groups.items():
        members = [m for m in members if m.deliveries or (m.send is not None and m.send.kind == "ok")]
        members.sort(key=_place)
        gone_from = [min((d.began for d in m.possible_deletes()), default=NEVER_NS) for m in members]
        deliveries = [(each, index) for index, m in enumerate(members) for each in m.deliveries]
        deliveries.sort(key=lambda pair: pair[0].receive.ended)
        # Call -> index in group -> place in the answer.
        together: dict[int, dict[int, int]] = defaultdict(dict)
        for delivery, index in deliveries:
            together[delivery.receive.facts["call"]][index] = delivery.place
        first_alive = 0
        for delivery, index in deliveries:
            ended = delivery.receive.ended
            while first_alive < len(members) and gone_from[first_alive] <= ended:
                first_alive += 1
            batch = together[delivery.receive.facts["call"]]
            for earlier in range(first_alive, index):
                if (
                    gone_from[earlier] > ended
                    and batch.get(earlier, delivery.place) >= delivery.place
                    and _surely_first(members[earlier], members[index])
                ):
                    verdict.faults["misordered"].append(
                        f"{delivery.tag!r} of group {group} on {queue} came before {members[earlier].tag!r}"
                    )
                    break


def _surely_first(earlier: Message, later: Message) -> bool:
    """Whether it was stored before the other one was sent: a send that ended unknown may take effect much later."""
    assert earlier.send is not None and later.send is not None
    sent_ns = later.send.began
    return earlier.send.kind == "ok" or any(each.receive.ended <= sent_ns for each in earlier.deliveries)


def _place(message: Message) -> int:
    assert message.send is not None
    return int(message.send.facts["place"])


def _count(calls: list[Call], messages: dict[str, Message], verdict: Verdict) -> None:
    sends = [m.send.kind for m in messages.values() if m.send is not None]
    verdict.counts = {
        "acknowledged": sends.count("ok"),
        "unknown": sends.count("info"),
        "deliveries": sum(len(m.deliveries) for m in messages.values()),
        "deletes": sum(c.facts["op"] == "delete" and c.kind == "ok" for c in calls),
        "extensions": sum(c.facts["op"] == "extend" and c.kind == "ok" for c in calls),
        "duplicated": sum(len(m.deliveries) > 1 for m in messages.values()),
        "recovered": sum(
            bool(m.deliveries) and m.send is not None and m.send.kind == "info" for m in messages.values()
        ),
    }
