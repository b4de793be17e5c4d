"""Veil as two files that `spark-submit` takes: the package as a zip for the workers, and a main file for the driver."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

ZIP: Final = "veil.zip"
MAIN: Final = "veil_job.py"

# A file of its own, outside the package: Python puts the directory of a main file first on its path, and there the
# package's `queue.py` would stand in for the standard library's.
_MAIN_TEXT: Final = '''\
"""The main file for spark-submit: the words after it are those after `veil pipeline`."""

import sys

try:
    from veil.cli.main import run
except ModuleNotFoundError as missing:
    sys.exit(f"the driver's Python ({sys.executable}) lacks {missing.name}: install veilmq there")

if __name__ == "__main__":
    sys.exit(run(["pipeline", *sys.argv[1:]]))
'''
_EPOCH: Final = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # the first instant that a zip can tell: the same files make the same bytes


class Packaged(NamedTuple):
    """The two files."""

    zip: Path
    main: Path


def package(folder: Path) -> Packaged:
    """Write both files into the folder, each whole or not at all; what was there of these names is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Packaged(folder / ZIP, folder / MAIN)
    with _replacing(made.zip) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        root = Path(__file__).parents[2]
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                entry = zipfile.ZipInfo(file.relative_to(root.parent).as_posix(), _EPOCH)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, file.read_bytes())
    with _replacing(made.main) as part:
        part.write_text(_MAIN_TEXT, encoding="utf-8")
    return made


@contextmanager
def _replacing(wanted: Path) -> Iterator[Path]:
    """A file beside the wanted one, which takes its name when the block ends well."""
    handle, name = tempfile.mkstemp(prefix=f".{wanted.name}-", dir=wanted.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o644)
        part.replace(wanted)
    finally:
        part.unlink(missing_ok=True)
