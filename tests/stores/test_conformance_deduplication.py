"""FIFO deduplication for five minutes, and receives that may be repeated under their attempt id."""

from __future__ import annotations

from dataclasses import replace

from tests.stores.kit import (
    a_grouped_message,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    receipts_of,
    some_messages,
)
from veil.core.lease import State
from veil.stores.store import Extension

# SQS's own figure, written out: the stores' constant may be wrong.
FIVE_MINUTES_MS = 5 * 60 * 1000


def same(body="x", group="g"):
    return a_grouped_message(body, group=group, deduplication_id="same")


async def test_a_duplicate_is_not_stored_and_is_answered_with_the_first_one(store, events):
    queue = await make_queue(store, "q.fifo")
    [first] = await store.send(queue, [same("first")])
    events.available.clear()
    [second] = await store.send(queue, [same("second")])

    assert (second.message_id, second.seq, second.duplicate) == (first.message_id, first.seq, True)
    assert bodies(await store.peek(queue)) == ["first"]
    assert events.totals["duplicate", queue.id] == 1


async def test_a_duplicate_is_found_within_one_call(store):
    queue = await make_queue(store, "q.fifo")
    first, second = await store.send(queue, [same(), same()])

    assert (first.duplicate, second.duplicate, second.seq) == (False, True, first.seq)


async def test_a_duplicate_of_a_deleted_message_is_still_one(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, [same()])
    await store.delete(queue, receipts_of(queue, await store.receive(queue, 1)))

    [again] = await store.send(queue, [same()])
    assert again.duplicate
    assert await store.receive(queue, 1) == []


async def test_deduplication_ends_five_minutes_after_the_first_send(store, clock):
    queue = await make_queue(store, "q.fifo")
    [first] = await store.send(queue, [same()])
    clock.advance(FIVE_MINUTES_MS - 1)
    [duplicate] = await store.send(queue, [same()])
    clock.advance(1)
    [fresh] = await store.send(queue, [same()])

    assert (duplicate.duplicate, fresh.duplicate) == (True, False)
    assert fresh.seq > first.seq


async def test_the_scope_queue_looks_across_groups(store):
    queue = await make_queue(store, "q.fifo", deduplication_scope="queue")
    one, other = await store.send(queue, [same(group="g"), same(group="h")])

    assert (one.duplicate, other.duplicate) == (False, True)


async def test_the_scope_message_group_does_not(store):
    queue = await make_queue(store, "q.fifo", deduplication_scope="messageGroup")
    sent = await store.send(queue, [same(group="g"), same(group="h"), same(group="g")])

    assert [s.duplicate for s in sent] == [False, False, True]


async def test_a_later_change_of_the_scope_has_no_effect(store):
    queue = await make_queue(store, "q.fifo", deduplication_scope="queue")
    changed = await store.edit_queue(
        queue, lambda c: c._replace(settings=replace(c.settings, deduplication_scope="messageGroup"))
    )
    assert changed.settings.deduplication_scope == "messageGroup"

    sent = await store.send(changed, [same(group="g"), same(group="h")])
    assert [s.duplicate for s in sent] == [False, True]


async def test_queues_do_not_share_their_history(store):
    one, other = await make_queue(store, "one.fifo"), await make_queue(store, "other.fifo")
    await store.send(one, [same()])

    [sent] = await store.send(other, [same()])
    assert not sent.duplicate


async def test_a_standard_queue_knows_no_duplicates(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message("x", group="g"), a_message("x", group="g")])

    assert bodies(await store.peek(queue)) == ["x", "x"]


async def test_a_purge_forgets_what_was_sent(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, [same()])
    await store.purge(queue, rest_ms=60_000)

    [sent] = await store.send(queue, [same()])
    assert not sent.duplicate


async def test_the_history_survives_a_restart_for_the_rest_of_its_five_minutes(store, clock, reopen):
    queue = await make_queue(store, "q.fifo")
    [first] = await store.send(queue, [same()])
    clock.advance(FIVE_MINUTES_MS - 1)
    store = await reopen()

    [duplicate] = await store.send(queue, [same()])
    clock.advance(1)
    [fresh] = await store.send(queue, [same()])
    assert (duplicate.duplicate, duplicate.seq) == (True, first.seq)
    assert not fresh.duplicate


# ---- attempts


