"""Where `make test` keeps its files: in memory, where the machine has enough of it.

Nearly every test starts a store or a server with files of its own, and thousands of them would wait for one disk. What is
tested of files here (kills, torn writes, injected errors) does not depend on the disk below; the rigs of `make faults` use
the real one. A test's folder goes when it has passed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

import pytest

_MEMORY: Final = Path("/dev/shm")
_ENOUGH_BYTES: Final = 8 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give this process, its workers and what they start a folder in memory; somebody who chose one keeps it."""
    chosen = hasattr(config, "workerinput") or "TMPDIR" in os.environ or config.option.basetemp
    if chosen or not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ENOUGH_BYTES:
        return
    place = tempfile.mkdtemp(prefix="veil-tests-", dir=_MEMORY)
    # When everything else is over, also what multiprocessing keeps in it (its own folder goes at -100).
    Finalize(None, shutil.rmtree, args=(place,), kwargs={"ignore_errors": True}, exitpriority=-200)
    os.environ["TMPDIR"] = place
    tempfile.tempdir = None  # forget what was found before
