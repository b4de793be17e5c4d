"""FIFO: order within the group, one holder at a time, groups in turn."""

from __future__ import annotations

import pytest

from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue, receipt_of, receipts_of
from veil.stores.store import Extension


def grouped(*names: str):
    """Messages named after group and number: `g1-m1` belongs to group `g1`."""
    return [a_grouped_message(name, group=name.split("-")[0]) for name in names]


async def test_one_receive_takes_all_it_can_from_a_group_before_the_next(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1", "g2-m1", "g1-m2", "g1-m3"))

    assert bodies(await store.receive(queue, 10)) == ["g1-m1", "g1-m2", "g1-m3", "g2-m1"]


async def test_a_held_message_blocks_those_behind_it_and_a_send_does_not_unlock_them(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1", "g1-m2"))
    await store.receive(queue, 1)
    await store.send(queue, grouped("g1-m3"))

    assert await store.receive(queue, 10) == []


async def test_a_delete_unlocks_the_group_and_says_so(store, events):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1", "g1-m2", "g1-m3"))
    held = await store.receive(queue, 1)
    events.available.clear()

    await store.delete(queue, receipts_of(queue, held))

    assert events.available[queue.id] >= 2
    assert bodies(await store.receive(queue, 10)) == ["g1-m2", "g1-m3"]


async def test_the_group_stays_locked_while_one_of_several_is_still_held(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1", "g1-m2", "g1-m3"))
    [m1, m2] = await store.receive(queue, 2)
    await store.delete(queue, [receipt_of(queue, m1)])

    assert await store.receive(queue, 10) == []
    await store.delete(queue, [receipt_of(queue, m2)])
    assert bodies(await store.receive(queue, 10)) == ["g1-m3"]


async def test_only_what_stands_before_a_held_message_comes_back(store, clock):
    for extended, expected in [(0, []), (1, ["g-m1"]), (2, ["g-m1", "g-m2"])]:
        queue = await make_queue(store, f"q{extended}.fifo", visibility_s=1)
        await store.send(queue, grouped("g-m1", "g-m2", "g-m3"))
        held = await store.receive(queue, 3)
        await store.extend(queue, [Extension(receipt_of(queue, held[extended]), 60)])
        clock.advance(seconds=1)

        assert bodies(await store.receive(queue, 10)) == expected


async def test_a_released_head_comes_back_though_the_next_is_held(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g-m1", "g-m2"))
    [m1, _] = await store.receive(queue, 2)
    await store.extend(queue, [Extension(receipt_of(queue, m1), 0)])

    assert bodies(await store.receive(queue, 10)) == ["g-m1"]


async def test_a_lapsed_head_announces_those_behind_it_too(store, clock, events):
    queue = await make_queue(store, "q.fifo", visibility_s=1)
    await store.send(queue, grouped("g-m1", "g-m2", "g-m3"))
    await store.receive(queue, 1)
    events.available.clear()
    clock.advance(seconds=1)
    await store.settle()

    assert events.available[queue.id] >= 3


async def test_after_a_lapse_the_old_order_holds(store, clock):
    queue = await make_queue(store, "q.fifo", visibility_s=1)
    await store.send(queue, grouped("g-m1", "g-m2", "g-m3"))
    await store.receive(queue, 2)
    clock.advance(seconds=1)

    assert bodies(await store.receive(queue, 10)) == ["g-m1", "g-m2", "g-m3"]


async def test_the_least_recently_served_group_goes_first(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1", "g2-m1", "g3-m1"))

    looks = [bodies(await store.receive(queue, 1, visibility_s=0)) for _ in range(4)]

    assert looks == [["g1-m1"], ["g2-m1"], ["g3-m1"], ["g1-m1"]]


async def test_two_groups_served_by_one_receive_keep_their_order_among_themselves(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1", "g2-m1", "g3-m1"))
    await store.receive(queue, 2, visibility_s=0)

    assert bodies(await store.receive(queue, 10, visibility_s=0)) == ["g3-m1", "g1-m1", "g2-m1"]


async def test_a_new_group_comes_last(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1", "g2-m1"))
    await store.receive(queue, 1, visibility_s=0)
    await store.send(queue, grouped("g0-m1"))

    assert bodies(await store.receive(queue, 10)) == ["g2-m1", "g1-m1", "g0-m1"]


async def test_a_group_that_was_empty_is_new_again(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1"))
    await store.delete(queue, receipts_of(queue, await store.receive(queue, 1)))
    await store.send(queue, grouped("g2-m1", "g1-m2"))

    assert bodies(await store.receive(queue, 10)) == ["g2-m1", "g1-m2"]


async def test_a_group_whose_last_message_expired_is_new_to_the_next_send(store, clock):
    queue = await make_queue(store, "q.fifo", retention_s=60)
    await store.send(queue, grouped("g1-m1"))
    clock.advance(seconds=1)
    await store.send(queue, grouped("g2-m1"))
    clock.advance(seconds=59)
    await store.send(queue, grouped("g1-m2"))

    assert bodies(await store.receive(queue, 10)) == ["g2-m1", "g1-m2"]


async def test_an_expired_holder_unlocks_its_group_and_says_so(store, clock, events):
    queue = await make_queue(store, "q.fifo", retention_s=60)
    await store.send(queue, grouped("g-m1"))
    clock.advance(seconds=30)
    await store.send(queue, grouped("g-m2"))
    await store.receive(queue, 1, visibility_s=300)
    events.available.clear()
    clock.advance(seconds=30)
    await store.settle()

    assert events.available[queue.id] >= 1
    assert bodies(await store.receive(queue, 10)) == ["g-m2"]


async def test_a_delayed_message_blocks_those_behind_it(store, clock):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, [a_grouped_message("m1", delay_s=10), a_grouped_message("m2", delay_s=0)])
    await store.send(queue, [a_grouped_message("other", group="h")])

    assert bodies(await store.receive(queue, 10)) == ["other"]
    clock.advance(seconds=10)
    assert bodies(await store.receive(queue, 10)) == ["m1", "m2"]


async def test_a_message_held_back_by_its_group_counts_as_visible(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g-m1", "g-m2", "g-m3"))
    await store.receive(queue, 1)

    assert await store.counts(queue) == (2, 1, 0)


async def test_an_undone_receive_unlocks_the_group(store, events):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g-m1", "g-m2"))
    held = await store.receive(queue, 1)
    events.available.clear()
    await store.undo_receive(queue, receipts_of(queue, held))

    assert events.available[queue.id] >= 2
    assert bodies(await store.receive(queue, 10)) == ["g-m1", "g-m2"]


@pytest.mark.parametrize("later_ms", [0, 1_000])
async def test_the_lost_answer_to_an_attempt_takes_nothing_from_its_repetition(store, clock, later_ms):
    """The client asked again on another connection before the server noticed that the first one was gone."""
    queue = await make_queue(store, "q.fifo", visibility_s=30)
    await store.send(queue, grouped("g-m1"))
    first = await store.receive(queue, 1, attempt_id="a")
    clock.advance(later_ms)
    [again] = await store.receive(queue, 1, attempt_id="a")

    opened_ms = [message.received_at_ms for message in first]
    await store.undo_receive(queue, receipts_of(queue, first), opened_ms=opened_ms)
    assert await store.receive(queue, 1) == []

    await store.undo_receive(queue, receipts_of(queue, [again]), opened_ms=[again.received_at_ms])
    assert bodies(await store.receive(queue, 1)) == ["g-m1"]


async def test_what_is_undone_is_the_lease_that_was_opened(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message("m")])
    for _ in range(2):
        [held] = await store.receive(queue, 1)
        await store.undo_receive(queue, receipts_of(queue, [held]), opened_ms=[held.received_at_ms])


async def test_a_fifo_queue_at_the_limit_gives_nothing_and_no_error(store, in_flight_max):
    limit = in_flight_max(50)
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, [a_grouped_message("x", message_id=f"id-{n}") for n in range(limit + 1)])
    held = await store.receive(queue, limit + 1)
    assert len(held) == limit
    await store.send(queue, grouped("other-m1"))

    assert await store.receive(queue, 1) == []


async def test_locks_and_turns_survive_a_restart(store, reopen):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, grouped("g1-m1", "g1-m2", "g2-m1", "g3-m1"))
    await store.receive(queue, 1)
    await store.receive(queue, 1, visibility_s=0)

    store = await reopen()
    assert bodies(await store.receive(queue, 10)) == ["g3-m1", "g2-m1"]
