"""The other consumers that the benchmark runs beside Veil's, and where they live: an environment of their own, made on demand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.elasticmq import NotAvailable

# They pin botocore each in its own way, which no environment shared with this project could satisfy.
PINNED: Final = ("aiobotocore==3.10.0", "celery==5.7.0", "kombu[sqs]==5.7.0", "uvloop==0.23.0")
VEIL, BOTO3, AIOBOTOCORE, CELERY = "veil", "boto3", "aiobotocore", "celery"
NAMES: Final = (VEIL, BOTO3, AIOBOTOCORE, CELERY)
_LOOPS_MAX: Final = (
    10  # loops that receive ten at a time: a hundred of them would only be in each other's way
)
_INSTALL_TIMEOUT_S: Final = 600
_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Peer:
    """How one of them is started, or why it is not."""

    name: str
    start: tuple[str, ...] = ()
    missing: str | None = None

    def command(self, endpoint: str, url: str, concurrency: int) -> list[str]:
        """The command that consumes that queue until SIGTERM."""
        loops = concurrency if self.name in (VEIL, CELERY) else min(concurrency, _LOOPS_MAX)
        return [*self.start, endpoint, url, str(loops)]


def peer(name: str, build: Path) -> Peer:
    """The consumer of that name; one that cannot be had here says why."""
    if name == VEIL:
        return Peer(name, (sys.executable, "-m", "bench.consumer_veil"))
    script = str(_HERE / f"consumer_{name}.py")
    if name == BOTO3:
        return Peer(name, (sys.executable, script))
    try:
        return Peer(name, (str(_environment(build / "peers")), script))
    except NotAvailable as reason:
        return Peer(name, missing=f"not available: {reason}")


def _environment(directory: Path) -> Path:
    """The interpreter of the environment that has what is pinned; raises NotAvailable."""
    python, complete = directory.absolute() / "bin" / "python", directory / "complete"
    wanted = " ".join(PINNED)
    if complete.exists() and complete.read_text() == wanted:
        return python
    for command in (
        [sys.executable, "-m", "venv", str(directory)],
        [str(python), "-m", "pip", "install", "--quiet", *PINNED],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise NotAvailable(f"pip did not finish within {_INSTALL_TIMEOUT_S} s") from None
        except subprocess.CalledProcessError as failure:
            said = [line for line in failure.stderr.splitlines() if "ERROR" in line]
            raise NotAvailable(said[-1][:120] if said else "it could not be installed") from None
    complete.write_text(wanted)
    return python
