"""Compare a store with the reference over random histories of operations, restarts and instants.

    python -m tests.stores.model --store sqlite --seed 7 --steps 20000
    python -m tests.stores.model --store sqlite --replay history.json --shrink

A history is a list of steps in JSON. It is cut into episodes, each with stores of its own, so that what failed is short;
an episode that fails is written down and can be replayed and shortened.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.stores.kit import STORES
from tests.stores.model_history import Author
from tests.stores.model_steps import QUEUES, Divergence, LockStep, Step

EPISODE_STEPS = 1_000
AUDIT_EVERY = 25


class ModelReport(NamedTuple):
    """How much was compared."""

    steps: int
    episodes: int
    elapsed_s: float


class ModelFailure(AssertionError):
    """A history on which a store is not what it promises to be."""

    def __init__(self, cause: BaseException, history: list[Step], label: str) -> None:
        super().__init__(f"{label}: {type(cause).__name__} after {len(history)} steps: {cause}")
        self.cause, self.history, self.label = cause, history, label


def run_model(store_name: str, seed: int, steps: int, *, directory: Path | None = None) -> ModelReport:
    """Run that many random steps; a failure is written to a file in the directory and raised."""
    began, taken, episode = time.monotonic(), 0, 0
    while taken < steps:
        try:
            taken += asyncio.run(_invent(store_name, f"{seed}/{episode}", min(EPISODE_STEPS, steps - taken)))
        except ModelFailure as failure:
            path = (directory or Path(tempfile.mkdtemp())) / f"history-{store_name}-{seed}-{episode}.json"
            path.write_text(json.dumps(failure.history))
            failure.add_note(f"python -m tests.stores.model --store {store_name} --replay {path} --shrink")
            raise
        episode += 1
    return ModelReport(taken, episode, time.monotonic() - began)


async def _invent(store_name: str, seed: str, steps: int) -> int:
    history: list[Step] = []
    with _quick_directory() as directory:
        run = LockStep(store_name, Path(directory))
        await run.open()
        try:
            author = Author(seed, run)
            while len(history) < steps:
                history.append(author.next())
                author.learn(history[-1], await run.take(history[-1]))
                if len(history) % AUDIT_EVERY == 0:
                    await run.audit()
            await _drain(run, history)
        except Exception as cause:
            # Closing may fail as well then; what failed first is what matters.
            await asyncio.gather(run.close(), return_exceptions=True)
            raise ModelFailure(cause, history, f"store {store_name}, seed {seed}") from cause
        await run.close()
    return len(history)


async def _drain(run: LockStep, history: list[Step]) -> None:
    """Receive and delete until nothing is left, so that what is left over is known."""
    for name in QUEUES:
        await _and_note(run, history, {"op": "create_queue", "queue": name, "rest_ms": 0})
        await _and_note(run, history, {"op": "edit", "queue": name, "changes": {"redrive": None}})
    for _ in range(500):
        left = False
        for name in QUEUES:
            receive = {"op": "receive", "queue": name, "count": 50, "visibility": 30, "attempt": None}
            taken = await _and_note(run, history, receive)
            labels = [f"{name}/{message.body}/{message.delivery}" for message in taken]
            await _and_note(run, history, {"op": "delete", "queue": name, "receipts": labels})
            left = left or bool(taken)
        due_ms = run.reference.store.next_due_ms()
        if due_ms is not None and not left:
            await _and_note(run, history, {"op": "advance", "ms": max(0, due_ms - run.clock.now_ms())})
        await run.audit()
        if due_ms is None:
            return
    raise Divergence("the queues could not be drained")


async def _and_note(run: LockStep, history: list[Step], step: Step) -> Any:
    history.append(step)
    return await run.take(step)


def replay(store_name: str, history: Iterable[Step]) -> BaseException | None:
    """Take the steps of a history, looking at everything after each; what went wrong, or None."""
    return asyncio.run(_replay(store_name, history))


async def _replay(store_name: str, history: Iterable[Step]) -> BaseException | None:
    with _quick_directory() as directory:
        run = LockStep(store_name, Path(directory))
        await run.open()
        try:
            for step in history:
                await run.take(step)
                await run.audit()
        except Exception as cause:  # a store that stumbles has failed too
            await asyncio.gather(run.close(), return_exceptions=True)
            return cause
        await run.close()
    return None


def shrink(store_name: str, history: list[Step]) -> list[Step]:
    """Leave out steps, in ever smaller blocks, as long as the history still fails."""
    size = max(1, len(history) // 2)
    while True:
        start = 0
        while start < len(history):
            shorter = history[:start] + history[start + size :]
            if shorter and replay(store_name, shorter) is not None:
                history = shorter
            else:
                start += size
        if size == 1:
            return history
        size = max(1, size // 2)


def _quick_directory() -> tempfile.TemporaryDirectory[str]:
    # Histories test meaning, not disks: where there is a file system in memory, syncs cost nothing.
    shm = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="veil-model-", dir=shm if shm.is_dir() else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=list(STORES), default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--replay", type=Path)
    parser.add_argument(
        "--shrink", action="store_true", help="with --replay: find a short history that fails"
    )
    given = parser.parse_args()
    if given.replay is None:
        report = run_model(given.store, given.seed, given.steps)
        print(f"{report.steps} steps in {report.episodes} episodes agree, {report.elapsed_s:.1f} s")
        return
    history = json.loads(given.replay.read_text())
    if given.shrink:
        history = shrink(given.store, history)
        given.replay.with_suffix(".short.json").write_text(json.dumps(history, indent=1))
        print("\n".join(map(str, history)))
    failure = replay(given.store, history)
    raise SystemExit(f"{type(failure).__name__}: {failure}" if failure else 0)


if __name__ == "__main__":
    main()
