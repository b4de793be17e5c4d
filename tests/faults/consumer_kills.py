"""kill -9 of a consumer: what it held comes back within a second of the deadline that it had, and not before."""

from __future__ import annotations

import random
import time

from tests.faults.consumer_kit import Queue, Worker, short_windows, world
from tests.faults.rig import Outcome
from tests.waiting import NotInTime, until

KILLS = 50
_WINDOW_S = 1
_HELD = 5
_LATE_S_MAX = 1.0
_EARLY_S_MAX = 0.02  # the server counts whole milliseconds on a clock of its own
_WORK = """
    while True:
        note("until", message, lease.deadline_s)
        await asyncio.sleep(0.01)
"""


def run_kills(
    kills: int = KILLS,
    seed: int = 1,
    *,
    window_s: int = _WINDOW_S,
    interval_s: float | None = None,
    late_s_max: float = _LATE_S_MAX,
) -> Outcome:
    """Kill a consumer so many times, each time with a few messages in its hands.

    On a machine that is busy with other things windows must be longer and renewed often, and nobody looks within a second.
    """
    outcome = Outcome("consumer-kills", seed)
    began_s = time.monotonic()
    rng = random.Random(seed)
    late_s: list[float] = []
    renewal = short_windows(window_s)
    if interval_s is not None:
        often = f"timeout={window_s}, threshold={window_s - interval_s}, interval={interval_s}"
        renewal = f"renewal=Heartbeat({often})"
    with world(outcome) as at:
        for number in range(kills):
            queue = at.queue(f"killed-{number}", window_s)
            worker = at.worker(queue.name, settings=renewal, work=_WORK)
            queue.send([f"m{n}" for n in range(_HELD)])
            worker.start()
            late_s += _one_kill(outcome, worker, queue, rng.uniform(0, 2.5), window_s + 5, late_s_max)
        outcome.done = (
            f"{kills} kills in {time.monotonic() - began_s:.0f} s, {len(late_s)} messages redelivered, "
            f"{min(late_s) * 1000:.0f} to {max(late_s) * 1000:.0f} ms after their deadlines"
        )
    return outcome


def _one_kill(
    outcome: Outcome, worker: Worker, queue: Queue, after_s: float, within_s: float, late_s_max: float
) -> list[float]:
    until(lambda: len(worker.notes("begun")) == _HELD, "all begun")
    time.sleep(after_s)
    if queue.receive():
        outcome.add("redelivered", f"{queue.name}: while its holder was alive")
    worker.kill()
    # What the holder knew when it died. A renewal that was under way may have moved a deadline once more, by half a window.
    deadlines_s = {note.body: float(note.said) for note in worker.notes("until")}
    late_s: dict[str, float] = {}
    give_up_s = time.monotonic() + within_s + late_s_max
    while len(late_s) < _HELD:
        received = queue.receive(wait_s=1)
        now_s = time.monotonic()
        for each in received:
            late_s[each["Body"]] = now_s - deadlines_s[each["Body"]]
            if each["Attributes"]["ApproximateReceiveCount"] != "2":
                outcome.add("redelivered", f"{queue.name} {each['Body']}: {each['Attributes']}")
        if now_s > give_up_s:
            raise NotInTime(f"{queue.name}: {len(late_s)} of {_HELD} came back")
    for body, by_s in late_s.items():
        if not -_EARLY_S_MAX <= by_s <= late_s_max:
            outcome.add("deadline", f"{queue.name} {body}: received {by_s:.3f} s after its deadline")
    return list(late_s.values())
