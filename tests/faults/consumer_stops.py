"""SIGTERM of consumers under load: nothing stays hidden, nothing is lost, nothing is handled twice."""

from __future__ import annotations

import random
import time
from collections import Counter

from tests.faults.consumer_kit import Queue, Worker, world
from tests.faults.rig import Outcome
from tests.waiting import NotInTime, until

STOPS = 200
_WINDOW_S = 600  # what is left hidden stays hidden for longer than any run
_HIDDEN_S_MAX = 60.0  # what is not given back stays hidden for the whole window
_AHEAD = 300  # more than a consumer gets done before it is stopped
_FLAVOURS = {
    "async": ("async def", "    await asyncio.sleep(int(message.body[1:]) % 40 / 1000)", ""),
    "sync": ("def", "    time.sleep(int(message.body[1:]) % 40 / 1000)", ""),
    "helper": (
        "async def",
        "    await asyncio.sleep(int(message.body[1:]) % 40 / 1000)",
        ", helper_process=True",
    ),
}


def run_stops(stops: int = STOPS, seed: int = 1) -> Outcome:
    """Start and stop consumers so many times, of every flavour in turn, always with more to do than they can."""
    outcome = Outcome("consumer-stops", seed)
    began_s = time.monotonic()
    rng = random.Random(seed)
    with world(outcome) as at:
        queue = at.queue("stopped", _WINDOW_S)
        workers = [
            at.worker("stopped", settings=f"concurrency=20, prefetch=20{more}", work=work, kind=kind)
            for kind, work, more in _FLAVOURS.values()
        ]
        sent: list[str] = []
        hidden_s, left_s = 0.0, 0.0
        for number in range(stops):
            bodies = [f"m{len(sent) + n}" for n in range(_AHEAD - queue.counts()[0])]
            queue.send(bodies)
            sent += bodies
            leaving_s, hiding_s = _one_stop(outcome, workers[number % len(workers)], queue, rng)
            left_s, hidden_s = max(left_s, leaving_s), max(hidden_s, hiding_s)
        workers[0].start()
        until(lambda: queue.counts() == (0, 0), "the rest is handled")
        workers[0].terminate()
        _check_handled(outcome, workers, sent)
        outcome.done = (
            f"{stops} stops in {time.monotonic() - began_s:.0f} s, {len(sent)} messages, stopped within "
            f"{left_s:.2f} s, nothing hidden {hidden_s * 1000:.0f} ms later"
        )
    return outcome


def _one_stop(outcome: Outcome, worker: Worker, queue: Queue, rng: random.Random) -> tuple[float, float]:
    enough = len(worker.notes("begun")) + 1 + rng.randrange(40)
    worker.start()
    until(lambda: len(worker.notes("begun")) >= enough, "some begun")
    time.sleep(rng.random() * 0.1)
    asked_s = time.monotonic()
    code = worker.terminate()
    left_s = time.monotonic()
    if code != 0:
        outcome.add("exit", f"exit code {code}: {worker.talk()[-500:]}")
    try:
        until(lambda: queue.counts()[1] == 0, "nothing hidden", within_s=_HIDDEN_S_MAX)
    except NotInTime:
        outcome.add("hidden", f"{queue.counts()[1]} messages {_HIDDEN_S_MAX:g} s after the stop")
    clear_s = time.monotonic()
    if queue.counts()[0] == 0:
        outcome.add("rig", "the consumer had nothing left to do when it was stopped")
    return left_s - asked_s, clear_s - left_s


def _check_handled(outcome: Outcome, workers: list[Worker], sent: list[str]) -> None:
    for event in ("begun", "done"):
        handled = Counter(note.body for worker in workers for note in worker.notes(event))
        for body, times in handled.items():
            if times > 1:
                outcome.add("twice", f"{body} {event} {times} times")
        for body in sent:
            if body not in handled:
                outcome.add("lost", f"{body} was never {event}")
    for worker in workers:
        for line in [line for line in worker.talk().splitlines() if "Traceback" in line] + worker.losses():
            outcome.add("talk", line)
