"""Take the steps of a history on a store and on the reference at once, and compare every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.stores.journal_kit import exported, swept
from tests.stores.kit import ACCOUNT, REGION, STORES, HeardEvents, a_key, redrive_to
from tests.stores.model_holds import HoldLedger
from tests.stores.model_journal import JournalReplay, first_difference
from tests.stores.model_ledger import Broken, Ledger, check_counts, check_group_order
from tests.stores.sqlite_kit import crashed_copy
from veil.core.clock import ManualClock
from veil.core.errors import ReceiptInvalid, StoreError, VeilError
from veil.core.lease import WAITING, Deletion, HoldContent, HoldKey, State
from veil.core.message import PRIORITY_DEFAULT, Caller, NewMessage, Sent, StoredMessage
from veil.core.queue import MoveTask, Queue, QueueSettings
from veil.core.receipt import Receipt, rotation_of
from veil.core.sequence import instant_of
from veil.stores.memory import MemoryStore
from veil.stores.sqlite import SqliteStore
from veil.stores.store import Chosen, Extension, QueueContent, Rotated, Store

Step = dict[str, Any]  # JSON
RETENTION_MIN_S = 60

# Every kind of queue there is. The dead letters of dead letters lead back: cycles are part of it.
QUEUES: dict[str, dict[str, Any]] = {
    "std": {"visibility_s": 5, "retention_s": 600, "redrive": ["dead", 2]},
    "dead": {"visibility_s": 10, "retention_s": 900, "redrive": ["std", 4]},
    "short": {"visibility_s": 30, "retention_s": 60, "delay_s": 3, "redrive": ["dead", 1]},
    "fair": {"visibility_s": 20, "retention_s": 200},
    "turns.fifo": {"visibility_s": 5, "retention_s": 600, "redrive": ["dead.fifo", 2]},
    "lanes.fifo": {
        "visibility_s": 8,
        "retention_s": 200,
        "delay_s": 2,
        "deduplication_scope": "messageGroup",
        "redrive": ["dead.fifo", 3],
    },
    "dead.fifo": {"visibility_s": 10, "retention_s": 600, "redrive": ["turns.fifo", 4]},
}


class Divergence(AssertionError):
    """The store and the reference answered differently."""


class Pairs:
    """Names that each store gives by itself: the first meeting binds two of them for ever."""

    def __init__(self) -> None:
        self._there: dict[Any, Any] = {}
        self._here: dict[Any, Any] = {}

    def same(self, here: Any, there: Any) -> bool:
        return self._there.setdefault(here, there) == there and self._here.setdefault(there, here) == here


class Side:
    """One store, with its own names for queues and receipts."""

    def __init__(self, store: Store) -> None:
        self.events = HeardEvents()
        self.queues: dict[str, Queue] = {}
        self.old_queues: dict[str, Queue] = {}
        self.receipts: dict[str, Receipt] = {}
        self.journal = JournalReplay()
        self.use(store)

    def use(self, store: Store) -> None:
        self.store = store
        store.events = self.events

    async def take(self, step: Step) -> Any:
        """Do what the step says and return the answer, or the refusal."""
        try:
            return await getattr(self, "_" + step["op"])(step)
        except StoreError:
            raise
        except VeilError as refusal:
            return refusal

    def _queue(self, step: Step) -> Queue:
        name = step["queue"]
        return self.old_queues.get(name, self.queues[name]) if step.get("old") else self.queues[name]

    def knows(self, step: Step, label: str) -> bool:
        """Whether the step may show that receipt to its queue.

        A shortened history may name receipts that were never given out. Those of a queue that had the same name before are
        refused before a store is asked, and a message may have come back under its key: see the step `foreign`.
        """
        return label in self.receipts and self.receipts[label].queue_id == self._queue(step).id

    def _known(self, step: Step) -> list[Receipt]:
        return [self.receipts[label] for label in step["receipts"] if self.knows(step, label)]

    async def _send(self, step: Step) -> Any:
        messages = [
            NewMessage(
                message_id=each["id"],
                body=each["body"],
                body_md5="",
                delay_s=each["delay"],
                group=each["group"],
                deduplication_id=each["deduplication"],
                sender="model",
                message_type="odd" if each["body"][-1] in "13579" else None,
                priority=each.get("priority", PRIORITY_DEFAULT),
            )
            for each in step["messages"]
        ]
        queue = self._queue(step)
        sent = await self.store.send(queue, messages, caller=_caller(step))
        for each, place in zip(step["messages"], sent, strict=True):
            # By which the sender may take back what waits.
            self.receipts[f"{step['queue']}/{each['body']}/0"] = Receipt(queue.id, place.seq, 0)
        return sent

    async def _receive(self, step: Step) -> Any:
        queue = self._queue(step)
        taken = await self.store.receive(
            queue,
            step["count"],
            visibility_s=step["visibility"],
            attempt_id=step["attempt"],
            caller=_caller(step),
        )
        for message in taken:
            label = receipt_label(step["queue"], message)
            self.receipts[label] = Receipt(queue.id, message.seq, message.delivery)
        return taken

    async def _open_stream(self, step: Step) -> Any:
        return await self.store.open_stream(self._queue(step), step["stream"], step["owner"])

    async def _receive_hold(self, step: Step) -> Any:
        queue = self._queue(step)
        content = await self.store.receive_hold(
            queue,
            HoldKey(step["stream"], step["batch"], step["part"]),
            step["count"],
            visibility_s=step["visibility"],
            caller=_caller(step),
        )
        for message in content.messages:
            label = receipt_label(step["queue"], message)
            self.receipts[label] = Receipt(queue.id, message.seq, message.delivery)
        return content

    async def _extend_holds(self, step: Step) -> Any:
        named = (self._queue(step), step["stream"], step["owner"])
        return await self.store.extend_holds(*named, visibility_s=step["visibility"], caller=_caller(step))

    async def _delete_holds(self, step: Step) -> Any:
        named = (self._queue(step), step["stream"], step["owner"])
        return await self.store.delete_holds(*named, up_to_batch=step["batch"], caller=_caller(step))

    async def _redrive(self, step: Step) -> Any:
        """Chosen by body: the keys are each store's own."""
        queue = self._queue(step)
        present = {message.body: message for message in await self.store.peek(queue, limit=10_000)}
        destination = step["destination"] and a_key(step["destination"])
        chosen = [
            Chosen(present[body].seq, present[body].message_id, destination)
            for body in step["bodies"]
            if body in present
        ]
        moved = await self.store.redrive(queue, chosen + chosen[:1], caller=_caller(step))
        # A refusal names the message by its key, which is the store's own.
        return [type(each).__name__ if isinstance(each, VeilError) else each for each in moved]

    async def _delete(self, step: Step) -> Any:
        receipts = self._known(step)
        strict = step.get("strict", False)
        return await self.store.delete(self._queue(step), receipts, strict=strict, caller=_caller(step))

    async def _extend(self, step: Step) -> Any:
        extensions = [
            Extension(self.receipts[label], visibility_s)
            for label, visibility_s in step["extensions"]
            if self.knows(step, label)
        ]
        return await self.store.extend(self._queue(step), extensions, caller=_caller(step))

    async def _rotate(self, step: Step) -> Any:
        known = [(label, seconds) for label, seconds in step["extensions"] if self.knows(step, label)]
        extensions = [Extension(self.receipts[label], seconds) for label, seconds in known]
        answers = await self.store.rotate(self._queue(step), extensions, caller=_caller(step))
        for (label, _), answer in zip(known, answers, strict=True):
            if isinstance(answer, Rotated):
                self.receipts[rotated_label(label, answer)] = answer.receipt
        # The receipt names the message by its key, which is the store's own.
        return [
            (each.receipt.delivery, rotation_of(each.receipt.holder), each.deadline_ms)
            if isinstance(each, Rotated)
            else each
            for each in answers
        ]

    async def _undo(self, step: Step) -> Any:
        receipts = self._known(step)
        return await self.store.undo_receive(self._queue(step), receipts, caller=_caller(step))

    async def _foreign(self, step: Step) -> Any:
        """A receipt is shown to a queue that did not give it out."""
        if receipt := self.receipts.get(step["receipt"]):
            text = self.store.receipts.write(receipt.queue_id, receipt.seq, receipt.holder)
            queue = self._queue(step)
            try:
                self.store.receipts.read(text, queue.id)
            except ReceiptInvalid:
                return receipt.queue_id == queue.id
            return receipt.queue_id != queue.id
        return False

    async def _purge(self, step: Step) -> Any:
        return await self.store.purge(self._queue(step), rest_ms=step["rest_ms"], caller=_caller(step))

    async def _edit(self, step: Step) -> Any:
        changes = dict(step["changes"])
        if changes.get("redrive"):
            changes["redrive"] = redrive_to(*changes["redrive"])
        return await self.store.edit_queue(
            self._queue(step),
            lambda content: QueueContent(
                replace(content.settings, **changes), {**content.tags, "edited": str(step["changes"])}
            ),
        )

    async def _delete_queue(self, step: Step) -> Any:
        return await self.store.delete_queue(self._queue(step), caller=_caller(step))

    async def _create_queue(self, step: Step) -> Any:
        name = step["queue"]
        settings = dict(QUEUES[name], fifo=name.endswith(".fifo"))
        if "redrive" in settings:
            settings["redrive"] = redrive_to(*settings["redrive"])
        queue = await self.store.create_queue(
            a_key(name), QueueContent(QueueSettings(**settings), {}), rest_ms=step["rest_ms"]
        )
        if name in self.queues and self.queues[name].id != queue.id:
            self.old_queues[name] = self.queues[name]
        self.queues[name] = queue
        return queue

    async def _start_move(self, step: Step) -> Any:
        destination = step["destination"] and a_key(step["destination"])
        task = MoveTask(step["task"], a_key(step["queue"]), destination, None, "RUNNING", 0, 0, 0)
        return await self.store.start_move(task, caller=_caller(step))

    async def _step_move(self, step: Step) -> Any:
        return await self.store.step_move(step["task"], step["count"])

    async def _cancel_move(self, step: Step) -> Any:
        return await self.store.cancel_move(step["task"])

    async def _look(self, step: Step) -> Any:
        """Everything that only reads."""
        key = a_key(step["queue"])
        return [
            await self.store.find_queue(key),
            await self.store.list_queues(REGION, ACCOUNT, prefix=step["prefix"], limit=4),
            await self.store.dead_letter_sources(key, limit=2),
            await self.store.list_moves(key, 3),
            await self.store.active_moves(),
            await self.store.oldest_sent_ms(self._queue(step)),
            await self.store.peek_next(self._queue(step), limit=step.get("limit", 5)),
        ]

    async def _settle(self, step: Step) -> Any:
        await self.store.settle()

    async def _advance(self, step: Step) -> Any:
        return None  # the clock is common to both

    async def _reopen(self, step: Step) -> Any:
        return None  # only a durable store has something to do, see LockStep

    async def contents(self, name: str) -> tuple[Any, list[StoredMessage]]:
        """Counts and all messages of a queue, in small pages."""
        queue = self.queues[name]
        messages: list[StoredMessage] = []
        while page := await self.store.peek(queue, after_seq=messages[-1].seq if messages else 0, limit=50):
            messages += page
        return await self.store.counts(queue), messages


