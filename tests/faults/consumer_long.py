"""Handlers that outlast their windows many times over, waiting or computing: nobody else ever gets their messages."""

from __future__ import annotations

import time

from tests.faults.consumer_kit import OFTEN, Worker, check_handled_once, short_windows, world
from tests.faults.rig import Outcome
from tests.waiting import until

HANDLERS, WINDOWS = 100, 10
_WINDOW_S = 1
_COMPUTING = 4
_COMPUTE = """
    end_s = time.monotonic() + {seconds}
    while time.monotonic() < end_s:
        sum(range(1_000))
"""
_RENEWALS = 3


def run_long(
    handlers: int = HANDLERS,
    seed: int = 1,
    *,
    windows: int = WINDOWS,
    window_s: int = _WINDOW_S,
    renews: bool = True,
) -> Outcome:
    """So many handlers that wait, all at once, and beside them a consumer whose handlers compute.

    Without renewal the rig must find something, or it would find nothing with a broken one either. On a machine that is busy
    with other things windows must be longer: the computing threads and the consumer's own share one interpreter, and an
    answer that waits for it half a window is too late.
    """
    outcome = Outcome("consumer-long", seed)
    began_s = time.monotonic()
    seconds = windows * window_s + 0.2  # ten windows and a little: the tenth must have been renewed too
    with world(outcome) as at:
        waiting, computing = at.queue("waiting", window_s), at.queue("computing", window_s)
        short = short_windows(window_s) if renews else f"visibility={window_s}, renewal=NoRenewal()"
        patient = at.worker(
            "waiting", settings=f"{short}, concurrency={handlers}", work=f"    await asyncio.sleep({seconds})"
        )
        busy = at.worker(
            "computing",
            settings=f"{short}, concurrency={_COMPUTING}",
            work=_COMPUTE.format(seconds=seconds),
            kind="def",
        )
        tasks = [(patient, waiting, [f"m{n}" for n in range(handlers)])]
        tasks += [(busy, computing, [f"m{n}" for n in range(_COMPUTING)])]
        for worker, queue, bodies in tasks:
            queue.send(bodies)
            worker.start()
        for worker, queue, bodies in tasks:
            until(
                lambda worker=worker, bodies=bodies: _is_over(worker, len(bodies)),  # type: ignore[misc]
                f"{queue.name}: all handled",
                within_s=60 + seconds,
            )
            check_handled_once(outcome, worker, queue, bodies)
        together = _most_at_once([note.at_s for note in patient.notes("begun")], seconds)
        if together != handlers:
            outcome.add("rig", f"only {together} of {handlers} handlers ran side by side")
        outcome.done = (
            f"{handlers} waiting and {_COMPUTING} computing handlers of {windows} windows each "
            f"in {time.monotonic() - began_s:.0f} s"
        )
    return outcome


def run_renewed(handlers: int, seed: int = 1) -> Outcome:
    """The same handlers on a machine that may be late: each ends when its lease has been renewed a few times."""
    outcome = Outcome("consumer-renewed", seed)
    began_s = time.monotonic()
    with world(outcome) as at:
        tasks = []
        for name, count, kind, pause in (
            ("waiting", handlers, "async def", "await asyncio.sleep(0.01)"),
            ("computing", _COMPUTING, "def", "sum(range(1_000))"),
        ):
            queue = at.queue(name, 60)
            work = f"    while lease.extensions < {_RENEWALS}: {pause}"
            worker = at.worker(name, settings=f"{OFTEN}, concurrency={count}", work=work, kind=kind)
            bodies = [f"m{n}" for n in range(count)]
            queue.send(bodies)
            worker.start()
            tasks.append((worker, queue, bodies))
        for worker, queue, bodies in tasks:
            until(
                lambda worker=worker, bodies=bodies: _is_over(worker, len(bodies)),  # type: ignore[misc]
                f"{queue.name}: all handled",
                within_s=240,
            )
            check_handled_once(outcome, worker, queue, bodies)
        outcome.done = (
            f"{handlers} waiting and {_COMPUTING} computing handlers in {time.monotonic() - began_s:.0f} s"
        )
    return outcome


def _is_over(worker: Worker, count: int) -> bool:
    # What was redelivered may never be done; there is no point in waiting for it.
    return len(worker.notes("done")) >= count or any(note.token > 1 for note in worker.notes("begun"))


def _most_at_once(begun_s: list[float], seconds: float) -> int:
    return max((sum(at_s <= other_s < at_s + seconds for at_s in begun_s) for other_s in begun_s), default=0)
