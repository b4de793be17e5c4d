"""What the demo hears of its pipeline, and waits for."""

from __future__ import annotations

import json
import queue
import time
from pathlib import Path
from typing import Any, Final

from veil.cli.demo_crew import Crew, Hand
from veil.cli.demo_stage import Stage
from veil.cli.failures import CommandFailed

LOG: Final = "pipeline.log"
_LOOK_EVERY_S: Final = 0.2
_PATIENCE_S: Final = 180.0

Told = dict[str, Any]


class PipelineRun:
    """The pipeline's process: Spark starts with it, the jobs begin with `go`."""

    def __init__(self, crew: Crew, folder: Path, target: float) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._folder = folder
        data, report = folder / "data", folder / "report.html"
        arguments = ("-m", "veil.cli.demo_pipeline", str(data), str(report), f"{target:g}")
        self._hand: Hand = crew.start(LOG, *arguments, heard=self._lines.put)

    def go(self) -> None:
        """Everything that is to be read is there."""
        self._hand.say("go")

    def awaited(self, step: str, stage: Stage, title: str) -> Told:
        """What it says about a step, once that is done; raises CommandFailed when it fails instead."""
        begun_s, seen = time.monotonic(), ""
        with stage.progress(title) as moved:
            while time.monotonic() - begun_s < _PATIENCE_S:
                try:
                    told: Told = json.loads(self._lines.get(timeout=_LOOK_EVERY_S))
                except queue.Empty:
                    moved(0.0, seen)
                    if self._hand.code is not None and self._lines.empty():
                        raise CommandFailed(f"the pipeline failed: {self._last_words()}") from None
                    continue
                if "failed" in told:
                    raise CommandFailed(f"the pipeline failed: {told['failed']}")
                if told.get("step") == step:
                    return told
                seen = told.get("seen", seen)
        raise CommandFailed(f"the pipeline took longer than {_PATIENCE_S:.0f} s; see {self._folder / LOG}")

    def ended(self) -> None:
        """Wait until its process, and Spark's, are gone."""
        self._hand.ended(_PATIENCE_S)

    def _last_words(self) -> str:
        log = self._folder / LOG
        lines = log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'no reason given'} (all of it is in {log})"
