"""A database transaction as the store's operations use it, with the state of its queues.

Starting and ending take one round trip each: BEGIN takes the locks and reads the time and the state of the queues; COMMIT carries
the deferred statements (`defer`), the counts, the outbox and the notification.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import psycopg

from veil.core.clock import LeaseTime
from veil.core.errors import QueueMissing
from veil.core.event import EventRecorder
from veil.core.lease import State
from veil.core.message import Caller
from veil.core.queue import Queue, QueueCounts, QueueKey
from veil.core.sequence import expires_at_ms, seq_with_counter
from veil.stores.postgres.pipeline import Arguments, PipelinedConnection, Q, Statement
from veil.stores.sql import decode_settings, decode_tags
from veil.stores.store import QueuesByKey

NEVER: Final = 1 << 62
# How long a transaction waits for a lock, and how long it may be idle.
LOCK_WAIT_MS: Final = 10_000
AVAILABLE: Final = "available"
_VISIBLE, _DELAYED, _IN_FLIGHT = int(State.VISIBLE), int(State.DELAYED), int(State.IN_FLIGHT)


class QueueLook(NamedTuple):
    """A row of `look_at_queues`."""

    queue_id: int
    visible: int
    in_flight: int
    delayed: int
    last_seq: int
    wake_ms: int | None
    oldest_seq: int | None
    returns: int
    generation: int
    changes: int


@dataclass(slots=True, eq=False)
class KnownQueue:
    """A queue as of the epoch that the node knows."""

    queue: Queue
    scope: str
    has_groups: bool
    purged_at_ms: int | None

    @property
    def is_sequential(self) -> bool:
        """Whether its operations must run one after another: with groups, each depends on the one before."""
        return self.has_groups or self.queue.settings.fifo


class KnownQueues:
    """The queues as of an epoch, which only increases."""

    def __init__(self) -> None:
        self.epoch = -1
        self.by_id: dict[int, KnownQueue] = {}
        self.by_key: QueuesByKey[KnownQueue] = QueuesByKey()

    def update(self, rows: Iterable[Any]) -> None:
        """Apply the rows of `changed_queues` or `living_queues`."""
        rows = list(rows)
        epoch, *_ = rows[0]
        if epoch <= self.epoch:
            return
        for _, queue_id, region, account, name, settings, tags, scope, *facts in rows:
            if queue_id is None:
                continue  # nothing has changed but the epoch
            created, modified, purged_at_ms, has_groups, deleted_at_ms = facts
            self._forget(queue_id)
            if deleted_at_ms is None:
                key = QueueKey(region, account, name)
                queue = Queue(queue_id, key, decode_settings(settings), decode_tags(tags), created, modified)
                known = KnownQueue(queue, scope, has_groups, purged_at_ms)
                self.by_id[queue_id] = self.by_key[key] = known
        self.epoch = epoch

    def find(self, key: QueueKey) -> Queue | None:
        """The queue with that key, as far as is known."""
        known = self.by_key.get(key)
        return None if known is None else known.queue

    def all(self) -> list[Queue]:
        """Every queue that exists, oldest first."""
        return [known.queue for _, known in sorted(self.by_id.items())]

    def reload(self, rows: Iterable[Any]) -> None:
        """Replace everything known by the rows of `living_queues`."""
        self.epoch = -1
        self.by_id.clear()
        self.by_key.clear()
        self.update(rows)

    def _forget(self, queue_id: int) -> None:
        known = self.by_id.pop(queue_id, None)
        if known is not None and self.by_key.get(known.queue.key) is known:
            del self.by_key[known.queue.key]


class NoisyRun(NamedTuple):
    """The front of a queue with nothing for quiet groups: every visible message up to there is of one of these groups."""

    groups: frozenset[str]
    up_to: tuple[int, int]  # priority and seq


NO_RUN: Final = NoisyRun(frozenset(), (0, 0))


@dataclass(slots=True, eq=False)
class LockedQueue(KnownQueue):
    """A queue within a transaction that holds its lock, so that nobody can edit it meanwhile."""

    counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # of messages, by their State
    changes: list[int] = field(default_factory=lambda: [0, 0, 0])  # changes of the counts by this transaction
    is_counted: bool = False  # whether the transaction must write its counts
    generation: int = 0  # of the counts
    generation_changes: int = 0  # how often the counts were changed in this generation
    returns: int = 0  # see watermarks.py
    last_seq: int = 0  # FIFO: the highest order key given out
    next_wake_ms: int = NEVER  # when the first hidden message becomes due
    next_expiry_ms: int = NEVER  # not later than the first visible message passes its retention
    looked_ahead: bool = False  # the next wake is known even if it is later than now
    came_back: bool = False  # messages became visible somewhere else than at the end
    noisy_run: NoisyRun = NO_RUN  # see watermarks.py
    # Changes of groups that are not written yet, in order: by group, the change in messages and in messages in flight.
    group_changes: list[dict[str, list[int]]] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.queue.id

    @property
    def fifo(self) -> bool:
        return self.queue.settings.fifo

    @property
    def visible(self) -> int:
        return self.counts[_VISIBLE]

    @property
    def in_flight(self) -> int:
        return self.counts[_IN_FLIGHT]

    @property
    def queue_counts(self) -> QueueCounts:
        return QueueCounts(self.counts[_VISIBLE], self.counts[_IN_FLIGHT], self.counts[_DELAYED])

    @property
    def retention_ms(self) -> int:
        return self.queue.settings.retention_s * 1000

    @property
    def next_due_ms(self) -> int:
        return min(self.next_wake_ms, self.next_expiry_ms)

    def looked_at(self, look: QueueLook, *, ahead: bool) -> None:
        """Apply a look at the queue, which searched `ahead` or only for what is due. It does not contain this transaction's own
        changes."""
        self.looked_ahead = ahead
        present = (look.visible, look.delayed, look.in_flight)
        self.counts = [count + change for count, change in zip(present, self.changes, strict=True)]
        self.last_seq, self.returns = look.last_seq, look.returns
        self.generation, self.generation_changes = look.generation, look.changes
        self.next_wake_ms = NEVER if look.wake_ms is None else look.wake_ms
        self.next_expiry_ms = NEVER
        if look.oldest_seq is not None:
            self.visible_from(look.oldest_seq)

    def hidden_until(self, wake_at_ms: int) -> None:
        """Note that a hidden message wakes at that instant."""
        self.next_wake_ms = min(self.next_wake_ms, wake_at_ms)

    def visible_from(self, seq: int) -> None:
        """Note that a message is visible, for the next expiry."""
        self.next_expiry_ms = min(self.next_expiry_ms, expires_at_ms(seq, self.queue.settings.retention_s))

    def count(self, message_state: int, change: int) -> None:
        """Change the number of messages in that State; written with COMMIT."""
        self.counts[message_state] += change
        self.changes[message_state] += change
        self.is_counted = True

    def change_group(self, group: str | None, *, members: int = 0, in_flight: int = 0) -> None:
        """Change a group's number of messages and of messages in flight; with neither, its first message has changed."""
        if group is None:
            return
        latest = self.group_changes[-1] if self.group_changes else {}
        if not latest or (members > 0 and group in latest and latest[group][0] < 0):
            # A group that loses its last message and gets another one is a new group: the two must not cancel out.
            latest = {}
            self.group_changes.append(latest)
        changes = latest.setdefault(group, [0, 0])
        changes[0] += members
        changes[1] += in_flight


