"""A group of operations on plain standard queues, in two round trips.

With BEGIN go the locks, the look at the queues, and everything that the operations want read; messages are claimed, and
deleted by those who hold them, right there. Then the rules are applied, and the rest is written with COMMIT. Whatever is out
of the ordinary (an edit since, something due, a full queue) ends in a rollback and is left to the engine, which knows it all.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
import psycopg

from veil.core.lease import Deletion, State
from veil.core.limits import IN_FLIGHT_MAX, REPEATED_SEND_MS
from veil.core.message import Caller, Sent, StoredMessage
from veil.core.receipt import Receipt
from veil.core.sequence import expires_at_ms
from veil.stores.postgres import dead_letters, leases, sending
from veil.stores.postgres.engine import LOST_MAX, REDONE_MAX, Engine
from veil.stores.postgres.failures import REDOABLE, in_our_words, is_lost
from veil.stores.postgres.held import HeldRow, holder_of
from veil.stores.postgres.hot_operations import Delete, Extend, Operation, Receive, Send
from veil.stores.postgres.queue_state import KnownQueue, QueueState
from veil.stores.postgres.receiving import record, to_message
from veil.stores.postgres.sql import Q
from veil.stores.postgres.transaction import Row, Statement, Transaction
from veil.stores.recorder import DELETED, RECEIVED

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Sent]).decode
_NO_MAX: Final = (1 << 31) - 1
_AGAIN_MAX: Final = 3  # beginnings that were for nothing, before the operations go one by one


def fits(engine: Engine, operation: Operation) -> bool:
    """Whether the operation is of the common kind, on a queue whose operations may run side by side."""
    known = engine.queues.by_id.get(operation.queue.id)
    if known is None or known.is_sequential or operation.gives_groups:
        return False
    if isinstance(operation, Receive):
        settings = known.queue.settings
        window_s = settings.visibility_s if operation.visibility_s is None else operation.visibility_s
        if operation.attempt_id is not None or not window_s or operation.count < 1:
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
    while True:
        fitting = [operation for operation in group if fits(engine, operation)]
        if not fitting or again > _AGAIN_MAX:
            return group
        chosen = set(fitting)
        aside = [operation for operation in group if operation not in chosen]
        attempt = _Attempt(engine, fitting)
        try:
            async with engine.transaction() as tx:
                tx.redone = redone
                try:
                    if await attempt.happened(tx):
                        attempt.give_answers()
                        return aside
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
            if not attempt.is_done:
                # What it had claimed is visible as before; others may have passed it by.
                engine.floors.clear()
        await attempt.settle_what_is_due()


class _Attempt:
    """One try to do a group."""

    def __init__(self, engine: Engine, group: list[Operation]) -> None:
        self._engine, self._group = engine, group
        self._answers: dict[Operation, Any] = {}
        self._due: list[QueueState] = []
        self._retention_ms = {
            operation.queue.id: engine.queues.by_id[operation.queue.id].queue.settings.retention_s * 1000
            for operation in group
        }
        self._claims: dict[tuple[int, int], list[Receive]] = {}  # by queue and window
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
                settings = engine.queues.by_id[operation.queue.id].queue.settings
                window_s = settings.visibility_s if operation.visibility_s is None else operation.visibility_s
                self._claims.setdefault((operation.queue.id, window_s), []).append(operation)
            elif isinstance(operation, Delete):
                self._deletes.setdefault(operation.queue.id, []).append(operation)
            elif isinstance(operation, Extend):
                self._extends.setdefault(operation.queue.id, []).append(operation)
            elif isinstance(operation, Send):
                self._sends.append(operation)

    async def happened(self, tx: Transaction) -> bool:
        """Do it all; False where it must be begun again, and nothing has happened."""
        engine = self._engine
        epoch = engine.queues.epoch
        locks = engine.locks([operation.queue for operation in self._group], False, bool(self._claims))
        asked, began_s = engine.wanted_of(locks.ids), time.monotonic()
        looks, answers = await tx.begin(
            locks.ids,
            exclusive=False,
            numbers=sum(operation.numbers for operation in self._sends),
            now_ms=engine.given_now_ms(),
            looks=asked,
            also=self._statements(),
        )
        engine.heard(tx)
        if tx.epoch > engine.queues.epoch:
            await engine.learn_in(tx)
        if engine.queues.epoch != epoch or engine.floors.are_stale(looks):
            return False
        engine.know(tx, looks, asked, time.monotonic() - began_s)
        self._due = [state for state in tx.states.values() if state.next_due_ms <= tx.now_ms]
        self.is_odd = any(
            tx.states[queue_id].in_flight + self._wanted(queue_id, window_s) > IN_FLIGHT_MAX
            for queue_id, window_s in self._claims
        )
        if self._due or self.is_odd:
            return False
        await self._apply(tx, answers)
        await engine.commit(tx)
        self.is_done = True
        for queue_id, first in self._claimed.items():
            if not tx.states[queue_id].came_back:
                engine.floors.claimed(queue_id, first, tx.now_ms)
        return True

    async def settle_what_is_due(self) -> None:
        """Before the next try."""

        async def nothing(tx: Transaction) -> None:
            pass

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
                "holders": [holder_of(receipt) for receipt in receipts],
            }
            statements.append((Q.take_held, named))
        for queue_id, window_s in self._claims:
            statements.append(self._claim(queue_id, window_s, self._wanted(queue_id, window_s)))
        # After the claims: an extension that comes late finds the message with its new holder.
        statements += [self._held(queue_id) for queue_id in self._extends]
        return statements

    def _held(self, queue_id: int) -> Statement:
        seqs = sorted({receipt.seq for each in self._extends[queue_id] for receipt, _ in each.extensions})
        return Q.held, {"queue": queue_id, "seqs": seqs}

    def _wanted(self, queue_id: int, window_s: int) -> int:
        return sum(receive.count for receive in self._claims[queue_id, window_s])

    def _claim(self, queue_id: int, window_s: int, limit: int) -> Statement:
        clock_given = self._engine.given_now_ms() is not None
        priority, seq = self._engine.floors.place(queue_id)
        named = {
            "queue": queue_id,
            "window_ms": window_s * 1000,
            "retention_ms": self._retention_ms[queue_id],
            "wall_ms": self._engine.clock.wall_ms() if clock_given else None,
            "limit": limit,
            "receives_max": self._receives_max(queue_id),
            "priority": priority,
            "from": seq,
        }
        return Q.claim, named

    def _receives_max(self, queue_id: int) -> int:
        """The first receive count that is_spent, where there is somewhere to go."""
        known = self._engine.queues.by_id[queue_id]
        redrive, target = known.queue.settings.redrive, _target(self._engine, known)
        if redrive is None or target is None or target is known or target.queue.settings.fifo:
            return _NO_MAX
        return redrive.receives_max

    # ---- between the two

    async def _apply(self, tx: Transaction, answers: list[list[Row]]) -> None:
        remaining = iter(answers)
        known = list[Row]()
        if any(send.retry_key is not None for send in self._sends):
            known = next(remaining)
        for queue_id in self._deletes:
            self._delete(tx, tx.states[queue_id], next(remaining))
        for queue_id, window_s in self._claims:
            await self._receive(tx, tx.states[queue_id], window_s, next(remaining))
        for queue_id in self._extends:
            rows = next(remaining)
            if self._moved:
                # It may be a message that went to the dead letters just now.
                rows = await tx.rows(*self._held(queue_id))
            self._extend(tx, tx.states[queue_id], rows)
        for delete in self._late:
            await self._delete_late(tx, delete)
        await self._send(tx, known)

    async def _send(self, tx: Transaction, known: list[Row]) -> None:
        first = {
            (queue_id, key): _decode(sent) for queue_id, key, until_ms, sent in known if until_ms > tx.now_ms
        }
        for queue_id, key, until_ms, _ in known:
            if until_ms <= tx.now_ms:
                named = {"queue": queue_id, "retry_key": key, "now_ms": tx.now_ms}
                tx.later(Q.forget_send, named)
        fresh: list[tuple[int, bytes, bytes]] = []
        new: list[tuple[object, ...]] = []
        for send in self._sends:
            state, key = tx.state_of(send.queue), (send.queue.id, send.retry_key or b"")
            if send.retry_key is not None and key in first:
                tx.counted("repeated_send", state)
                self._answers[send] = first[key]
                continue
            rows = sending.Rows(tx, state, send.caller)
            sent = []
            for message, number in zip(send.messages, await tx.numbers(len(send.messages)), strict=True):
                seq = tx.seq(state, number)
                rows.add(message, seq)
                sent.append(Sent(message.message_id, seq))
            rows.write(new)
            self._answers[send] = sent
            if send.retry_key is not None:
                first[key] = sent
                fresh.append((*key, _encode(sent)))
        if new:
            sending.insert(tx, new)
        if fresh:
            queues, keys, answers = (list(column) for column in zip(*fresh, strict=True))
            named = {"queues": queues, "retry_keys": keys, "sent": answers}
            tx.later(Q.remember_sends, {**named, "until_ms": tx.now_ms + REPEATED_SEND_MS})

    def _delete(self, tx: Transaction, state: QueueState, rows: list[Row]) -> None:
        taken = {(row[0], row[1]): row for row in rows}
        for delete in self._deletes[state.id]:
            verdicts: list[Deletion | None] = []
            for receipt in delete.receipts:
                row = taken.pop((receipt.seq, holder_of(receipt)), None)
                if row is not None:
                    _record_deleted(tx, state, receipt, row, delete.caller)
                verdicts.append(None if row is None else Deletion.DELETED)
            self._answers[delete] = verdicts
            if None in verdicts:
                self._late.append(delete)
        tx.count(state, in_flight=-len(rows))

    async def _delete_late(self, tx: Transaction, delete: Delete) -> None:
        """Gone, stale, or lapsed: the rules decide, on the row as it stands."""
        verdicts = self._answers[delete]
        left = [r for r, verdict in zip(delete.receipts, verdicts, strict=True) if verdict is None]
        others = iter(await leases.delete(tx, delete.queue, left, delete.strict, delete.caller))
        self._answers[delete] = [next(others) if verdict is None else verdict for verdict in verdicts]

    def _extend(self, tx: Transaction, state: QueueState, rows: list[Row]) -> None:
        present = {
            row[0]: HeldRow(row)
            for row in rows
            if expires_at_ms(row[0], state.queue.settings.retention_s) > tx.now_ms
        }
        for extend in self._extends[state.id]:
            self._answers[extend] = leases.extend_held(tx, state, present, extend.extensions, extend.caller)

    async def _receive(self, tx: Transaction, state: QueueState, window_s: int, rows: list[Row]) -> None:
        taken = await self._without_spent(tx, state, window_s, rows)
        # In the order of arrival: each takes what it asked for from what is left.
        at = 0
        for receive in self._claims[state.id, window_s]:
            messages = [to_message(row) for row in taken[at : at + receive.count]]
            at += len(messages)
            self._opened(tx, state, messages, window_s, receive.caller)
            self._answers[receive] = messages

    def _opened(
        self, tx: Transaction, state: QueueState, messages: list[StoredMessage], window_s: int, caller: Caller
    ) -> None:
        for message in messages:
            wake_ms = expires_at_ms(message.seq, state.queue.settings.retention_s)
            state.hidden_until(min(message.due_at_ms or wake_ms, wake_ms))
        record(tx, state, RECEIVED, messages, window_s, caller)

    async def _without_spent(
        self, tx: Transaction, state: QueueState, window_s: int, rows: list[Row]
    ) -> list[Row]:
        """What the receives may have, spent messages moved out of the way and others claimed in their place."""
        taken, wanted = list[Row](), self._wanted(state.id, window_s)
        target = dead_letters.destination(tx, state)
        while True:
            rows.sort(key=_place)
            self._claimed[state.id] = _place(rows[0]) if rows else None
            opened = [row for row in rows if row[14] == State.IN_FLIGHT]
            tx.count(state, visible=-len(opened), in_flight=len(opened))
            taken += opened
            if target is None or len(opened) == len(rows):
                return taken
            spent = [row for row in rows if row[14] == State.VISIBLE]
            await dead_letters.move(tx, state, target, spent)
            self._moved = True
            if len(taken) == wanted:
                return taken
            rows = await tx.rows(*self._claim(state.id, window_s, wanted - len(taken)))


def _place(row: Row) -> tuple[int, int]:
    return row[19], row[0]


def _record_deleted(tx: Transaction, state: QueueState, receipt: Receipt, row: Row, caller: Caller) -> None:
    if tx.journal is not None:
        place, who = tx.journal.places(state.queue.key, caller)
        _, _, message_id, deadline_ms, *facts = row
        told = (message_id, receipt.delivery, deadline_ms, *facts)
        tx.journal.events.append((DELETED, tx.now_ms, place, receipt.seq, *told, who))
