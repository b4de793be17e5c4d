"""The server with one promise broken on purpose: a rig that stays green on it is worthless.

`python -m tests.faults.broken_server FAULT serve …` runs the ordinary command line with the fault built in. The faults
reach into the store's inside; when a name there changes, the patch fails loudly instead of testing nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

from veil.core import decide
from veil.core.lease import Deletion, State
from veil.stores.sqlite import leases, messages
from veil.stores.sqlite.commit import GroupCommit
from veil.stores.sqlite.database import Q


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def ack_before_commit() -> None:
    """Answers when the change is applied, and commits a little later. (kill -9 spares the page cache, so to answer merely
    before the sync would not show.)"""

    def submit_and_answer(submit: Any) -> Any:
        def hasty(self: Any, *work: Any, **how: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = submit(self, *work, **how)
            for _, _, waiting, result in self._group:
                if waiting is future and not future.done():
                    future.set_result(result)
            return future

        return hasty

    def commit_late(schedule: Any) -> Any:
        def late(self: Any) -> None:
            if not self._scheduled and not self._syncing:
                self._scheduled = True
                self._loop.call_later(0.2, self._commit)

        return late

    _replace(GroupCommit, "submit", submit_and_answer)
    _replace(GroupCommit, "_schedule", commit_late)


def stale_delete() -> None:
    """A receipt that a later receive has replaced still deletes."""
    _replace(
        decide, "judge_deletion", lambda _: lambda held, *_, **__: Deletion.DELETED if held else Deletion.GONE
    )


def early() -> None:
    """Windows end 700 ms before their deadline."""
    _shift_windows(-700)


def stuck() -> None:
    """Windows end four seconds after their deadline."""
    _shift_windows(4_000)


def _shift_windows(by_ms: int) -> None:
    def shifted(open_leases: Any) -> Any:
        return lambda messages, visibility_s, now_ms, wall_ms: open_leases(
            messages, visibility_s, now_ms + by_ms, wall_ms
        )

    _replace(decide, "open_leases", shifted)


def forgotten_delete() -> None:
    """One delete in twenty is answered and not done."""
    turn = iter(range(1 << 62))

    def forgetful(delete: Any) -> Any:
        def forget(db: Any, queue: Any, receipts: Any, *given: Any) -> Any:
            is_forgotten = next(turn) % 20 == 0
            return (
                [Deletion.DELETED for _ in receipts] if is_forgotten else delete(db, queue, receipts, *given)
            )

        return forget

    _replace(leases, "delete", forgetful)


def unordered_groups() -> None:
    """A message in flight does not block those behind it in its group."""

    def visible_of(_leading_run: Any) -> Any:
        def any_visible(db: Any, state: Any, group: str) -> Any:
            found = messages._pages(db, state, Q.of_group, 10, group)
            return (message for message in found if message.state == State.VISIBLE)

        return any_visible

    _replace(messages, "_leading_run", visible_of)
    # Groups as such are passed over, or one with a message in flight would not even be looked at.
    _replace(messages, "_fifo_order", lambda _: messages._standard_order)


def nosync() -> None:
    """Nothing is ever synced: only a power cut can tell."""
    _replace(os, "fdatasync", lambda _: lambda fd: None)
    _replace(os, "fsync", lambda _: lambda fd: None)


FAULTS = {
    "ack-before-commit": ack_before_commit,
    "stale-delete": stale_delete,
    "early": early,
    "stuck": stuck,
    "forgotten-delete": forgotten_delete,
    "unordered-groups": unordered_groups,
    "nosync": nosync,
}
# What the checker calls the consequence.
SHOWS_AS = {
    "ack-before-commit": "lost",
    "stale-delete": "lost",
    "early": "early",
    "stuck": "stuck",
    "forgotten-delete": "resurrected",
    "unordered-groups": "misordered",
    "nosync": "lost",
}


def main() -> None:
    """Break what the first argument names, then run the command line that follows."""
    FAULTS[sys.argv.pop(1)]()
    from veil.cli.main import main as veil

    veil()


if __name__ == "__main__":
    main()
