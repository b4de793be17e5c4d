"""The open database and what is kept of it in memory: the common ground of all operations.

In memory is only what has a size bounded by the number of queues (settings, counts, and for each queue a lower bound of the
instant at which something next becomes due), the latest sends that may be repeated, and a bounded number of leases
(lease_log.py). Everything else is read when it is needed. What changes in memory is written with the transaction that changed
it (`before_commit`), and read again after one that was undone (`load`).
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, Protocol

import apsw
import msgspec

from veil.core.clock import Clock, LeaseTime
from veil.core.errors import QueueMissing
from veil.core.event import EventRecorder
from veil.core.lease import State
from veil.core.limits import REPEATED_MESSAGES_MAX, REPEATED_SEND_MS, SECOND_MS
from veil.core.message import PRIORITY_DEFAULT, Sent
from veil.core.queue import Queue, QueueCounts, QueueKey
from veil.core.sequence import SequenceSource, expires_at_ms, first_seq_of, instant_of
from veil.stores.outbox import OutboxBound
from veil.stores.sql import NamedQueries, decode_settings, decode_tags
from veil.stores.sqlite.data_directory import WITHIN_BYTES_MIN, Reserve
from veil.stores.sqlite.lease_log import LOGGED_MAX, NEVER, LeaseLog, QueueLeases, folded, spans_of
from veil.stores.store import QueuesByKey, StoreEvents

Q: Final = NamedQueries("veil.stores.sqlite", "queries.sql")
_FORGOTTEN_AT_ONCE: Final = 2_000
_VISIBLE, _DELAYED, _IN_FLIGHT = int(State.VISIBLE), int(State.DELAYED), int(State.IN_FLIGHT)

_RepeatableSend = tuple[int, bytes, list[Sent]]  # queue id, retry key, answer
_encode = msgspec.msgpack.Encoder().encode
_decode_sends = msgspec.msgpack.Decoder(list[_RepeatableSend]).decode

Announcements = list[tuple[str, int, int]]  # event, queue id, how often
AVAILABLE: Final = "available"


# So many order keys are parameters of a statement; a few widths, so that each statement is prepared once.
_WIDTHS: Final = (1, 10, 30, 100, 300, 500, 1_000)
_RUN_ENOUGH: Final = 5  # keys, on the average, that are named by their first and last


@lru_cache(maxsize=64)
def widened(query: str, width: int) -> str:
    """The statement with places for so many order keys, behind those for what it is given; width 0: for a first and a last."""
    given = max(map(int, re.findall(r"\?(\d+)", query)), default=0)
    if not width:
        return query.replace("IN (:seqs)", f"BETWEEN ?{given + 1} AND ?{given + 2}")
    places = [f"?{given + place}" for place in range(1, width + 1)]
    return query.replace(":seqs", ",".join(places)).replace(":rows", ",".join(map("({})".format, places)))


class DatabaseOwner(Protocol):
    """Who is told of what happens."""

    events: StoreEvents


@dataclass(slots=True, eq=False)
class CachedQueue:
    """One queue in memory."""

    queue: Queue
    scope: str
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])  # of messages, by their State
    has_groups: bool = False
    purged_at_ms: int | None = None
    ranked: bool = False  # a message of another priority than the ordinary one was sent here, at some time
    next_wake_ms: int = NEVER  # not later than the first hidden message becomes due
    next_expiry_ms: int = NEVER  # not later than the first visible message passes its retention
    next_due_ms: int = NEVER  # the earlier of the two; kept, because every operation asks for it
    became_available: int = 0  # messages that became receivable in the open transaction
    leases: QueueLeases = field(default_factory=QueueLeases)  # which are not in their messages' rows
    # What is still to be written of groups: how many more messages, and how many more of them in flight.
    group_changes: dict[str, list[int]] = field(default_factory=dict)

    @property
    def visible(self) -> int:
        return self.counts[_VISIBLE]

    @property
    def in_flight(self) -> int:
        return self.counts[_IN_FLIGHT]

    @property
    def queue_counts(self) -> QueueCounts:
        return QueueCounts(self.counts[_VISIBLE], self.counts[_IN_FLIGHT], self.counts[_DELAYED])


class Database:
    """The open database together with the state in memory that belongs to it."""

    def __init__(
        self,
        connection: apsw.Connection,
        clock: Clock,
        owner: DatabaseOwner,
        reserve: Reserve,
        bound: OutboxBound,
        *,
        journal: bool,
        lease_time: LeaseTime | None = None,
    ) -> None:
        self.connection = connection
        self.clock = clock
        self.lease_time = lease_time or LeaseTime(clock, is_on=False)
        self.owner = owner
        self.reserve = reserve
        cursor = connection.cursor()
        # The one cursor that all operations use: BEGIN and COMMIT on it also end a statement that was not read to its end.
        self.execute: Callable[..., Any] = cursor.execute
        self.execute_many: Callable[..., Any] = cursor.executemany
        self.sequence = SequenceSource()
        self._marked_seq = 0  # the last order key of the transaction before
        self.marked_ms = 0  # when the latest one was committed, engine time
        self.journal = EventRecorder() if journal else None  # None: nothing is recorded
        self.bound = bound
        self.outbox_last = self.outbox_bytes = 0  # see outbox.py
        self.lease_log = LeaseLog()
        self.repeatable = RepeatableSends()
        self.remembers = False  # something is kept for five minutes, and has to be forgotten then
        self.states: dict[int, CachedQueue] = {}
        self.by_key: QueuesByKey[CachedQueue] = QueuesByKey()
        self._dirty: set[CachedQueue] = set()
        self.regrouped: set[CachedQueue] = set()  # which have changes of groups to be written
        # A heap of (instant, queue id); entries may be out of date, never missing.
        self._due: list[tuple[int, int]] = []
        self._happened: Counter[tuple[str, int]] = Counter()  # in the open transaction, by event and queue

    def has_room(self) -> bool:
        """Whether more messages fit into the database itself, where the disk is full."""
        free_pages, page_bytes = [
            int(self.connection.pragma(name)) for name in ("freelist_count", "page_size")
        ]
        return free_pages * page_bytes >= WITHIN_BYTES_MIN

    # ---- reading the state

    def load(self) -> None:
        """Read the state in memory; called at the start and after a rollback."""
        self.states.clear()
        self.by_key.clear()
        self._dirty.clear()
        self.regrouped.clear()
        self._due.clear()
        self._happened.clear()
        for row in self.execute(Q.load_queues).fetchall():
            queue_id, region, account, name, settings, tags, scope, created_ms, modified_ms, *rest = row
            purged_at_ms, visible, in_flight, delayed, has_groups, ranked = rest
            key = QueueKey(region, account, name)
            queue = Queue(
                queue_id, key, decode_settings(settings), decode_tags(tags), created_ms, modified_ms
            )
            counts = [visible, delayed, in_flight]
            self.keep(CachedQueue(queue, scope, counts, bool(has_groups), purged_at_ms, bool(ranked)))
        self._load_leases()
        for state in self.states.values():
            self.look_ahead(state)
        mark = self.execute(Q.read_mark).get
        *_, self._marked_seq, self.outbox_last, self.outbox_bytes = mark or (0, 0, 0)
        if self.journal is not None:
            self.journal.forget()
        oldest_seq = first_seq_of(max(0, self.clock.now_ms() - REPEATED_SEND_MS))
        self.repeatable.load(self.execute(Q.latest_sends, (oldest_seq,)))
        self.remembers = bool(self.execute(Q.remembers).get)

    def _load_leases(self) -> None:
        """Read the log, as after a rollback; at the start it is empty (opening.py)."""
        log = self.lease_log
        log.clear()
        rows = [packed for (packed,) in self.execute(Q.lease_log).fetchall()]
        log.bytes = sum(map(len, rows))
        # Started over with the next entry: how many messages its rows name is not counted, and the next rollback reads them all.
        log.logged = LOGGED_MAX + 1 if rows else 0
        for queue_id, logged in folded(rows).items():
            state = self.states.get(queue_id)
            if state is None or not logged:
                continue
            by_seq = state.leases.by_seq
            for facts in self.execute_for(Q.received_facts, (), [*logged]):
                seq, message_id, delivery, *rest = facts
                lease = logged[seq]
                by_seq[seq] = ((seq, message_id, delivery, lease.deadline_ms, *rest), lease)
            # Not the last of the log's: where that is deleted, a message before it may have come back since.
            state.leases.taken_seq = max(by_seq, default=0)
            log.leases += len(by_seq)

    def keep(self, state: CachedQueue) -> None:
        """A queue is there."""
        self.states[state.queue.id] = state
        self.by_key[state.queue.key] = state

    def drop(self, state: CachedQueue) -> None:
        """A queue is gone."""
        del self.states[state.queue.id]
        del self.by_key[state.queue.key]
        self._dirty.discard(state)
        self.regrouped.discard(state)

    def queues(self) -> list[Queue]:
        """Every living queue."""
        return [state.queue for state in self.states.values()]

    def state_of(self, queue: Queue) -> CachedQueue:
        """The state of a living queue; raises QueueMissing for one that was deleted since."""
        state = self.states.get(queue.id)
        if state is None:
            raise QueueMissing(queue.key.name)
        return state

    def find(self, key: QueueKey) -> Queue | None:
        """The living queue of that key."""
        state = self.by_key.get(key)
        return None if state is None else state.queue

    def execute_for(self, query: str, given: tuple[Any, ...], seqs: Sequence[int]) -> list[Any]:
        """Execute a statement about messages, with what it is given and with their order keys (`:seqs` or `:rows`) as parameters.
        Of a JSON list, a subquery, SQLite would first collect the rows and then change them: a fifth more for ten."""
        count = len(seqs)
        if count == 1 or count == 10:  # nearly always, and as wide as a statement
            found: list[Any] = self.execute(widened(query, count), (*given, *seqs)).fetchall()
            return found
        found = []
        for at in range(0, count, _WIDTHS[-1]):
            some = seqs[at : at + _WIDTHS[-1]]
            width = next(width for width in _WIDTHS if len(some) <= width)
            filling = [None] * (width - len(some))  # which no message has
            found += self.execute(widened(query, width), (*given, *some, *filling)).fetchall()
        return found

    def change_all(self, query: str, given: tuple[Any, ...], seqs: Sequence[int]) -> None:
        """The same for a statement that changes messages `WHERE seq IN (:seqs)`. Those of one burst have keys without a gap, and
        are then named by the first and the last: 10 to 20 % less for ten."""
        bounds = spans_of(seqs)
        if len(bounds) * _RUN_ENOUGH <= 2 * len(seqs):
            for first, last in zip(bounds[::2], bounds[1::2], strict=True):
                self.execute(widened(query, 0), (*given, first, last))
        else:
            self.execute_for(query, given, seqs)

    # ---- leases that are not in their rows

    def write_back(self, state: CachedQueue, seqs: Collection[int] | None = None) -> None:
        """Write leases of the queue, those of some messages or all, into the rows of their messages."""
        leases = state.leases
        chosen = [*leases.by_seq] if seqs is None else sorted(leases.by_seq.keys() & seqs)
        if chosen:
            retention_ms = state.queue.settings.retention_s * SECOND_MS
            for lease, alike in groupby(chosen, lambda seq: leases.by_seq[seq][1]):
                self.change_all(Q.open_leases, (*lease, retention_ms), [*alike])
            self.lease_log.written(state.queue.id, leases, chosen)
        if not leases.by_seq:
            leases.taken_seq = 0

    def write_back_all(self) -> None:
        """Write all leases into the rows of their messages, and start the log over."""
        for state in self.states.values():
            self.write_back(state)
        self.lease_log.clear()
        self.execute(Q.clear_lease_log)

    # ---- what operations change of it

    def shift(
        self,
        state: CachedQueue,
        before: int | None,
        after: int | None,
        seq: int,
        wake_at_ms: int | None,
        group: str | None,
        count: int = 1,
    ) -> None:
        """Messages, one or as many as are alike in all this, go from one State to another (None: not in the queue): counts, dues
        and groups follow. Of several that become visible, `seq` is the first one's."""
        counts = state.counts
        if before is not None:
            counts[before] -= count
        if after is not None:
            counts[after] += count
            if wake_at_ms is not None:
                self.hidden_until(state, wake_at_ms)
            elif before != _VISIBLE:
                if seq <= state.leases.taken_seq:  # a receive would read on behind it
                    self.write_back(state, state.leases.behind(seq))
                    state.leases.taken_seq = seq - 1
                state.became_available += count
                # A new message expires after all the others, so it only counts where there are none.
                if before is not None or state.next_expiry_ms == NEVER:
                    self.visible_from(state, seq)
        self._dirty.add(state)
        if group is not None:
            if before is None:
                self._join_group(state, group, seq, after)
            else:
                self.regrouped.add(state)
                changes = state.group_changes.setdefault(group, [0, 0])
                changes[0] -= after is None
                changes[1] += (after == _IN_FLIGHT) - (before == _IN_FLIGHT)

    def hidden_until(self, state: CachedQueue, wake_at_ms: int) -> None:
        """A message is hidden, and due then."""
        if wake_at_ms < state.next_wake_ms:
            state.next_wake_ms = wake_at_ms
            self._note_due(state, wake_at_ms)

    def visible_from(self, state: CachedQueue, seq: int) -> None:
        """A message is visible: its retention counts for the next expiry."""
        expiry_ms = expires_at_ms(seq, state.queue.settings.retention_s)
        if expiry_ms < state.next_expiry_ms:
            state.next_expiry_ms = expiry_ms
            self._note_due(state, expiry_ms)

    def announce_visible(self, state: CachedQueue) -> None:
        """Those who wait at the queue may have what is visible there."""
        state.became_available += state.visible
        self._dirty.add(state)

    def rank(self, state: CachedQueue, priority: int) -> None:
        """A message of that priority arrived."""
        if priority != PRIORITY_DEFAULT and not state.ranked:
            state.ranked = True
            self.execute(Q.mark_ranked, (state.queue.id,))

    # ---- groups: whose turn it is on a FIFO queue, and who is too loud on a fair one

    def _join_group(self, state: CachedQueue, group: str, seq: int, message_state: int | None) -> None:
        if state.group_changes:
            # A group that has just lost its last message and gets another is a new one.
            self._write_groups(state)
        state.has_groups = True
        is_open = state.queue.settings.fifo and message_state == _VISIBLE
        # The order key serves as the turn too: it rises with every use, and a group's first message gives it the last turn.
        self.execute(Q.join_group, (state.queue.id, group, seq, int(is_open)))

    def serve_groups(self, state: CachedQueue, groups: list[str], now_ms: int) -> None:
        """Groups of a FIFO queue were served, in this order: they go behind all the others."""
        for group in groups:
            self.execute(Q.serve_group, (self.sequence.next(now_ms), state.queue.id, group))
            state.group_changes.setdefault(group, [0, 0])
            self.regrouped.add(state)

    def end_operation(self) -> None:
        """Write what an operation collected, so that the next one finds it."""
        while self.regrouped:
            self._write_groups(self.regrouped.pop())

    def _write_groups(self, state: CachedQueue) -> None:
        """FIFO groups that can be served are announced."""
        collected, state.group_changes = state.group_changes, {}
        queue_id, fifo = state.queue.id, state.queue.settings.fifo
        for group, (members, in_flight) in collected.items():
            if members or in_flight:
                self.execute(Q.change_group, (members, in_flight, queue_id, group))
            if members < 0:
                self.execute(Q.drop_empty_group, (queue_id, group))
            if fifo:
                for is_open, left in self.execute(Q.refresh_group, (queue_id, group)).fetchall():
                    state.became_available += left if is_open else 0
        self._dirty.add(state)

    # ---- when something is due

    def look_ahead(self, state: CachedQueue) -> None:
        """Find out exactly when the queue next has something due."""
        # Read to the end, with `get`: after a rollback no transaction follows to end a statement, and a checkpoint could not
        # be made while one is open.
        wake_ms = self.execute(Q.next_wake, (state.queue.id,)).get
        oldest = self.oldest_visible(state)
        state.next_wake_ms = wake_ms if wake_ms is not None else NEVER
        if state.leases.by_seq:
            retention_s = state.queue.settings.retention_s
            state.next_wake_ms = min(state.next_wake_ms, state.leases.first_wake_ms(retention_s))
        state.next_expiry_ms = NEVER
        if oldest is not None:
            state.next_expiry_ms = expires_at_ms(oldest, state.queue.settings.retention_s)
        state.next_due_ms = min(state.next_wake_ms, state.next_expiry_ms)
        if state.next_due_ms < NEVER:
            self._push_due(state)

    def oldest_visible(self, state: CachedQueue) -> int | None:
        """The order key of the oldest visible message."""
        if not state.visible:
            return None
        seq: int | None = self.execute(Q.oldest_visible, (state.queue.id, state.leases.taken_seq)).get
        return seq

    def _note_due(self, state: CachedQueue, instant_ms: int) -> None:
        if instant_ms < state.next_due_ms:
            state.next_due_ms = instant_ms
            self._push_due(state)

    def _push_due(self, state: CachedQueue) -> None:
        is_first = not self._due or state.next_due_ms < self._due[0][0]
        heapq.heappush(self._due, (state.next_due_ms, state.queue.id))
        if is_first:
            self.owner.events.due_sooner()

    def next_due_ms(self) -> int | None:
        """The earliest instant at which any queue has something due."""
        while self._due:
            instant_ms, queue_id = self._due[0]
            state = self.states.get(queue_id)
            if state is not None and instant_ms >= state.next_due_ms:
                if instant_ms > state.next_due_ms:
                    heapq.heapreplace(self._due, (state.next_due_ms, queue_id))
                return state.next_due_ms
            heapq.heappop(self._due)
        return None

    def due_states(self, now_ms: int) -> list[CachedQueue]:
        """The queues that have something due by then."""
        due = []
        while self._due and self._due[0][0] <= now_ms:
            _, queue_id = heapq.heappop(self._due)
            state = self.states.get(queue_id)
            if state is not None and state not in due:
                due.append(state)
        return due

    # ---- what the owner is told

    def counted(self, event: str, state: CachedQueue, count: int = 1) -> None:
        """Messages changed in a way that only the store sees: announced once that is durable."""
        self._happened[event, state.queue.id] += count

    def notice(self, event: str, state: CachedQueue) -> None:
        """Something was refused or passed over, which changes nothing: announced at once."""
        self.owner.events.counted(event, state.queue.id, 1)

    # ---- the end of a transaction

    def before_commit(self) -> Announcements:
        """Write what is kept per transaction; what is to be announced once it is durable."""
        happened = [(event, queue_id, count) for (event, queue_id), count in self._happened.items()]
        self._happened.clear()
        for state in self._dirty:
            visible, delayed, in_flight = state.counts
            self.execute(Q.write_count, (visible, in_flight, delayed, state.queue.id))
            if state.became_available:
                happened.append((AVAILABLE, state.queue.id, state.became_available))
                state.became_available = 0
        self._dirty.clear()
        mark = self.clock.mark()
        self.marked_ms = mark.engine_ms
        if sends := self.repeatable.take_fresh():
            # The last key that the transaction gave to a message will do, since all that counts of it is its instant.
            seq = self.sequence.last
            if seq == self._marked_seq:
                seq = self.sequence.next(mark.engine_ms)  # the sends were duplicates, which were given none
            self.execute(Q.remember_send, (seq, sends))
        journal = self.journal
        if journal is not None and journal.events:
            if self.outbox_bytes < self.bound.bytes_max:
                packed = journal.pack()
                self.outbox_last += 1
                self.outbox_bytes += len(packed)
                self.execute(Q.add_to_outbox, (self.outbox_last, mark.engine_ms, packed))
            else:
                self.bound.give_up(journal.count, mark.engine_ms)
                journal.forget()
        if self.lease_log.entries:
            self._write_lease_log()
        self._marked_seq = self.sequence.last
        self.execute(Q.write_mark, (*mark, self._marked_seq, self.outbox_last, self.outbox_bytes))
        return happened

    def _write_lease_log(self) -> None:
        log = self.lease_log
        if log.is_long:
            self.execute(Q.clear_lease_log)
            packed = log.pack_all([(state.queue.id, state.leases) for state in self.states.values()])
        else:
            packed = log.take_packed()
        if packed:
            self.execute(Q.add_to_lease_log, (packed,))


