"""What the clients of a run did and saw, in the order in which they saw it: the only evidence the checker has.

Each call leaves two lines, its `invoke` and its end: `ok` (answered with success), `fail` (surely not done) or `info`
(unknown: the connection was lost, or the server answered 5xx). The fields of a call:

* all: `at` (monotonic nanoseconds), `kind`, `call` (a number), `client`, `op`, `queue`
* send: `tag`, `group` (FIFO), `place` (position within the group, as its only writer counts)
* receive: `window_s`, `wait_s`; at its end `messages`, a list of {tag, receipt}
* extend: `tag`, `receipt`, `window_s` (0 releases)
* delete: `tag`, `receipt`
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]


class History:
    """Collects the events of a run and writes each as a line of JSON."""

    def __init__(self, path: Path | None = None) -> None:
        self.events: list[Event] = []
        self.path = path
        self._file: IO[str] | None = path.open("w", encoding="utf-8") if path is not None else None
        self._calls = 0
        self.power_is_off = (
            False  # a success that arrives now came from a machine that is dead: it counts as unknown
        )

    def invoke(self, client: str, op: str, queue: str, **facts: Any) -> int:
        """Note that a call is about to be made, and give its number."""
        self._calls += 1
        self._add({"kind": "invoke", "call": self._calls, "client": client, "op": op, "queue": queue} | facts)
        return self._calls

    def end(self, call: int, kind: str, **facts: Any) -> None:
        """Note how a call ended: `ok`, `fail` or `info`."""
        if self.power_is_off and kind == "ok":
            kind = "info"
        self._add({"kind": kind, "call": call} | facts)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, event: Event) -> None:
        event = {"at": time.monotonic_ns()} | event
        self.events.append(event)
        if self._file is not None:
            self._file.write(json.dumps(event) + "\n")


def read_history(path: Path) -> Iterator[Event]:
    """The events of a run that was written before."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
