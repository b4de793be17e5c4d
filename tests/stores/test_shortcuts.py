"""The SQL shortcuts of the stores, held to the rules of `core` that they stand for, on whatever a message may be."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.stores.kit import a_message, make_queue, redrive_to
from tests.stores.postgres_nodes_kit import nodes
from veil.core import decide
from veil.core.attempt import ReportedOutcome
from veil.core.clock import ManualClock
from veil.core.effect import Deleted, Extended, GivenBack
from veil.core.event import NOBODY, EventRecorder, spread
from veil.core.lease import Deletion, Extension, State
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.message import HeldMessage, LeaseState
from veil.core.queue import RedrivePolicy
from veil.core.receipt import DELIVERY_BITS, Receipt, delivery_of
from veil.core.sequence import wake_at_ms
from veil.stores.sql import CONSTANTS, to_message
from veil.stores.sqlite.database import NEVER
from veil.stores.store import NoEvents

NOW_MS = 1_700_000_000_000
numbers = st.integers(0, 3)
holders = st.builds(lambda delivery, rotation: delivery | rotation << DELIVERY_BITS, numbers, numbers)
leases = st.builds(
    LeaseState,
    state=st.sampled_from([int(state) for state in State]),
    due_at_ms=st.sampled_from([None, NOW_MS - 1, NOW_MS, NOW_MS + 1, NOW_MS + 60_000]),
    received_at_ms=st.sampled_from([None, NOW_MS - 5_000]),
    delivery=numbers,
    holder=holders,
    receive_count=numbers,
    first_received_wall_ms=st.sampled_from([None, 5]),
).filter(lambda lease: lease.state != State.IN_FLIGHT or delivery_of(lease.holder))  # somebody received it
each_example = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def an_embedded_queue(tmp_path: Path, held: list[LeaseState], journal: bool):
    """A database with a queue that has messages in those states: the database, the queue's state, the messages' keys."""
    from veil.core.queue import Queue, QueueKey, QueueSettings
    from veil.stores.outbox import OutboxBound
    from veil.stores.sqlite.data_directory import Reserve
    from veil.stores.sqlite.database import CachedQueue, Database, Q
    from veil.stores.sqlite.messages import send
    from veil.stores.sqlite.opening import _migrate

    class Owner:
        events = NoEvents()

    connection = apsw.Connection(":memory:")
    _migrate(connection, Path(":memory:"))
    db = Database(
        connection, ManualClock(NOW_MS), Owner(), Reserve(tmp_path), OutboxBound(1 << 20), journal=journal
    )
    state = CachedQueue(Queue(1, QueueKey("r", "a", "q"), QueueSettings()), "queue")
    db.keep(state)
    seqs = [sent.seq for sent in send(db, state.queue, [a_message("x") for _ in held], None, NOBODY)]
    state.counts[:] = [0, 0, 0]
    for seq, lease in zip(seqs, held, strict=True):
        db.execute_for(Q.write_leases, (*lease, NEVER), (seq,))
        state.counts[lease.state] += 1
        if lease.due_at_ms is not None:
            db.hidden_until(state, lease.due_at_ms)
    if db.journal is not None:
        db.journal.forget()
    return db, state, seqs


def told(db, state, decided) -> bool:
    """Whether the journal tells what was decided, in whatever order."""
    if db.journal is None:
        return True
    recorder = EventRecorder()
    recorder.record(NOW_MS, state.queue.key, decided)
    return sorted(spread(db.journal.events), key=repr) == sorted(recorder.events, key=repr)


AN_OPEN_LEASE = LeaseState(int(State.IN_FLIGHT), NOW_MS + 60_000, NOW_MS - 5_000, 1, 1, 1, 5)
ENDS = [ReportedOutcome("failed", "ValueError", "no stock", "  File …", 7), ReportedOutcome("given_back")]
NO_END = ReportedOutcome(None, worked_ms=7)
TWO_CHANGES = {
    "held": [AN_OPEN_LEASE] * 2, "claims": [(0, 1), (1, 1)], "retention_s": 60, "journal": True
}  # fmt: skip
some_leases = st.lists(leases | st.just(AN_OPEN_LEASE), min_size=1, max_size=4)
# None: the one that the message names as its holder.
some_claims = st.lists(st.tuples(numbers, st.none() | holders), min_size=1, max_size=5)


def claimed(seqs: list[int], held: list[LeaseState], claims: list[tuple[int, int | None]]) -> list[Receipt]:
    """The receipts of claims on messages."""
    places = [(at % len(seqs), holder) for at, holder in claims]
    return [Receipt(1, seqs[at], held[at].holder if holder is None else holder) for at, holder in places]


@given(held=some_leases, claims=some_claims, journal=st.booleans())
@each_example
def test_sqlite_deletes_at_once_only_what_the_rules_delete(tmp_path: Path, held, claims, journal):
    """`may_delete` of the embedded store, against `decide_deletion` for each receipt in turn."""
    from veil.stores.sqlite.leases import delete, held_messages

    db, state, seqs = an_embedded_queue(tmp_path, held, journal)
    given_receipts = claimed(seqs, held, claims)
    messages = held_messages(db, state, seqs, NOW_MS)
    decided, expected = [], []
    for receipt in given_receipts:
        effect = decide.decide_deletion(messages.get(receipt.seq), receipt, NOW_MS, fifo=False)
        decided.append(effect)
        if isinstance(effect, Deleted):
            del messages[receipt.seq]
            expected.append(Deletion.DELETED)
        else:
            expected.append(effect.error or effect.deletion)

    assert delete(db, state.queue, given_receipts, False, NOBODY) == expected
    assert set(held_messages(db, state, seqs, NOW_MS)) == set(messages)
    assert state.counts == [sum(m.state == each for m in messages.values()) for each in State]
    assert told(db, state, decided)


@given(
    held=some_leases,
    claims=some_claims,
    lengths_s=st.one_of(
        st.sampled_from([1, 40, 70, VISIBILITY_MAX_S - 5, VISIBILITY_MAX_S]).map(lambda each: [each] * 5),
        st.lists(st.sampled_from([0, 1, 70]), min_size=5, max_size=5),
    ),
    reported=st.one_of(
        st.sampled_from([None, NO_END, *ENDS]).map(lambda each: [each] * 5),
        st.lists(st.sampled_from([None, NO_END, *ENDS]), min_size=5, max_size=5),
    ),
    retention_s=st.sampled_from([60, 345_600]),
    journal=st.booleans(),
)
@example(
    held=[AN_OPEN_LEASE], claims=[(0, 1)], lengths_s=[70], reported=[None] * 2, retention_s=60, journal=True
)
@example(**TWO_CHANGES, lengths_s=[40] * 2, reported=[None] * 2)
@example(**TWO_CHANGES, lengths_s=[40] * 2, reported=ENDS)
@example(**TWO_CHANGES, lengths_s=[70] * 2, reported=ENDS)
@example(**TWO_CHANGES, lengths_s=[70] * 2, reported=[None, ENDS[0]])
@example(**TWO_CHANGES, lengths_s=[70] * 2, reported=[NO_END] * 2)
@each_example
def test_sqlite_extends_at_once_only_what_the_rules_extend(
    tmp_path: Path, held, claims, lengths_s, reported, retention_s, journal
):
    """`may_extend` of the embedded store, against `decide_extensions`."""
    from veil.stores.sqlite.leases import extend, held_messages

    db, state, seqs = an_embedded_queue(tmp_path, held, journal)
    state.queue = replace(state.queue, settings=replace(state.queue.settings, retention_s=retention_s))
    extensions = [
        Extension(*each) for each in zip(claimed(seqs, held, claims), lengths_s, reported, strict=False)
    ]
    messages = held_messages(db, state, seqs, NOW_MS)
    decided, expected = decide.decide_extensions(dict(messages), extensions, NOW_MS, fifo=False)
    for effect in decided:
        decide.take_in(messages, effect)

    assert list(map(repr, extend(db, state.queue, extensions, NOBODY))) == list(map(repr, expected))
    assert held_messages(db, state, seqs, NOW_MS) == messages
    assert state.counts == [sum(m.state == each for m in messages.values()) for each in State]
    for effect in decided:
        if isinstance(effect, Extended | GivenBack):
            seq, due_at_ms = effect.message.seq, messages[effect.message.seq].due_at_ms
            wake_ms = db.execute(f"SELECT wake_at_ms FROM message WHERE seq = {seq}").get
            assert wake_ms == wake_at_ms(seq, due_at_ms, retention_s)
            assert wake_ms is None or wake_ms >= state.next_wake_ms  # or nobody would look in time
    assert told(db, state, decided)


A_DELETE = {
    "counts": [1], "visibility_s": 30, "claims": [(0, None)], "later_ms": 5_000, "length_s": 70, "reported": None,
    "deletes": True, "retention_s": 60,
}  # fmt: skip


@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    visibility_s=st.sampled_from([30, 90]),
    # Mostly one receipt or two, whose holder may be a wrong one: what a shortcut is for.
    claims=st.lists(
        st.tuples(numbers, st.none() | st.sampled_from([0, 1, 3, 4, 1 | 1 << DELIVERY_BITS])),
        min_size=1,
        max_size=3,
    ),
    later_ms=st.sampled_from([0, 5_000, 29_999, 30_000, 60_000]),
    length_s=st.sampled_from([0, 1, 70, VISIBILITY_MAX_S]),
    reported=st.sampled_from([None, NO_END, *ENDS]),
    deletes=st.booleans(),
    retention_s=st.sampled_from([60, 345_600]),
)
@example(**A_DELETE)
@example(**A_DELETE | {"counts": [2, 1], "claims": [(0, None), (2, None)], "deletes": False})
@example(**A_DELETE | {"claims": [(0, 2)]})
@example(**A_DELETE | {"later_ms": 30_000})
@example(**A_DELETE | {"visibility_s": 90, "later_ms": 60_000})
@each_example
def test_sqlite_decides_alike_whether_leases_are_in_the_log_or_in_their_rows(
    tmp_path: Path, counts, visibility_s, claims, later_ms, length_s, reported, deletes, retention_s
):
    """`QueueLeases.held` of the embedded store against `may_extend` and `may_delete`, which the tests above hold to the rules."""
    from veil.stores.sqlite.leases import delete, extend, held_messages
    from veil.stores.sqlite.messages import receive

    seen = []
    for in_rows in (False, True):
        held = [A_VISIBLE_MESSAGE, A_LAPSED_MESSAGE] * 2
        db, state, seqs = an_embedded_queue(tmp_path, held, journal=True)
        state.queue = replace(state.queue, settings=replace(state.queue.settings, retention_s=retention_s))
        for count in counts:
            for message in receive(db, state.queue, count, visibility_s, None, NOBODY):
                held[seqs.index(message.seq)] = AN_OPEN_LEASE._replace(holder=message.holder)
        if in_rows:
            db.write_back(state)
        db.clock.advance(later_ms)
        receipts = claimed(seqs, held, claims)
        if deletes:
            answers = delete(db, state.queue, receipts, False, NOBODY)
        else:
            extensions = [Extension(receipt, length_s, reported) for receipt in receipts]
            answers = extend(db, state.queue, extensions, NOBODY)
        left = held_messages(db, state, seqs, db.clock.now_ms())
        wakes = db.execute("SELECT seq, wake_at_ms FROM message").fetchall()
        ids = dict(db.execute("SELECT message_id, seq FROM message").fetchall())
        found = repr((answers, sorted(map(repr, db.journal.events)), left, wakes, state.counts))
        seen.append(re.sub("0{8}-[0-9-]+", lambda each, ids=ids: str(ids.get(each[0], "gone")), found))
    assert seen[0] == seen[1]


@given(places=st.lists(st.integers(0, 12), min_size=1, max_size=12))
@each_example
def test_sqlite_changes_the_messages_that_are_named_and_no_others(tmp_path: Path, places: list[int]):
    """`change_all`, whether or not their keys have gaps, in whatever order, and named once or twice."""
    from veil.stores.sqlite.database import Q

    db, _, seqs = an_embedded_queue(tmp_path, [AN_OPEN_LEASE] * 13, journal=False)
    db.change_all(Q.delete_messages, (), [seqs[place] for place in places])
    left = [seq for (seq,) in db.execute("SELECT seq FROM message ORDER BY seq")]
    assert left == [seq for place, seq in enumerate(seqs) if place not in places]


A_VISIBLE_MESSAGE = LeaseState(int(State.VISIBLE), None, None, 0, 0, 0, None)
A_LAPSED_MESSAGE = LeaseState(int(State.VISIBLE), None, NOW_MS - 5_000, 3, 0, 2, 5)


@pytest.mark.parametrize("held", [[A_VISIBLE_MESSAGE], [A_VISIBLE_MESSAGE, A_LAPSED_MESSAGE]])
@pytest.mark.parametrize("retention_s", [60, 345_600])
@pytest.mark.parametrize("visibility_s", [0, 30, 90])
@pytest.mark.parametrize("count", [1, 2, 10, 11, 100, 1_000, 1_001])
def test_sqlite_writes_the_leases_of_a_receive_as_the_rules_open_them(
    tmp_path: Path, count, visibility_s, retention_s, held
):
    """`first_as_received` and `write_leases` of the embedded store, however many they are, against `open_leases` and
    `wake_at_ms`."""
    from veil.stores.sqlite.database import Q
    from veil.stores.sqlite.leases import held_messages
    from veil.stores.sqlite.messages import receive

    db, state, seqs = an_embedded_queue(tmp_path, (held * (count + 1))[: count + 1], journal=True)
    state.queue = replace(state.queue, settings=replace(state.queue.settings, retention_s=retention_s))
    before = held_messages(db, state, seqs, NOW_MS)
    taken = [to_message(row) for row in db.execute(Q.visible_alone, (state.queue.id, 0, count))]
    decided = decide.open_leases(taken, visibility_s, NOW_MS, db.clock.wall_ms())
    expected = dict(before)
    for effect in decided:
        decide.take_in(expected, effect)
    for message, effect in zip(taken, decided, strict=True):
        message.set_lease(effect.lease)

    assert receive(db, state.queue, count, visibility_s, None, NOBODY) == taken
    assert held_messages(db, state, seqs, NOW_MS) == expected
    assert state.counts == [sum(m.state == each for m in expected.values()) for each in State]
    wakes = dict(db.execute("SELECT seq, wake_at_ms FROM message").fetchall())
    assert wakes == {seq: wake_at_ms(seq, m.due_at_ms, retention_s) for seq, m in expected.items()}
    assert state.next_wake_ms == min([ms for ms in wakes.values() if ms is not None], default=NEVER)
    assert told(db, state, decided)


@given(
    counts=st.lists(numbers, min_size=1, max_size=14),
    count=st.sampled_from([1, 3, 10, 11]),
    receives_max=st.integers(1, 4),
)
@example(counts=[1] * 12, count=10, receives_max=2)
@example(counts=[1, 2, 1], count=10, receives_max=2)
@each_example
def test_sqlite_takes_from_a_queue_with_dead_letters_what_the_rules_take(
    tmp_path: Path, counts, count, receives_max
):
    """`first_as_received` of the embedded store, where some may be spent, against the receive budget and `open_leases`."""
    from veil.core.queue import Queue, QueueKey, QueueSettings
    from veil.stores.sqlite.database import CachedQueue, Q
    from veil.stores.sqlite.messages import receive

    held = [A_LAPSED_MESSAGE._replace(receive_count=each) for each in counts]
    db, state, _ = an_embedded_queue(tmp_path, held, journal=True)
    dead = CachedQueue(Queue(2, QueueKey("r", "a", "dead"), QueueSettings()), "queue")
    db.keep(dead)
    redrive = RedrivePolicy(dead.queue.key, receives_max)
    state.queue = replace(state.queue, settings=replace(state.queue.settings, redrive=redrive))
    candidates = [to_message(row) for row in db.execute(Q.visible_alone, (state.queue.id, 0, 100))]
    taken, spent = decide.ReceiveBudget(count, None, receives_max).choose(candidates)
    decided = decide.open_leases(taken, 30, NOW_MS, db.clock.wall_ms())
    for message, effect in zip(taken, decided, strict=True):
        message.set_lease(effect.lease)
    moved = [decide.dead_letter(message, dead.queue, message.seq) for message in spent]

    assert receive(db, state.queue, count, 30, None, NOBODY) == taken
    assert [seq for (seq,) in db.execute("SELECT seq FROM message WHERE queue_id = 2 ORDER BY seq")] == [
        message.seq for message in spent
    ]
    assert state.counts == [len(counts) - len(taken) - len(spent), 0, len(taken)]
    assert dead.counts == [len(spent), 0, 0]
    assert told(db, state, [*moved, *decided])


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_no_query_spells_out_what_a_rule_of_the_core_says(name):
    """The order key's bits, the holder's bits, the limits: constants of `core`, put into the text when it is loaded."""
    path = Path(__file__).parents[2] / "veil" / "stores" / name / "queries.sql"
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("--"))
    for spelled in (
        ">> 20",
        ">> 32",
        "0xffffffff",
        str(CONSTANTS["DELIVERY_MASK"]),
        "43200",
        "120000",
        ">= 30",
    ):
        assert spelled not in text


async def _rows(store, query, named):
    async with store._engine.transaction() as tx:
        return await tx.rows(query, named)


async def test_postgres_claims_and_deletes_at_once_what_the_rules_say(postgres):
    """`claim` against `open_leases` and the receive budget, `take_held` against `decide_deletion`, over many examples."""
    from veil.stores.postgres.pipeline import Q

    examples: list[tuple[LeaseState, int]] = []
    given(leases, holders)(
        settings(max_examples=60, database=None)(lambda lease, claim: examples.append((lease, claim)))
    )()
    clock = ManualClock(NOW_MS)
    async with nodes(postgres, 1, clock=clock) as [store]:
        await make_queue(store, "dead")
        queue = await make_queue(store, redrive=redrive_to("dead", 2))
        for lease, claim in examples:
            [sent] = await store.send(queue, [a_message("x")])
            named = {"queue": queue.id, "seqs": [sent.seq]}
            names = ("states", "dues", "received", "deliveries", "holders", "receive_counts", "firsts")
            written = {name: [value] for name, value in zip(names, lease, strict=True)}
            # Hidden for long: nothing is to settle it before the shortcut sees it.
            written["wakes"] = [None if lease.state == State.VISIBLE else NOW_MS + 10_000_000]
            await _rows(store, Q.write_leases, {**named, **written})
            [row] = await _rows(store, Q.messages_by_seq, named)
            message = to_message(row)
            receipt = Receipt(queue.id, sent.seq, claim)
            if lease.state == State.VISIBLE:
                await _check_claim(store, queue, message)
            else:
                await _check_take(store, queue, message, receipt)
            await _rows(store, Q.delete_messages, named)
            await asyncio.sleep(0)


async def _check_claim(store, queue, message):
    from veil.stores.postgres.pipeline import Q

    named = {
        "queue": queue.id,
        "visibility_ms": 30_000,
        "retention_ms": 345_600_000,
        "wall_ms": 9,
        "limit": 5,
    }
    found = {"receives_max": 2, "priority": 0, "from": 0}
    now = f"SELECT set_config('veil.now_ms', '{NOW_MS}', false)"
    async with store._engine.transaction() as tx:
        undone = [
            ("BEGIN", {}),
            (now, {}),
            (Q.claim_bounded, {**named, **found, "bytes_max": 1}),
            ("ROLLBACK", {}),
        ]
        _, _, bounded, _ = await tx.rows_of_each(*undone)
        _, rows = await tx.rows_of_each((now, {}), (Q.claim, {**named, **found}))
    [claimed] = [to_message(row) for row in rows]
    assert rows == bounded
    taken, spent = decide.ReceiveBudget(5, None, 2).choose([message])
    if taken:
        [opened] = decide.open_leases([message], 30, NOW_MS, 9)
        message.set_lease(opened.lease)
    else:
        assert spent == [message]
        message.due_at_ms = None
    assert claimed == message


async def _check_take(store, queue, message, receipt):
    from veil.stores.postgres.pipeline import Q

    named = {
        "queue": queue.id,
        "retention_ms": 345_600_000,
        "seqs": [receipt.seq],
        "holders": [receipt.holder],
    }
    now = f"SELECT set_config('veil.now_ms', '{NOW_MS}', false)"
    async with store._engine.transaction() as tx:
        _, rows = await tx.rows_of_each((now, {}), (Q.take_held, named))
    decided = decide.decide_deletion(message, receipt, NOW_MS, fifo=False)
    if rows:
        [taken] = map(HeldMessage._make, rows)
        assert isinstance(decided, Deleted)
        assert (decided.deadline_ms, decided.delivery) == (taken.due_at_ms, receipt.delivery)
    elif message.state == State.IN_FLIGHT and message.holder == receipt.holder:
        assert (message.due_at_ms or 0) <= NOW_MS
