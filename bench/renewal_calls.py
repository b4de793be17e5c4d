"""What keeping 1,000 messages in flight costs in renewal calls, policy by policy, on the simulated queue.

    python -m bench.renewal_calls [--messages N] [--minutes M]

Handlers of one length, each followed at once by the next, begun at random. "Calls" are requests with up to ten entries;
"alone" is what the same renewals cost one by one. "Hidden" is how long a message would stay hidden should its consumer die at a
random instant: what fewer calls are paid with.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from tests.consumer.simulated_queue import SimulatedQueue, run_virtual
from veil.consumer.renewal import Adaptive, Buffered, Heartbeat, RenewalPolicy
from veil.consumer.renewal.keeper import LeaseKeeper

VISIBILITY_S = 30
POLICIES: dict[str, Callable[[], RenewalPolicy]] = {
    "Buffered": lambda: Buffered(timedelta(hours=12)),
    "Heartbeat": Heartbeat,
    "Adaptive": Adaptive,
}
HANDLERS_S = (20, 60, 300, 3_600)
_WARM_UP_S = 600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Per message in flight and hour."""

    policy: str
    handler_s: float
    calls: float
    alone: float
    hidden_mean_s: float
    hidden_max_s: float
    lost: int


def measure(policy_name: str, handler_s: float, messages: int, run_s: float, seed: int = 1) -> Cost:
    """Keep that many in flight for so long, in virtual time."""

    async def whole() -> Cost:
        loop = asyncio.get_running_loop()
        random = Random(seed)
        queue: Any = SimulatedQueue(loop.time, keep_history=False)
        policy = POLICIES[policy_name]()
        keeper = LeaseKeeper(lambda: queue, policy, monotonic=loop.time, random=Random(seed))
        await keeper.start()
        held = [queue.lease(0, VISIBILITY_S)] * messages
        lost = 0

        async def slot(number: int) -> None:
            nonlocal lost
            await asyncio.sleep(random.uniform(0, min(handler_s, _WARM_UP_S)))
            at = number
            while True:
                lease = held[number] = queue.lease(at, VISIBILITY_S)
                keeper.hold(lease)
                await asyncio.sleep(handler_s * random.uniform(0.8, 1.2))
                lost += lease.lost
                lease.end()
                await keeper.let_go(lease)
                queue.handled(lease)
                at += messages

        slots = [asyncio.ensure_future(slot(number)) for number in range(messages)]
        await asyncio.sleep(_WARM_UP_S)
        calls, entries = queue.call_count, queue.entry_count
        hidden: list[float] = []
        while loop.time() < _WARM_UP_S + run_s:
            await asyncio.sleep(7.3)
            hidden += [max(queue.expiry_s(lease) - loop.time(), 0.0) for lease in held]
        message_hours = messages * (loop.time() - _WARM_UP_S) / 3_600
        for each in slots:
            each.cancel()
        await keeper.close()
        return Cost(
            policy=policy_name,
            handler_s=handler_s,
            calls=(queue.call_count - calls) / message_hours,
            alone=(queue.entry_count - entries) / message_hours,
            hidden_mean_s=sum(hidden) / len(hidden),
            hidden_max_s=max(hidden),
            lost=lost,
        )

    return run_virtual(whole())


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 when a lease was lost."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.renewal_calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=1_000, help="in flight at any time (1000)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of virtual time (30)")
    given = parser.parse_args(arguments)
    print(
        f"{given.messages} messages in flight, windows of {VISIBILITY_S} s at the receive, per message and hour\n"
    )
    print(
        f"{'handler s':>9}  {'policy':<9}  {'calls':>7}  {'alone':>7}  {'hidden mean s':>13}  {'max s':>6}  {'lost':>4}"
    )
    lost = 0
    for handler_s in HANDLERS_S:
        for name in POLICIES:
            cost = measure(name, handler_s, given.messages, given.minutes * 60)
            lost += cost.lost
            print(
                f"{cost.handler_s:>9g}  {cost.policy:<9}  {cost.calls:>7.2f}  {cost.alone:>7.1f}  "
                f"{cost.hidden_mean_s:>13.1f}  {cost.hidden_max_s:>6.0f}  {cost.lost:>4}"
            )
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
