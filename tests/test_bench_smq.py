"""The benchmark of SMQ's protocol runs from end to end, briefly: its figures mean nothing here, that it counts right does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import smq


@pytest.mark.soak
def test_a_short_run_measures_every_part_over_both_protocols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    smq.main(["--rounds", "1", "--seconds", "0.2", "--connections", "4", "--out", "figures.json"])

    figures = json.loads(Path("figures.json").read_text())
    parts = {(figure["protocol"], figure["part"]): figure for figure in figures}
    assert set(parts) == {(protocol, part) for protocol in (smq.SQS, smq.SMQ) for part in smq.PARTS}
    assert all(figure["errors"] == 0 and figure["requests"] > 0 for figure in figures)
    for protocol in (smq.SQS, smq.SMQ):
        received, deleted = parts[protocol, "receive"]["requests"], parts[protocol, "delete"]["requests"]
        assert deleted <= received <= parts[protocol, "send"]["requests"] + 4
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["part", *smq.PARTS]