class LockStep:
    """Runs a history on the reference and, unless that is what is tested, on another store beside it."""

    def __init__(self, store_name: str, directory: Path) -> None:
        self.clock = ManualClock()
        self._kind, self._directory = STORES[store_name], directory
        self.reference = Side(MemoryStore(self.clock, journal=True))
        self.subject = self.reference if store_name == "memory" else Side(self._make())
        self.sides = list(dict.fromkeys([self.reference, self.subject]))
        self.ledger = Ledger()
        self.holds = HoldLedger(self.ledger)
        self._seqs, self._message_ids, self._queue_ids = Pairs(), Pairs(), Pairs()
        self._settled_at_ms: int | None = None
        self._reopened = 0

    def _make(self) -> Store:
        return self._kind.make(self._directory, self.clock, journal=True)

    async def open(self) -> None:
        for side in self.sides:
            await side.store.open()
        for name in QUEUES:
            await self.take({"op": "create_queue", "queue": name, "rest_ms": 0})

    async def close(self) -> None:
        for side in self.sides:
            await side.store.close()

    async def take(self, step: Step) -> Any:
        """One step on every side; raises Divergence or Broken. Returns the reference's answer."""
        op = step["op"]
        if op == "advance":
            self.clock.advance(step["ms"])
        if op == "reopen" and self._kind.durable:
            await self._reopen()
        going = await self._about_to_end(step)
        before = await self._contents_for_holds(step)
        answers = [await side.take(step) for side in self.sides]
        self._compare(step, answers[0], answers[-1])
        await self._enter(step, answers[-1], going)
        if not isinstance(answers[-1], VeilError):
            after = await self._contents_for_holds(step)
            self.holds.enter(step, answers[-1], before, after, self.clock.now_ms())
        if "queue" in step:
            await self._compare_counts(step["queue"])
        await self._compare_wakes(step)
        return answers[0]

    async def _reopen(self) -> None:
        before = self.subject.store
        if isinstance(before, SqliteStore):  # stopped and killed in turns
            self._reopened += 1
            if self._reopened % 2:
                self._directory = crashed_copy(
                    self._directory, self._directory / f"after-kill-{self._reopened}"
                )
        await before.close()
        self.subject.use(self._make())
        await self.subject.store.open()

    async def audit(self) -> None:
        """Compare everything there is, and check it against the ledger."""
        seen: dict[str, list[StoredMessage]] = {}
        for name, queue in self.subject.queues.items():
            if await self.subject.store.find_queue(queue.key) is None:
                continue
            contents = [await side.contents(name) for side in self.sides]
            self._compare({"op": "audit", "queue": name}, list(contents[0]), list(contents[-1]))
            counts, seen[name] = contents[-1]
            check_counts(name, counts, seen[name])
        self.ledger.seen(seen, self.clock.now_ms(), RETENTION_MIN_S)
        await self._compare_journals(seen)
        due_ms = [side.store.next_due_ms() for side in self.sides]
        if due_ms[0] is not None and (due_ms[-1] is None or due_ms[-1] > due_ms[0]):
            raise Divergence(f"next due: {due_ms[0]} and {due_ms[-1]}")
        for event in ("duplicate", "dead_lettered"):
            totals = [sum(n for (e, _), n in side.events.totals.items() if e == event) for side in self.sides]
            if totals[0] != totals[-1]:
                raise Divergence(f"{event}: {totals[0]} and {totals[-1]}")

    async def _compare_journals(self, seen: dict[str, list[StoredMessage]]) -> None:
        told = []
        for side in self.sides:
            await swept(side.store)
            told.append(await exported(side.store))
            side.journal.read(told[-1])
            for name, messages in seen.items():
                in_flight = sum(message.state == State.IN_FLIGHT for message in messages)
                side.journal.check(name, len(messages), in_flight, self.clock.now_ms())
        difference = first_difference(told[0], told[-1], self._same_place, self._message_ids.same)
        if difference is not None:
            raise Divergence(f"the journals differ:\n  {difference}")

    # ---- comparing

    def _compare(self, step: Step, here: Any, there: Any) -> None:
        if here is not there and not self._same(here, there):
            raise Divergence(f"at {self.clock.now_ms()}: {step}\n  reference: {here}\n  store:     {there}")

    def _same(self, here: Any, there: Any) -> bool:
        if type(here) is not type(there):
            return False
        if isinstance(here, HoldContent):
            return here[1:] == there[1:] and self._same(here.messages, there.messages)
        if isinstance(here, list):
            return len(here) == len(there) and all(map(self._same, here, there))
        if isinstance(here, VeilError):
            return str(here) == str(there)
        if isinstance(here, Sent):
            return (
                here.duplicate == there.duplicate
                and self._message_ids.same(here.message_id, there.message_id)
                and self._same_place(here.seq, there.seq)
            )
        if isinstance(here, Queue):
            return self._queue_ids.same(here.id, there.id) and replace(here, id=0) == replace(there, id=0)
        if isinstance(here, StoredMessage):
            return self._same_message(here, there)
        return bool(here == there)

    def _same_place(self, here: int, there: int) -> bool:
        return self._seqs.same(here, there) and instant_of(here) == instant_of(there)

    def _same_message(self, here: StoredMessage, there: StoredMessage) -> bool:
        # What a move task moves gets a new id from the store, which is its deduplication id too.
        own_id = here.deduplication_id == here.message_id and there.deduplication_id == there.message_id
        return (
            self._same_place(here.seq, there.seq)
            and self._message_ids.same(here.message_id, there.message_id)
            and (own_id or here.deduplication_id == there.deduplication_id)
            and all(getattr(here, name) == getattr(there, name) for name in _PLAIN_FIELDS)
        )

    async def _compare_counts(self, name: str) -> None:
        queues = {name}
        redrive = self.reference.queues[name].settings.redrive
        if redrive is not None:
            queues.add(redrive.dead_letters.name)
        for each in queues & self.subject.queues.keys():
            counts = [await _refusable(side.store.counts)(side.queues[each]) for side in self.sides]
            self._compare({"op": "counts", "queue": each}, counts[0], counts[-1])

    async def _compare_wakes(self, step: Step) -> None:
        """After a step that began settled: whatever became receivable was announced, at least that many."""
        began_settled = self._settled_at_ms == self.clock.now_ms() or step["op"] == "advance"
        self._settled_at_ms = None
        if step.get("settle"):
            for side in self.sides:
                await side.store.settle()
            for _ in range(2):  # events may come a turn of the loop after the answer
                await asyncio.sleep(0)
            self._settled_at_ms = self.clock.now_ms()
            if began_settled and step["op"] != "reopen":
                for name, queue in self.reference.queues.items():
                    here = self.reference.events.available[queue.id]
                    there = self.subject.events.available[self.subject.queues[name].id]
                    if there < here:
                        raise Divergence(f"{step}: {name} announced {there} of {here} available messages")
        for side in self.sides:
            side.events.available.clear()

    # ---- the ledger

    async def _about_to_end(self, step: Step) -> list[StoredMessage]:
        if step["op"] not in ("purge", "delete_queue"):
            return []
        peeked = await _refusable(self.subject.contents)(step["queue"])
        return [] if isinstance(peeked, VeilError) else peeked[1]

    async def _contents_for_holds(self, step: Step) -> list[StoredMessage]:
        if step["op"] not in ("extend_holds", "delete_holds"):
            return []
        peeked = await _refusable(self.subject.contents)(step["queue"])
        return [] if isinstance(peeked, VeilError) else peeked[1]

    async def _enter(self, step: Step, answer: Any, going: list[StoredMessage]) -> None:
        if isinstance(answer, VeilError):
            return
        op, ledger, now_ms = step["op"], self.ledger, self.clock.now_ms()
        if op == "send":
            for each, sent in zip(step["messages"], answer, strict=True):
                if not sent.duplicate:
                    ledger.sent(each["body"], sent.seq)
        elif op == "receive":
            for message in answer:
                ledger.received(step["queue"], message, now_ms, attempt=step["attempt"] is not None)
            if step["queue"].endswith(".fifo") and answer and not step.get("old"):
                check_group_order(answer, (await self.subject.contents(step["queue"]))[1])
        elif op == "receive_hold":
            for message in answer.messages:
                ledger.received(step["queue"], message, now_ms, attempt=answer.again)
            if (
                step["queue"].endswith(".fifo")
                and answer.messages
                and not answer.again
                and not step.get("old")
            ):
                check_group_order(answer.messages, (await self.subject.contents(step["queue"]))[1])
        elif op == "delete":
            labels = self._labels(step, step["receipts"])
            for label, deletion in zip(labels, answer, strict=True):
                if deletion is Deletion.DELETED:
                    ledger.acted(*_claim(label), now_ms)
                    ledger.ended(_claim(label)[0])
        elif op == "extend":
            labels = self._labels(step, [label for label, _ in step["extensions"]])
            lengths = [s for label, s in step["extensions"] if self.subject.knows(step, label)]
            for label, visibility_s, refusal in zip(labels, lengths, answer, strict=True):
                if refusal is None:
                    ledger.extended(step["queue"], *_claim(label), visibility_s, now_ms)
        elif op == "rotate":
            labels = self._labels(step, [label for label, _ in step["extensions"]])
            lengths = [s for label, s in step["extensions"] if self.subject.knows(step, label)]
            for label, visibility_s, rotated in zip(labels, lengths, answer, strict=True):
                if isinstance(rotated, VeilError):
                    continue
                if _claim(label)[1] == WAITING:
                    ledger.acted(*_claim(label), now_ms)
                else:
                    ledger.extended(step["queue"], *_claim(label), visibility_s, now_ms)
        elif op == "undo":
            for label in self._labels(step, step["receipts"]):
                ledger.undone(*_claim(label), now_ms)
        elif op == "foreign" and answer:
            raise Broken(f"a receipt was read for the wrong queue: {step}")
        for message in going:
            ledger.ended(message.body)

    def _labels(self, step: Step, labels: list[str]) -> list[str]:
        return [label for label in labels if self.subject.knows(step, label)]


_PAIRED = {"seq", "message_id", "deduplication_id"}
_PLAIN_FIELDS = [name for name in StoredMessage.__struct_fields__ if name not in _PAIRED]


def receipt_label(queue: str, message: StoredMessage) -> str:
    """What a history calls a receipt: bodies are unique, so it means the same in every store."""
    return f"{queue}/{message.body}/{message.delivery}"


def _caller(step: Step) -> Caller:
    return Caller(key_id=step["op"])


def rotated_label(label: str, rotated: Rotated) -> str:
    """What a history calls the receipt that came in place of another."""
    return f"{label.partition('+')[0]}+{rotation_of(rotated.receipt.holder)}"


def _claim(label: str) -> tuple[str, int]:
    _, body, delivery = label.split("/")
    return body, int(delivery.partition("+")[0])


def _refusable(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def answer(*arguments: Any) -> Any:
        try:
            return await call(*arguments)
        except StoreError:
            raise
        except VeilError as refusal:
            return refusal

    return answer