class RepeatableSends:
    """Sends that come again: a client that got no answer may repeat its call, and nothing is stored twice.

    Looked up in memory, where there is room for the latest, and written with the transaction that stored them, so that they
    are known after a crash too: one row for the whole group, which costs a send next to nothing. The rows are only ever read
    at the start; an index by key would cost every send a random page.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], tuple[int, list[Sent]]] = {}
        # Until when, which, how many messages; the oldest is forgotten first.
        self._order: deque[tuple[int, tuple[int, bytes], int]] = deque()
        self._messages = 0
        self._fresh: list[_RepeatableSend] = []  # of the open transaction

    def find(self, queue_id: int, retry_key: bytes, now_ms: int) -> list[Sent] | None:
        """What the first of the repeated sends was answered with."""
        found = self._known.get((queue_id, retry_key))
        return None if found is None or now_ms >= found[0] else found[1]

    def remember(self, queue_id: int, retry_key: bytes, sent: list[Sent], now_ms: int) -> None:
        """Know the send from now on, if the transaction that stored it is committed."""
        self._fresh.append((queue_id, retry_key, sent))
        self._keep(now_ms + REPEATED_SEND_MS, (queue_id, retry_key), sent)

    def take_fresh(self) -> bytes | None:
        """The sends of the open transaction as they are written."""
        if not self._fresh:
            return None
        fresh, self._fresh = self._fresh, []
        return _encode(fresh)

    def load(self, rows: Any) -> None:
        """Know what the rows say, newest first, and nothing else."""
        self._known.clear()
        self._order.clear()
        self._messages, self._fresh = 0, []
        latest, messages = list[tuple[int, list[_RepeatableSend]]](), 0
        for seq, packed in rows:
            sends = _decode_sends(packed)
            latest.append((instant_of(seq) + REPEATED_SEND_MS, sends))
            messages += sum(len(sent) for _, _, sent in sends)
            if messages >= REPEATED_MESSAGES_MAX:
                break
        for until_ms, sends in reversed(latest):
            for queue_id, retry_key, sent in sends:
                self._keep(until_ms, (queue_id, retry_key), sent)

    def forget_old(self, db: Database, now_ms: int) -> bool:
        """Drop a bounded number of rows that are too old, or whose sends were pushed out; True while more are left."""
        while self._order and self._order[0][0] <= now_ms:
            self._drop_first()
        known_since_ms = (self._order[0][0] if self._order else now_ms) - REPEATED_SEND_MS
        db.execute(Q.forget_sends, (first_seq_of(known_since_ms), _FORGOTTEN_AT_ONCE))
        return db.connection.changes() == _FORGOTTEN_AT_ONCE

    def _keep(self, until_ms: int, key: tuple[int, bytes], sent: list[Sent]) -> None:
        self._known[key] = (until_ms, sent)
        self._order.append((until_ms, key, len(sent)))
        self._messages += len(sent)
        while self._messages > REPEATED_MESSAGES_MAX:
            self._drop_first()

    def _drop_first(self) -> None:
        until_ms, key, count = self._order.popleft()
        self._messages -= count
        known = self._known.get(key)
        if known is not None and known[0] == until_ms:
            del self._known[key]
