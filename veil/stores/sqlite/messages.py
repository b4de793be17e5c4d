"""Put messages into a queue, take them out of sight, and look at them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import attrgetter, eq
from typing import Any

import msgspec

from veil.core import decide
from veil.core.effect import Enqueued
from veil.core.errors import QueueMissing, StoreFull
from veil.core.event import Kind, LeaseFacts
from veil.core.lease import State
from veil.core.limits import ATTEMPT_MS, DEDUPLICATION_MS, SECOND_MS
from veil.core.message import PRIORITY_DEFAULT, PRIORITY_LAST, Caller, NewMessage, Sent, StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import SEQ_MAX, instant_of, noisy_groups, wake_at_ms
from veil.stores.sql import decode_attributes, encode_attributes, to_message
from veil.stores.sqlite.apply import apply
from veil.stores.sqlite.data_directory import DISK_FULL
from veil.stores.sqlite.database import CachedQueue, Database, Q
from veil.stores.sqlite.lease_log import QueueLeases

_PAGE_MAX = 100  # rows with their bodies
_RUN = 10  # rows of a FIFO group that are read at once
# They bound how long one look holds up everything else: rows, bytes of their bodies, rows whose time alone is read.
ROWS_AT_ONCE = 500
BYTES_AT_ONCE = 4 << 20
TIMES_AT_ONCE = 2_000

_VISIBLE, _IN_FLIGHT = int(State.VISIBLE), int(State.IN_FLIGHT)
_decode_claims = msgspec.json.Decoder(list[decide.AttemptClaim]).decode
_by_seq = attrgetter("seq")


# ---- send


def send(
    db: Database, queue: Queue, messages: Sequence[NewMessage], retry_key: bytes | None, caller: Caller
) -> list[Sent]:
    """Store the messages in order. A FIFO duplicate is answered with the first one's id and seq, a call of a retry key that
    was stored before with what that one was answered."""
    # Here, not before: when a group is redone for want of room, the reserve is for the others in it.
    if db.reserve.is_released and not db.has_room():
        raise StoreFull(DISK_FULL)
    state = db.states.get(queue.id)
    if state is None:
        raise QueueMissing(queue.key.name)
    now_ms, wall_ms = db.clock.now_ms(), db.clock.wall_ms()
    if retry_key is not None:
        first = db.repeatable.find(queue.id, retry_key, now_ms)
        if first is not None:
            db.notice("repeated_send", state)
            return first
    settings = state.queue.settings
    sent: list[Sent] = []
    stored: list[Enqueued] = []
    for message in messages:
        if settings.fifo and (duplicate := _duplicate_of(db, state, message, now_ms)):
            sent.append(duplicate)
            continue
        enqueued = decide.enqueue(message, db.sequence.next(now_ms), settings, now_ms)
        if settings.fifo:
            _remember(db, state, message, enqueued.seq, now_ms)
        stored.append(enqueued)
        sent.append(Sent(message.message_id, enqueued.seq))
    if stored:
        _insert(db, state, stored, wall_ms)
        if db.journal is not None:
            db.journal.record(now_ms, state.queue.key, stored, caller)
    if retry_key is not None:
        db.repeatable.remember(queue.id, retry_key, sent, now_ms)
        db.remembers = True
    return sent


def _insert(db: Database, state: CachedQueue, stored: Sequence[Enqueued], wall_ms: int) -> None:
    queue_id, retention_s = state.queue.id, state.queue.settings.retention_s
    rows = []
    plain = 0  # visible at once, without a group
    for enqueued in stored:
        new, seq = enqueued.new, enqueued.seq
        wake_ms = None
        if enqueued.due_at_ms is not None:
            wake_ms = wake_at_ms(seq, enqueued.due_at_ms, retention_s)
        attributes = encode_attributes(new.attributes) if new.attributes else None
        rows.append(
            (
                seq, queue_id, enqueued.state, wake_ms, enqueued.due_at_ms, wall_ms, new.message_id, new.group,
                new.deduplication_id, new.trace_header, new.sender, new.message_type, enqueued.body_bytes, attributes,
                new.body_md5, new.body, new.priority,
            )
        )  # fmt: skip
        if wake_ms is None and new.group is None:
            plain += 1
        else:
            db.shift(state, None, enqueued.state, seq, wake_ms, new.group)
        if new.priority != PRIORITY_DEFAULT:
            db.rank(state, new.priority)
    if plain:
        db.shift(state, None, _VISIBLE, stored[0].seq, None, None, plain)
    if len(rows) == 1:
        db.execute(Q.insert_message, rows[0])
    else:
        db.execute_many(Q.insert_message, rows)


def _duplicate_of(db: Database, state: CachedQueue, new: NewMessage, now_ms: int) -> Sent | None:
    key = decide.deduplication_key(state.scope, new)
    first = db.execute(Q.find_duplicate, (state.queue.id, *key, now_ms)).fetchone()
    if first is None:
        return None
    db.notice("duplicate", state)
    seq, message_id = first
    return Sent(message_id, seq, duplicate=True)


def _remember(db: Database, state: CachedQueue, new: NewMessage, seq: int, now_ms: int) -> None:
    known = (state.queue.id, *decide.deduplication_key(state.scope, new), now_ms + DEDUPLICATION_MS)
    db.execute(Q.remember_duplicate, (*known, seq, new.message_id))
    db.remembers = True


# ---- receive


def receive(
    db: Database, queue: Queue, count: int, visibility_s: int | None, attempt_id: str | None, caller: Caller
) -> list[StoredMessage] | None:
    """Take up to `count` visible messages, after everything due has been settled; None: to be asked again (`take`)."""
    state, now_ms = db.state_of(queue), db.clock.now_ms()
    if visibility_s is None:
        visibility_s = state.queue.settings.visibility_s
    if attempt_id is None:
        return take(db, state, count, visibility_s, now_ms, caller)
    messages: list[StoredMessage] | None = _repeat(db, state, attempt_id, visibility_s, now_ms, caller)
    if not messages:
        messages = take(db, state, count, visibility_s, now_ms, caller)
    if messages:
        claims = msgspec.json.encode([(m.seq, m.delivery, m.due_at_ms) for m in messages]).decode()
        db.execute(Q.remember_attempt, (queue.id, attempt_id, now_ms + ATTEMPT_MS, claims))
        db.remembers = True
    return messages


def take(
    db: Database,
    state: CachedQueue,
    count: int,
    visibility_s: int,
    now_ms: int,
    caller: Caller,
    *,
    hold: bool = False,
) -> list[StoredMessage] | None:
    """Take what is visible, as much as the receive may have; what is spent goes to the dead letters. None where so much was
    spent that nothing was taken yet: to be asked again, once others were let in."""
    queue = state.queue
    target = None if queue.settings.redrive is None else decide.dead_letters_of(queue, db.find)
    budget = decide.receive_budget(queue, state.counts[_IN_FLIGHT], count, target, hold=hold)
    if budget.count <= 0 or not state.counts[_VISIBLE]:
        return []
    if queue.settings.fifo:
        candidates = _fifo_order(db, state, budget.count)
    else:
        # By far the most common queue: its first messages are what is taken, read as far as there is room for them.
        is_plain = not state.has_groups and not state.ranked
        if is_plain and visibility_s and (target is None or budget.bytes_left is None):
            taken = _take_first(db, state, budget, visibility_s, now_ms, caller, hold=hold)
            if taken is not None:
                return taken
        if is_plain and target is None:
            asked = (queue.id, state.leases.taken_seq, budget.count)
            candidates = map(to_message, db.execute(Q.visible_alone, asked))
        else:
            candidates = _standard_order(db, state, min(budget.count, budget.page_max))
    messages, spent = budget.choose(candidates)
    if target is not None:
        for message in spent:
            new_seq = db.sequence.next(now_ms) if queue.settings.fifo else message.seq
            apply(db, state, [decide.dead_letter(message, target, new_seq)], now_ms)
    if messages:
        wall_ms = db.clock.wall_ms()
        opened = decide.open_leases(messages, visibility_s, now_ms, wall_ms)
        apply(db, state, opened, now_ms, caller)
        for message, effect in zip(messages, opened, strict=True):
            message.set_lease(effect.lease)
        if queue.settings.fifo:
            db.serve_groups(state, list(dict.fromkeys(m.group for m in messages if m.group)), now_ms)
    return messages if messages or not budget.is_cut else None


def _take_first(
    db: Database,
    state: CachedQueue,
    budget: decide.ReceiveBudget,
    visibility_s: int,
    now_ms: int,
    caller: Caller,
    *,
    hold: bool,
) -> list[StoredMessage] | None:
    """The shortcut `first_as_received` of queries.sql; None, and nothing taken, where one of ten is spent."""
    queue, deadline_ms, wall_ms = state.queue, now_ms + visibility_s * SECOND_MS, db.clock.wall_ms()
    opened, retention_s = (deadline_ms, now_ms, wall_ms), queue.settings.retention_s
    rows = db.execute(Q.first_as_received, (queue.id, state.leases.taken_seq, budget.count, wall_ms))
    found = _as_received(rows, deadline_ms, now_ms)
    # Ten are all taken, without a look at their sizes.
    messages = list(found) if budget.bytes_left is None else budget.choose(found)[0]
    spent_at = budget.receives_max
    if spent_at is not None and max([message.receive_count for message in messages], default=0) > spent_at:
        return None
    if messages:
        facts: list[LeaseFacts] = [
            (m.seq, m.message_id, m.delivery, deadline_ms, m.receive_count, m.body_bytes, m.message_type)
            for m in messages
        ]
        if db.lease_log.has_room(len(facts), hold=hold):
            db.lease_log.open(queue.id, state.leases, facts, *opened)
        else:
            seqs = [message.seq for message in messages]
            db.change_all(Q.open_leases, (*opened, retention_s * SECOND_MS), seqs)
        first_seq = messages[0].seq
        wake_ms = wake_at_ms(first_seq, deadline_ms, retention_s)  # no later than any other's
        db.shift(state, _VISIBLE, _IN_FLIGHT, first_seq, wake_ms, None, len(facts))
        if db.journal is not None:
            db.journal.record_facts(Kind.RECEIVED, now_ms, queue.key, facts, caller)
    return messages


def _as_received(rows: Iterable[Any], deadline_ms: int, now_ms: int) -> Iterator[StoredMessage]:
    for (
        seq, message_id, body, body_md5, attributes, trace_header, sender, sent_wall_ms, deduplication_id, source, receive_count,
        first_wall_ms, delivery, message_type, body_bytes,
    ) in rows:  # fmt: skip
        yield StoredMessage(
            seq, message_id, body, body_md5, None if attributes is None else decode_attributes(attributes),
            trace_header, sender, sent_wall_ms, None, deduplication_id, source, receive_count, first_wall_ms, delivery,
            _IN_FLIGHT, deadline_ms, now_ms, message_type, body_bytes, PRIORITY_DEFAULT, delivery,
        )  # fmt: skip


def _repeat(
    db: Database, state: CachedQueue, attempt_id: str, visibility_s: int, now_ms: int, caller: Caller
) -> list[StoredMessage]:
    """What the attempt gave before, with its leases begun again; nothing where it must be an ordinary receive."""
    packed = db.execute(Q.find_attempt, (state.queue.id, attempt_id, now_ms)).get
    if packed is None:
        return []
    claims = _decode_claims(packed)
    db.write_back(state, [seq for seq, _, _ in claims])
    rows = [db.execute(Q.message_in_queue, (seq, state.queue.id)).get for seq, _, _ in claims]
    messages = {message.seq: message for message in [to_message(row) for row in rows if row is not None]}
    trouble = db.lease_time.trouble_at(now_ms)
    repeated = decide.repeat_attempt(claims, messages, state.queue.settings, visibility_s, now_ms, trouble)
    if repeated is None:
        return []
    apply(db, state, repeated, now_ms, caller)
    for effect in repeated:
        messages[effect.message.seq].set_lease(effect.lease)
    return [messages[effect.message.seq] for effect in repeated]


# ---- the order of a standard queue


def _pages(
    db: Database, state: CachedQueue, query: str, page: int, *between: str, after: int = 0
) -> Iterator[StoredMessage]:
    """Messages of one of the queries that are ordered by seq, page by page."""
    while True:
        rows = db.execute(query, (state.queue.id, *between, after, page)).fetchall()
        messages = [to_message(row) for row in rows]
        yield from messages
        if len(messages) < page:
            return
        after = messages[-1].seq


def _standard_order(db: Database, state: CachedQueue, page: int) -> Iterator[StoredMessage]:
    """Quiet groups first; then the noisy ones, the one with the fewest in flight first. Within that by priority, then age."""
    alone = _pages(db, state, Q.visible_alone, page, after=state.leases.taken_seq)
    if not state.has_groups:
        return _by_priority(db, state, page, alone, lambda group: True) if state.ranked else alone
    loud = dict(db.execute(Q.loud_groups, (state.queue.id,)).fetchall())
    noisy = noisy_groups(loud, state.in_flight)
    grouped = (
        _of_quiet_groups(db, state, page, noisy) if noisy else _pages(db, state, Q.visible_grouped, page)
    )
    quiet = _by_priority(db, state, page, _merged(alone, grouped), lambda group: group not in noisy)
    return chain(quiet, *[_of_noisy_group(db, state, page, group) for group in noisy])


def _of_noisy_group(db: Database, state: CachedQueue, page: int, group: str) -> Iterator[StoredMessage]:
    ordinary = _pages(db, state, Q.visible_of_group, page, group)
    return _by_priority(db, state, page, ordinary, partial(eq, group))


def _by_priority(
    db: Database,
    state: CachedQueue,
    page: int,
    ordinary: Iterator[StoredMessage],
    belongs: Callable[[str | None], bool],
) -> Iterator[StoredMessage]:
    """Those that go before the ordinary ones, these, and those that go behind them."""
    if not state.ranked:
        yield from ordinary
        return
    first = _ranked(db, state, page, 0, PRIORITY_DEFAULT)
    last = _ranked(db, state, page, PRIORITY_DEFAULT, PRIORITY_LAST)
    yield from filter(lambda message: belongs(message.group), first)
    yield from filter(lambda message: message.priority == PRIORITY_DEFAULT, ordinary)
    yield from filter(lambda message: belongs(message.group), last)


def _ranked(db: Database, state: CachedQueue, page: int, above: int, up_to: int) -> Iterator[StoredMessage]:
    after = (above, SEQ_MAX)
    while rows := db.execute(Q.visible_ranked, (state.queue.id, *after, up_to, page)).fetchall():
        messages = [to_message(row) for row in rows]
        yield from messages
        after = (messages[-1].priority, messages[-1].seq)


def _of_quiet_groups(
    db: Database, state: CachedQueue, page: int, noisy: list[str]
) -> Iterator[StoredMessage]:
    # The oldest `page` messages of the quiet groups stand in the `page` groups with the oldest heads.
    after = 0
    while groups := _quiet_groups(db, state, page, noisy, after):
        found = [
            to_message(row)
            for group in groups
            for row in db.execute(Q.visible_of_group, (state.queue.id, group, after, page)).fetchall()
        ]
        found.sort(key=_by_seq)
        yield from found[:page]
        after = found[:page][-1].seq


def _quiet_groups(db: Database, state: CachedQueue, page: int, noisy: list[str], after: int) -> list[str]:
    """Those whose first visible messages behind that seq are the oldest. However many groups there are, few are looked at: each
    stands by a seq that its messages are not below."""
    queue_id, excluded = state.queue.id, msgspec.json.encode(noisy).decode()
    heads: list[tuple[int, str]] = []
    turn = 0
    while groups := db.execute(Q.waiting_groups, (queue_id, turn, excluded, _PAGE_MAX)).fetchall():
        for group, turn in groups:
            if len(heads) == page and turn > heads[-1][0]:
                break
            head = db.execute(Q.head_of_group, (queue_id, group, after)).get
            if head is not None:
                insort(heads, (head, group))
                del heads[page:]
        else:
            continue
        break
    return [group for _, group in heads]


def _merged(one: Iterator[StoredMessage], other: Iterator[StoredMessage]) -> Iterator[StoredMessage]:
    # Not heapq.merge, which would begin with a look at both where the first is enough.
    left, right = next(one, None), next(other, None)
    while left is not None and right is not None:
        if left.seq < right.seq:
            yield left
            left = next(one, None)
        else:
            yield right
            right = next(other, None)
    if left is not None:
        yield from chain([left], one)
    if right is not None:
        yield from chain([right], other)


# ---- the order of a FIFO queue


def _fifo_order(db: Database, state: CachedQueue, count: int) -> Iterator[StoredMessage]:
    """From the group whose turn it is as many as there are, then from the next."""
    served: set[str] = set()
    while True:
        groups = db.execute(Q.open_groups, (state.queue.id, len(served) + count)).fetchall()
        fresh = [group for (group,) in groups if group not in served]
        if not fresh:
            return
        for group in fresh:
            served.add(group)
            yield from _leading_run(db, state, group)


def _leading_run(db: Database, state: CachedQueue, group: str) -> Iterator[StoredMessage]:
    for message in _pages(db, state, Q.of_group, _RUN, group):
        if message.state != State.VISIBLE:
            return
        yield message


# ---- looking without receiving


def oldest_sent_ms(db: Database, queue: Queue) -> int | None:
    """When the oldest visible message was sent."""
    seq = db.oldest_visible(db.state_of(queue))
    return None if seq is None else instant_of(seq)


def peek_next(db: Database, queue: Queue, *, limit: int = 100) -> list[StoredMessage]:
    """What a receive would come to first."""
    state = db.state_of(queue)
    if not state.visible or limit < 1:
        return []
    fifo, page = state.queue.settings.fifo, min(limit, _PAGE_MAX)
    candidates = _fifo_order(db, state, limit) if fifo else _standard_order(db, state, page)
    return list(islice(candidates, limit))


class Peek:
    """A peek under way: what it has come to, and where it goes on. A bounded number of rows at a time."""

    def __init__(
        self,
        queue_id: int,
        after_seq: int,
        up_to_seq: int | None,
        sent_after_ms: int | None,
        sent_before_ms: int | None,
        limit: int,
        bytes_max: int | None,
    ) -> None:
        self.messages: list[StoredMessage] = []
        self._queue_id, self._after_seq, self._limit = queue_id, after_seq, limit
        self._up_to_seq = SEQ_MAX if up_to_seq is None else up_to_seq
        self._by_time = sent_after_ms is not None or sent_before_ms is not None
        self._sent_after_ms = sent_after_ms or 0
        self._sent_before_ms = SEQ_MAX if sent_before_ms is None else sent_before_ms
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._leases: QueueLeases  # those of the queue, at each look

    def look(self, db: Database) -> bool:
        """Take the next messages; True while more may follow."""
        state = db.states.get(self._queue_id)
        if state is None:
            return False
        self._leases = state.leases
        enough_bytes = self._taken_bytes + BYTES_AT_ONCE
        return self._look_by_time(db, enough_bytes) if self._by_time else self._look(db, enough_bytes)

    def _look(self, db: Database, enough_bytes: int) -> bool:
        rows = min(ROWS_AT_ONCE, self._limit - len(self.messages))
        for row in db.execute(Q.peek, (self._queue_id, self._after_seq, rows, self._up_to_seq)):
            if not self._take(row):
                return False
            rows -= 1
            if self._taken_bytes >= enough_bytes:
                return True
        return not rows

    def _look_by_time(self, db: Database, enough_bytes: int) -> bool:
        """Go through the times of the next messages, and take those that were sent then."""
        asked = (self._queue_id, self._after_seq, TIMES_AT_ONCE, self._up_to_seq)
        times = db.execute(Q.peek_times, asked).fetchall()
        for seq, sent_wall_ms in times:
            if self._taken_bytes >= enough_bytes:
                return True
            self._after_seq = seq
            if not self._sent_after_ms <= sent_wall_ms <= self._sent_before_ms:
                continue
            if not self._take(db.execute(Q.message_by_seq, (seq,)).get):
                return False
        return len(times) == TIMES_AT_ONCE

    def _take(self, row: tuple[Any, ...]) -> bool:
        """One more message; False when that was the last."""
        message = self._leases.put_into(to_message(row))
        self._after_seq = message.seq
        self.messages.append(message)
        self._taken_bytes += message.held_bytes
        if self._bytes_max is not None and self._taken_bytes >= self._bytes_max:
            return False
        return len(self.messages) < self._limit
