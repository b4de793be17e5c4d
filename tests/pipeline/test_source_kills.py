"""kill -9 of the driver, the JVM and every worker, at the worst points: nothing is lost and nothing comes twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.source_driver import AFTER, BEFORE, LONG, NEVER, Driving, kill_session, merged, start
from tests.pipeline.source_kit import WAYS, Place, fill, ids_in, left
from veil.testing.process import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_S = 4
MESSAGES, BATCH = 240, 40
LIFE_S = 150
# Each life goes on from the one before; starting takes longer than a window, so leases lapse in between.
LIVES = (
    {"die": BEFORE, "die_in": 1},
    {"die": AFTER, "die_in": 2, "fail_in": 1},
    {"die": LONG, "die_in": 3, "fail_in": 3},
    {"die": NEVER, "slow_in": 4},
)


@pytest.fixture(scope="module")
def server() -> Iterator[VeilServer]:
    with VeilServer() as running:
        yield running


@pytest.mark.timeout(4 * LIFE_S)
@pytest.mark.parametrize("way", WAYS)
def test_a_driver_that_is_killed_three_times_loses_nothing_and_doubles_nothing(
    spark: SparkSession, server: VeilServer, tmp_path: Path, way: str
):
    files = fill(server, f"files-{way}", [f"f{n}" for n in range(MESSAGES)], visibility_s=WINDOW_S)
    merge = fill(server, f"merge-{way}", [f"m{n}" for n in range(MESSAGES)], visibility_s=WINDOW_S)
    for number, life in enumerate(LIVES):
        driver = start(
            Driving(
                endpoint=server.endpoint_url,
                region=server.region,
                way=way,
                files_queue=f"files-{way}",
                merge_queue=f"merge-{way}",
                folder=str(tmp_path),
                window_s=WINDOW_S,
                batch=BATCH,
                **life,  # type: ignore[arg-type]
            )
        )
        try:
            code = driver.wait(LIFE_S)
        finally:
            kill_session(driver.pid)
        talk = (tmp_path / "talk").read_text(errors="replace")[-4_000:]
        assert code == (0 if number == 3 else -9), f"life {number} ended with {code}: {talk}"
    assert ids_in(spark, Place(tmp_path)) == Counter(files)
    came = merged(tmp_path)
    assert Counter(message_id for message_id, _ in came) == Counter(merge)
    assert len({batch for _, batch in came}) >= MESSAGES // BATCH
    assert left(server, f"files-{way}") == left(server, f"merge-{way}") == (0, 0)
