"""Groups: whose turn it is on a FIFO queue, and who is too loud on a fair one."""

from __future__ import annotations

from veil.core.lease import State
from veil.stores.sqlite.tables import Q, QueueState, Tables


def join(tables: Tables, state: QueueState, group: str, seq: int, message_state: State) -> None:
    """A message of the group arrived, at the end of it."""
    state.has_lanes = True
    is_open = state.queue.settings.fifo and message_state == State.VISIBLE
    # The order key serves as the turn too: it rises with every use, and a group's first message gives it the last place.
    tables.execute(Q.join_lane, (state.queue.id, group, seq, int(is_open)))


def leave(tables: Tables, state: QueueState, group: str, count: int = 1, *, in_flight: int) -> None:
    """Messages of the group are gone, so many of them out of flight: deleted, expired, purged or moved away."""
    queue_id = state.queue.id
    tables.execute(Q.leave_lane, (count, in_flight, queue_id, group))
    tables.execute(Q.drop_empty_lane, (queue_id, group))
    refresh(tables, state, group)


def hide(tables: Tables, state: QueueState, group: str, count: int = 1) -> None:
    """Messages of the group went into flight."""
    tables.execute(Q.add_in_flight, (count, state.queue.id, group))


def show(tables: Tables, state: QueueState, group: str, *, was_in_flight: bool = True) -> None:
    """A message of the group became visible."""
    if was_in_flight:
        tables.execute(Q.add_in_flight, (-1, state.queue.id, group))
    refresh(tables, state, group)


def serve(tables: Tables, state: QueueState, group: str, now_ms: int) -> None:
    """The group was served: it goes behind all the others."""
    tables.execute(Q.serve_lane, (tables.sequence.next(now_ms), state.queue.id, group))


def refresh(tables: Tables, state: QueueState, group: str) -> None:
    """FIFO: find out whether the group can be served, and say so when it can."""
    if not state.queue.settings.fifo:
        return
    rows = tables.execute(Q.refresh_lane, (state.queue.id, group)).fetchall()
    if rows and rows[0][0]:
        tables.available(state, rows[0][1])
