"""Several PostgreSQL servers under one set of queues. `VEIL_TEST_SHARDED=1` runs the whole conformance suite on two of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.postgres_kit import drop_database, new_database, why_no_postgres
from tests.stores.kit import REGION, a_key, a_message
from tests.stores.sharded_kit import CarriedAtOnce
from tests.waiting import until_async
from veil.core.errors import StoreError, StoreUnavailable
from veil.core.event import OutboxRow
from veil.core.limits import RETENTION_MAX_S
from veil.core.queue import Chosen, MoveTask, Queue, QueueSettings, RedrivePolicy
from veil.journal.lives import EVERY_ROW, read_events
from veil.stores import sharded
from veil.stores.copying.postgres import postgres_source
from veil.stores.postgres import PostgresStore
from veil.stores.postgres.servers import QUEUES_MAX, server_of
from veil.stores.sharded import ShardedStore
from veil.stores.store import QueueContent

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(why_no_postgres() is not None, reason=str(why_no_postgres())),
]


@pytest.fixture
def dsns(request: pytest.FixtureRequest) -> list[str]:
    made = [new_database(), new_database()]
    request.addfinalizer(lambda: [drop_database(dsn) for dsn in made])
    return made


@pytest.fixture
async def store(dsns: list[str]) -> AsyncIterator[ShardedStore]:
    placed = ShardedStore(dsns)
    await placed.open()
    yield placed
    await placed.close()


async def created(store: ShardedStore, name: str, **settings: Any) -> Queue:
    content = QueueContent(QueueSettings(**settings), {})
    return await store.create_queue(a_key(name), content, rest_ms=0)


async def works(store: ShardedStore, queue: Queue) -> bool:
    """Whether the queue's server takes messages."""
    try:
        await store.send(queue, [a_message("z")])
    except StoreError:
        return False
    return True


async def one_on_each(store: ShardedStore, prefix: str = "q", **settings: Any) -> list[Queue]:
    """A queue on each server."""
    found: dict[int, Queue] = {}
    for number in range(40):
        queue = await created(store, f"{prefix}{number}", **settings)
        if server_of(queue.id) in found:
            await store.delete_queue(queue)
        else:
            found[server_of(queue.id)] = queue
        if len(found) == 2:
            return [found[0], found[1]]
    raise AssertionError("forty names, and all on one server")


