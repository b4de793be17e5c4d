"""SIGSTOP of a consumer for two windows: its message goes to somebody else, once, and it can do no harm on waking."""

from __future__ import annotations

import contextlib
import random
import signal
import time

from tests.faults.client import Refused
from tests.faults.consumer_kit import Queue, Worker, short_windows, world
from tests.faults.rig import Outcome
from tests.waiting import NotInTime, until

PAUSES = 50
_WINDOW_S = 1
# One handler waits to be told; the other looks at nothing and returns as if all were well, with a delete to follow.
_WORK = """
    note("receipt", message, lease.receipt)
    if message.body.startswith("looks"):
        note("told", message, lease.wait_lost(600))
    else:
        open(message.body).read()
"""


def run_pauses(pauses: int = PAUSES, seed: int = 1) -> Outcome:
    """Stop one consumer so many times, each time in the middle of a message."""
    outcome = Outcome("consumer-pauses", seed)
    began_s = time.monotonic()
    rng = random.Random(seed)
    with world(outcome) as at:
        queue = at.queue("paused", _WINDOW_S)
        # One at a time, or its own waiting receive would be handed what it has just lost.
        settings = f"{short_windows(_WINDOW_S)}, concurrency=1, prefetch=0"
        worker = at.worker("paused", settings=settings, work=_WORK, kind="def")
        worker.start()
        latest_s = 0.0
        for number in range(pauses):
            body = f"{'looks' if number % 2 else 'blind'}-{number}"
            latest_s = max(latest_s, _one_pause(outcome, worker, queue, body, rng))
        begun = worker.notes("begun")
        if [note.token for note in begun] != [1] * pauses:
            outcome.add("redelivered", f"the paused consumer began {[note[2:4] for note in begun]}")
        if worker.terminate() != 0 or queue.counts() != (0, 0):
            outcome.add("left", f"{queue.counts()}, {worker.talk()[-500:]}")
        outcome.done = (
            f"{pauses} pauses of two windows each in {time.monotonic() - began_s:.0f} s, "
            f"told within {latest_s * 1000:.0f} ms of waking"
        )
    return outcome


def _one_pause(outcome: Outcome, worker: Worker, queue: Queue, body: str, rng: random.Random) -> float:
    losses = len(worker.losses())
    is_blind = body.startswith("blind")
    if is_blind:
        worker.hold(body)
    queue.send([body])
    until(lambda: [n for n in worker.notes("begun") if n.body == body], f"{body} begun")
    until(lambda: [n for n in worker.notes("receipt") if n.body == body], f"{body} noted")
    time.sleep(rng.uniform(0, 1.5 * _WINDOW_S))
    worker.signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    received = until(lambda: queue.receive(wait_s=3 * _WINDOW_S), f"{body} received by the second holder")
    if (receives := received[0]["Attributes"]["ApproximateReceiveCount"]) != "2":
        outcome.add("redelivered", f"{body}: the second holder has receive {receives}")
    time.sleep(max(0.0, stopped_s + 2 * _WINDOW_S - time.monotonic()))
    worker.signal(signal.SIGCONT)
    woke_s = time.monotonic()
    if is_blind:
        worker.release(body)
    done = until(lambda: [n for n in worker.notes("done") if n.body == body], f"{body} done")
    for told in [note for note in worker.notes("told") if note.body == body and note.said != "True"]:
        outcome.add("not told", f"{told}")
    try:
        until(lambda: len(worker.losses()) > losses, "a log line", within_s=60)
    except NotInTime:
        outcome.add("not reported", f"{body}: nothing in the log says that its lease was lost")
    # The consumer sends no late delete, so one is sent for it.
    for stale in [note for note in worker.notes("receipt") if note.body == body]:
        with contextlib.suppress(Refused):
            queue.delete(stale.said)
    time.sleep(0.2)  # for whatever the consumer sends after all
    if queue.counts() != (0, 1):
        outcome.add("late delete", f"{body}: {queue.counts()} while the second holder has it")
    queue.delete(received[0]["ReceiptHandle"])
    return done[0].at_s - woke_s
