"""kill -9 of an autopilot at every step of a change: it is made once, and stands in the audit log once.

Each cycle begins with a queue whose timeout is too short. An autopilot is killed at a step, or at any instant, mostly once more
while its successor recovers; then two live on to the end.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Final

from tests.faults.rig import Outcome, scratch
from tests.pipeline.autopilot_kit import World, a_world, slow
from veil.cli.autopilot import ClientQueues
from veil.core.autopilot import FILE, HELD_TAG
from veil.words import exact_length

KILLS: Final = 100
STEPS: Final = ("intended", "asked", "set", "ended", "kept", "recovered")
_BEFORE_S: Final = 30
_AT_ONCE_S: Final = 1.5
_forks = multiprocessing.get_context("forkserver")


class Counted(ClientQueues):
    """Notes each change of a timeout before and after the call."""

    calls: Path

    def set_timeout(self, queue: str, timeout_s: int) -> None:
        with self.calls.open("a") as file:
            file.write(f"begun {timeout_s}\n")
        super().set_timeout(queue, timeout_s)
        with self.calls.open("a") as file:
            file.write(f"made {timeout_s}\n")


def _look(place: Path, endpoint_url: str, now_ms: int, audit: Path, step: str | None) -> None:
    """An autopilot in a process of its own, which kills itself at a step."""
    world = World(place, endpoint_url, now_ms)
    world.audit_file = audit
    queues = Counted(world.client)
    queues.calls = audit.with_suffix(".calls")

    def on_step(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    world.look(world.pilot(queues=queues, on_step=on_step))


def run_kills(cycles: int = KILLS, seed: int = 1) -> Outcome:
    """Kill so many autopilots."""
    outcome, rng = Outcome("autopilot-kills", seed), random.Random(seed)
    kills = rounds = 0
    with scratch(outcome) as place, a_world(place) as world:
        world.create(_BEFORE_S)
        world.pass_time(2, slow)
        world.pilot().look_at_all()  # the tables, once for all cycles
        while kills < cycles and outcome.ok:
            rounds += 1
            kills += _cycle(world, place, place / f"audit-{rounds}.jsonl", rng, outcome)
        outcome.done = f"{kills} kills in {rounds} rounds"
    return outcome


def _cycle(world: World, place: Path, audit: Path, rng: random.Random, outcome: Outcome) -> int:
    world.tables.remove(FILE)
    world.queues.set_timeout("orders", _BEFORE_S)
    world.client.on_queue("UntagQueue", "orders", {"TagKeys": [HELD_TAG]})
    world.audit_file = audit
    kills, told = 0, []
    for _ in range(rng.randint(1, 3)):
        step = rng.choice((*STEPS, None))
        told.append(step or "some instant")
        child = _forks.Process(
            target=_look, args=(place, world.client.target.endpoint, world.now_ms, audit, step)
        )
        child.start()
        if step is None:
            time.sleep(rng.random() * _AT_ONCE_S)
            child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
    for _ in range(2):
        child = _forks.Process(
            target=_look, args=(place, world.client.target.endpoint, world.now_ms, audit, None)
        )
        child.start()
        child.join()
        if child.exitcode:
            outcome.add("died", f"after {told}: exit {child.exitcode}")
    _check(world, audit, told, outcome)
    return kills


def _check(world: World, audit: Path, told: list[str], outcome: Outcome) -> None:
    calls = audit.with_suffix(".calls").read_text().split("\n")
    made = [each for each in calls if each.startswith("made")]
    begun = [each for each in calls if each.startswith("begun")]
    # One that was cut off in the middle of its call may have to be made again.
    if len(made) > 1 or (len(begun) > 1 and "some instant" not in told):
        outcome.add("doubled", f"after {told}: {calls}")
    changes = world.actions("change")
    done = [each for each in changes if each["outcome"] == "done"]
    if len(done) != 1 or any(each["outcome"] == "asked" for each in changes):
        outcome.add("audit", f"after {told}: {changes}")
    elif done[0]["differences"][0][2] != exact_length(world.timeout_s):
        outcome.add("audit", f"after {told}: {done[0]['differences']}, and the timeout is {world.timeout_s}")
    state = world.pilot().state.queues["orders"]
    if state.intent is not None or state.silenced_ms is not None or state.watch is None:
        outcome.add("state", f"after {told}: {state}")
