"""Stores against the reference, over histories that nobody thought of; and the model itself against broken stores."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.stores import kit
from tests.stores.model import ModelFailure, replay, run_model, shrink
from tests.stores.model_steps import QUEUES, LockStep, receipt_label
from veil.core.errors import VeilError
from veil.core.event import Kind
from veil.core.lease import Deletion
from veil.stores.memory import MemoryStore, dead_letters, holds, leases, receiving, recording, settling
from veil.stores.memory.shelves import Shelves

OTHER_STORES = [name for name in kit.STORES if name != "memory"]
# A step on PostgreSQL is some twenty round trips.
STEPS = {"sqlite": 4_000, "postgres": 1_000}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", OTHER_STORES)
def test_a_store_agrees_with_the_reference_at_every_step(name, seed, tmp_path):
    report = run_model(name, seed, STEPS[name], directory=tmp_path)

    assert report.steps >= STEPS[name]


@pytest.mark.parametrize("seed", range(100, 103))
def test_the_reference_keeps_the_promises_that_need_no_reference(seed, tmp_path):
    run_model("memory", seed, 2_000, directory=tmp_path)


# ---- the model notices


class BrokenStore(MemoryStore):
    """Has something else in one place of its modules, while the reference beside it keeps what is there."""

    place: Any
    name: str

    def instead(self, right, *given, **named):
        raise NotImplementedError

    @contextmanager
    def _operation(self):
        # An operation never waits, so nobody else is at work meanwhile.
        right = getattr(self.place, self.name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.place, self.name, partial(self.instead, right))
            with super()._operation() as op:
                yield op


class ForgetsTheHolder(BrokenStore):
    """Lets any receipt delete."""

    place, name = leases, "delete_one"

    def instead(self, right, op, shelf, receipt, caller, *, strict=False):
        row = shelf.find(receipt)
        if row is None:
            return Deletion.GONE
        shelf.remove(row)
        return Deletion.DELETED


class LapsesLate(BrokenStore):
    """Shows a message a millisecond after its deadline."""

    place, name = settling, "settle"

    def instead(self, right, op):
        right(replace(op, now_ms=op.now_ms - 1))


class LosesADeadLetter(BrokenStore):
    """Drops spent messages."""

    place, name = dead_letters, "move"

    def instead(self, right, op, row, source, target):
        source.remove(row)


class ServesTheSameGroupAgain(BrokenStore):
    """Never moves a group behind the others."""

    place, name = Shelves, "next_turn"

    def instead(self, right):
        return 0


class KeepsQuietAboutRetention(BrokenStore):
    """Does not record what expired."""

    place, name = recording, "end"

    def instead(self, right, op, kind, *facts):
        if kind != Kind.EXPIRED:
            right(op, kind, *facts)


class TellsTheWrongDeadline(BrokenStore):
    """Records leases a millisecond too long."""

    place, name = recording, "leases"

    def instead(self, right, op, kind, shelf, messages, caller):
        late = [replace(message, due_at_ms=(message.due_at_ms or op.now_ms) + 1) for message in messages]
        right(op, kind, shelf, late, caller)


class ForgetsAnEmptyHold(MemoryStore):
    """Records a hold only when it took something."""

    async def receive_hold(self, queue, key, count, **given):
        content = await super().receive_hold(queue, key, count, **given)
        if not content.messages and not content.again:
            del self._shelves.streams[queue.id, key.stream].holds[key.batch, key.part]
        return content


class StrikesNothing(BrokenStore):
    """Leaves a lost member in its hold, as if it could be found again."""

    place, name = holds, "keep_or_strike"

    def instead(self, right, op, shelf, hold, *given, **named):
        members, lost = hold.members, hold.lost
        kept = right(op, shelf, hold, *given, **named)
        hold.members, hold.lost = members, lost
        return kept


class LeavesTheDoorOpen(MemoryStore):
    """Acknowledges a batch without closing it."""

    async def delete_holds(self, queue, stream, owner, **given):
        tally = await super().delete_holds(queue, stream, owner, **given)
        if (queue.id, stream) in self._shelves.streams:
            self._shelves.streams[queue.id, stream].closed = -1
        return tally


class LeavesTheOldReceipt(BrokenStore):
    """Gives a new receipt and goes on with the old one."""

    place, name = leases, "rotate_one"

    def instead(self, right, op, shelf, extension, caller):
        answer = right(op, shelf, extension, caller)
        row = shelf.find(extension.receipt)
        if row is not None:
            row.rotation = extension.receipt.rotation
        return answer


class ForgetsStrictness(MemoryStore):
    """Lets late receipts delete, also where they must not."""

    async def delete(self, queue, receipts, *, strict=False, caller):
        return await super().delete(queue, receipts, caller=caller)


class GoesByAgeAlone(BrokenStore):
    """Shows every message as one of the ordinary priority to those who receive."""

    place, name = receiving, "take"

    def instead(self, right, op, shelf, *given):
        told = {seq: row.message.priority for seq, row in shelf.rows.items()}
        for row in shelf.rows.values():
            row.message.priority = 8
        taken = right(op, shelf, *given)
        for seq, row in shelf.rows.items():
            row.message.priority = told[seq]
        return taken


BROKEN = [
    LeavesTheOldReceipt,
    ForgetsStrictness,
    GoesByAgeAlone,
    ForgetsAnEmptyHold,
    StrikesNothing,
    LeavesTheDoorOpen,
    ForgetsTheHolder,
    LapsesLate,
    LosesADeadLetter,
    ServesTheSameGroupAgain,
    KeepsQuietAboutRetention,
    TellsTheWrongDeadline,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_store_is_found_out_and_its_history_can_be_replayed(broken, tmp_path, monkeypatch):
    monkeypatch.setitem(
        kit.STORES,
        "broken",
        kit.StoreKind(lambda directory, clock, **given: broken(clock, **given), durable=False),
    )
    with pytest.raises(ModelFailure):
        run_model("broken", 1, 3_000, directory=tmp_path)

    [path] = tmp_path.glob("history-broken-*.json")
    history = json.loads(path.read_text())
    assert replay("broken", history) is not None
    assert replay("memory", history) is None


@pytest.mark.parametrize("broken", [ForgetsAnEmptyHold, StrikesNothing, LeavesTheDoorOpen])
def test_a_broken_hold_is_found_out_without_a_reference(broken, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.stores.model_steps.MemoryStore", broken)
    with pytest.raises(ModelFailure, match="Broken"):
        run_model("memory", 1, 6_000, directory=tmp_path)


def test_a_failing_history_shrinks_to_the_few_steps_that_matter(tmp_path, monkeypatch):
    kind = kit.StoreKind(lambda directory, clock, **given: LosesADeadLetter(clock, **given), durable=False)
    monkeypatch.setitem(kit.STORES, "broken", kind)
    with pytest.raises(ModelFailure) as failure:
        run_model("broken", 1, 500, directory=tmp_path)

    short = shrink("broken", failure.value.history)
    assert replay("broken", short) is not None
    assert len(short) <= 7  # a send, and three receives with a wait before each


# ---- the same steps, chosen by hypothesis

queues = st.sampled_from(list(QUEUES))
visibilities = st.sampled_from([0, 1, 5, 30])


class StoreMachine(RuleBasedStateMachine):
    """Hypothesis looks for a short history on which a store and the reference differ."""

    store_name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._directory = tempfile.TemporaryDirectory(prefix="veil-model-", dir=_quick_root())
        self._run = LockStep(self.store_name, Path(self._directory.name))
        self._labels: list[tuple[str, str]] = []
        self._number = 0

    def take(self, **step):
        return self._loop.run_until_complete(self._run.take({"settle": True, **step}))

    @initialize()
    def open(self):
        self._loop.run_until_complete(self._run.open())

    @rule(
        queue=queues, groups=st.lists(st.sampled_from("AB"), min_size=1, max_size=3), same=st.integers(0, 5)
    )
    def send(self, queue, groups, same):
        fifo = queue.endswith(".fifo")
        messages = []
        for group in groups:
            self._number += 1
            messages.append(
                {
                    "id": f"00000000-0000-4000-8000-{self._number:012d}",
                    "body": f"m{self._number}",
                    "delay": None,
                    "group": group if fifo or queue == "fair" else None,
                    "deduplication": f"d{same}" if fifo else None,
                }
            )
        self.take(op="send", queue=queue, messages=messages)

    @rule(
        queue=queues, count=st.integers(1, 10), visibility=visibilities, attempt=st.sampled_from([None, "t"])
    )
    def receive(self, queue, count, visibility, attempt):
        taken = self.take(op="receive", queue=queue, count=count, visibility=visibility, attempt=attempt)
        if not isinstance(taken, VeilError):
            self._labels += [(queue, receipt_label(queue, message)) for message in taken]

    def _receipt(self, index):
        return self._labels[index % len(self._labels)] if self._labels else ("std", "std/none/0")

    @rule(index=st.integers(0, 50))
    def delete(self, index):
        queue, label = self._receipt(-index)
        self.take(op="delete", queue=queue, receipts=[label])

    @rule(index=st.integers(0, 50), visibility=visibilities)
    def extend(self, index, visibility):
        queue, label = self._receipt(-index)
        self.take(op="extend", queue=queue, extensions=[[label, visibility]])

    @rule(index=st.integers(0, 50))
    def undo(self, index):
        queue, label = self._receipt(-index)
        self.take(op="undo", queue=queue, receipts=[label])

    @rule(
        queue=queues,
        batch=st.integers(0, 2),
        part=st.integers(0, 1),
        count=st.integers(1, 5),
        visibility=st.sampled_from([1, 5, 30]),
    )
    def receive_hold(self, queue, batch, part, count, visibility):
        named = {"stream": "s", "batch": batch, "part": part}
        self.take(op="receive_hold", queue=queue, **named, count=count, visibility=visibility)

    @rule(queue=queues, visibility=st.sampled_from([1, 30, 43_200]))
    def extend_holds(self, queue, visibility):
        self.take(op="extend_holds", queue=queue, stream="s", owner="me", visibility=visibility)

    @rule(queue=queues, batch=st.integers(0, 2))
    def delete_holds(self, queue, batch):
        self.take(op="delete_holds", queue=queue, stream="s", owner="me", batch=batch)

    @rule(beside=st.sampled_from([-1, 0, 1]))
    def reach_what_is_due(self, beside):
        due_ms = self._run.reference.store.next_due_ms()
        if due_ms is not None:
            self.take(op="advance", ms=max(0, due_ms + beside - self._run.clock.now_ms()))

    @rule(seconds=st.sampled_from([1, 5, 60, 300]))
    def let_time_pass(self, seconds):
        self.take(op="advance", ms=seconds * 1000)

    @rule(source=st.sampled_from(["dead", "dead.fifo"]), count=st.integers(1, 5))
    def move_back(self, source, count):
        self._number += 1
        task = f"task-{self._number}"
        self.take(op="start_move", queue=source, task=task, destination=None)
        self.take(op="step_move", queue=source, task=task, count=count)

    @rule(queue=queues)
    def purge(self, queue):
        self.take(op="purge", queue=queue, rest_ms=60_000)

    @rule()
    def reopen(self):
        self.take(op="reopen")

    @rule()
    def audit(self):
        self._loop.run_until_complete(self._run.audit())

    def teardown(self):
        self._loop.run_until_complete(self._run.close())
        self._loop.close()
        self._directory.cleanup()


def _quick_root() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _machine_for(name: str) -> type:
    case = type(f"StoreMachine_{name}", (StoreMachine,), {"store_name": name}).TestCase
    case.settings = settings(
        max_examples=25,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return case


TestMemoryMachine = _machine_for("memory")
TestSqliteMachine = _machine_for("sqlite")