def rows(dsn: str, query: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def cut(dsn: str, *, off: bool) -> None:
    """Take a database away, or give it back."""
    name = dsn.rsplit("/", 1)[1].split("?")[0]
    with psycopg.connect(dsn.replace(name, "postgres"), autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {"false" if off else "true"}'.encode())
        if off:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )


# ---- places


async def test_queues_are_spread_and_each_touches_its_own_server_only(
    store: ShardedStore, dsns: list[str]
) -> None:
    here, there = await one_on_each(store)
    assert (here.id < QUEUES_MAX, there.id > QUEUES_MAX) == (True, True)
    for queue in (here, there):
        [sent] = await store.send(queue, [a_message("x")])
        [message] = await store.receive(queue, 1)
        assert (message.seq, message.body) == (sent.seq, "x")
        assert message.seq % 64 == server_of(queue.id)  # order keys are unique over both
    for number, dsn in enumerate(dsns):
        assert rows(dsn, "SELECT DISTINCT queue_id FROM veil.message") == [((here, there)[number].id,)]
    listed = await store.list_queues(REGION, here.key.account)
    assert [queue.key for queue in listed] == sorted((here.key, there.key))


async def test_commits_are_counted_on_every_server(store: ShardedStore) -> None:
    for queue in await one_on_each(store):
        before = store.commit_stats
        await store.send(queue, [a_message("x")])
        after = store.commit_stats
        assert after.commits > before.commits
        assert after.operations > before.operations
        assert sum(after.seconds_buckets) == sum(after.group_buckets) == after.commits


async def test_a_receipt_counts_on_the_server_that_wrote_it(store: ShardedStore) -> None:
    for queue in await one_on_each(store):
        await store.send(queue, [a_message("x")])
        [message] = await store.receive(queue, 1)
        text = store.receipts.write(queue.id, message.seq, message.delivery)
        await store.delete(queue, [store.receipts.read(text, queue.id)])
        assert (await store.counts(queue)).in_flight == 0


async def test_two_nodes_that_make_the_same_queue_make_one(store: ShardedStore, dsns: list[str]) -> None:
    other = ShardedStore(dsns)
    await other.open()
    try:
        names = [f"shared{number}" for number in range(8)]
        here = await asyncio.gather(*(created(store, name) for name in names))
        there = await asyncio.gather(*(created(other, name) for name in names))
        assert [queue.id for queue in here] == [queue.id for queue in there]
        found = [await other.find_queue(queue.key) for queue in here]
        assert [queue.id for queue in found if queue is not None] == [queue.id for queue in here]
    finally:
        await other.close()


async def test_a_queue_is_placed_with_its_dead_letters(store: ShardedStore) -> None:
    for dead in await one_on_each(store, "dead"):
        for number in range(4):
            source = await created(store, f"of-{dead.key.name}-{number}", redrive=RedrivePolicy(dead.key, 1))
            assert server_of(source.id) == server_of(dead.id)


async def test_the_death_of_a_server_concerns_its_queues_only(store: ShardedStore, dsns: list[str]) -> None:
    queues = await one_on_each(store)
    for away, dsn in enumerate(dsns):
        cut(dsn, off=True)
        try:
            for _ in range(5):
                await store.send(queues[1 - away], [a_message("x")])
            with pytest.raises(StoreError):
                await store.send(queues[away], [a_message("y")])
            assert len(await store.all_queues()) == 2
        finally:
            cut(dsn, off=False)
        await until_async(partial(works, store, queues[away]))


async def test_a_node_starts_without_a_server_and_takes_it_up_when_it_is_back(dsns: list[str]) -> None:
    first = ShardedStore(dsns)
    await first.open()
    here, there = await one_on_each(first)
    await first.close()
    cut(dsns[1], off=True)
    store = ShardedStore(dsns)
    await store.open()
    try:
        await store.send(here, [a_message("x")])
        with pytest.raises(StoreUnavailable):
            await store.find_queue(there.key)
        cut(dsns[1], off=False)
        await until_async(lambda: works(store, there))
        assert await store.find_queue(there.key) is not None
    finally:
        cut(dsns[1], off=False)
        await store.close()


async def test_a_server_that_is_back_before_the_first_one_is_taken_up_all_the_same(
    dsns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ShardedStore(dsns)
    await first.open()
    _, there = await one_on_each(first)
    await first.close()
    tries, join = 0, ShardedStore._join

    async def counted(store: ShardedStore, server: PostgresStore) -> None:
        nonlocal tries
        try:
            await join(store, server)
        finally:
            tries += 1

    monkeypatch.setattr(ShardedStore, "_join", counted)
    monkeypatch.setattr(sharded, "_OPEN_AGAIN_S", 0.01)
    cut(dsns[1], off=True)
    store = ShardedStore(dsns)
    await store.open()
    try:
        cut(dsns[0], off=True)
        cut(dsns[1], off=False)
        await until_async(lambda: tries == 2)  # the second one's, which the first was not there for
        cut(dsns[0], off=False)
        await until_async(lambda: works(store, there))
    finally:
        for dsn in dsns:
            cut(dsn, off=False)
        await store.close()


# ---- joining


async def test_servers_that_do_not_belong_together_are_refused(store: ShardedStore, dsns: list[str]) -> None:
    async def why_not(*names: str) -> str:
        wrong = ShardedStore(names) if len(names) > 1 else PostgresStore(names[0])
        with pytest.raises(StoreError) as raised:
            await wrong.open()
        return str(raised.value)

    assert "one of several servers" in await why_not(dsns[0])
    assert "one of several servers" in await why_not(dsns[1])
    assert "belongs to another set of servers" in await why_not(dsns[1], dsns[0])
    filled = new_database()
    try:
        alone = PostgresStore(filled)
        await alone.open()
        await alone.create_queue(a_key("mine"), QueueContent(QueueSettings(), {}), rest_ms=0)
        await alone.close()
        assert "has queues of its own" in await why_not(dsns[0], filled)
    finally:
        drop_database(filled)


async def test_one_of_several_servers_is_not_copied_as_if_it_were_all(
    store: ShardedStore, dsns: list[str]
) -> None:
    await one_on_each(store)
    await store.close()
    for dsn in dsns:
        with pytest.raises(StoreError, match="one of several servers"), postgres_source(dsn):
            pass


async def test_a_filled_database_may_become_the_first_of_several(dsns: list[str]) -> None:
    alone = PostgresStore(dsns[0])
    await alone.open()
    before = await alone.create_queue(a_key("mine"), QueueContent(QueueSettings(), {}), rest_ms=0)
    await alone.send(before, [a_message("kept")])
    await alone.close()
    store = ShardedStore(dsns)
    await store.open()
    try:
        found = await store.find_queue(before.key)
        assert found is not None
        assert [message.body for message in await store.receive(found, 1)] == ["kept"]
        await one_on_each(store)
    finally:
        await store.close()


# ---- what moves between servers


@pytest.fixture
async def apart(dsns: list[str]) -> AsyncIterator[tuple[CarriedAtOnce, Queue, Queue]]:
    """A queue and its dead letters, each on another server."""
    store = CarriedAtOnce(dsns)
    await store.open()
    dead = await created(store, "dead", retention_s=RETENTION_MAX_S)
    source = await created(store, "jobs", redrive=RedrivePolicy(dead.key, 1))
    assert server_of(dead.id) != server_of(source.id)
    yield store, source, dead
    await store.close()


async def die(store: CarriedAtOnce, source: Queue, count: int = 1) -> list[str]:
    """Let messages be received too often; their ids."""
    sent = await store.send(source, [a_message(f"poison {number}") for number in range(count)])
    await ShardedStore.receive(store, source, count, visibility_s=0)
    await ShardedStore.receive(store, source, count)
    return [each.message_id for each in sent]


async def bodies(store: ShardedStore, queue: Queue) -> list[str]:
    return sorted(message.body for message in await store.peek(queue))


async def test_dead_letters_come_over_once_and_as_they_were(
    apart: tuple[CarriedAtOnce, Queue, Queue],
) -> None:
    store, source, dead = apart
    ids = await die(store, source, 3)
    assert await store.peek(source) == [] and await store.peek(dead) == []
    assert await store.carry(server_of(source.id)) == 3
    letters = await store.peek(dead)
    assert sorted(letter.message_id for letter in letters) == sorted(ids)
    assert {letter.dead_letter_source for letter in letters} == {source.key.arn}
    assert {letter.receive_count for letter in letters} == {1}
    assert (await store.counts(dead)).visible == 3
    assert await store.carry(server_of(source.id)) == 0
    assert {queue.key.name for queue in await store.all_queues()} == {"dead", "jobs"}  # no stand-ins


async def test_a_carrier_that_dies_between_arrival_and_removal_brings_nothing_twice(
    apart: tuple[CarriedAtOnce, Queue, Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, source, dead = apart
    await die(store, source, 3)

    async def killed(*_: object, **__: object) -> None:
        raise StoreUnavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresStore, "dismiss", killed)
        with pytest.raises(StoreUnavailable):
            await store.carry(server_of(source.id))
    # Somebody handles one of them before the next carrier comes.
    [letter] = await store.receive(dead, 1)
    receipt = store.receipts.read(store.receipts.write(dead.id, letter.seq, letter.delivery), dead.id)
    await store.delete(dead, [receipt])
    await store.carry(server_of(source.id))
    assert len(await store.peek(dead)) == 2
    assert (await store.counts(dead)).visible == 2


async def test_two_carriers_at_once_bring_nothing_twice(
    apart: tuple[CarriedAtOnce, Queue, Queue], dsns: list[str]
) -> None:
    store, source, dead = apart
    await die(store, source, 30)
    other = CarriedAtOnce(dsns)
    await other.open()
    try:
        await asyncio.gather(*(each.carry(server_of(source.id)) for each in (store, other, store, other)))
    finally:
        await other.close()
    assert len(await store.peek(dead, limit=100)) == 30
    assert (await store.counts(dead)).visible == 30


async def test_letters_go_back_to_the_other_server_chosen_or_by_a_task(
    apart: tuple[CarriedAtOnce, Queue, Queue],
) -> None:
    store, source, dead = apart
    await die(store, source, 2)
    await store.carry(server_of(source.id))
    first, _ = await store.peek(dead)
    [answer] = await store.redrive(dead, [Chosen(first.seq, first.message_id)])
    [back] = await store.peek(source)
    assert getattr(answer, "message_id", answer) == back.message_id
    assert (back.receive_count, back.dead_letter_source) == (0, None)
    task = await store.start_move(MoveTask("task-1", dead.key, None, None, "RUNNING", 0, 0, 0))
    while task.status == "RUNNING":
        task = await store.step_move(task.id, 10)
    assert (task.status, task.moved) == ("COMPLETED", 1)
    assert await bodies(store, source) == ["poison 0", "poison 1"]
    assert await store.peek(dead) == []


async def test_a_queue_that_is_deleted_takes_its_stand_ins_along(
    apart: tuple[CarriedAtOnce, Queue, Queue], dsns: list[str]
) -> None:
    store, source, dead = apart
    await die(store, source)
    await store.delete_queue(dead)
    again = await created(store, "dead")
    await store.carry(server_of(source.id))
    assert await store.peek(again) == []
    for number, dsn in enumerate(dsns):
        living = rows(
            dsn, "SELECT name FROM veil.queue WHERE deleted_at_ms IS NULL AND tags LIKE '%stand-in%'"
        )
        assert living in ([], [("dead",)]), number


async def test_the_carrier_of_a_node_brings_them_over_by_itself(dsns: list[str]) -> None:
    store = ShardedStore(dsns)
    await store.open()
    try:
        here, there = await one_on_each(store)
        await store.edit_queue(
            here,
            lambda content: content._replace(settings=QueueSettings(redrive=RedrivePolicy(there.key, 1))),
        )
        source = await store.find_queue(here.key)
        assert source is not None
        await store.send(source, [a_message("poison")])
        await store.receive(source, 1, visibility_s=0)
        await store.receive(source, 1)

        async def has_come() -> bool:
            return await bodies(store, there) == ["poison"]

        await until_async(has_come)
    finally:
        await store.close()


async def test_every_servers_journal_has_its_turn_however_busy_the_first_is(dsns: list[str]) -> None:
    placed = ShardedStore(dsns, journal=True)
    await placed.open()
    try:
        queues = [await created(placed, name) for name in ("one", "two", "three", "four")]
        assert {server_of(queue.id) for queue in queues} == {0, 1}
        exported = Counter[str]()
        for _ in range(6):
            for queue in queues:  # something new waits on both of them all the time
                await placed.send(queue, [a_message()])
            plan = await placed.plan_export(rows_max=100, bytes_max=1 << 20)
            assert plan is not None
            await placed.finish_export(plan)
            exported[plan.journal_id] += 1
        assert sorted(exported.values()) == [3, 3]
    finally:
        await placed.close()


async def test_what_waits_to_be_exported_is_seen_on_every_server_that_is_there(dsns: list[str]) -> None:
    placed = ShardedStore(dsns, journal=True)
    await placed.open()
    try:
        here, there = await one_on_each(placed)
        for _ in range(2):
            [[one], [other]] = [await placed.send(queue, [a_message()]) for queue in (here, there)]
        assert {row.number for row in await rows_one_by_one(placed)} == {
            row.number for row in await placed.outbox_rows(EVERY_ROW)
        }
        for sent in (one, other):
            assert [each.kind for each in (await read_events(placed, None, {sent.seq})).events] == ["sent"]
        cut(dsns[1], off=True)
        assert len((await read_events(placed, None, {one.seq})).events) == 1
        assert (await placed.outbox_size()).rows == 2
    finally:
        cut(dsns[1], off=False)
        await placed.close()


async def rows_one_by_one(store: ShardedStore) -> list[OutboxRow]:
    found: list[OutboxRow] = []
    while more := await store.outbox_rows(EVERY_ROW, after=found[-1].number if found else 0, limit=1):
        found += more
    return found


async def test_servers_in_another_order_are_refused_and_no_connection_stays(
    store: ShardedStore, dsns: list[str]
) -> None:
    await store.close()
    # Several, since each may be refused at another moment of its start; and kept, as by somebody who tries again.
    swapped = [ShardedStore(dsns[::-1]) for _ in range(20)]
    for each in swapped:
        with pytest.raises(StoreError, match="whose first is another one"):
            await each.open()
    # By name: what the last look left behind, or autovacuum, may be there too.
    ours = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'veil'"
    await until_async(lambda: not any(rows(dsn, ours) for dsn in dsns), "the connections are closed")
