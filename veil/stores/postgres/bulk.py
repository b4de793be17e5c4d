"""The operations that share transactions (send, receive, delete and extend), and a group of them in two round trips.

Each operation knows how to do its work in a transaction of the engine by itself. Those on plain standard queues also go together,
whatever their queues are: with BEGIN go the locks, the look at the queues, and everything that the operations want read;
messages are claimed, and deleted by those who hold them, right there (the shortcuts `claim` and `take_held` of queries.sql). Then
the rules are applied, and the rest is written with COMMIT. Whatever is out of the ordinary (an edit since, something due, a full
queue) ends in a rollback and is left to the engine, which knows it all.

Two ways of doing the same are worth it: with 64 callers a group costs the node 27 to 29 µs of CPU for an operation, and the
engine 135 to 145 µs at a fifth of the rate.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import psycopg

from veil.core import decide
from veil.core.attempt import Said
from veil.core.effect import Deleted, Enqueued, Opened
from veil.core.lease import Deletion, State
from veil.core.limits import REPEATED_SEND_MS
from veil.core.message import Caller, HeldMessage, LeaseState, NewMessage, Sent, StoredMessage
from veil.core.queue import Queue
from veil.core.receipt import Receipt
from veil.core.sequence import expires_at_ms, wake_at_ms
from veil.stores.postgres import leases, messages
from veil.stores.postgres.apply import MessageRows, columns, enqueue, insert
from veil.stores.postgres.connection import REDOABLE, in_our_words, is_lost
from veil.stores.postgres.engine import LOST_MAX, REDONE_MAX, Engine, Need
from veil.stores.postgres.messages import decode_sent, encode_sent
from veil.stores.postgres.pipeline import Q, Statement
from veil.stores.postgres.transaction import KnownQueue, QueueState, Transaction, nothing
from veil.stores.sql import to_message
from veil.stores.store import Extension

_VISIBLE: Final = int(State.VISIBLE)
_NO_MAX: Final = (1 << 31) - 1
_AGAIN_MAX: Final = 3  # beginnings that were for nothing, before the operations go one by one


# ---- the operations


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """Something that one caller asked for, and waits for."""

    queue: Queue
    caller: Caller
    answer: asyncio.Future[Any] = field(default_factory=_future)

    @property
    def takes(self) -> int:
        """How many messages it may put in flight."""
        return 0

    @property
    def gives_groups(self) -> bool:
        """Whether it may bring the first message with a group."""
        return False

    @property
    def numbers(self) -> int:
        """How many order keys it needs."""
        return 0

    async def work(self, tx: Transaction) -> Any:
        """Do it; a refusal is raised before anything was changed, since others share the transaction."""
        raise NotImplementedError


@dataclass(slots=True, eq=False, kw_only=True)
class Send(Operation):
    """Store messages."""

    new: Sequence[NewMessage]
    retry_key: bytes | None

    @property
    def gives_groups(self) -> bool:
        return any(message.group is not None for message in self.new)

    @property
    def numbers(self) -> int:
        return len(self.new)

    async def work(self, tx: Transaction) -> Any:
        return await messages.send(tx, self.queue, self.new, self.retry_key, self.caller)


@dataclass(slots=True, eq=False, kw_only=True)
class Receive(Operation):
    """Take messages."""

    count: int
    visibility_s: int | None
    attempt_id: str | None

    @property
    def takes(self) -> int:
        return self.count

    def length_s(self, queue: Queue) -> int:
        """How long the messages are to be hidden."""
        return queue.settings.visibility_s if self.visibility_s is None else self.visibility_s

    async def work(self, tx: Transaction) -> Any:
        return await messages.receive(
            tx, self.queue, self.count, self.visibility_s, self.attempt_id, self.caller
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Delete(Operation):
    """Delete by receipt."""

    receipts: Sequence[Receipt]
    strict: bool
    said: Mapping[int, Said]

    async def work(self, tx: Transaction) -> Any:
        return await leases.delete(tx, self.queue, self.receipts, self.strict, self.caller, self.said)


@dataclass(slots=True, eq=False, kw_only=True)
class Extend(Operation):
    """Change visibility by receipt."""

    extensions: Sequence[Extension]

    async def work(self, tx: Transaction) -> Any:
        return await leases.extend(tx, self.queue, self.extensions, self.caller)


# ---- a group of them


def fits(engine: Engine, operation: Operation) -> bool:
    """Whether the operation is of the common kind, on a queue whose operations may run side by side."""
    known = engine.queues.by_id.get(operation.queue.id)
    if known is None or known.is_sequential or operation.gives_groups:
        return False
    if isinstance(operation, Receive):
        if operation.attempt_id is not None or not operation.length_s(known.queue) or operation.count < 1:
            return False
        if known.queue.settings.paused:
            return False
        target = _target(engine, known)
        return target is None or not target.is_sequential
    if isinstance(operation, Delete):
        # Two receipts of one message are judged one after the other.
        return len({receipt.seq for receipt in operation.receipts}) == len(operation.receipts)
    return True


def _target(engine: Engine, known: KnownQueue) -> KnownQueue | None:
    redrive = known.queue.settings.redrive
    return None if redrive is None else engine.queues.by_key.get(redrive.dead_letters)


async def run(engine: Engine, group: list[Operation]) -> list[Operation]:
    """Do the group, and give those back that are better done alone. Raises StoreError where it cannot be done."""
    redone = lost = again = 0
    while again <= _AGAIN_MAX:
        attempt: _GroupAttempt | None = None
        try:
            async with engine.transaction() as tx:
                tx.redone = redone
                fitting = [operation for operation in group if fits(engine, operation)]
                if not fitting:
                    return group
                attempt = _GroupAttempt(engine, fitting)
                try:
                    if await attempt.happened(tx):
                        engine.lease_time.answered(group[0])
                        attempt.give_answers()
                        chosen = set(fitting)
                        return [operation for operation in group if operation not in chosen]
                    if attempt.is_odd:
                        return group
                    again += 1
                except REDOABLE as error:
                    redone += 1
                    if redone > REDONE_MAX:
                        raise in_our_words(error) from error
                except (psycopg.Error, OSError) as error:
                    lost += 1
                    if tx.is_ending or not is_lost(error) or lost > LOST_MAX:
                        raise in_our_words(error) from error
        finally:
            if attempt is not None and not attempt.is_done:
                # What it had claimed is visible as before; others may have passed it by.
                engine.watermarks.clear()
        if attempt is not None:
            await attempt.settle_what_is_due()
    return group


class _Claim(NamedTuple):
    """Receives of one queue that are served by one statement."""

    queue_id: int
    visibility_s: int
    bytes_max: int | None  # of bodies, where they count
    receives: list[Receive]

    @property
    def wanted(self) -> int:
        """How many messages they want."""
        return sum(receive.count for receive in self.receives)


class _GroupAttempt:
    """One try to do a group."""

    def __init__(self, engine: Engine, group: list[Operation]) -> None:
        self._engine, self._group = engine, group
        self._answers: dict[Operation, Any] = {}
        self._due: list[QueueState] = []
        self._retention_ms = {
            operation.queue.id: engine.queues.by_id[operation.queue.id].queue.settings.retention_s * 1000
            for operation in group
        }
        self._claims: list[_Claim] = []
        self._deletes: dict[int, list[Delete]] = {}
        self._extends: dict[int, list[Extend]] = {}
        self._sends: list[Send] = []
        self._late: list[Delete] = []  # with receipts that do not hold an open lease
        self._moved = False
        self.is_done = False
        self.is_odd = False  # to begin again would not help
        self._claimed: dict[int, tuple[int, int] | None] = {}  # the first that was there, by queue
        for operation in group:
            if isinstance(operation, Receive):
                self._add_receive(operation)
            elif isinstance(operation, Delete):
                self._deletes.setdefault(operation.queue.id, []).append(operation)
            elif isinstance(operation, Extend):
                self._extends.setdefault(operation.queue.id, []).append(operation)
            elif isinstance(operation, Send):
                self._sends.append(operation)

    async def happened(self, tx: Transaction) -> bool:
        """Do it all; False where it must be begun again, and nothing has happened."""
        engine = self._engine
        need = Need(
            [*{operation.queue.id: operation.queue for operation in self._group}.values()],
            takes=sum(operation.takes for operation in self._group),
            numbers=sum(operation.numbers for operation in self._group),
        )
        answers = await engine.begin(tx, need, also=self._statements())
        if answers is None:
            return False
        self._due = [state for state in tx.states.values() if state.next_due_ms <= tx.now_ms]
        wanted: Counter[int] = Counter()
        for claim in self._claims:
            wanted[claim.queue_id] += claim.wanted
        self.is_odd = any(
            count > decide.in_flight_left(tx.states[queue_id].in_flight) for queue_id, count in wanted.items()
        )
        if self._due or self.is_odd:
            return False
        await self._apply(tx, answers)
        await engine.commit(tx)
        self.is_done = True
        for queue_id, first in self._claimed.items():
            if not tx.states[queue_id].came_back:
                engine.watermarks.claimed(queue_id, first, tx.now_ms)
        return True

    async def settle_what_is_due(self) -> None:
        """Before the next try."""
        for state in self._due:
            await self._engine.run(nothing, queues=[state.queue])

    def give_answers(self) -> None:
        """The group is durable."""
        for operation in self._group:
            if not operation.answer.done():  # the caller may have gone away
                operation.answer.set_result(self._answers[operation])

    # ---- the first round trip

    def _statements(self) -> list[Statement]:
        statements: list[Statement] = []
        keyed = [send for send in self._sends if send.retry_key is not None]
        if keyed:
            named = {"queues": [s.queue.id for s in keyed], "retry_keys": [s.retry_key for s in keyed]}
            statements.append((Q.find_sends, named))
        for queue_id, deletes in self._deletes.items():
            receipts = [receipt for delete in deletes for receipt in delete.receipts]
            named = {
                "queue": queue_id,
                "retention_ms": self._retention_ms[queue_id],
                "seqs": [receipt.seq for receipt in receipts],
                "holders": [receipt.holder for receipt in receipts],
            }
            statements.append((Q.take_held, named))
        statements += [self._statement(claim, claim.wanted, claim.bytes_max) for claim in self._claims]
        # After the claims: an extension that comes late finds the message with its new holder.
        statements += [self._held(queue_id) for queue_id in self._extends]
        return statements

    def _held(self, queue_id: int) -> Statement:
        seqs = sorted({receipt.seq for each in self._extends[queue_id] for receipt, *_ in each.extensions})
        return Q.held, {"queue": queue_id, "seqs": seqs}

    def _add_receive(self, receive: Receive) -> None:
        """Receives of one length share a claim, except those whose bodies are counted."""
        queue_id = receive.queue.id
        visibility_s = receive.length_s(self._engine.queues.by_id[queue_id].queue)
        bytes_max = decide.receive_bytes_max(receive.count)
        for claim in self._claims:
            if bytes_max is None and (queue_id, visibility_s, None) == claim[:3]:
                claim.receives.append(receive)
                return
        self._claims.append(_Claim(queue_id, visibility_s, bytes_max, [receive]))

    def _statement(self, claim: _Claim, limit: int, bytes_max: int | None) -> Statement:
        clock_given = self._engine.given_now_ms() is not None
        priority, seq = self._engine.watermarks.scan_from(claim.queue_id)
        named = {
            "queue": claim.queue_id,
            "visibility_ms": claim.visibility_s * 1000,
            "retention_ms": self._retention_ms[claim.queue_id],
            "wall_ms": self._engine.clock.wall_ms() if clock_given else None,
            "limit": limit,
            "receives_max": self._receives_max(claim.queue_id),
            "priority": priority,
            "from": seq,
        }
        return (Q.claim, named) if bytes_max is None else (Q.claim_bounded, {**named, "bytes_max": bytes_max})

    def _receives_max(self, queue_id: int) -> int:
        """The first receive count that is spent, where there is somewhere to go."""
        queue = self._engine.queues.by_id[queue_id].queue
        spent_at = decide.receives_max(queue, decide.dead_letters_of(queue, self._engine.queues.find))
        return _NO_MAX if spent_at is None else spent_at

    # ---- between the two

    async def _apply(self, tx: Transaction, answers: list[list[Any]]) -> None:
        remaining = iter(answers)
        known = list[Any]()
        if any(send.retry_key is not None for send in self._sends):
            known = next(remaining)
        for queue_id in self._deletes:
            self._delete(tx, tx.states[queue_id], next(remaining))
        for claim in self._claims:
            await self._receive(tx, tx.states[claim.queue_id], claim, next(remaining))
        for queue_id in self._extends:
            rows = next(remaining)
            if self._moved:
                # It may be a message that went to the dead letters just now.
                rows = await tx.rows(*self._held(queue_id))
            self._extend(tx, tx.states[queue_id], rows)
        for delete in self._late:
            await self._delete_late(tx, delete)
        await self._send(tx, known)

    async def _send(self, tx: Transaction, known: list[Any]) -> None:
        first: dict[tuple[int, bytes], list[Sent]] = {}
        for queue_id, key, until_ms, packed in known:
            if until_ms > tx.now_ms:
                first[queue_id, key] = decode_sent(packed)
            else:
                tx.later(Q.forget_send, {"queue": queue_id, "retry_key": key, "now_ms": tx.now_ms})
        fresh: list[tuple[int, bytes, bytes]] = []
        rows: MessageRows = []
        for send in self._sends:
            state, key = tx.state_of(send.queue), (send.queue.id, send.retry_key or b"")
            if send.retry_key is not None and key in first:
                tx.counted("repeated_send", state)
                self._answers[send] = first[key]
                continue
            stored: list[Enqueued] = [
                decide.enqueue(message, tx.seq(state, number), state.queue.settings, tx.now_ms)
                for message, number in zip(send.new, await tx.numbers(len(send.new)), strict=True)
            ]
            enqueue(tx, state, stored, send.caller, rows)
            sent = self._answers[send] = [Sent(each.new.message_id, each.seq) for each in stored]
            if send.retry_key is not None:
                first[key] = sent
                fresh.append((*key, encode_sent(sent)))
        insert(tx, rows)
        if fresh:
            named = {"until_ms": tx.now_ms + REPEATED_SEND_MS}
            tx.later(Q.remember_sends, {**named, **columns(("queues", "retry_keys", "sent"), fresh)})

    def _delete(self, tx: Transaction, state: QueueState, rows: list[Any]) -> None:
        taken = {(message.seq, message.holder): message for message in map(HeldMessage._make, rows)}
        for delete in self._deletes[state.id]:
            deleted: list[Deleted] = []
            verdicts: list[Deletion | None] = []
            for receipt in delete.receipts:
                message = taken.pop((receipt.seq, receipt.holder), None)
                if message is not None:
                    said = delete.said.get(receipt.seq)
                    deleted.append(Deleted(message, receipt.delivery, message.due_at_ms, said))
                    tx.shift(state, message.state, None, message.seq, None, message.group)
                verdicts.append(None if message is None else Deletion.DELETED)
            if tx.journal is not None and deleted:
                tx.journal.record(tx.now_ms, state.queue.key, deleted, delete.caller)
            self._answers[delete] = verdicts
            if None in verdicts:
                self._late.append(delete)

    async def _delete_late(self, tx: Transaction, delete: Delete) -> None:
        """Gone, stale, or lapsed: the rules decide, on the message as it stands."""
        verdicts = self._answers[delete]
        left = [r for r, verdict in zip(delete.receipts, verdicts, strict=True) if verdict is None]
        others = iter(await leases.delete(tx, delete.queue, left, delete.strict, delete.caller, delete.said))
        self._answers[delete] = [next(others) if verdict is None else verdict for verdict in verdicts]

    def _extend(self, tx: Transaction, state: QueueState, rows: list[Any]) -> None:
        retention_s = state.queue.settings.retention_s
        found = map(HeldMessage._make, rows)
        present = {each.seq: each for each in found if expires_at_ms(each.seq, retention_s) > tx.now_ms}
        for extend in self._extends[state.id]:
            self._answers[extend] = leases.extend_held(tx, state, present, extend.extensions, extend.caller)

    async def _receive(self, tx: Transaction, state: QueueState, claim: _Claim, rows: list[Any]) -> None:
        taken = await self._without_spent(tx, state, claim, [to_message(row) for row in rows])
        # In the order of arrival: each takes what it asked for from what is left.
        at = 0
        for receive in claim.receives:
            given = taken[at : at + receive.count]
            at += len(given)
            if tx.journal is not None:
                opened = [_opened(message) for message in given]
                tx.journal.record(tx.now_ms, state.queue.key, opened, receive.caller)
            self._answers[receive] = given

    async def _without_spent(
        self, tx: Transaction, state: QueueState, claim: _Claim, claimed: list[StoredMessage]
    ) -> list[StoredMessage]:
        """What the receives may have, spent messages moved out of the way and others claimed in their place."""
        taken, bytes_left = list[StoredMessage](), claim.bytes_max
        target = decide.dead_letters_of(state.queue, tx.find)
        retention_s = state.queue.settings.retention_s
        while True:
            claimed.sort(key=_scan_order)
            self._claimed[state.id] = _scan_order(claimed[0]) if claimed else None
            spent = [message for message in claimed if message.state == State.VISIBLE]
            for message in claimed:
                if message.state != State.VISIBLE:
                    wake_ms = wake_at_ms(message.seq, message.due_at_ms, retention_s)
                    tx.shift(state, _VISIBLE, message.state, message.seq, wake_ms, message.group)
                    taken.append(message)
                    if bytes_left is not None:
                        bytes_left -= message.body_bytes
            if target is None or not spent:
                return taken
            await messages.dead_letter(tx, state, tx.states[target.id], spent)
            self._moved = True
            if len(taken) == claim.wanted or (bytes_left is not None and bytes_left <= 0):
                return taken
            rows = await tx.rows(*self._statement(claim, claim.wanted - len(taken), bytes_left))
            claimed = [to_message(row) for row in rows]


def _scan_order(message: StoredMessage) -> tuple[int, int]:
    return message.priority, message.seq


def _opened(message: StoredMessage) -> Opened:
    """The effect that `claim` has written."""
    lease = LeaseState(
        message.state,
        message.due_at_ms,
        message.received_at_ms,
        message.delivery,
        message.holder,
        message.receive_count,
        message.first_received_wall_ms,
    )
    return Opened(message, message.delivery, message.due_at_ms, lease)