async def test_a_repeated_attempt_returns_the_same_messages_and_restarts_their_windows(store, clock):
    queue = await make_queue(store, "q.fifo", visibility_s=30)
    await store.send(queue, [a_grouped_message("a"), a_grouped_message("b", group="h")])
    first = await store.receive(queue, 10, attempt_id="t1")
    clock.advance(seconds=20)
    second = await store.receive(queue, 10, attempt_id="t1")

    assert [(m.seq, m.delivery, m.receive_count) for m in second] == [
        (m.seq, m.delivery, m.receive_count) for m in first
    ]
    assert {m.due_at_ms for m in second} == {clock.now_ms() + 30_000}
    clock.advance(29_999)
    assert await store.receive(queue, 10) == []
    clock.advance(1)
    assert len(await store.receive(queue, 10)) == 2


async def test_the_receipts_of_a_repeated_attempt_work(store, clock):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a"))
    [first] = await store.receive(queue, 1, attempt_id="t1")
    await store.receive(queue, 1, attempt_id="t1")

    assert await store.extend(queue, [Extension(receipt_of(queue, first), 60)]) == [None]


async def test_an_attempt_is_replaced_by_an_ordinary_receive_after_a_delete(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    held = await store.receive(queue, 2, attempt_id="t1")
    await store.delete(queue, receipts_of(queue, held[:1]))
    await store.send(queue, some_messages("c"))

    assert bodies(await store.receive(queue, 2, attempt_id="t1")) == ["c"]
    assert bodies(await store.receive(queue, 2, attempt_id="t1")) == ["c"]


async def test_an_attempt_is_replaced_after_an_extension_or_a_release(store):
    for visibility_s in (100, 0):
        queue = await make_queue(store, f"q{visibility_s}")
        await store.send(queue, some_messages("a"))
        [held] = await store.receive(queue, 1, attempt_id="t1")
        await store.extend(queue, [Extension(receipt_of(queue, held), visibility_s)])
        await store.send(queue, some_messages("b"))

        [other] = await store.receive(queue, 1, attempt_id="t1")
        assert (other.body, other.delivery) == (("b", 1) if visibility_s else ("a", 2))


async def test_an_attempt_is_replaced_after_a_lapse(store, clock):
    queue = await make_queue(store, visibility_s=10)
    await store.send(queue, some_messages("a"))
    await store.receive(queue, 1, attempt_id="t1")
    clock.advance(seconds=10)

    [again] = await store.receive(queue, 1, attempt_id="t1")
    assert (again.delivery, again.receive_count) == (2, 2)


async def test_an_attempt_is_forgotten_after_five_minutes(store, clock):
    queue = await make_queue(store, visibility_s=3600)
    await store.send(queue, some_messages("a"))
    await store.receive(queue, 1, attempt_id="t1")
    clock.advance(FIVE_MINUTES_MS)

    assert await store.receive(queue, 1, attempt_id="t1") == []


async def test_an_attempt_that_returned_nothing_is_not_recorded(store):
    queue = await make_queue(store)
    assert await store.receive(queue, 1, attempt_id="t1") == []
    await store.send(queue, some_messages("a"))

    assert bodies(await store.receive(queue, 1, attempt_id="t1")) == ["a"]


async def test_an_attempt_without_a_window_has_nothing_to_repeat(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a"))
    [look] = await store.receive(queue, 1, visibility_s=0, attempt_id="t1")
    [again] = await store.receive(queue, 1, attempt_id="t1")
    assert (look.delivery, again.delivery) == (1, 2)

    assert await store.receive(queue, 1, visibility_s=0, attempt_id="t1") == []


async def test_another_attempt_id_is_another_receive(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))

    assert bodies(await store.receive(queue, 1, attempt_id="t1")) == ["a"]
    assert bodies(await store.receive(queue, 1, attempt_id="t2")) == ["b"]


async def test_the_cap_of_twelve_hours_counts_from_the_restarted_window(store, clock):
    queue = await make_queue(store, visibility_s=300)
    await store.send(queue, some_messages("a"))
    [held] = await store.receive(queue, 1, attempt_id="t1")
    clock.advance(seconds=100)
    await store.receive(queue, 1, attempt_id="t1")

    assert await store.extend(queue, [Extension(receipt_of(queue, held), 43_200)]) == [None]


async def test_an_attempt_can_be_repeated_after_a_restart(store, clock, reopen):
    queue = await make_queue(store, "q.fifo", visibility_s=30)
    await store.send(queue, [a_grouped_message("a"), a_grouped_message("b")])
    first = await store.receive(queue, 10, attempt_id="t1")
    clock.advance(seconds=10)

    store = await reopen()
    again = await store.receive(queue, 10, attempt_id="t1")
    assert [(m.seq, m.delivery) for m in again] == [(m.seq, m.delivery) for m in first]
    assert {(m.state, m.due_at_ms) for m in await store.peek(queue)} == {
        (State.IN_FLIGHT, clock.now_ms() + 30_000)
    }
