"""Read what `veil pipeline timeouts` found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veil.core import findings as found
from veil.core.errors import VeilError
from veil.core.findings import FILE, Findings

if TYPE_CHECKING:
    from veil.journal.place import Place


class FindingsMissing(VeilError):
    """Nobody has looked for timeouts in these tables yet."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"no {FILE} in {where}; find the timeouts first: veil pipeline lifecycles, then veil pipeline timeouts"
        )


class FindingsUnreadable(VeilError):
    """The file is not what `veil pipeline timeouts` of this version writes."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}; write it anew: veil pipeline timeouts")


def read_findings(tables: Place) -> Findings:
    """The findings beside the tables."""
    try:
        text = tables.read(FILE)
    except FileNotFoundError:
        raise FindingsMissing(tables.uri) from None
    try:
        return found.decode(text)
    except found.FindingsUnreadable as error:
        raise FindingsUnreadable(tables.uri, str(error)) from None
