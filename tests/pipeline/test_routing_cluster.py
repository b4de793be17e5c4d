"""Routing on a cluster: the executors read the intake and write the targets, with what `veil pipeline package` shipped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.pipeline.cluster_kit import cluster
from tests.pipeline.queues_kit import Queues
from veil.cli.main import run
from veil.testing import VeilServer


@pytest.mark.timeout(400)  # several JVMs start here, on whatever the machine has left
def test_a_router_on_two_workers_sends_every_message_on_once(veil_server: VeilServer, tmp_path: Path):
    queues = Queues(veil_server)
    queues.create("intake", VisibilityTimeout="300")
    queues.send("intake", [f'{{"n": {n}, "kind": "{"ab"[n % 2]}"}}' for n in range(500)])
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'default = "plain"\n[queues]\nplain = "30s"\n"exact.fifo" = "5min"\n'
        '[[rules]]\njson = { "$.kind" = "b" }\nqueue = "exact.fifo"\n'
    )
    assert run(["pipeline", "package", str(tmp_path)]) == 0
    words = ["route", "--from", "intake", "--rules", str(rules), "--once", "--create-queues", "--json"]
    words += ["--state", str(tmp_path / "state"), "--endpoint", veil_server.endpoint_url]

    with cluster(tmp_path) as running:
        done = running.submit(
            "--py-files", str(tmp_path / "veil.zip"), str(tmp_path / "veil_job.py"), *words, cwd=tmp_path
        )

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines[-1]["total"] == {"plain": 250, "exact.fifo": 250}
    for queue, kind in (("plain", 0), ("exact.fifo", 1)):
        got = Counter(json.loads(each.body)["n"] for each in queues.take_all(queue))
        assert got == Counter(n for n in range(500) if n % 2 == kind)
    assert queues.count("intake") == 0
