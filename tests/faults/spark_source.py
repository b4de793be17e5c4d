"""kill -9 of a Spark driver at random instants, again and again, while messages come in: none lost, none doubled.

By both ways in turn, each life of a driver with both sinks (files, and a merge by batch), now and then a task that fails and a
batch that takes three windows. A kill takes the driver, the JVM and every worker at once. Downtimes are shorter and longer
than a window.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from pathlib import Path

from tests.faults.rig import Outcome, scratch
from tests.faults.server_process import ServerProcess
from tests.pipeline.source_driver import Driving, kill_session, merged, start
from tests.pipeline.source_kit import ServerAt, fill, left

KILLS = 100
WINDOW_S = 6
_BATCH = 200
_MORE = 400  # messages in each queue before each life
_LIFE_S = (5.0, 20.0)  # a driver needs some seconds to begin
_LAST_LIFE_S = 600.0


def run_source_kills(kills: int = KILLS, seed: int = 1) -> Outcome:
    """Kill so many drivers, half of them by each way, and let a last one finish what is left."""
    outcome = Outcome("spark-source", seed)
    rng = random.Random(seed)
    began_s = time.monotonic()
    done = []
    with scratch(outcome) as place, ServerProcess(place / "data", place) as server:
        at = ServerAt(f"http://127.0.0.1:{server.port}")
        for way, share in (("sqs", kills - kills // 2), ("veil", kills // 2)):
            if share:
                done.append(_one_way(outcome, at, way, share, rng, place / way))
        outcome.done = f"{', '.join(done)} in {time.monotonic() - began_s:.0f} s"
    return outcome


def _one_way(outcome: Outcome, at: ServerAt, way: str, kills: int, rng: random.Random, folder: Path) -> str:
    folder.mkdir()
    files, merge = list[str](), list[str]()
    killed = lives = 0
    last = False
    while not last:
        last, lives = killed >= kills or lives >= 4 * kills, lives + 1
        files += fill(at, f"files-{way}", [f"{lives}"] * _MORE, visibility_s=WINDOW_S)
        merge += fill(at, f"merge-{way}", [f"{lives}"] * _MORE, visibility_s=WINDOW_S)
        driving = Driving(
            endpoint=at.endpoint_url,
            region=at.region,
            way=way,
            files_queue=f"files-{way}",
            merge_queue=f"merge-{way}",
            folder=str(folder),
            window_s=WINDOW_S,
            batch=_BATCH,
            fail_in=_next_batch(folder) + rng.randrange(3) if rng.random() < 0.3 else -1,
            slow_in=_next_batch(folder) + rng.randrange(3) if rng.random() < 0.2 else -1,
        )
        if last:
            # What a killed driver had received and not yet sealed is nobody's until its window ends.
            time.sleep(2 * WINDOW_S)
        driver = start(driving)
        try:
            code = driver.wait(_LAST_LIFE_S if last else rng.uniform(*_LIFE_S))
            if code:
                outcome.add("failed", f"{way}, life {lives}: exit code {code}: {_talk(folder)}")
        except subprocess.TimeoutExpired:
            killed += 1
            if last:
                outcome.add("stuck", f"{way}: not at the end after {_LAST_LIFE_S:g} s: {_talk(folder)}")
        finally:
            kill_session(driver.pid)
            driver.wait()
        if not last and rng.random() < 0.3:
            time.sleep(rng.uniform(0, 2 * WINDOW_S))
    _compare(outcome, f"{way} files", Counter(files), _ids_in_files(folder))
    _compare(outcome, f"{way} merge", Counter(merge), Counter(each for each, _ in merged(folder)))
    for queue in (f"files-{way}", f"merge-{way}"):
        if left(at, queue) != (0, 0):
            outcome.add("left", f"{queue}: {left(at, queue)} visible and in flight")
    return f"{killed} kills and {len(files) + len(merge):,} messages by {way}"


def _next_batch(folder: Path) -> int:
    """About the number of the batch that comes next."""
    offsets = folder / "files" / "offsets"
    return max((int(each.name) for each in offsets.glob("[0-9]*")), default=-1) + 1


def _ids_in_files(folder: Path) -> Counter[str]:
    """What a reader sees that honours the sink's own log."""
    import pyarrow.parquet as pq

    log = folder / "out" / "_spark_metadata"
    names = set[str]()
    for file in log.iterdir():
        if file.name.startswith("."):
            continue
        for line in file.read_text().splitlines()[1:]:
            names.add(json.loads(line)["path"].rsplit("/", 1)[-1])
    found: Counter[str] = Counter()
    for name in names:
        found.update(pq.read_table(folder / "out" / name, columns=["message_id"]).column(0).to_pylist())
    return found


def _compare(outcome: Outcome, what: str, sent: Counter[str], came: Counter[str]) -> None:
    for message_id in sent - came:
        outcome.add("lost", f"{what}: {message_id}")
    for message_id in came - sent:
        outcome.add("doubled", f"{what}: {message_id} came {came[message_id]} times")


def _talk(folder: Path) -> str:
    return (folder / "talk").read_text(errors="replace")[-1500:]
