"""The console's benchmarks run from end to end, briefly: their figures mean nothing here, that every page answers does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import console_cost, console_pages


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)


def test_every_page_is_timed(capsys: pytest.CaptureFixture[str]):
    console_pages.main(["--queues", "60", "--messages", "2000", "--filled", "10", "--times", "1"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("/console")]
    assert [row.split()[1] for row in rows] == ["200"] * len(console_pages.PAGES)


@pytest.mark.soak
def test_the_cost_is_measured_with_readers_looking():
    console_cost.main(["--rounds", "1", "--seconds", "0.2", "--connections", "4", "--readers", "3"])
    rows = json.loads(Path("build/console-cost.json").read_text())
    assert [row["console"] for row in rows] == ["off", "unseen", "open"] * 2
    assert all(row["messages_per_s"] > 0 for row in rows)
