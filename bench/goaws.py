"""goaws for comparison: its newest release through Go's own tools, where they are installed and a proxy answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench.elasticmq import NotAvailable

_PACKAGE = "github.com/Admiral-Piett/goaws/app/cmd@latest"
_CONFIG = """Local:
  Host: localhost
  Port: {port}
  Region: us-east-1
  AccountId: "000000000000"
"""
_BUILD_TIMEOUT_S = 600


def fetch(cache: Path) -> None:
    """Have the program in the cache; raises NotAvailable."""
    if (cache / "goaws").exists():
        return
    if shutil.which("go") is None:
        raise NotAvailable("no go on the path")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["go", "install", _PACKAGE],
            env={**os.environ, "GOBIN": str(cache)},
            check=True,
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"go did not finish within {_BUILD_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as failure:
        raise NotAvailable(
            f"go could not build it: {failure.stderr.strip().splitlines()[-1][:120]}"
        ) from None
    (cache / "cmd").rename(cache / "goaws")


def command(cache: Path, port: int) -> list[str]:
    """The command that starts it, empty and in memory, on that port."""
    config = cache / f"goaws-{port}.yaml"
    config.write_text(_CONFIG.format(port=port))
    return [str(cache / "goaws"), "-config", str(config), "-loglevel", "error"]
