"""Goes on with a redrive and kills itself, the whole process, at a chosen instant.

    python -m tests.pipeline.redrive_child TABLES RUN ENDPOINT before|done|noted CALL

`before` the server is asked, when it has `done` it and nobody here has noted so, or when that is `noted`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from veil.journal.storage import Storage
from veil.pipeline.dead_letters.queue import DeadLetterQueue, RedriveAnswer
from veil.pipeline.dead_letters.runs import RedriveProgress, load_run, redrive
from veil.pipeline.queues import QueueAddress


class DyingQueue(DeadLetterQueue):
    """Dies at its n-th call."""

    dies, calls = ("", 0), 0

    def redrive(self, entries: list[dict[str, Any]], **given: Any) -> RedriveAnswer:
        self.calls += 1
        self.die("before")
        answer = super().redrive(entries, **given)
        self.die("done")
        return answer

    def die(self, instant: str) -> None:
        if self.dies == (instant, self.calls):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run until the chosen instant."""
    tables, run_id, endpoint, instant, call = sys.argv[1:]
    place = Storage.at(tables)
    run = load_run(place, run_id)
    with DyingQueue(QueueAddress(run.queue, endpoint=endpoint)) as queue:
        queue.dies = (instant, int(call))

        def told(progress: RedriveProgress) -> None:
            queue.die("noted")

        redrive(run, place, queue, told=told)


if __name__ == "__main__":
    main()
