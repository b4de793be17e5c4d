"""A group of operations on plain standard queues in two round trips, even if they are on different queues.

The first round trip (BEGIN) takes the locks, looks at the queues and reads what the operations need; it also claims messages, and
deletes messages for their holders (the shortcuts `claim` and `take_held` of queries.sql). Then the rules are applied, and COMMIT
writes the rest. Anything unusual (a concurrent edit, something due, a full queue) ends in a rollback, and the engine runs each
operation separately.

This second way to run an operation pays: for the life of a message (64 callers, one message per call) a node spends 75 to 97 µs
of CPU in groups and 324 to 346 µs through the engine alone, PostgreSQL 83 to 100 and 259 to 274 µs, and groups are 2 to 5 times
as fast. With ten messages per call a node spends 23 to 28 and 49 to 52 µs, PostgreSQL 49 to 53 µs either way
(`python -m bench.postgres --only store --queues veil --callers 64`, with `--engine` for the other).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final, NamedTuple

from veil.core import decide
from veil.core.effect import Deleted, Opened
from veil.core.lease import Deletion, State
from veil.core.message import HeldMessage, LeaseState, StoredMessage
from veil.core.sequence import expires_at_ms, wake_at_ms
from veil.stores.postgres import messages
from veil.stores.postgres.engine import Engine, Need
from veil.stores.postgres.leases import DeleteOperation, ExtendOperation
from veil.stores.postgres.messages import ReceiveOperation, SendOperation
from veil.stores.postgres.pipeline import Q, Statement
from veil.stores.postgres.transaction import LockedQueue, SharedOperation, Transaction, nothing
from veil.stores.postgres.watermarks import ScanStarts
from veil.stores.sql import to_message

_VISIBLE: Final = int(State.VISIBLE)
_NO_MAX: Final = (1 << 31) - 1
_TRIES_MAX: Final = 4  # before the operations run one by one


def fits(engine: Engine, operation: SharedOperation) -> bool:
    """Whether the operation is of the common kind, on a queue whose operations may run concurrently."""
    known = engine.queues.by_id.get(operation.queue.id)
    if known is None or known.is_sequential or operation.may_add_groups:
        return False
    if isinstance(operation, ReceiveOperation):
        if operation.attempt_id is not None or not operation.length_s(known.queue) or operation.count < 1:
            return False
        if known.queue.settings.paused:
            return False
        redrive = known.queue.settings.redrive
        target = None if redrive is None else engine.queues.by_key.get(redrive.dead_letters)
        return target is None or not target.is_sequential
    if isinstance(operation, DeleteOperation):
        # Two receipts of one message must be judged one after the other.
        return len({receipt.seq for receipt in operation.receipts}) == len(operation.receipts)
    return True


async def run(engine: Engine, group: list[SharedOperation]) -> list[SharedOperation]:
    """Run the group and return the operations that must run separately; raises StoreError if it fails."""
    for _ in range(_TRIES_MAX):
        attempt = await engine.retry(lambda tx: _GroupAttempt.made(engine, tx, group))
        if attempt.is_done:
            engine.lease_time.answered(group[0])
            for operation, answer in attempt.answers.items():
                if not operation.answer.done():  # the caller may be gone
                    operation.answer.set_result(answer)
            return [operation for operation in group if operation not in attempt.answers]
        if attempt.must_go_alone:
            break
        for state in attempt.due:
            await engine.run(nothing, Need([state.queue]))
    return group


class _Claim(NamedTuple):
    """Receives from one queue that one statement serves."""

    queue_id: int
    visibility_s: int
    bytes_max: int | None  # the limit for bodies, if they are counted
    receives: list[ReceiveOperation]

    @property
    def wanted(self) -> int:
        """How many messages the receives want together."""
        return sum(receive.count for receive in self.receives)


class _GroupAttempt:
    """One try to run a group."""

    def __init__(self, engine: Engine, group: list[SharedOperation]) -> None:
        self._engine = engine
        self.answers: dict[SharedOperation, Any] = {}
        self.due: list[LockedQueue] = []  # queues to settle before the next try
        self.is_done = False
        self.must_go_alone = False  # another try would not help
        self._claims: list[_Claim] = []
        self._deletes: dict[int, list[DeleteOperation]] = {}
        self._extends: dict[int, list[ExtendOperation]] = {}
        self._sends: list[SendOperation] = []
        self._late: list[DeleteOperation] = []  # with receipts that do not hold an open lease
        self._moved = False
        self._scan_starts: ScanStarts = {}
        self._claimed: dict[
            int, tuple[int, int] | None
        ] = {}  # by queue, the position of the first message found
        self._need = Need.of(group)
        for operation in group:
            if isinstance(operation, ReceiveOperation):
                self._add_receive(operation)
            elif isinstance(operation, DeleteOperation):
                self._deletes.setdefault(operation.queue.id, []).append(operation)
            elif isinstance(operation, ExtendOperation):
                self._extends.setdefault(operation.queue.id, []).append(operation)
            elif isinstance(operation, SendOperation):
                self._sends.append(operation)

    @classmethod
    async def made(cls, engine: Engine, tx: Transaction, group: list[SharedOperation]) -> _GroupAttempt:
        """Run the operations of the group that still fit; unless `is_done` then, nothing has happened."""
        self = cls(engine, [operation for operation in group if fits(engine, operation)])
        answers = await engine.begin(tx, self._need, self._statements)
        if answers is None:
            return self
        self.due = [state for state in tx.states.values() if state.next_due_ms <= tx.now_ms]
        wanted: Counter[int] = Counter()
        for claim in self._claims:
            wanted[claim.queue_id] += claim.wanted
        self.must_go_alone = any(
            count > decide.in_flight_left(tx.states[queue_id].in_flight) for queue_id, count in wanted.items()
        )
        if self.due or self.must_go_alone:
            return self
        await self._apply(tx, answers)
        await engine.commit(tx)
        self.is_done = True
        for queue_id, first in self._claimed.items():
            engine.watermarks.claimed(tx.states[queue_id], self._scan_starts, first, tx.now_ms)
        return self

    # ---- the first round trip

    def _statements(self, scan_starts: ScanStarts) -> list[Statement]:
        self._scan_starts = scan_starts
        statements = messages.find_sends(self._sends)
        for queue_id, deletes in self._deletes.items():
            receipts = [receipt for delete in deletes for receipt in delete.receipts]
            named = {
                "queue": queue_id,
                "retention_ms": self._retention_ms(queue_id),
                "seqs": [receipt.seq for receipt in receipts],
                "holders": [receipt.holder for receipt in receipts],
            }
            statements.append((Q.take_held, named))
        statements += [self._statement(claim, claim.wanted, claim.bytes_max) for claim in self._claims]
        # After the claims, so that a late extension finds the message with its new holder.
        statements += [self._held(queue_id) for queue_id in self._extends]
        return statements

    def _held(self, queue_id: int) -> Statement:
        seqs = sorted({receipt.seq for each in self._extends[queue_id] for receipt, *_ in each.extensions})
        return Q.held, {"queue": queue_id, "seqs": seqs}

    def _add_receive(self, receive: ReceiveOperation) -> None:
        """Receives with the same visibility timeout share a claim, except those whose bodies are counted."""
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
        mark, _ = self._scan_starts[claim.queue_id]
        priority, seq = mark.scan_from
        named = {
            "queue": claim.queue_id,
            "visibility_ms": claim.visibility_s * 1000,
            "retention_ms": self._retention_ms(claim.queue_id),
            "wall_ms": self._engine.clock.wall_ms() if clock_given else None,
            "limit": limit,
            "receives_max": self._receives_max(claim.queue_id),
            "priority": priority,
            "from": seq,
        }
        return (Q.claim, named) if bytes_max is None else (Q.claim_bounded, {**named, "bytes_max": bytes_max})

    def _retention_ms(self, queue_id: int) -> int:
        return self._engine.queues.by_id[queue_id].queue.settings.retention_s * 1000

    def _receives_max(self, queue_id: int) -> int:
        """The receive count from which a message is spent, if there is a dead-letter queue."""
        queue = self._engine.queues.by_id[queue_id].queue
        spent_at = decide.receives_max(queue, decide.dead_letters_of(queue, self._engine.queues.find))
        return _NO_MAX if spent_at is None else spent_at

    # ---- between the two round trips

    async def _apply(self, tx: Transaction, answers: list[list[Any]]) -> None:
        remaining = iter(answers)
        known = [next(remaining) for _ in messages.find_sends(self._sends)]
        for queue_id in self._deletes:
            self._delete(tx, tx.states[queue_id], next(remaining))
        for claim in self._claims:
            await self._receive(tx, tx.states[claim.queue_id], claim, next(remaining))
        for queue_id in self._extends:
            rows = next(remaining)
            if self._moved:
                # The message may just have gone to the dead letters.
                rows = await tx.rows(*self._held(queue_id))
            self._extend(tx, tx.states[queue_id], rows)
        for delete in self._late:
            await self._delete_late(tx, delete)
        sent = await messages.send_all(tx, self._sends, *known)
        self.answers.update(zip(self._sends, sent, strict=True))

    def _delete(self, tx: Transaction, state: LockedQueue, rows: list[Any]) -> None:
        taken = {(message.seq, message.holder): message for message in map(HeldMessage._make, rows)}
        for delete in self._deletes[state.id]:
            deleted: list[Deleted] = []
            verdicts: list[Deletion | None] = []
            for receipt in delete.receipts:
                message = taken.pop((receipt.seq, receipt.holder), None)
                if message is not None:
                    reported = delete.reported.get(receipt.seq)
                    deleted.append(Deleted(message, receipt.delivery, message.due_at_ms, reported))
                    tx.shift(state, message.state, None, message.seq, None, message.group)
                verdicts.append(None if message is None else Deletion.DELETED)
            if tx.journal is not None and deleted:
                tx.journal.record(tx.now_ms, state.queue.key, deleted, delete.caller)
            self.answers[delete] = verdicts
            if None in verdicts:
                self._late.append(delete)

    async def _delete_late(self, tx: Transaction, delete: DeleteOperation) -> None:
        """The message is gone or lapsed, or the receipt is stale: the rules decide on the message as it is now."""
        verdicts = self.answers[delete]
        left = [r for r, verdict in zip(delete.receipts, verdicts, strict=True) if verdict is None]
        others = iter(await replace(delete, receipts=left).work(tx))
        self.answers[delete] = [next(others) if verdict is None else verdict for verdict in verdicts]

    def _extend(self, tx: Transaction, state: LockedQueue, rows: list[Any]) -> None:
        retention_s = state.queue.settings.retention_s
        found = map(HeldMessage._make, rows)
        present = {each.seq: each for each in found if expires_at_ms(each.seq, retention_s) > tx.now_ms}
        extends = self._extends[state.id]
        for extend in extends:
            self.answers[extend] = extend.extended(tx, state, present, more_follow=len(extends) > 1)

    async def _receive(self, tx: Transaction, state: LockedQueue, claim: _Claim, rows: list[Any]) -> None:
        taken, is_cut = await self._without_spent(tx, state, claim, [to_message(row) for row in rows])
        # In order of arrival, each receive takes what it asked for from what is left.
        at = 0
        for receive in claim.receives:
            given = taken[at : at + receive.count]
            at += len(given)
            if tx.journal is not None:
                opened = [_opened(message) for message in given]
                tx.journal.record(tx.now_ms, state.queue.key, opened, receive.caller)
            self.answers[receive] = None if is_cut and not given else given

    async def _without_spent(
        self, tx: Transaction, state: LockedQueue, claim: _Claim, claimed: list[StoredMessage]
    ) -> tuple[list[StoredMessage], bool]:
        """The messages for the receives, after moving spent ones to the dead letters and claiming others instead; and whether so
        many were spent that receives without a message must be repeated."""
        taken, bytes_left, moved = list[StoredMessage](), claim.bytes_max, 0
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
                return taken, False
            await messages.dead_letter(tx, state, tx.states[target.id], spent)
            self._moved = True
            moved += len(spent)
            if len(taken) == claim.wanted or (bytes_left is not None and bytes_left <= 0):
                return taken, False
            if moved >= decide.SPENT_AT_ONCE:
                return taken, True
            rows = await tx.rows(*self._statement(claim, claim.wanted - len(taken), bytes_left))
            claimed = [to_message(row) for row in rows]


def _scan_order(message: StoredMessage) -> tuple[int, int]:
    return message.priority, message.seq


def _opened(message: StoredMessage) -> Opened:
    """The effect that the statement `claim` has already written."""
    lease = LeaseState(
        message.state, message.due_at_ms, message.received_at_ms, message.delivery, message.holder, message.receive_count,
        message.first_received_wall_ms,
    )  # fmt: skip
    return Opened(message, message.delivery, message.due_at_ms, lease)
