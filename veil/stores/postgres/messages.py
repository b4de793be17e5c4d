"""Send, receive and peek."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from veil.core import decide
from veil.core.effect import Enqueued
from veil.core.lease import State
from veil.core.limits import ATTEMPT_MS, DEDUPLICATION_MS, REPEATED_SEND_MS
from veil.core.message import Caller, NewMessage, Sent, StoredMessage
from veil.core.queue import Queue
from veil.core.sequence import SEQ_MAX, noisy_groups
from veil.stores.postgres import queues
from veil.stores.postgres.apply import MessageRows, apply, columns, enqueue, insert
from veil.stores.postgres.pipeline import Q, Statement
from veil.stores.postgres.transaction import NO_RUN, LockedQueue, NoisyRun, SharedOperation, Transaction
from veil.stores.postgres.watermarks import found_from
from veil.stores.sql import to_message

PAGE_MAX: Final = 100  # rows with their bodies
_COUNTED_PAGE_MAX: Final = 16
_RUN: Final = 10  # rows of a FIFO group that are read at once

_encode = msgspec.msgpack.Encoder().encode
_decode_sent = msgspec.msgpack.Decoder(list[Sent]).decode
_decode_claims = msgspec.msgpack.Decoder(list[decide.AttemptClaim]).decode

Pages = AsyncIterator[list[StoredMessage]]


# ---- send


@dataclass(slots=True, eq=False, kw_only=True)
class SendOperation(SharedOperation):
    """Store the messages in order, unless a call with the same retry key was already stored."""

    new: Sequence[NewMessage]
    retry_key: bytes | None

    def __post_init__(self) -> None:
        self.numbers = len(self.new)
        self.may_add_groups = any(message.group is not None for message in self.new)

    async def work(self, tx: Transaction) -> list[Sent]:
        asked = find_sends([self])
        known = await tx.rows_of_each(*asked) if asked else []
        return (await send_all(tx, [self], *known))[0]


def find_sends(sends: Sequence[SendOperation]) -> list[Statement]:
    """The statement that looks up the retry keys of the sends, if they have any."""
    keyed = [send for send in sends if send.retry_key is not None]
    named = {"queues": [send.queue.id for send in keyed], "retry_keys": [send.retry_key for send in keyed]}
    return [(Q.find_sends, named)] if keyed else []


async def send_all(
    tx: Transaction, sends: Sequence[SendOperation], known: Sequence[Any] = ()
) -> list[list[Sent]]:
    """What each send stored, now or earlier; `known` are the rows of `find_sends`."""
    first: dict[tuple[int, bytes], list[Sent]] = {}
    for queue_id, retry_key, until_ms, packed in known:
        if until_ms > tx.now_ms:
            first[queue_id, retry_key] = _decode_sent(packed)
        else:
            tx.defer(Q.forget_send, {"queue": queue_id, "retry_key": retry_key, "now_ms": tx.now_ms})
    answers: list[list[Sent]] = []
    fresh: list[tuple[int, bytes, bytes]] = []
    rows: MessageRows = []
    for send in sends:
        state, key = tx.state_of(send.queue), (send.queue.id, send.retry_key or b"")
        if send.retry_key is not None and key in first:
            tx.counted("repeated_send", state)
            answers.append(first[key])
            continue
        answers.append(await _store(tx, state, send, rows))
        if send.retry_key is not None:
            first[key] = answers[-1]
            fresh.append((*key, _encode(answers[-1])))
    insert(tx, rows)
    if fresh:
        named = {"until_ms": tx.now_ms + REPEATED_SEND_MS}
        tx.defer(Q.remember_sends, {**named, **columns(("queues", "retry_keys", "sent"), fresh)})
    return answers


async def _store(tx: Transaction, state: LockedQueue, send: SendOperation, rows: MessageRows) -> list[Sent]:
    if send.may_add_groups and not state.has_groups:
        await queues.give_groups(tx, state)
    known = await _known_duplicates(tx, state, send.new) if state.fifo else {}
    sent, stored = list[Sent](), list[Enqueued]()
    first_sends: list[tuple[str, str, int, str]] = []
    for message, number in zip(send.new, await tx.numbers(len(send.new)), strict=True):
        key = decide.deduplication_key(state.scope, message) if state.fifo else None
        if key in known:
            tx.counted("duplicate", state)
            sent.append(known[key]._replace(duplicate=True))
            continue
        enqueued = decide.enqueue(message, tx.seq(state, number), state.queue.settings, tx.now_ms)
        stored.append(enqueued)
        sent.append(Sent(message.message_id, enqueued.seq))
        if key is not None:
            known[key] = sent[-1]
            first_sends.append((*key, enqueued.seq, message.message_id))
    enqueue(tx, state, stored, send.caller, rows)
    if first_sends:
        named = {"queue": state.id, "until_ms": tx.now_ms + DEDUPLICATION_MS}
        remembered = columns(("scopes", "dedup_ids", "seqs", "ids"), first_sends)
        tx.defer(Q.remember_duplicates, {**named, **remembered})
    return sent


async def _known_duplicates(
    tx: Transaction, state: LockedQueue, messages: Sequence[NewMessage]
) -> dict[tuple[str, str] | None, Sent]:
    keys = columns(
        ("scopes", "dedup_ids"), {decide.deduplication_key(state.scope, message) for message in messages}
    )
    rows = await tx.rows(Q.find_duplicates, {"queue": state.id, "now_ms": tx.now_ms, **keys})
    return {(scope, dedup_id): Sent(message_id, seq) for scope, dedup_id, seq, message_id in rows}


# ---- receive


@dataclass(slots=True, eq=False, kw_only=True)
class ReceiveOperation(SharedOperation):
    """Take up to `count` visible messages, after everything due has been settled."""

    count: int
    visibility_s: int | None
    attempt_id: str | None

    def __post_init__(self) -> None:
        self.takes = self.count

    def length_s(self, queue: Queue) -> int:
        """The visibility timeout of this receive."""
        return queue.settings.visibility_s if self.visibility_s is None else self.visibility_s

    async def work(self, tx: Transaction) -> list[StoredMessage] | None:
        state, messages = tx.state_of(self.queue), None
        visibility_s = self.length_s(state.queue)
        if self.attempt_id is not None:
            messages = await _repeat(tx, state, self.attempt_id, visibility_s, self.caller)
        if not messages:
            messages = await take(tx, state, self.count, visibility_s, self.caller)
        if self.attempt_id is not None and messages:
            claims = _encode([(m.seq, m.delivery, m.due_at_ms) for m in messages])
            named = {"queue": state.id, "attempt": self.attempt_id, "until_ms": tx.now_ms + ATTEMPT_MS}
            tx.defer(Q.remember_attempt, {**named, "claims": claims})
        return messages


async def take(
    tx: Transaction, state: LockedQueue, count: int, visibility_s: int, caller: Caller, *, hold: bool = False
) -> list[StoredMessage] | None:
    """Take as many visible messages as the receive may have; spent ones go to the dead letters. None if so many were spent
    that nothing was taken yet: the receive is then repeated after other operations."""
    target = decide.dead_letters_of(state.queue, tx.find)
    budget = decide.receive_budget(state.queue, state.in_flight, count, target, hold=hold)
    if not budget.is_left() or not state.visible:
        return []
    taken, spent = list[StoredMessage](), list[StoredMessage]()
    async for page in _candidates(tx, state, budget.count, min(budget.count, budget.page_max)):
        some, others = budget.choose(page)
        taken += some
        spent += others
        if not budget.is_left():
            break
    if target is not None and spent:
        await dead_letter(tx, state, tx.states[target.id], spent)
    opened = decide.open_leases(taken, visibility_s, tx.now_ms, tx.wall_ms)
    apply(tx, state, opened, caller)
    for message, effect in zip(taken, opened, strict=True):
        message.set_lease(effect.lease)
    if state.fifo and taken:
        groups = list(dict.fromkeys(message.group or "" for message in taken))
        tx.defer(Q.serve_groups, {"queue": state.id, "groups": groups})
        for group in groups:
            state.change_group(group)
    return None if budget.is_cut and not taken else taken


async def dead_letter(
    tx: Transaction, state: LockedQueue, target: LockedQueue, spent: Sequence[StoredMessage]
) -> None:
    """Move spent messages to the target; one statement takes each out of one queue and into the other."""
    if not target.has_groups and any(message.group is not None for message in spent):
        await queues.give_groups(tx, target)
    # A seq can collide there only if the clock was set back; then the transaction fails, and its retry assigns new ones.
    new_seqs = [message.seq for message in spent]
    if target.fifo or tx.retries:
        new_seqs = [tx.seq(target, number) for number in await tx.numbers(len(spent))]
    moved = [
        decide.dead_letter(message, target.queue, seq) for message, seq in zip(spent, new_seqs, strict=True)
    ]
    apply(tx, state, moved)


async def _repeat(
    tx: Transaction, state: LockedQueue, attempt_id: str, visibility_s: int, caller: Caller
) -> list[StoredMessage]:
    """The messages that the attempt returned before, with restarted leases; none if it must be an ordinary receive."""
    named = {"queue": state.id, "attempt": attempt_id, "now_ms": tx.now_ms}
    found = await tx.row(Q.find_attempt, named)
    if found is None:
        return []
    [packed] = found
    claims = _decode_claims(packed)
    messages = await messages_by_seq(tx, state, [seq for seq, _, _ in claims])
    # Another node may have written a grace for a trouble that this node learns of within a heartbeat.
    trouble = tx.lease_time.trouble_at(tx.now_ms)
    repeated = decide.repeat_attempt(claims, messages, state.queue.settings, visibility_s, tx.now_ms, trouble)
    if repeated is None:
        return []
    apply(tx, state, repeated, caller)
    for effect in repeated:
        messages[effect.message.seq].set_lease(effect.lease)
    return [messages[effect.message.seq] for effect in repeated]


async def messages_by_seq(
    tx: Transaction, state: LockedQueue, seqs: Sequence[int]
) -> dict[int, StoredMessage]:
    """What the queue has of these messages, each locked until the transaction ends."""
    if not seqs:
        return {}
    rows = await tx.rows(Q.messages_by_seq, {"queue": state.id, "seqs": list(seqs)})
    return {message.seq: message for message in map(to_message, rows)}


# ---- the order of a queue


def _candidates(tx: Transaction, state: LockedQueue, count: int, page: int) -> Pages:
    tx.write_groups(state)
    return _fifo_order(tx, state, count) if state.fifo else _standard_order(tx, state, page)


async def _pages(
    tx: Transaction, query: str, page: int, after: tuple[int, int] = (0, 0), **named: object
) -> Pages:
    """The messages of a query ordered by priority and age, page by page."""
    priority, seq = after
    while True:
        rows = await tx.rows(query, {**named, "priority": priority, "after": seq, "limit": page})
        messages = [to_message(row) for row in rows]
        yield messages
        if len(messages) < page:
            return
        priority, seq = messages[-1].priority, messages[-1].seq


async def _standard_order(tx: Transaction, state: LockedQueue, page: int) -> Pages:
    """Quiet groups first; then the noisy ones, the one with the fewest in flight first. Within that by priority, then age."""
    noisy: list[str] = []
    if state.has_groups:
        loud = await tx.rows(Q.loud_groups, {"queue": state.id})
        noisy = noisy_groups(dict(loud), state.in_flight)
    known = state.noisy_run if state.noisy_run.groups <= set(noisy) and not state.came_back else NO_RUN
    after, first_page = known.up_to, True
    async for messages in _pages(tx, Q.visible_quiet, page, after, queue=state.id, noisy=noisy):
        if noisy and first_page:
            first_page, first = False, messages[0] if messages else None
            priority, seq = found_from(None if first is None else (first.priority, first.seq), tx.now_ms)
            state.noisy_run = NoisyRun(frozenset(noisy), max(after, (priority, seq - 1)))
        yield messages
    for group in noisy:
        async for messages in _pages(tx, Q.visible_of_group, page, queue=state.id, group=group):
            yield messages


async def _fifo_order(tx: Transaction, state: LockedQueue, count: int) -> Pages:
    """All that can be taken from the group whose turn it is, then from the next."""
    # More groups than messages never help: each open group has at least one message, unless that is spent.
    served = 0
    while True:
        open_now = await tx.rows(Q.open_groups, {"queue": state.id, "limit": served + count})
        groups = [group for (group,) in open_now[served:]]
        runs: dict[str, list[StoredMessage]] = {group: [] for group in groups}
        if groups:
            for message in await _of_groups(tx, state, groups, 0):
                runs[message.group or ""].append(message)
        for group, messages in runs.items():
            async for run in _leading_run(tx, state, group, messages):
                yield run
        served += len(groups)
        if len(groups) < count:
            return


async def _of_groups(
    tx: Transaction, state: LockedQueue, groups: list[str], after: int
) -> list[StoredMessage]:
    named = {"queue": state.id, "groups": groups, "after": after, "limit": _RUN}
    return [to_message(row) for row in await tx.rows(Q.of_groups, named)]


async def _leading_run(
    tx: Transaction, state: LockedQueue, group: str, messages: list[StoredMessage]
) -> Pages:
    while messages:
        hidden = next((at for at, m in enumerate(messages) if m.state != State.VISIBLE), None)
        yield messages[:hidden]
        if hidden is not None or len(messages) < _RUN:
            return
        messages = await _of_groups(tx, state, [group], messages[-1].seq)


# ---- peek


async def peek_next(tx: Transaction, queue: Queue, *, limit: int = 100) -> list[StoredMessage]:
    """The messages that the next receive would return."""
    state, found = tx.state_of(queue), list[StoredMessage]()
    if not state.visible or limit < 1:
        return []
    async for page in _candidates(tx, state, limit, min(limit, PAGE_MAX)):
        found += page
        if len(found) >= limit:
            break
    return found[:limit]


async def peek(
    tx: Transaction,
    queue: Queue,
    *,
    after_seq: int = 0,
    up_to_seq: int | None = None,
    sent_after_ms: int | None = None,
    sent_before_ms: int | None = None,
    limit: int = 100,
    bytes_max: int | None = None,
) -> list[StoredMessage]:
    """Messages in any state by ascending seq, a page at a time."""
    found: list[StoredMessage] = []
    named: dict[str, Any] = {
        "queue": tx.state_of(queue).id,
        "up_to": SEQ_MAX if up_to_seq is None else up_to_seq,
        "sent_after_ms": sent_after_ms or 0,
        "sent_before_ms": SEQ_MAX if sent_before_ms is None else sent_before_ms,
    }
    # A whole page is read before its bytes are counted.
    page_max = PAGE_MAX if bytes_max is None else _COUNTED_PAGE_MAX
    while (page := min(page_max, limit - len(found))) > 0:
        rows = await tx.rows(Q.peek, {**named, "after": after_seq, "limit": page})
        for message in map(to_message, rows):
            found.append(message)
            after_seq = message.seq
            if bytes_max is not None:
                bytes_max -= message.held_bytes
                if bytes_max <= 0:
                    return found
        if len(rows) < page:
            break
    return found
