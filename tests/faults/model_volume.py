"""The store against its model at volume: a million random steps, every answer compared."""

from __future__ import annotations

import time
import traceback

from tests.faults.rig import Outcome
from tests.stores.model import run_model

STEPS = 1_000_000
STEPS_ON_POSTGRES = 200_000
_STEPS_PER_SEED = 20_000  # a fresh store for each seed: a failure then replays quickly


def run_model_volume(cycles: int = STEPS, seed: int = 1, *, store: str = "sqlite") -> Outcome:
    """So many steps in all, in runs of twenty thousand under seeds that follow one another."""
    outcome = Outcome("model", seed)
    began_s = time.monotonic()
    done = 0
    while done < cycles and outcome.ok:
        steps = min(_STEPS_PER_SEED, cycles - done)
        try:
            run_model(store, seed, steps)
        except Exception:
            outcome.add(
                "divergence", f"store={store} seed={seed} steps={steps}: {traceback.format_exc(limit=-3)}"
            )
        done += steps
        seed += 1
    outcome.done = f"{done} steps on {store} in {time.monotonic() - began_s:.0f} s"
    return outcome
