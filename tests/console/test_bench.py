"""The console's benchmarks run from end to end, briefly: their figures mean nothing here, that every page answers does."""

from __future__ import annotations

import json
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import console_cost, console_pages
from bench.generator import Figure, Lap


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)


def test_every_page_is_timed(capsys: pytest.CaptureFixture[str]):
    console_pages.main(["--queues", "60", "--messages", "2000", "--filled", "10", "--times", "1"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("/console")]
    assert [row.split()[1] for row in rows] == ["200"] * len(console_pages.PAGES)


def test_a_lap_without_a_message_is_run_again():
    found = [[Figure("life", 9, messages, 0.2, 0, 1.0, 1.0, 0.01, 0.01, 0.01)] for messages in (0, 3)]

    class Load(Executor):
        def submit(self, *_: Any) -> Any:  # type: ignore[override]
            return SimpleNamespace(result=lambda: found.pop(0))

    assert console_cost.told(Load(), Lap(1, 1, ("life",), 1, 1, 0.2)).messages == 3


@pytest.mark.soak
def test_the_cost_is_measured_with_readers_looking():
    console_cost.main(["--rounds", "1", "--seconds", "0.2", "--connections", "4", "--readers", "3"])
    rows = json.loads(Path("build/console-cost.json").read_text())
    assert [row["console"] for row in rows] == ["off", "unseen", "open"] * 2
    assert all(row["messages_per_s"] > 0 for row in rows)
