"""Stores against the reference, over histories that nobody thought of; and the model itself against broken stores."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec import structs

from tests.stores import kit
from tests.stores.model import ModelFailure, replay, run_model, shrink
from tests.stores.model_steps import QUEUES, LockStep, receipt_label
from veil.core.effect import DeadLettered, Expired, Opened
from veil.core.errors import VeilError
from veil.core.event import NOBODY
from veil.stores.memory import MemoryStore
from veil.stores.sqlite import lease_log

# Placed on several servers, messages of the same millisecond have no order among them, which the reference tells at every step.
OTHER_STORES = [name for name in kit.STORES if name not in ("memory", "sharded")]
# A step on PostgreSQL is some twenty round trips.
STEPS = {"sqlite": 1_500, "remote": 400, "postgres": 400}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 5))])
@pytest.mark.parametrize("name", OTHER_STORES)
def test_a_store_agrees_with_the_reference_at_every_step(name, seed, tmp_path):
    steps = STEPS[name] * (2 if seed else 1)
    report = run_model(name, seed, steps, directory=tmp_path)

    assert report.steps >= steps


def test_a_store_agrees_with_the_reference_where_few_leases_are_kept_out_of_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_log, "LEASES_MAX", 6)
    monkeypatch.setattr(lease_log, "HELD_MAX", 12)
    monkeypatch.setattr(lease_log, "LOG_BYTES_MAX", 200)
    run_model("sqlite", 7, 1_000, directory=tmp_path)


@pytest.mark.parametrize("seed", [100, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (101, 102))])
def test_the_reference_keeps_the_promises_that_need_no_reference(seed, tmp_path):
    run_model("memory", seed, 2_000, directory=tmp_path)


# ---- the model notices


class ForgetsTheHolder(MemoryStore):
    """Lets any receipt delete."""

    async def delete(self, queue, receipts, **given):
        messages = self._of(queue).messages
        held = [
            structs.replace(receipt, holder=messages[receipt.seq].holder)
            if receipt.seq in messages
            else receipt
            for receipt in receipts
        ]
        return await super().delete(queue, held, **given)


class LapsesLate(MemoryStore):
    """Shows a message a millisecond after its deadline."""

    def _settle(self, op):
        super()._settle(op._replace(now_ms=op.now_ms - 1))


class LosesADeadLetter(MemoryStore):
    """Drops spent messages."""

    def _apply(self, op, contents, effects, caller=NOBODY):
        effects = list(effects)
        super()._apply(op, contents, effects, caller)
        for effect in effects:
            if isinstance(effect, DeadLettered):
                target = self._of(effect.target)
                target.remove(target.messages[effect.new_seq])


class ServesTheSameGroupAgain(MemoryStore):
    """Never moves a group behind the others."""

    def _next_turn(self):
        return 0


class KeepsQuietAboutRetention(MemoryStore):
    """Does not record what expired."""

    def _record(self, op, queue, effects, caller):
        super()._record(op, queue, [each for each in effects if not isinstance(each, Expired)], caller)


class TellsTheWrongDeadline(MemoryStore):
    """Records leases a millisecond too long."""

    def _record(self, op, queue, effects, caller):
        late = [
            structs.replace(each, deadline_ms=each.deadline_ms + 1) if isinstance(each, Opened) else each
            for each in effects
        ]
        super()._record(op, queue, late, caller)


class ForgetsAnEmptyHold(MemoryStore):
    """Records a hold only when it took something."""

    async def receive_hold(self, queue, key, count, **given):
        content = await super().receive_hold(queue, key, count, **given)
        if not content.messages and not content.again:
            del self._of(queue).streams[key.stream].holds[key.batch, key.part]
        return content


class StrikesNothing(MemoryStore):
    """Leaves a lost member in its hold, as if it could be found again."""

    def _keep_hold(self, op, contents, hold, *given, **named):
        members, lost = hold.members, hold.lost
        kept = super()._keep_hold(op, contents, hold, *given, **named)
        hold.members, hold.lost = members, lost
        return kept


class LeavesTheDoorOpen(MemoryStore):
    """Acknowledges a batch without closing it."""

    async def delete_holds(self, queue, stream, owner, **given):
        tally = await super().delete_holds(queue, stream, owner, **given)
        if stream in self._of(queue).streams:
            self._of(queue).streams[stream].closed = -1
        return tally


class LeavesTheOldReceipt(MemoryStore):
    """Gives a new receipt and goes on with the old one."""

    async def rotate(self, queue, extensions, **given):
        answers = await super().rotate(queue, extensions, **given)
        for extension, answer in zip(extensions, answers, strict=True):
            message = self._of(queue).messages.get(extension.receipt.seq)
            if message is not None and not isinstance(answer, VeilError) and message.holder:
                message.holder = extension.receipt.holder
        return answers


class ForgetsStrictness(MemoryStore):
    """Lets late receipts delete, also where they must not."""

    async def delete(self, queue, receipts, *, strict=False, **given):
        return await super().delete(queue, receipts, **given)


class GoesByAgeAlone(MemoryStore):
    """Shows every message as one of the ordinary priority to those who receive."""

    def _take(self, op, contents, *given, **named):
        told = {seq: message.priority for seq, message in contents.messages.items()}
        for message in contents.messages.values():
            message.priority = 8
        taken = super()._take(op, contents, *given, **named)
        for seq, message in contents.messages.items():
            message.priority = told[seq]
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
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return case


TestMemoryMachine = _machine_for("memory")
TestSqliteMachine = _machine_for("sqlite")
