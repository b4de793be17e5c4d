"""Ask before something is lost."""

from __future__ import annotations

import sys

from veil.cli.failures import NotConfirmed
from veil.cli.output import is_terminal


def confirm(question: str, *, yes: bool) -> None:
    """Return if the person agrees; raise NotConfirmed if not, or if there is nobody to ask."""
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise NotConfirmed(f"{question} Not a terminal: say --yes to go on.", exit_code=2)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotConfirmed("nothing done", exit_code=1)
