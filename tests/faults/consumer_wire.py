"""One renewal in three gets through, the others are throttled, refused, delayed or cut: no lease is lost."""

from __future__ import annotations

import time

from tests.faults.consumer_kit import OFTEN, check_handled_once, short_windows, world
from tests.faults.consumer_proxy import SpoilingProxy
from tests.faults.rig import Outcome
from tests.waiting import until

HANDLERS, WINDOWS, WINDOW_S = 60, 4, 30


def run_wire(
    handlers: int = HANDLERS, seed: int = 1, *, windows: int = WINDOWS, renewals: int | None = None
) -> Outcome:
    """So many handlers of several windows each, behind a proxy that spoils two renewals in three; on a machine that may be late
    each ends when so many of its renewals have got through.

    Half of a window is there for further tries. A window of 30 s has room for forty and more; in one of 2 s even a
    perfect keeper would now and then see every try fail.
    """
    outcome = Outcome("consumer-wire", seed)
    began_s = time.monotonic()
    seconds = windows * WINDOW_S + 0.5
    settings, work = short_windows(WINDOW_S), f"    await asyncio.sleep({seconds})"
    if renewals is not None:
        settings, work = OFTEN, f"    while lease.extensions < {renewals}: await asyncio.sleep(0.01)"
    with world(outcome) as at, SpoilingProxy(at.server.port, seed) as proxy:
        queue = at.queue("spoiled", WINDOW_S)
        worker = at.worker(
            "spoiled", port=proxy.port, settings=f"{settings}, concurrency={handlers}", work=work
        )
        bodies = [f"m{number}" for number in range(handlers)]
        queue.send(bodies)
        worker.start()
        until(lambda: len(worker.notes("done")) >= handlers, "all handled", within_s=200 + seconds)
        check_handled_once(outcome, worker, queue, bodies)
        tries = proxy.tries
        if not handlers // 10 * (renewals or windows) <= tries.total() or len(tries) < 2:
            outcome.add("rig", f"the proxy saw too few renewals to speak of: {dict(tries)}")
        fates = ", ".join(f"{count} {fate}" for fate, count in sorted(tries.items()))
        outcome.done = (
            f"{handlers} handlers of {f'{renewals} renewals' if renewals else f'{windows} windows'} "
            f"in {time.monotonic() - began_s:.0f} s; "
            f"of {tries.total()} renewals {fates}"
        )
    return outcome
