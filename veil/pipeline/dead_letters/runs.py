"""A redrive as something that can be gone on with: what was selected, sealed, and how far it has come.

A run is a folder beside the tables. Its selection is Parquet that never changes; `run.json` is written after it, so a run
that has one is whole. `progress.json` is replaced before and after every call to the server.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from veil.journal.place import Place
from veil.pipeline.dead_letters.failures import DeadLettersRefused

FOLDER: Final = "redrives"
SELECTION: Final = "selection"
_RUN: Final = "run.json"
_PROGRESS: Final = "progress.json"
VERSION: Final = 1
EXAMPLES_MAX: Final = 20


class Run(msgspec.Struct, frozen=True):
    """What is redriven: fixed when the run begins."""

    id: str
    made_at: str
    queue: str
    messages: int
    files: tuple[str, ...]
    a_call: int  # messages
    destinations: dict[
        str, str
    ]  # the URL for each source that the server does not know; of all of them under ""
    to: str | None = None
    where: str | None = None
    set_body: str | None = None
    set_attributes: dict[str, str] = {}
    endpoint: str | None = None
    region: str | None = None
    version: int = VERSION


class LeftMessage(msgspec.Struct, frozen=True):
    """A message that stayed among the dead letters, and why."""

    message_id: str
    code: str
    reason: str


class Progress(msgspec.Struct):
    """How far a run has come. `begun`: a further call was about to be made, and nobody has noted what it came to."""

    calls: int = 0
    begun: bool = False
    moved: int = 0
    gone: int = 0
    left: dict[str, int] = {}
    examples: list[LeftMessage] = []
    finished: bool = False

    @property
    def settled(self) -> int:
        """Messages of which is known what became of them."""
        return self.moved + self.gone + sum(self.left.values())


def new_id(now: datetime | None = None) -> str:
    """A name for a run that tells when it was made."""
    return f"{now or datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def place_of(tables: Place, run_id: str) -> Place:
    """The folder of a run."""
    return tables.sub(f"{FOLDER}/{run_id}")


def forget(tables: Place, run_id: str) -> None:
    """Remove the run with its selection."""
    tables.remove_folder(f"{FOLDER}/{run_id}")


def save_run(place: Place, run: Run) -> None:
    """Seal the run: from now on it can be begun, and gone on with."""
    place.write(_RUN, msgspec.json.encode(run))


def load_run(tables: Place, run_id: str) -> Run:
    """The run of that id; raises DeadLettersRefused, naming those there are."""
    try:
        return msgspec.json.decode(place_of(tables, run_id).read(_RUN), type=Run)
    except (FileNotFoundError, ValueError):
        known = ", ".join(run.id for run, _ in unfinished(tables)) or "none"
        raise DeadLettersRefused(
            f"--resume {run_id!r}: expected a run in {tables.uri}/{FOLDER} that was not finished; there are: {known}"
        ) from None


def load_progress(place: Place) -> Progress:
    """How far the run has come, by the last word of whoever ran it."""
    try:
        return msgspec.json.decode(place.read(_PROGRESS), type=Progress)
    except FileNotFoundError:
        return Progress()


def save_progress(place: Place, progress: Progress) -> None:
    """Note it durably."""
    place.write(_PROGRESS, msgspec.json.encode(progress))


def unfinished(tables: Place) -> Iterator[tuple[Run, Progress]]:
    """The runs that were sealed and not finished, oldest first."""
    for entry in tables.entries(FOLDER):
        place = tables.sub(entry.name)
        try:
            run = msgspec.json.decode(place.read(_RUN), type=Run)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            continue
        progress = load_progress(place)
        if not progress.finished:
            yield run, progress
