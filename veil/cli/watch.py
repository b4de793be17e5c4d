"""`veil top` and `veil leases`: queues live, and who holds which message until when."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from veil import words
from veil.cli.app import app
from veil.cli.options import AsJson, argument, complete_queue, how_often, option, whole_number, with_client
from veil.cli.output import echo_err, echo_json, is_terminal, live_table, show_list
from veil.cli.queue import COUNTED, name_and_counts
from veil.core.message import Caller

if TYPE_CHECKING:
    from veil.client.blocking import BlockingClient

_COUNTERS = ("Sent", "Received", "Deleted", "Lapsed", "DeadLettered")
_RATES = _COUNTERS[:3]
_COLUMNS = (*COUNTED, "oldest", "sent/s", "received/s", "deleted/s", "dead letters")


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
    if count is None and not is_terminal(sys.stdout):
        count = 1
    with live_table(_COLUMNS, right=_COLUMNS[1:]) as show:
        before: Mapping[str, Mapping[str, Any]] = {}
        before_s = time.monotonic()
        looks = 0
        while True:
            now = {str(queue["QueueName"]): queue for queue in client.descriptions(prefix)}
            now_s = time.monotonic()
            queues = [_top(queue, before.get(name), now_s - before_s) for name, queue in now.items()]
            queues.sort(
                key=lambda each: (-each["visible"] - each["in_flight"] - each["delayed"], each["name"])
            )
            if as_json:
                for each in queues:
                    echo_json(each)
            else:
                show(list(map(_top_row, queues)))
            before, before_s = now, now_s
            looks += 1
            if looks == count:
                break
            time.sleep(every)
    if not now:
        named = f" whose names begin with {prefix!r}" if prefix else ""
        echo_err(f"there are no queues{named} in {client.target.region}")


def _top(queue: Mapping[str, Any], before: Mapping[str, Any] | None, elapsed_s: float) -> dict[str, Any]:
    """The queue as an object for scripts. The first refresh has no rates, nor has the first after a restart of the server."""
    is_known = before is not None and all(queue[each] >= before[each] for each in _COUNTERS)
    rates = {
        f"{each.lower()}_per_s": (queue[each] - before[each]) / max(elapsed_s, 0.001)
        if before and is_known
        else None
        for each in _RATES
    }
    return {
        "name": queue["QueueName"],
        "paused": queue["Paused"],
        "visible": queue["Visible"],
        "in_flight": queue["InFlight"],
        "waiting_for_retry": queue["WaitingForRetry"],
        "delayed": queue["Delayed"],
        "oldest_sent_at_ms": queue.get("OldestSentAt"),
        **rates,
        "lapsed": queue["Lapsed"],
        "dead_lettered": queue["DeadLettered"],
    }


def _top_row(queue: Mapping[str, Any]) -> list[str]:
    oldest_ms = queue["oldest_sent_at_ms"]
    rates = (queue[f"{each.lower()}_per_s"] for each in _RATES)
    return [
        *name_and_counts(queue),
        "-" if oldest_ms is None else words.rough_length(time.time() - oldest_ms / 1000),
        *("-" if rate is None else f"{rate:,.1f}" for rate in rates),
        f"{queue['dead_lettered']:,}",
    ]


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
        [each["QueueName"] for each in client.descriptions() if each["InFlight"]]
        if queue is None
        else [queue]
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
        caller = Caller("", lease["key_id"] or "", lease["user_agent"] or "", lease["address"] or "")
        who = " · ".join(filter(None, (caller.key_id, caller.peer, caller.worker or caller.user_agent[:60])))
    return [
        lease["queue"],
        lease["message_id"],
        str(lease["receive_count"]),
        words.rough_length((lease["visible_at_ms"] - now_ms) / 1000),
        # The attempt of one that waits for its retry is over, and its holder is not told when that was.
        "-" if received_ms is None or lease["outcome"] else words.rough_length((now_ms - received_ms) / 1000),
        "-" if renewals is None else str(renewals),
        who,
    ]
