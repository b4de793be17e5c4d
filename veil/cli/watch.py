"""`veil top` and `veil leases`: what goes on in the queues, and who holds what until when."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from veil.cli.app import app
from veil.cli.options import (
    AsJson,
    argument,
    complete_queue,
    how_often,
    option,
    whole_number,
    with_client,
)
from veil.cli.output import is_terminal, live_table, say_json, show_list, talk

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient

_COUNTERS = ("Sent", "Received", "Deleted", "Lapsed", "DeadLettered")
_COLUMNS = (
    "queue",
    "visible",
    "in progress",
    "retrying",
    "delayed",
    "oldest",
    "sent/s",
    "received/s",
    "deleted/s",
    "dead letters",
)


@app.command("top", epilog="Example: veil top orders --interval 1s")
@with_client
def top(
    client: BlockingClient,
    prefix: str = argument("[PREFIX]", "Only show queues whose names begin with this.", default=""),
    every: float = how_often("--interval", "How often to refresh. Default: 2s.", default=2.0),
    count: int | None = option(
        "--count N",
        "Stop after this many refreshes. Default: 1 if stdout is not a terminal.",
        whole_number(1),
    ),
    as_json: AsJson = False,
) -> None:
    """Watch queues live: counts, the age of the oldest message, and rates; fullest queue first.

    Rates are measured since the last refresh. Stop with Ctrl-C.
    """
    if count is None and not is_terminal(sys.stdout) and not as_json:
        count = 1
    with live_table(_COLUMNS, right=_COLUMNS[1:]) as show:
        before: Mapping[str, Mapping[str, Any]] = {}
        before_s = time.monotonic()
        looks = 0
        while True:
            now = {str(queue["QueueName"]): queue for queue in client.descriptions(prefix)}
            now_s = time.monotonic()
            rates = {name: _rates(before.get(name), queue, now_s - before_s) for name, queue in now.items()}
            order = sorted(now.values(), key=lambda queue: (-_held(queue), queue["QueueName"]))
            if as_json:
                for queue in order:
                    say_json(_top_object(queue, rates[queue["QueueName"]]))
            else:
                show([_top_row(queue, rates[queue["QueueName"]]) for queue in order])
            before, before_s = now, now_s
            looks += 1
            if looks == count:
                break
            time.sleep(every)
    if not now:
        talk("there are no queues" + (f" whose names begin with {prefix!r}" if prefix else ""))


def _held(queue: Mapping[str, Any]) -> int:
    return int(queue["Visible"]) + int(queue["InFlight"]) + int(queue["Delayed"])


def _rates(
    before: Mapping[str, Any] | None, now: Mapping[str, Any], elapsed_s: float
) -> dict[str, float | None]:
    """What happened a second since the last look; None with the first one, and after a restart of the server."""
    if before is None or any(now[each] < before[each] for each in _COUNTERS):
        return dict.fromkeys(_COUNTERS)
    return {each: (now[each] - before[each]) / max(elapsed_s, 0.001) for each in _COUNTERS}


def _top_row(queue: Mapping[str, Any], rates: Mapping[str, float | None]) -> list[str]:
    oldest_ms, waiting = queue.get("OldestSentAt"), queue["WaitingForRetry"]
    in_progress = max(0, queue["InFlight"] - waiting)
    name = f"{queue['QueueName']} (paused)" if queue["Paused"] else str(queue["QueueName"])
    return [
        name,
        *(f"{count:,}" for count in (queue["Visible"], in_progress, waiting, queue["Delayed"])),
        "-" if oldest_ms is None else _age(time.time() - oldest_ms / 1000),
        *("-" if rates[each] is None else f"{rates[each]:,.1f}" for each in ("Sent", "Received", "Deleted")),
        f"{queue['DeadLettered']:,}",
    ]


def _top_object(queue: Mapping[str, Any], rates: Mapping[str, float | None]) -> dict[str, Any]:
    return {
        "name": queue["QueueName"],
        "paused": queue["Paused"],
        "visible": queue["Visible"],
        "in_flight": queue["InFlight"],
        "waiting_for_retry": queue["WaitingForRetry"],
        "delayed": queue["Delayed"],
        "oldest_sent_at_ms": queue.get("OldestSentAt"),
        **{f"{each.lower()}_per_s": rates[each] for each in ("Sent", "Received", "Deleted")},
        "lapsed": queue["Lapsed"],
        "dead_lettered": queue["DeadLettered"],
    }


def _age(seconds: float) -> str:
    left = max(0, int(seconds))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if left >= size:
            return f"{left // size} {unit}"
    return f"{left} s"


@app.command("leases", epilog="Example: veil leases orders --json | jq .address")
@with_client
def leases(
    client: BlockingClient,
    queue: str | None = argument(
        "[QUEUE]", "Only show this queue. Default: all queues.", autocompletion=complete_queue
    ),
    max_leases: int = option("--max N", "How many leases to show at most.", whole_number(1), default=100),
    as_json: AsJson = False,
) -> None:
    """Show who holds which message and until when; next deadline first.

    A message that waits for a retry is also in flight: its attempt is over, and nobody is working on it.
    """
    names = (
        [queue]
        if queue is not None
        else [each["QueueName"] for each in client.descriptions() if each["InFlight"]]
    )
    found = []
    for name in names:  # the server looks for them, page by page
        held = client.peeked(name, max_leases, State="in_flight")
        found += [_lease(name, message) for message in islice(held, max_leases)]
    found = sorted(found, key=lambda lease: lease["visible_at_ms"])[:max_leases]
    columns = ["queue", "message", "receives", "lapses in", "held for", "renewals", "held by"]
    otherwise = "no messages are in flight" + (f" in {queue}" if queue is not None else "")
    show_list(found, columns, _lease_row, as_json=as_json, right=columns[2:6], otherwise=otherwise)


def _lease(queue: str, message: Mapping[str, Any]) -> dict[str, Any]:
    holder = message.get("Holder") or {}
    return {
        "queue": queue.rpartition("/")[2],
        "message_id": message["MessageId"],
        "receive_count": int(message["Attributes"]["ApproximateReceiveCount"]),
        "visible_at_ms": message["VisibleAt"],
        "received_at_ms": holder.get("ReceivedAt"),
        "renewals": holder.get("Renewals"),
        "key_id": holder.get("KeyId"),
        "address": holder.get("Address"),
        "user_agent": holder.get("UserAgent"),
        "outcome": holder.get("Outcome"),
    }


def _lease_row(lease: Mapping[str, Any]) -> list[str]:
    now_ms = time.time() * 1000
    received_ms, renewals = lease["received_at_ms"], lease["renewals"]
    if received_ms is None:
        who = "not known"
    elif lease["outcome"] is not None:
        who = f"nobody: {lease['outcome'].replace('_', ' ')}, waits for its retry"
    else:
        who = " ".join(part for part in (lease["key_id"], lease["address"], lease["user_agent"]) if part)[:80]
    return [
        lease["queue"],
        lease["message_id"],
        str(lease["receive_count"]),
        _age((lease["visible_at_ms"] - now_ms) / 1000),
        # The attempt of one that waits for its retry is over, and its holder is not told when that was.
        "-" if received_ms is None or lease["outcome"] else _age((now_ms - received_ms) / 1000),
        "-" if renewals is None else str(renewals),
        who,
    ]
