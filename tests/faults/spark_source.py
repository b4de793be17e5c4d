"""kill -9 of a Spark driver at random instants, again and again, while messages come in: none lost, none doubled.

Each life of a driver has queries by both ways into both sinks (files, and a merge by batch), so that each kill is one on
either way; now and then a task that fails and a batch that takes three windows. A kill takes the driver, the JVM and every
worker at once. To start takes longer than a window, so leases lapse between the lives.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from pathlib import Path

from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerProcess
from tests.pipeline.source_driver import (
    FILES,
    MERGE,
    NEVER,
    Driving,
    ids_in_files,
    kill_session,
    merged,
    queue_of,
    running_file,
    start,
)
from tests.pipeline.source_kit import WAYS, ServerAt, fill, left

KILLS = 100
WINDOW_S = 6
_BATCH = 100
_MORE = 200  # messages in each queue before each life
_START_S = 120.0
_LIFE_S = 15.0  # at the most, from when all queries have begun
_LAST_LIFE_S = 900.0
_KILLED_EARLY = 0.15  # of them, while Spark and its queries start
_EARLY_S = 30.0
_LOOK_EVERY_S = 0.02


def run_source_kills(kills: int = KILLS, seed: int = 1) -> Outcome:
    """Kill so many drivers, and let a last one finish what is left."""
    outcome = Outcome("spark-source", seed)
    rng = random.Random(seed)
    began_s = time.monotonic()
    with scratch(outcome) as place, ServerProcess(place / "data", place) as server:
        at = ServerAt(f"http://127.0.0.1:{server.port}")
        done = _run(outcome, at, kills, rng, place)
        outcome.done = f"{done} in {time.monotonic() - began_s:.0f} s"
    return outcome


def _run(outcome: Outcome, at: ServerAt, kills: int, rng: random.Random, folder: Path) -> str:
    sent = {(way, who): list[str]() for way in WAYS for who in (FILES, MERGE)}
    killed = lives = 0
    last = False
    while not last:
        last, lives = killed >= kills or lives >= 4 * kills, lives + 1
        for (way, who), ids in sent.items():
            ids += fill(at, queue_of(way, who), [f"{lives}"] * _MORE, visibility_s=WINDOW_S)
        running_file(folder).unlink(missing_ok=True)
        driving = Driving(
            endpoint=at.endpoint_url,
            region=at.region,
            folder=str(folder),
            window_s=WINDOW_S,
            batch=_BATCH,
            die=dict.fromkeys(WAYS, NEVER),
            fail_in=_next_batch(folder) + rng.randrange(3) if rng.random() < 0.3 else -1,
            slow_in=_next_batch(folder) + rng.randrange(3) if rng.random() < 0.2 else -1,
        )
        if last:
            # What a killed driver had received and not yet sealed is nobody's until its window ends.
            time.sleep(2 * WINDOW_S)
        driver = start(driving)
        try:
            if last:
                code = driver.wait(_LAST_LIFE_S)
            elif rng.random() < _KILLED_EARLY:
                code = driver.wait(rng.uniform(0, _EARLY_S))
            else:
                _await_start(driver, running_file(folder))
                code = driver.wait(rng.uniform(0, _LIFE_S))
            if code:
                outcome.add("failed", f"life {lives}: exit code {code}: {_talk(folder)}")
        except subprocess.TimeoutExpired:
            killed += 1
            if last:
                outcome.add("stuck", f"not at the end after {_LAST_LIFE_S:g} s: {_talk(folder)}")
        finally:
            kill_session(driver.pid)
            driver.wait()
    for (way, who), ids in sent.items():
        came = ids_in_files(folder, way) if who == FILES else Counter(each for each, _ in merged(folder, way))
        _compare(outcome, f"{way} {who}", Counter(ids), came)
        if left(at, queue_of(way, who)) != (0, 0):
            queue = queue_of(way, who)
            outcome.add("left", f"{queue}: {left(at, queue)} visible and in flight")
    messages = sum(len(ids) for ids in sent.values())
    return f"{killed} kills of both ways at once, {lives} lives and {messages:,} messages"


def _await_start(driver: subprocess.Popen[bytes], running: Path) -> None:
    until_s = time.monotonic() + _START_S
    while not running.exists() and driver.poll() is None and time.monotonic() < until_s:
        time.sleep(_LOOK_EVERY_S)


def _next_batch(folder: Path) -> int:
    """About the number of the batch that comes next."""
    offsets = folder / f"checkpoint-{FILES}-{WAYS[0]}" / "offsets"
    return max((int(each.name) for each in offsets.glob("[0-9]*")), default=-1) + 1


def _compare(outcome: Outcome, what: str, sent: Counter[str], came: Counter[str]) -> None:
    for message_id in sent - came:
        outcome.add("lost", f"{what}: {message_id}")
    for message_id in came - sent:
        outcome.add("doubled", f"{what}: {message_id} came {came[message_id]} times")


def _talk(folder: Path) -> str:
    talk = (folder / "talk").read_text(errors="replace")
    return talk[talk.rfind("Traceback") :][:1_500]
