"""SQL in files, by name: `-- name: x` begins query x, which runs to the next name.

`{NAME}` in a query stands for one of the constants below, so that what the rules of `core` say stands in `core` alone. They
are put into the text, not bound: a partial index is only used for a condition that the planner can see.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from veil.core.lease import State
from veil.core.message import PRIORITY_DEFAULT, HeldMessage, StoredMessage
from veil.core.receipt import DELIVERY_MASK
from veil.core.sequence import COUNTER_BITS, NOISY_COUNT_MIN

_COLUMN_OF: Final = {"group": "group_name"}  # a word of SQL's own


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(_COLUMN_OF.get(name, name) for name in names)


CONSTANTS: Final = {
    "VISIBLE": int(State.VISIBLE),
    "DELAYED": int(State.DELAYED),
    "IN_FLIGHT": int(State.IN_FLIGHT),
    "COUNTER_BITS": COUNTER_BITS,
    "DELIVERY_MASK": DELIVERY_MASK,
    "NOISY_COUNT_MIN": NOISY_COUNT_MIN,
    "PRIORITY_DEFAULT": PRIORITY_DEFAULT,
    "MESSAGE": _columns(StoredMessage.__struct_fields__),
    "HELD_MESSAGE": _columns(HeldMessage._fields),
}
_CONSTANT: Final = re.compile(r"\{([A-Z_]+)\}")


class NamedQueries:
    """The queries of one file as attributes."""

    def __init__(self, package: str, file: str) -> None:
        name, lines = "", list[str]()
        for line in files(package).joinpath(file).read_text(encoding="utf-8").splitlines():
            if line.startswith("-- name: "):
                self._keep(name, lines)
                name, lines = line.removeprefix("-- name: ").strip(), []
            elif not line.lstrip().startswith("--"):
                lines.append(line.strip())
        self._keep(name, lines)

    def _keep(self, name: str, lines: list[str]) -> None:
        if name:
            text = " ".join(line for line in lines if line).rstrip(";")
            self.__dict__[name] = _CONSTANT.sub(lambda constant: str(CONSTANTS[constant[1]]), text)

    def names(self) -> list[str]:
        """Every name, in the order of the file."""
        return list(self.__dict__)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...
