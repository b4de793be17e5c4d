"""Handlers in C that keep the interpreter: a helper process keeps their leases meanwhile, a thread can only tell of the loss."""

from __future__ import annotations

import time

from tests.faults.consumer_kit import OFTEN, Queue, Worker, check_handled_once, short_windows, world
from tests.faults.rig import Outcome
from tests.waiting import NotInTime, until

HOLDS = 20
_WINDOW_S = 1
_RENEWALS = 3
# PyDLL calls without letting go of the interpreter: no other thread of the process runs until the rig says so.
_HOLD = """
    waits = os.open(message.body, os.O_RDONLY | os.O_NONBLOCK)
    ctypes.PyDLL(None).poll(ctypes.create_string_buffer(struct.pack("ihh", waits, select.POLLIN, 0)), 1, -1)
    os.close(waits)
    note("woke", message, lease.lost)
"""


def run_gil(holds: int = HOLDS, seed: int = 1) -> Outcome:
    """So many holds, each by a consumer with a helper process and, at the same time, by one without."""
    outcome = Outcome("consumer-gil", seed)
    began_s = time.monotonic()
    with world(outcome) as at:
        helped, alone = at.queue("helped", 60), at.queue("alone", _WINDOW_S)
        # One at a time, or the consumer's own waiting receive would be handed what it has just lost.
        settings = "concurrency=1, prefetch=0"
        with_helper = at.worker(
            "helped", settings=f"{OFTEN}, {settings}, helper_process=True", work=_HOLD, kind="def"
        )
        without = at.worker(
            "alone", settings=f"{short_windows(_WINDOW_S)}, {settings}", work=_HOLD, kind="def"
        )
        with_helper.start()
        without.start()
        bodies = [f"m{number}" for number in range(holds)]
        for body in bodies:
            for worker, queue in ((with_helper, helped), (without, alone)):
                worker.hold(body)
                queue.send([body])
            _lose_one(outcome, without, alone, body)
            _keep_one(with_helper, helped, body)
        for note in [note for note in with_helper.notes("woke") if note.said != "False"]:
            outcome.add("redelivered", f"{note.body} was lost in spite of the helper process")
        check_handled_once(outcome, with_helper, helped, bodies)
        if without.terminate() != 0 or alone.counts() != (0, 0):
            outcome.add("left", f"alone: {alone.counts()}, {without.talk()[-500:]}")
        outcome.done = f"{holds} holds, with and without a helper, in {time.monotonic() - began_s:.0f} s"
    return outcome


def _keep_one(worker: Worker, queue: Queue, body: str) -> None:
    until(lambda: body in {note.body for note in worker.notes("begun")}, f"{body} begun")
    before = queue.renewals()
    until(lambda: queue.renewals() >= before + _RENEWALS, f"{body} renewed by the helper process")
    worker.release(body)
    until(lambda: body in {note.body for note in worker.notes("done")}, f"{body} done")


def _lose_one(outcome: Outcome, worker: Worker, queue: Queue, body: str) -> None:
    until(lambda: body in {note.body for note in worker.notes("begun")}, f"{body} begun")
    losses = len(worker.losses())
    received = until(lambda: queue.receive(wait_s=3 * _WINDOW_S), f"{body} received by the second holder")
    # A holder that got no answer allows for the service's grace before it says that it has lost.
    time.sleep(_WINDOW_S)
    worker.release(body)
    woke = until(lambda: [n for n in worker.notes("woke") if n.body == body], f"{body} woke")
    until(lambda: [n for n in worker.notes("done") if n.body == body], f"{body} done")
    if [note.said for note in woke] != ["True"]:
        outcome.add("not told", f"{body}: lease.lost was {woke[0].said} after two windows")
    try:
        until(lambda: len(worker.losses()) > losses, "a log line", within_s=60)
    except NotInTime:
        outcome.add("not reported", f"{body}: nothing in the log says that its lease was lost")
    # The handler has returned as if all were well; its delete, if there was one, had a second to arrive.
    time.sleep(0.2)
    if queue.counts() != (0, 1):
        outcome.add("late delete", f"{body}: {queue.counts()} while the second holder has it")
    queue.delete(received[0]["ReceiptHandle"])
