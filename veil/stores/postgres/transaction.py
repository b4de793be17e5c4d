"""One database transaction under way: what the operations of the store are written on, and what it knows of its queues.

It begins and ends in one round trip each, whatever it does: the locks, the instant and the state of its queues come with
BEGIN; what was put off with `later`, the counts, the outbox and the notification go with COMMIT.
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

NEVER: Final = 1 << 62
# How long a transaction waits for another one, and how long one that stands still is waited for.
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
    """A living queue as it stood at the epoch that the node knows."""

    queue: Queue
    scope: str
    has_groups: bool
    purged_at_ms: int | None

    @property
    def is_sequential(self) -> bool:
        """Whether its operations follow one another: where groups take turns, what one does depends on the last."""
        return self.has_groups or self.queue.settings.fifo


class KnownQueues:
    """The queues as of an epoch; it only ever goes forward."""

    def __init__(self) -> None:
        self.epoch = -1
        self.by_id: dict[int, KnownQueue] = {}
        self.by_key: dict[QueueKey, KnownQueue] = {}

    def learn(self, rows: Iterable[Any]) -> None:
        """Take in what `changed_queues` or `living_queues` said."""
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
        """The living queue of that key, as far as is known."""
        known = self.by_key.get(key)
        return None if known is None else known.queue

    def all(self) -> list[Queue]:
        """Every living queue, oldest first."""
        return [known.queue for _, known in sorted(self.by_id.items())]

    def learn_anew(self, rows: Iterable[Any]) -> None:
        """Take in `living_queues` in place of everything known."""
        self.epoch = -1
        self.by_id.clear()
        self.by_key.clear()
        self.learn(rows)

    def _forget(self, queue_id: int) -> None:
        known = self.by_id.pop(queue_id, None)
        if known is not None and self.by_key.get(known.queue.key) is known:
            del self.by_key[known.queue.key]


@dataclass(slots=True, eq=False)
class LockedQueue(KnownQueue):
    """A queue within one transaction, which holds its lock: nobody edits it meanwhile."""

    counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # of messages, by their State
    changes: list[int] = field(default_factory=lambda: [0, 0, 0])  # of the counts, by this transaction
    is_counted: bool = False  # whether the transaction has to write its counts
    generation: int = 0  # of the counts
    generation_changes: int = 0  # how often they were changed in it
    returns: int = 0  # see watermarks.py
    last_seq: int = 0  # FIFO: the highest order key given out
    next_wake_ms: int = NEVER  # when the first hidden message becomes due
    next_expiry_ms: int = NEVER  # not later than the first visible message passes its retention
    looked_ahead: bool = False  # the next wake is known also where it is later than now
    came_back: bool = False  # messages became visible in another place than at the end
    # What is still to be written of groups, one after the other: by group, how many more messages, and how many more of
    # them in flight.
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
        """Take in a look at the queue, which looked `ahead` or just for what is due. What this transaction does to the counts
        is not in there."""
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
        """A message is hidden that wakes at that instant."""
        self.next_wake_ms = min(self.next_wake_ms, wake_at_ms)

    def visible_from(self, seq: int) -> None:
        """A message is visible: its retention counts for the next expiry."""
        self.next_expiry_ms = min(self.next_expiry_ms, expires_at_ms(seq, self.queue.settings.retention_s))

    def count(self, message_state: int, change: int) -> None:
        """So many more (or fewer) messages are in that State; written with COMMIT."""
        self.counts[message_state] += change
        self.changes[message_state] += change
        self.is_counted = True

    def change_group(self, group: str | None, *, members: int = 0, in_flight: int = 0) -> None:
        """So many more (or fewer) messages of the group, and of them in flight; with neither, its first one has changed."""
        if group is None:
            return
        latest = self.group_changes[-1] if self.group_changes else {}
        if not latest or (members > 0 and group in latest and latest[group][0] < 0):
            # A group that has lost its last message and gets another is a new one: the two must not cancel out.
            latest = {}
            self.group_changes.append(latest)
        changes = latest.setdefault(group, [0, 0])
        changes[0] += members
        changes[1] += in_flight


class Transaction:
    """See the module; made by `Engine.run`, which also ends it."""

    def __init__(
        self, connection: PipelinedConnection, slot: int, journal: EventRecorder | None, lease_time: LeaseTime
    ) -> None:
        self.connection = connection
        self.slot = slot
        self.now_ms = self.wall_ms = 0
        self.epoch = 0
        self.redone = 0  # how often it was begun before
        self.journal = journal  # None: nothing is recorded
        self.lease_time = lease_time
        self.states: dict[int, LockedQueue] = {}
        self.by_key: dict[QueueKey, LockedQueue] = {}
        self.happened: Counter[tuple[str, int]] = Counter()  # to be announced once it is durable
        self.new_epoch: int | None = None
        self.has_claimed = False  # by what went along with BEGIN, and is not committed
        # COMMIT is on its way, of something that may have been changed: the outcome is unknown if the connection breaks now.
        self.is_ending = False
        self._has_asked = False  # for more than how its queues stand
        self._numbers: list[int] = []
        self._put_off: list[tuple[str, Arguments, Callable[[list[Any]], None] | None]] = []

    # ---- statements

    async def rows(self, query: str, arguments: Arguments = {}) -> list[Any]:  # noqa: B006
        """The rows of a query, after everything that was put off."""
        return (await self.many((query, arguments)))[0]

    async def row(self, query: str, arguments: Arguments = {}) -> Any:  # noqa: B006
        """The first row, or None."""
        found = await self.rows(query, arguments)
        return found[0] if found else None

    async def many(self, *statements: Statement) -> list[list[Any]]:
        """The rows of several queries, which are sent together."""
        put_off, self._put_off = self._put_off, []
        self._has_asked = True
        answers = await self.connection.exchange([*((q, a) for q, a, _ in put_off), *statements])
        for (_, _, then), answer in zip(put_off, answers, strict=False):
            if then is not None:
                then(answer)
        return answers[len(put_off) :]

    def later(
        self, query: str, arguments: Arguments, then: Callable[[list[Any]], None] | None = None
    ) -> None:
        """Have a statement executed before the next query, or with COMMIT; `then` gets its rows."""
        self._put_off.append((query, arguments, then))

    async def hear(self) -> None:
        """Have the answers to what was put off, if anybody waits for them."""
        if any(then is not None for _, _, then in self._put_off):
            await self.many()

    # ---- queues

    def state_of(self, queue: Queue) -> LockedQueue:
        """The queue as it stands; raises QueueMissing for one that was deleted since."""
        state = self.states.get(queue.id)
        if state is None:
            raise QueueMissing(queue.key.name)
        return state

    def find(self, key: QueueKey) -> Queue | None:
        """The living queue of that key, where it is one of the transaction's."""
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
        """A message goes from one State to another (None: it is not in the queue): counts, dues and groups follow.
        `at_the_end`: where it is visible now it is the latest of all."""
        if before is not None:
            state.count(before, -1)
        if after is not None:
            state.count(after, 1)
            if wake_at_ms is not None:
                state.hidden_until(wake_at_ms)
            elif before != _VISIBLE:
                state.visible_from(seq)
                state.came_back |= not at_the_end
                self.happened[AVAILABLE, state.id] += 1
        if group is not None:
            members = (after is not None) - (before is not None)
            state.change_group(
                group, members=members, in_flight=(after == _IN_FLIGHT) - (before == _IN_FLIGHT)
            )

    def write_groups(self, state: LockedQueue) -> None:
        """Write down what was collected of groups; FIFO groups that can be served are announced."""
        collected, state.group_changes = state.group_changes, []
        for changes in collected:
            named = {"queue": state.id, "groups": list(changes)}
            members, in_flight = (list(column) for column in zip(*changes.values(), strict=True))
            if any(members) or any(in_flight):
                self.later(Q.change_groups, {**named, "members": members, "in_flight": in_flight})
            if any(each < 0 for each in members):
                self.later(Q.drop_empty_groups, named)
        if collected and state.fifo:
            groups = list({group for changes in collected for group in changes})
            named = {"queue": state.id, "groups": groups}
            self.later(Q.refresh_groups, named, lambda rows: self._announce_groups(state, rows))

    def _announce_groups(self, state: LockedQueue, rows: list[Any]) -> None:
        for is_open, members in rows:
            if is_open:
                self.happened[AVAILABLE, state.id] += members

    async def raise_epoch(self) -> int:
        """The epoch of this transaction's changes of queues; once at most, and late: everybody else's edits wait."""
        if self.new_epoch is None:
            [(self.new_epoch,)] = await self.rows(Q.raise_epoch)
        return self.new_epoch

    # ---- order keys

    async def numbers(self, count: int) -> list[int]:
        """So many numbers of the counter, rising."""
        if len(self._numbers) < count:
            more = await self.rows(Q.numbers, {"count": count - len(self._numbers)})
            self._numbers += [number for (number,) in more]
        taken, self._numbers = self._numbers[:count], self._numbers[count:]
        return taken

    def seq(self, state: LockedQueue, number: int) -> int:
        """The order key that a number of the counter makes; on FIFO queues above every earlier one."""
        seq = seq_with_counter(self.now_ms, number)
        if state.fifo:
            # The lock of the queue makes this safe; the counter may have come round, or the clock been set back.
            state.last_seq = seq = max(seq, state.last_seq + 1)
            state.is_counted = True
        return seq

    def counted(self, event: str, state: LockedQueue, count: int = 1) -> None:
        """Something happened that only the store sees: announced once the transaction is over."""
        self.happened[event, state.id] += count

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
        """Open the transaction; the rows of `look_at_queues`, and those of the statements that are to go along."""
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
        """Send what was put off, the counts, and what is given; then end."""
        counted = sorted((each for each in self.states.values() if each.is_counted), key=lambda each: each.id)
        if counted:
            self.later(
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
        self.is_ending = self._has_asked or self.has_claimed or bool(self._put_off or last)
        await self.many(*last, ("COMMIT", {}))
        if self.connection.warnings:
            # Somebody cancelled its wait for the standby (an operator, a statement_timeout): it is on one machine only.
            raise psycopg.OperationalError(
                f"COMMIT was answered with a warning: {self.connection.warnings[0]}"
            )


async def nothing(tx: Transaction) -> None:
    """No work of its own: what is due happens before any, and what is new of the queues is learnt."""


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False, kw_only=True)
class SharedOperation:
    """Something that one caller asked for and waits for, which shares a transaction with others (commit.py)."""

    queue: Queue
    caller: Caller
    answer: asyncio.Future[Any] = field(default_factory=_future)
    takes: int = 0  # how many messages it may put in flight
    numbers: int = 0  # how many order keys it needs
    gives_groups: bool = False  # it may bring the first message with a group

    async def work(self, tx: Transaction) -> Any:
        """Do it; a refusal is raised before anything was changed, since others share the transaction."""
        raise NotImplementedError
