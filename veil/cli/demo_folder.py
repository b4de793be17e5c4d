"""Where a demo leaves what it made: a directory that is empty, or that an earlier demo made."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

from veil.cli.failures import CommandFailed

_MARK: Final = ".veil-demo"  # in a directory that a demo made, so that the next one may replace what is below
_MADE: Final = ("data", "report.html", "summary.json", "server.log", "workers.log", "pipeline.log", "spark")


def demo_folder(out: Path | None) -> Path:
    """The directory, made, without what an earlier demo left in it; without a name a new one for temporary files, which stays."""
    if out is None:
        folder = Path(tempfile.mkdtemp(prefix="veil-demo-"))
        (folder / _MARK).touch()
        return folder
    folder = out.expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / _MARK).exists() and any(folder.iterdir()):
            raise CommandFailed(f"--out {out}: expected a new or empty directory, or one of an earlier demo")
        (folder / _MARK).touch()
        for name in _MADE:
            made = folder / name
            if made.is_dir() and not made.is_symlink():
                shutil.rmtree(made)
            else:
                made.unlink(missing_ok=True)
    except OSError as problem:
        raise CommandFailed(f"--out {out}: expected a directory to write to ({problem.strerror})") from None
    return folder