class Transaction:
    """See the module docstring; `Engine` begins and ends it."""

    def __init__(
        self, connection: PipelinedConnection, slot: int, journal: EventRecorder | None, lease_time: LeaseTime
    ) -> None:
        self.connection = connection
        self.slot = slot
        self.now_ms = self.wall_ms = 0
        self.epoch = 0
        self.retries = 0  # how often it was tried before
        self.journal = journal  # None: the journal is off
        self.lease_time = lease_time
        self.states: dict[int, LockedQueue] = {}
        self.by_key: dict[QueueKey, LockedQueue] = {}
        self.announcements: Counter[tuple[str, int]] = Counter()  # to announce once it is durable
        self.new_epoch: int | None = None
        self.has_claimed = False  # by statements sent with BEGIN, and not committed yet
        # COMMIT was sent and may have changed something: if the connection breaks now, the outcome is unknown.
        self.is_ending = False
        self._has_asked = False  # for more than the state of its queues
        self._numbers: list[int] = []
        self._deferred: list[tuple[str, Arguments, Callable[[list[Any]], None] | None]] = []

    # ---- statements

    async def rows(self, query: str, arguments: Arguments = {}) -> list[Any]:  # noqa: B006
        """The rows of a query, after all deferred statements."""
        return (await self.rows_of_each((query, arguments)))[0]

    async def row(self, query: str, arguments: Arguments = {}) -> Any:  # noqa: B006
        """The first row, or None."""
        found = await self.rows(query, arguments)
        return found[0] if found else None

    async def rows_of_each(self, *statements: Statement) -> list[list[Any]]:
        """The rows of several queries that are sent together."""
        deferred, self._deferred = self._deferred, []
        self._has_asked = True
        answers = await self.connection.exchange([*((q, a) for q, a, _ in deferred), *statements])
        for (_, _, then), answer in zip(deferred, answers, strict=False):
            if then is not None:
                then(answer)
        return answers[len(deferred) :]

    def defer(
        self, query: str, arguments: Arguments, then: Callable[[list[Any]], None] | None = None
    ) -> None:
        """Execute a statement with the next query, or with COMMIT; `then` gets its rows."""
        self._deferred.append((query, arguments, then))

    async def flush(self) -> None:
        """Send the deferred statements now, if one of them has a `then`."""
        if any(then is not None for _, _, then in self._deferred):
            await self.rows_of_each()

    # ---- queues

    def state_of(self, queue: Queue) -> LockedQueue:
        """The state of the queue; raises QueueMissing if it was deleted."""
        state = self.states.get(queue.id)
        if state is None:
            raise QueueMissing(queue.key.name)
        return state

    def find(self, key: QueueKey) -> Queue | None:
        """The queue with that key, if it is one of the transaction's."""
        state = self.by_key.get(key)
        return None if state is None else state.queue

    def shift(
        self,
        state: LockedQueue,
        before: int | None,
        after: int | None,
        seq: int,
        wake_at_ms: int | None,
        group: str | None,
        *,
        at_the_end: bool = False,
    ) -> None:
        """Update counts, due times and groups for a message that goes from one State to another (None: not in the queue).
        `at_the_end`: if it is visible now, it comes after all others."""
        if before is not None:
            state.count(before, -1)
        if after is not None:
            state.count(after, 1)
            if wake_at_ms is not None:
                state.hidden_until(wake_at_ms)
            elif before != _VISIBLE:
                state.visible_from(seq)
                state.came_back |= not at_the_end
                self.announcements[AVAILABLE, state.id] += 1
        if group is not None:
            members = (after is not None) - (before is not None)
            state.change_group(
                group, members=members, in_flight=(after == _IN_FLIGHT) - (before == _IN_FLIGHT)
            )

    def write_groups(self, state: LockedQueue) -> None:
        """Write the collected changes of groups, and announce FIFO groups that can be served."""
        collected, state.group_changes = state.group_changes, []
        for changes in collected:
            named = {"queue": state.id, "groups": list(changes)}
            members, in_flight = (list(column) for column in zip(*changes.values(), strict=True))
            if any(members) or any(in_flight):
                self.defer(Q.change_groups, {**named, "members": members, "in_flight": in_flight})
            if any(each < 0 for each in members):
                self.defer(Q.drop_empty_groups, named)
        if collected and state.fifo:
            groups = list({group for changes in collected for group in changes})
            named = {"queue": state.id, "groups": groups}
            self.defer(Q.refresh_groups, named, lambda rows: self._announce_groups(state, rows))

    def _announce_groups(self, state: LockedQueue, rows: list[Any]) -> None:
        for is_open, members in rows:
            if is_open:
                self.announcements[AVAILABLE, state.id] += members

    async def raise_epoch(self) -> int:
        """The epoch of this transaction's changes to queues; taken once and late, because all other edits wait for it."""
        if self.new_epoch is None:
            [(self.new_epoch,)] = await self.rows(Q.raise_epoch)
        return self.new_epoch

    # ---- order keys

    async def numbers(self, count: int) -> list[int]:
        """Ascending values of the counter."""
        if len(self._numbers) < count:
            more = await self.rows(Q.numbers, {"count": count - len(self._numbers)})
            self._numbers += [number for (number,) in more]
        taken, self._numbers = self._numbers[:count], self._numbers[count:]
        return taken

    def seq(self, state: LockedQueue, number: int) -> int:
        """The order key for a counter value; on FIFO queues greater than every earlier one."""
        seq = seq_with_counter(self.now_ms, number)
        if state.fifo:
            # Safe under the queue's lock; needed when the counter wraps or the clock is set back.
            state.last_seq = seq = max(seq, state.last_seq + 1)
            state.is_counted = True
        return seq

    def counted(self, event: str, state: LockedQueue, count: int = 1) -> None:
        """Count something that only the store sees; announced after COMMIT."""
        self.announcements[event, state.id] += count

    # ---- the ends

    async def begin(
        self,
        ids: Sequence[int],
        *,
        exclusive: bool,
        numbers: int,
        now_ms: int | None,
        looks: Arguments,
        also: Sequence[Statement] = (),
    ) -> tuple[list[QueueLook], list[list[Any]]]:
        """Open the transaction; return the rows of `look_at_queues` and those of the statements sent along."""
        statements: list[Statement] = [("BEGIN", {})]
        if ids:
            lock = Q.lock_exclusive if exclusive else Q.lock_shared
            statements.append((lock, {"ids": list(ids), "wait_ms": LOCK_WAIT_MS}))
        statements.append((Q.look, {"now_ms": now_ms, "wait_ms": LOCK_WAIT_MS}))
        if ids:
            statements.append((Q.look_at_queues, looks))
        if numbers:
            statements.append((Q.numbers, {"count": numbers}))
        answers = await self.connection.exchange([*statements, *also])
        answers, others = answers[: len(statements)], answers[len(statements) :]
        if numbers:
            self._numbers = [number for (number,) in answers.pop()]
        seen = [QueueLook(*row) for row in answers.pop()] if ids else []
        [(self.now_ms, self.epoch, *_)] = answers.pop()
        return seen, others

    async def commit(self, last: Sequence[Statement]) -> None:
        """Send the deferred statements, the counts and the given statements, then commit."""
        counted = sorted((each for each in self.states.values() if each.is_counted), key=lambda each: each.id)
        if counted:
            self.defer(
                Q.add_counts,
                {
                    "ids": [state.id for state in counted],
                    "generations": [state.generation for state in counted],
                    "returns": [int(state.came_back) for state in counted],
                    "slot": self.slot,
                    "visible": [state.changes[_VISIBLE] for state in counted],
                    "in_flight": [state.changes[_IN_FLIGHT] for state in counted],
                    "delayed": [state.changes[_DELAYED] for state in counted],
                    "last_seq": [state.last_seq for state in counted],
                },
            )
        self.is_ending = self._has_asked or self.has_claimed or bool(self._deferred or last)
        await self.rows_of_each(*last, ("COMMIT", {}))
        if self.connection.warnings:
            # The wait for the standby was cancelled (by an operator or statement_timeout): the commit is on one machine only.
            raise psycopg.OperationalError(
                f"COMMIT was answered with a warning: {self.connection.warnings[0]}"
            )


async def nothing(tx: Transaction) -> None:
    """No work: a transaction with it only settles what is due and refreshes the queues."""


@dataclass(slots=True, eq=False, kw_only=True)
class SharedOperation:
    """An operation that one caller waits for and that shares a transaction with others (commit.py)."""

    queue: Queue
    caller: Caller
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    takes: int = 0  # how many messages it may put in flight
    numbers: int = 0  # how many order keys it needs
    may_add_groups: bool = False  # it may store the first message with a group

    async def work(self, tx: Transaction) -> Any:
        """Do the work. A refusal is raised before anything is changed, because others share the transaction."""
        raise NotImplementedError
