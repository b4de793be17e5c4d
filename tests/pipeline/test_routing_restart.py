"""A router that is killed and started again: nothing is lost, and a FIFO target has every message once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.conftest import QUICK, scrubbed
from tests.pipeline.queues_kit import Queues
from veil.journal.storage import Storage
from veil.pipeline.queues import QueueAddress
from veil.pipeline.routing.router import Routed, Router, RouterState
from veil.pipeline.routing.rules import Match, RouteTable, Rule, Target
from veil.testing import VeilServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 300


@pytest.fixture
def queues(veil_server: VeilServer) -> Queues:
    return Queues(veil_server)


def to(*queues: str) -> RouteTable:
    return RouteTable(tuple(Target(queue) for queue in queues), queues[0])


def test_a_batch_that_was_cut_short_is_done_again_by_the_rules_it_was_begun_with(
    spark: SparkSession, queues: Queues, tmp_path: Path
):
    """The second target is not there, so half of the batch is sent when it fails; meanwhile the rules change."""
    for name in ("intake", "a.fifo", "c.fifo"):
        queues.create(name)
    bodies = [f"b{n}" for n in range(40)]
    queues.send("intake", bodies)
    halves = RouteTable(
        (Target("a.fifo"), Target("b.fifo")), "a.fifo", (Rule("b.fifo", (Match("size", size_from=3),)),)
    )
    state, told = RouterState(Storage.at(tmp_path / "state")), list[Routed]()
    state.keep()

    def router(table: RouteTable) -> Router:
        place = QueueAddress("intake", queues.server.endpoint_url, "us-east-1")
        return Router(spark, place, state, lambda: table, told.append)

    with pytest.raises(Exception, match="there is no such queue"):
        router(halves).start(once=True).awaitTermination()
    queues.create("b.fifo")
    router(to("c.fifo")).start(once=True).awaitTermination()

    in_a, in_b = queues.take_all("a.fifo"), queues.take_all("b.fifo")
    assert Counter(each.body for each in (*in_a, *in_b)) == Counter(bodies)
    assert {len(each.body) for each in in_b} == {3}
    assert (queues.count("c.fifo"), queues.count("intake")) == (0, 0)
    assert [each.again for each in told] == [True]


@pytest.mark.soak
def test_a_router_killed_in_the_middle_loses_nothing_and_doubles_nothing_on_fifo(
    queues: Queues, tmp_path: Path
):
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'default = "plain"\n[queues]\nplain = "1h"\n"exact.fifo" = "1h"\n'
        '[[rules]]\njson = { "$.exact" = true }\nqueue = "exact.fifo"\n'
    )
    for name in ("intake", "plain", "exact.fifo"):
        queues.create(name, VisibilityTimeout="3600")
    bodies = [f'{{"exact": {"true" if n % 2 else "false"}, "n": {n}}}' for n in range(COUNT)]
    ids = dict(zip(queues.send("intake", bodies), bodies, strict=True))

    start(queues, rules, tmp_path).until(lambda: queues.count("exact.fifo") > 20)  # in the midst of a batch
    assert queues.count("exact.fifo") < COUNT / 2
    assert start(queues, rules, tmp_path).end() == 0

    exact, plain = queues.take_all("exact.fifo"), queues.take_all("plain")
    assert Counter(each.text("Veil.RoutedFrom") for each in exact) == Counter(
        message_id for message_id, body in ids.items() if "true" in body
    )
    assert {each.text("Veil.RoutedFrom") for each in plain} == {
        message_id for message_id, body in ids.items() if "false" in body
    }
    assert {each.text("Veil.RoutedFrom"): each.body for each in (*exact, *plain)} == ids
    assert queues.count("intake") == 0


class start:  # noqa: N801 - reads as what it does
    """`veil pipeline route --once` as a process group of its own, begun when it is waited for."""

    def __init__(self, queues: Queues, rules: Path, folder: Path) -> None:
        command = [sys.executable, "-m", "veil.cli.main", "pipeline", "route", "--from", "intake"]
        command += [
            "--rules",
            str(rules),
            "--once",
            "--state",
            str(folder / "state"),
            "--max-messages",
            "100",
        ]
        command += ["--master", "local[2]"]
        for name, value in QUICK.items():
            command += ["--conf", f"{name}={value}"]
        self._command = command
        self._environ = scrubbed(dict(os.environ)) | queues.server.environ
        self._log = folder / "log.txt"

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, env=self._environ, stdout=log, stderr=log, start_new_session=True
            )

    def until(self, reached: Callable[[], bool]) -> None:
        """Let it run until then, and kill all of it."""
        process = self._begin()
        try:
            while not reached():
                assert process.poll() is None, self._log.read_text()
                time.sleep(0.02)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end(self) -> int:
        """Let it run to its end; its exit code."""
        code = self._begin().wait()
        assert code == 0, self._log.read_text()
        return code
