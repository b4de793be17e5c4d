"""Random identifiers, made cheaply: the system is asked for randomness once for many."""

from __future__ import annotations

import os
from collections.abc import Iterator

_IDS_AT_ONCE = 256
_VARIANT = "89ab"


def _message_ids() -> Iterator[str]:
    while True:
        digits = os.urandom(16 * _IDS_AT_ONCE).hex()
        for at in range(0, len(digits), 32):
            h = digits[at : at + 32]
            yield f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{_VARIANT[int(h[16], 16) & 3]}{h[17:20]}-{h[20:]}"


_ids = _message_ids()


def _start_anew() -> None:
    # A forked child would otherwise give out the ids that its parent still holds in stock.
    global _ids
    _ids = _message_ids()


os.register_at_fork(after_in_child=_start_anew)


def new_id() -> str:
    """A random UUID (version 4) as text."""
    return next(_ids)
