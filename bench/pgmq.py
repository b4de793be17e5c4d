"""pgmq for comparison: its published SQL, out of the package that carries it, where a registry answers."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from bench.elasticmq import NotAvailable

_PACKAGE: Final = "pgmq==1.1.4"
_SQL: Final = "pgmq/sql/pgmq.sql"
_VERSION: Final = "pgmq/sql/VERSION"
_DOWNLOAD_TIMEOUT_S: Final = 120


def fetch(cache: Path) -> tuple[str, str]:
    """Its version and the SQL that installs it without an extension; raises NotAvailable."""
    wheel = next(iter(cache.glob("pgmq-*.whl")), None) or _download(cache)
    with zipfile.ZipFile(wheel) as content:
        return content.read(_VERSION).decode().strip(), content.read(_SQL).decode()


def _download(cache: Path) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(cache),
        _PACKAGE,
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"pip did not finish within {_DOWNLOAD_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as failure:
        said = failure.stderr.strip().splitlines()
        raise NotAvailable(
            f"pip could not fetch it: {said[-1][:120] if said else 'it did not say why'}"
        ) from None
    return next(iter(cache.glob("pgmq-*.whl")))
