"""The server on a disk that stalls: while the file `sync` or `checkpoint` is in the given directory, that is how long it takes.

`python -m tests.faults.stalling_server DIRECTORY serve …` runs the ordinary command line.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from veil.stores.sqlite import commit


def stall(file: Path) -> None:
    """Return when the file is gone."""
    while file.exists():
        time.sleep(0.01)


def main() -> None:
    """Build the stalls in, then run the command."""
    directory = Path(sys.argv.pop(1))
    fdatasync, checkpoint = os.fdatasync, commit.GroupCommit._checkpoint

    def slow_sync(fd: int) -> None:
        stall(directory / "sync")
        fdatasync(fd)

    def slow_checkpoint(self: Any) -> tuple[int, int]:
        stall(directory / "checkpoint")
        return checkpoint(self)

    os.fdatasync = slow_sync
    commit.GroupCommit._checkpoint = slow_checkpoint  # type: ignore[method-assign]
    commit.CHECKPOINT_WAL_PAGES = 20
    from veil.cli.main import main as veil

    veil()


if __name__ == "__main__":
    main()
