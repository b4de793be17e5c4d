"""What a history says about each message: the calls that concern it, and the bounds that follow from them.

The clients know only when a call began and when it ended; what it did happened at some instant between. So a window is
*surely* open until the begin of its receive plus its length, and *at most* open until the end of it plus its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.history import Event

SECOND_NS = 1_000_000_000
NEVER_NS = 1 << 62


@dataclass(slots=True)
class Call:
    """A call from its begin to its end; one that never ended is unknown for ever."""

    began: int
    facts: dict[str, Any]
    ended: int = NEVER_NS
    kind: str = "info"


@dataclass(slots=True, eq=False)
class Delivery:
    """One message in the answer to a receive."""

    receive: Call
    tag: str
    receipt: str
    place: int  # within the answer
    changes: list[Call] = field(default_factory=list)
    deletes: list[Call] = field(default_factory=list)

    def surely_open_until(self, began: int, ended: int) -> int:
        """The least that the deadline can have been for something that happened between these instants."""
        deadline: int = self.receive.began + self.receive.facts["window_s"] * SECOND_NS
        for change in self.changes:
            if change.kind == "fail" or change.began >= ended:
                continue
            window_ns = change.facts["window_s"] * SECOND_NS
            new = change.began + window_ns if window_ns else 0
            settled = change.kind == "ok" and change.ended <= began
            deadline = new if settled else min(deadline, new)
        return deadline

    def open_at_most_until(self) -> int:
        """The latest instant at which this delivery can still have hidden the message."""
        deadline: int = self.receive.ended + self.receive.facts["window_s"] * SECOND_NS
        for change in self.changes:
            if change.kind == "fail":
                continue
            new = change.ended + change.facts["window_s"] * SECOND_NS
            released = change.kind == "ok" and change.facts["window_s"] == 0
            deadline = new if released else max(deadline, new)
        return deadline


@dataclass(slots=True)
class Message:
    """One message: how it was sent, and every time it was delivered."""

    tag: str
    queue: str
    send: Call | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    other_deletes: list[Call] = field(default_factory=list)  # by a receipt from an answer that does not count

    def possible_deletes(self) -> list[Call]:
        """Deletes that can have removed the message."""
        return [
            delete
            for delivery in self.deliveries
            for delete in delivery.deletes
            if delete.kind != "fail" and not self._surely_stale(delivery, delete)
        ] + [delete for delete in self.other_deletes if delete.kind != "fail"]

    def _surely_stale(self, delivery: Delivery, delete: Call) -> bool:
        if delete.kind != "ok":
            return False
        return any(
            other is not delivery
            and other.receive.began >= delivery.receive.ended
            and other.receive.ended <= delete.began
            and other.surely_open_until(delete.began, delete.ended) >= delete.ended
            and not any(d.began < delete.ended for d in other.deletes)
            for other in self.deliveries
        )


def read_calls(events: Iterable[Event]) -> list[Call]:
    """The calls of a history, each with its end."""
    by_number: dict[int, Call] = {}
    for event in events:
        if event["kind"] == "invoke":
            by_number[event["call"]] = Call(event["at"], dict(event))
        else:
            call = by_number[event["call"]]
            call.ended, call.kind = event["at"], event["kind"]
            call.facts.update((key, event[key]) for key in event if key not in ("at", "kind", "call"))
    return list(by_number.values())


def read_messages(calls: list[Call]) -> tuple[dict[str, Message], list[str]]:
    """The messages by tag, and a line for each delivery that cannot have been."""
    messages: dict[str, Message] = {}
    strays: list[str] = []
    by_receipt: dict[str, Delivery] = {}
    for call in calls:
        if call.facts["op"] == "send":
            tag = call.facts["tag"]
            known = messages.get(tag)
            if known is not None:  # one message over two connections: the better outcome counts
                _join_sends(known, call)
            else:
                messages[tag] = Message(tag, call.facts["queue"], call)
    for call in calls:
        if call.facts["op"] != "receive" or call.kind != "ok":
            continue
        for place, found in enumerate(call.facts["messages"]):
            tag, queue = found["tag"], call.facts["queue"]
            message = messages.get(tag)
            if message is None:
                strays.append(f"{tag!r} was delivered on {queue} and never sent")
            elif message.queue != queue:
                strays.append(f"{tag!r} was sent to {message.queue} and delivered on {queue}")
            elif message.send is not None and message.send.kind == "fail":
                strays.append(f"{tag!r} was refused and yet delivered on {queue}")
            else:
                delivery = Delivery(call, tag, found["receipt"], place)
                message.deliveries.append(delivery)
                by_receipt[delivery.receipt] = delivery
    for call in calls:
        owner = by_receipt.get(call.facts.get("receipt", ""))
        if owner is not None and call.facts["op"] == "delete":
            owner.deletes.append(call)
        elif call.facts["op"] == "delete" and call.facts["tag"] in messages:
            messages[call.facts["tag"]].other_deletes.append(call)
        elif owner is not None and call.facts["op"] == "extend":
            owner.changes.append(call)
    for message in messages.values():
        message.deliveries.sort(key=lambda each: each.receive.ended)
    return messages, strays


_RANK = {"ok": 2, "info": 1, "fail": 0}


def _join_sends(message: Message, call: Call) -> None:
    assert message.send is not None
    first = message.send
    if _RANK[call.kind] > _RANK[first.kind]:
        first.ended, first.kind = call.ended, call.kind
    elif call.kind == first.kind:
        first.ended = min(first.ended, call.ended)
    first.began = min(first.began, call.began)
