"""Queues come, change, are listed and go; a name that was freed rests for a while."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.stores.kit import (
    ACCOUNT,
    REGION,
    a_grouped_message,
    a_key,
    a_message,
    make_queue,
    receipt_of,
    redrive_to,
    some_messages,
)
from veil.core.errors import QueueDeletedRecently, QueueMissing, SettingRefused
from veil.core.queue import QueueKey, QueueSettings, RedriveAllow
from veil.stores.postgres import PostgresStore
from veil.stores.sqlite import SqliteStore
from veil.stores.store import Extension, QueueContent


def names(queues):
    return [queue.name for queue in queues]


async def test_a_created_queue_is_found_as_it_was_made(store, clock):
    settings = QueueSettings(
        visibility_s=7,
        delay_s=8,
        message_bytes_max=2_048,
        retention_s=70,
        wait_s=9,
        fifo=True,
        content_deduplication=True,
        deduplication_scope="messageGroup",
        throughput_limit="perMessageGroupId",
        redrive=redrive_to("dead.fifo", 4),
        redrive_allow=RedriveAllow("byQueue", (a_key("one.fifo"), a_key("two.fifo"))),
        policy='{"Statement":[]}',
        managed_sse=False,
        kms_key="alias/k",
        kms_reuse_s=61,
    )
    key = a_key("orders.fifo")
    made = await store.create_queue(key, QueueContent(settings, {"team": "a", "leer": ""}), rest_ms=0)

    assert (made.key, made.settings, dict(made.tags)) == (key, settings, {"team": "a", "leer": ""})
    assert (made.created_wall_ms, made.modified_wall_ms) == (clock.wall_ms(), clock.wall_ms())
    assert await store.find_queue(key) == made
    assert await store.find_queue(a_key("other.fifo")) is None


async def test_creating_a_queue_again_returns_the_one_that_is_there(store):
    first = await make_queue(store, visibility_s=7)
    second = await make_queue(store, visibility_s=8)

    assert second == first


async def test_region_and_account_tell_queues_apart(store):
    content = QueueContent(QueueSettings(), {})
    here = await store.create_queue(QueueKey("r1", "a", "q"), content, rest_ms=0)
    there = await store.create_queue(QueueKey("r2", "a", "q"), content, rest_ms=0)
    theirs = await store.create_queue(QueueKey("r1", "b", "q"), content, rest_ms=0)

    assert len({here.id, there.id, theirs.id}) == 3
    assert await store.list_queues("r1", "a") == [here]
    assert sorted(q.id for q in await store.all_queues()) == sorted([here.id, there.id, theirs.id])


async def test_an_edit_changes_settings_and_tags_and_is_dated(store, clock):
    queue = await make_queue(store)
    clock.advance(seconds=5)
    edited = await store.edit_queue(
        queue, lambda content: QueueContent(replace(content.settings, wait_s=3), {**content.tags, "k": "v"})
    )

    assert (edited.settings.wait_s, dict(edited.tags)) == (3, {"k": "v"})
    assert edited.modified_wall_ms == clock.wall_ms() > edited.created_wall_ms
    assert await store.find_queue(queue.key) == edited


async def test_an_edit_sees_the_present_content_not_the_callers(store):
    queue = await make_queue(store)
    for tag in "ab":
        await store.edit_queue(
            queue, lambda content, tag=tag: content._replace(tags={**content.tags, tag: "1"})
        )

    found = await store.find_queue(queue.key)
    assert dict(found.tags) == {"a": "1", "b": "1"}


async def test_an_edit_that_raises_changes_nothing(store):
    queue = await make_queue(store)

    def edit(content):
        content.tags["half"] = "done"
        raise SettingRefused("wait_s", 99, "less")

    with pytest.raises(SettingRefused):
        await store.edit_queue(queue, edit)
    assert await store.find_queue(queue.key) == queue
    await store.send(queue, [a_message()])
    assert len(await store.receive(queue, 1)) == 1


async def test_a_deleted_queue_is_gone_with_everything_in_it(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    await store.receive(queue, 1)
    await store.delete_queue(queue)

    assert await store.find_queue(queue.key) is None
    assert await store.all_queues() == []
    assert store.next_due_ms() is None


async def test_every_operation_on_a_deleted_queue_says_that_it_is_missing(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    await store.delete_queue(queue)
    receipt = receipt_of(queue, held)

    for call in (
        store.send(queue, [a_message()]),
        store.receive(queue, 1),
        store.delete(queue, [receipt]),
        store.extend(queue, [Extension(receipt, 1)]),
        store.purge(queue, rest_ms=0),
        store.counts(queue),
        store.oldest_sent_ms(queue),
        store.peek(queue),
        store.edit_queue(queue, lambda content: content),
        store.delete_queue(queue),
    ):
        with pytest.raises(QueueMissing):
            await call


async def test_a_freed_name_rests_and_then_names_another_queue(store, clock):
    queue = await make_queue(store)
    await store.delete_queue(queue)
    clock.advance(59_999)
    with pytest.raises(QueueDeletedRecently):
        await make_queue(store)
    clock.advance(1)
    again = await make_queue(store)

    assert again.id != queue.id


async def test_without_a_rest_a_name_can_be_used_again_at_once(store):
    queue = await make_queue(store)
    await store.delete_queue(queue)
    again = await store.create_queue(queue.key, QueueContent(QueueSettings(), {}), rest_ms=0)

    assert again.id != queue.id


async def test_a_recreated_queue_begins_empty_and_the_old_one_stays_missing(store, clock):
    old = await make_queue(store, "q.fifo")
    await store.send(old, [a_grouped_message("x", deduplication_id="d")])
    [held] = await store.receive(old, 1, attempt_id="t")
    await store.purge(old, rest_ms=0)
    await store.delete_queue(old)
    clock.advance(seconds=60)
    new = await make_queue(store, "q.fifo")

    assert await store.counts(new) == (0, 0, 0)
    [sent] = await store.send(new, [a_grouped_message("x", deduplication_id="d")])
    assert not sent.duplicate
    assert [m.message_id for m in await store.receive(new, 1, attempt_id="t")] == [sent.message_id]
    await store.purge(new, rest_ms=60_000)
    with pytest.raises(QueueMissing):
        await store.delete(old, [receipt_of(old, held)])


async def test_queues_are_listed_by_name_prefix_and_page(store):
    for name in ("b2", "a1", "b1", "B1", "b10"):
        await make_queue(store, name)

    assert names(await store.list_queues(REGION, ACCOUNT)) == ["B1", "a1", "b1", "b10", "b2"]
    assert names(await store.list_queues(REGION, ACCOUNT, prefix="b")) == ["b1", "b10", "b2"]
    assert names(await store.list_queues(REGION, ACCOUNT, prefix="b", after="b1", limit=1)) == ["b10"]
    assert await store.list_queues(REGION, "another") == []


async def test_a_list_has_what_was_created_and_deleted_since_the_last_one(store):
    for name in ("m", "c", "x"):
        await make_queue(store, name)
    await store.create_queue(QueueKey(REGION, "another", "d"), QueueContent(QueueSettings(), {}), rest_ms=0)
    assert names(await store.list_queues(REGION, ACCOUNT)) == ["c", "m", "x"]

    gone = await store.find_queue(a_key("m"))
    await store.delete_queue(gone)
    await make_queue(store, "d", redrive=redrive_to("x", 3))
    await store.edit_queue(
        await store.find_queue(a_key("c")), lambda content: content._replace(tags={"k": "v"})
    )

    assert names(await store.list_queues(REGION, ACCOUNT)) == ["c", "d", "x"]
    assert [queue.tags for queue in await store.list_queues(REGION, ACCOUNT, limit=1)] == [{"k": "v"}]
    assert names(await store.list_queues(REGION, ACCOUNT, prefix="b", after="c")) == []
    assert names(await store.list_queues(REGION, "another")) == ["d"]
    assert names(await store.dead_letter_sources(a_key("x"))) == ["d"]


async def test_the_sources_of_dead_letters_are_listed(store):
    await make_queue(store, "dead")
    for name in ("c", "a", "b"):
        await make_queue(store, name, redrive=redrive_to("dead", 3))
    await make_queue(store, "d", redrive=redrive_to("other", 3))

    assert names(await store.dead_letter_sources(a_key("dead"))) == ["a", "b", "c"]
    assert names(await store.dead_letter_sources(a_key("dead"), after="a", limit=1)) == ["b"]


async def test_a_source_is_listed_no_more_after_its_policy_changed(store):
    queue = await make_queue(store, redrive=redrive_to("dead", 3))
    await store.edit_queue(queue, lambda c: c._replace(settings=replace(c.settings, redrive=None)))

    assert await store.dead_letter_sources(a_key("dead")) == []


async def test_calls_that_arrive_together_are_each_done_once(store):
    queue = await make_queue(store)
    await asyncio.gather(*(store.send(queue, some_messages("x")) for _ in range(50)))
    batches = await asyncio.gather(*(store.receive(queue, 3) for _ in range(30)))
    taken = [message.message_id for batch in batches for message in batch]

    assert len(taken) == len(set(taken)) == 50


async def test_queues_and_resting_names_survive_a_restart(store, clock, reopen):
    kept = await make_queue(store, "kept", visibility_s=7, redrive=redrive_to("dead", 3))
    kept = await store.edit_queue(kept, lambda content: content._replace(tags={"k": "v"}))
    gone = await make_queue(store, "gone")
    await store.send(gone, some_messages("a"))
    await store.delete_queue(gone)
    clock.advance(seconds=30)

    store = await reopen()
    assert await store.all_queues() == [kept]
    clock.advance(29_999)
    with pytest.raises(QueueDeletedRecently):
        await make_queue(store, "gone")
    clock.advance(1)
    again = await make_queue(store, "gone")
    assert again.id not in (gone.id, kept.id)
    assert await store.counts(again) == (0, 0, 0)


async def test_an_id_is_not_used_again_after_its_queue_was_deleted_and_the_store_restarted(store, reopen):
    queue = await make_queue(store)
    await store.delete_queue(queue)

    store = await reopen()
    assert (await make_queue(store, "another")).id > queue.id


async def test_names_that_may_be_taken_again_are_forgotten(store, clock, reopen):
    for number in range(5):
        await store.delete_queue(await make_queue(store, f"passing-{number}"))
        clock.advance(seconds=30)
        await store.settle()
    # The last one or two may not be taken yet.
    if isinstance(store, SqliteStore):
        rests = store._connection.execute("SELECT count(*) FROM queue_rest").get
    elif isinstance(store, PostgresStore):
        [(rests,)] = await store._engine.ask("SELECT count(*) FROM veil.queue_rest", {})
    assert 1 <= rests <= 2
