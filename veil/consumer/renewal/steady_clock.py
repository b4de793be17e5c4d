"""The clock that leases are counted on."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def steady_s() -> float:
    """Seconds that neither a step of the wall clock nor a suspended machine bends; the same in every process of a host.

    `time.monotonic` stands still on Linux while the machine is suspended, and the queue's clock does not: counted on it, a
    lease would look alive after a night in a closed laptop. Use one clock for receiving, leases and keeper.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
