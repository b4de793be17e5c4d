"""Groups: whose turn it is on a FIFO queue, and who is too loud on a fair one.

Changes are collected in the queue's state and told to the lanes together, at the latest with COMMIT.
"""

from __future__ import annotations

from veil.stores.postgres.queue_state import QueueState
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Row, Transaction


def change(state: QueueState, group: str | None, *, members: int = 0, in_flight: int = 0) -> None:
    """So many more (or fewer) messages of the group, and of them in flight; with neither, its first message has changed."""
    if group is None:
        return
    latest = state.lane_changes[-1] if state.lane_changes else {}
    if not latest or (members > 0 and group in latest and latest[group][0] < 0):
        # A group that has lost its last message and gets another is a new one: the two must not cancel out.
        latest = {}
        state.lane_changes.append(latest)
    changes = latest.setdefault(group, [0, 0])
    changes[0] += members
    changes[1] += in_flight


def tell(tx: Transaction, state: QueueState) -> None:
    """Write down what was collected; FIFO groups that can be served are announced."""
    if not state.lane_changes:
        return
    collected, state.lane_changes = state.lane_changes, []
    for changes in collected:
        groups = list(changes)
        named = {"queue": state.id, "groups": groups}
        members, in_flight = ([each[at] for each in changes.values()] for at in (0, 1))
        if any(members) or any(in_flight):
            tx.later(Q.change_lanes, {**named, "members": members, "in_flight": in_flight})
        if any(each < 0 for each in members):
            tx.later(Q.drop_empty_lanes, named)
    if state.fifo:
        named = {"queue": state.id, "groups": list({group for changes in collected for group in changes})}
        tx.later(Q.refresh_lanes, named, lambda rows: _announce(tx, state, rows))


def _announce(tx: Transaction, state: QueueState, rows: list[Row]) -> None:
    for is_open, members in rows:
        if is_open:
            tx.available(state, members)


def serve(tx: Transaction, state: QueueState, groups: list[str]) -> None:
    """The groups were served, in this order: they go behind all the others."""
    tx.later(Q.serve_lanes, {"queue": state.id, "groups": groups})
