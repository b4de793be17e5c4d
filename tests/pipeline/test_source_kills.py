"""kill -9 of the driver, the JVM and every worker, at the worst points: nothing is lost and nothing comes twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.source_driver import (
    AFTER,
    BEFORE,
    FILES,
    LONG,
    NEVER,
    Driving,
    has_failed_once,
    ids_in_files,
    kill_session,
    queue_of,
    start,
)
from tests.pipeline.source_kit import WAYS, fill, left
from veil.testing.process import VeilServer

WINDOW_S = 4
BATCH = 40
LIFE_S = 400  # a minute where the machine has nothing else to do
# Each life goes on from the one before, by both ways at once; starting takes longer than a window, so leases lapse in
# between. Tasks fail before a kill, and in a batch that an earlier life had begun. `python -m tests.faults spark-source`
# has a merge beside the files, and a hundred lives.
ONE_KILL = (
    {"die": {"sqs": BEFORE, "veil": AFTER}, "die_in": 1, "fail_in": 0},
    {"die": {"sqs": NEVER, "veil": NEVER}, "slow_in": 2, "fail_in": 2},
)
THREE_KILLS = (
    {"die": {"sqs": BEFORE, "veil": AFTER}, "die_in": 1},
    {"die": {"sqs": AFTER, "veil": BEFORE}, "die_in": 2, "fail_in": 1},
    {"die": {"sqs": LONG, "veil": LONG}, "die_in": 3, "fail_in": 3},
    {"die": {"sqs": NEVER, "veil": NEVER}, "slow_in": 4, "fail_in": 4},
)


@pytest.mark.timeout(len(THREE_KILLS) * LIFE_S)
@pytest.mark.parametrize(
    "lives", [ONE_KILL, pytest.param(THREE_KILLS, marks=pytest.mark.soak)], ids=["once", "three times"]
)
def test_a_driver_that_is_killed_loses_nothing_and_doubles_nothing(
    tmp_path: Path, lives: Sequence[dict[str, Any]]
):
    bodies = [f"m{n}" for n in range(BATCH * (lives[-1]["slow_in"] + 1))]
    with VeilServer() as server:
        sent = {way: fill(server, queue_of(way, FILES), bodies, visibility_s=WINDOW_S) for way in WAYS}
        for number, life in enumerate(lives):
            driving = Driving(
                endpoint=server.endpoint_url,
                region=server.region,
                folder=str(tmp_path),
                window_s=WINDOW_S,
                batch=BATCH,
                sinks=(FILES,),
                **life,
            )
            driver = start(driving)
            try:
                code = driver.wait(LIFE_S)
            finally:
                kill_session(driver.pid)
                driver.wait()
            talk = (tmp_path / "talk").read_text(errors="replace")
            # The cause stands where the talk of this life begins, below pages of Java.
            last = talk[talk.rfind("Traceback") :][:4_000]
            assert code == (0 if number == len(lives) - 1 else -9), f"life {number} ended with {code}: {last}"
        for way in WAYS:
            assert ids_in_files(tmp_path, way) == Counter(sent[way])
            assert left(server, queue_of(way, FILES)) == (0, 0)
            assert has_failed_once(tmp_path, way, lives[-1]["fail_in"])
