"""Dead letters: a message that was received too often moves, in the receive that would have exceeded the maximum."""

from __future__ import annotations

import pytest

from tests.stores.kit import (
    a_grouped_message,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    receipts_of,
    redrive_to,
    some_messages,
)
from veil.core import decide
from veil.core.lease import Deletion, HoldKey, State
from veil.core.message import MessageAttribute
from veil.core.sequence import instant_of


async def a_pair(store, suffix="", receives_max=1, **settings):
    """A queue and its dead letters."""
    dead = await make_queue(store, f"dead{suffix}", **settings)
    queue = await make_queue(
        store, f"orders{suffix}", redrive=redrive_to(f"dead{suffix}", receives_max), **settings
    )
    return queue, dead


async def spend(store, clock, queue, times=1):
    """Receive everything that often and let each lease lapse."""
    for _ in range(times):
        held = await store.receive(queue, 10, visibility_s=1)
        clock.advance(seconds=1)
    return held


async def test_the_receive_that_would_exceed_the_maximum_moves_the_message_and_goes_on(store, clock, events):
    queue, dead = await a_pair(store, receives_max=2)
    await store.send(queue, some_messages("spent"))
    await spend(store, clock, queue, times=2)
    await store.send(queue, some_messages("fresh"))

    assert bodies(await store.receive(queue, 10)) == ["fresh"]
    assert bodies(await store.peek(dead)) == ["spent"]
    assert bodies(await store.peek(queue)) == ["fresh"]
    assert events.totals["dead_lettered", queue.id] == 1


async def test_nothing_moves_merely_because_a_lease_lapses(store, clock):
    queue, dead = await a_pair(store)
    await store.send(queue, [a_message()])
    await spend(store, clock, queue)
    await store.settle()

    assert await store.peek(dead) == []
    assert await store.counts(queue) == (1, 0, 0)


async def test_looks_without_visibility_count_as_receives(store):
    queue, dead = await a_pair(store, receives_max=1)
    await store.send(queue, [a_message()])
    await store.receive(queue, 1, visibility_s=0)

    assert await store.receive(queue, 1, visibility_s=0) == []
    assert await store.counts(dead) == (1, 0, 0)


async def test_an_undone_receive_does_not_bring_a_message_nearer_to_the_dead_letters(store):
    queue, _ = await a_pair(store, receives_max=1)
    await store.send(queue, [a_message()])
    await store.undo_receive(queue, receipts_of(queue, await store.receive(queue, 1)))

    assert len(await store.receive(queue, 1)) == 1


async def test_a_dead_letter_keeps_what_it_was_and_says_where_it_came_from(store, clock):
    queue, dead = await a_pair(store)
    sent = a_message(
        "x", attributes={"a": MessageAttribute("String", "b")}, trace_header="t", sender="s", group="tenant"
    )
    await store.send(queue, [sent])
    [before] = await spend(store, clock, queue)
    await store.receive(queue, 1)

    [letter] = await store.receive(dead, 1)

    assert letter.dead_letter_source == queue.key.arn
    assert (letter.message_id, letter.body, letter.attributes) == (sent.message_id, "x", sent.attributes)
    assert (letter.trace_header, letter.sender, letter.group) == ("t", "s", "tenant")
    assert (letter.seq, letter.sent_wall_ms) == (before.seq, before.sent_wall_ms)
    assert letter.first_received_wall_ms == before.first_received_wall_ms
    assert letter.receive_count == 2


async def test_a_dead_letter_arrives_visible_and_is_announced(store, clock, events):
    queue, dead = await a_pair(store)
    await store.send(queue, [a_message()])
    await spend(store, clock, queue)
    await store.receive(queue, 1)

    assert events.available[dead.id] >= 1
    [letter] = await store.peek(dead)
    assert (letter.state, letter.due_at_ms) == (State.VISIBLE, None)


async def test_the_receipts_of_the_source_are_void_after_the_move(store, clock):
    queue, dead = await a_pair(store)
    await store.send(queue, [a_message()])
    [held] = await spend(store, clock, queue)
    await store.receive(queue, 1)

    assert await store.delete(queue, [receipt_of(queue, held)]) == [Deletion.GONE]
    assert len(await store.peek(dead)) == 1


async def test_the_fencing_number_goes_on_rising_in_the_dead_letters(store, clock):
    queue, dead = await a_pair(store, receives_max=2)
    await store.send(queue, [a_message()])
    [held] = await spend(store, clock, queue, times=2)
    await store.receive(queue, 1)

    [letter] = await store.receive(dead, 1)
    assert letter.delivery > held.delivery


async def test_retention_on_standard_queues_counts_from_the_first_send(store, clock):
    dead = await make_queue(store, "dead", retention_s=120)
    queue = await make_queue(store, redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message()])
    clock.advance(seconds=100)
    await spend(store, clock, queue)
    await store.receive(queue, 1)

    clock.advance(18_999)
    assert len(await store.peek(dead)) == 1
    clock.advance(1)
    assert await store.peek(dead) == []


async def test_a_letter_older_than_the_dead_letters_keep_is_gone_at_once(store, clock):
    dead = await make_queue(store, "dead", retention_s=60)
    queue = await make_queue(store, redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message()])
    clock.advance(seconds=100)
    await spend(store, clock, queue)

    assert await store.receive(queue, 1) == []
    assert await store.counts(dead) == (0, 0, 0)
    assert await store.receive(dead, 1) == []


async def test_an_old_letter_stands_before_the_younger_ones_already_there(store, clock):
    queue, dead = await a_pair(store)
    await store.send(queue, some_messages("old"))
    await store.send(dead, some_messages("young"))
    await spend(store, clock, queue)
    await store.receive(queue, 1)

    assert bodies(await store.receive(dead, 10)) == ["old", "young"]


async def test_on_fifo_a_letter_gets_a_new_place_and_its_own_id_for_deduplication(store, clock):
    queue, dead = await a_pair(store, ".fifo")
    await store.send(queue, [a_grouped_message("x", group="g", deduplication_id="d")])
    [held] = await spend(store, clock, queue)
    await store.receive(queue, 1)

    [letter] = await store.peek(dead)
    assert letter.seq > held.seq
    assert instant_of(letter.seq) == clock.now_ms()
    assert (letter.group, letter.deduplication_id) == ("g", letter.message_id)
    assert letter.dead_letter_source == queue.key.arn


async def test_on_fifo_retention_starts_again_with_the_move(store, clock):
    queue, dead = await a_pair(store, ".fifo", retention_s=120)
    await store.send(queue, [a_grouped_message("x")])
    clock.advance(seconds=100)
    await spend(store, clock, queue)
    await store.receive(queue, 1)

    clock.advance(119_999)
    assert len(await store.peek(dead)) == 1
    clock.advance(1)
    assert await store.peek(dead) == []


async def test_on_fifo_a_moved_head_frees_its_group_within_the_same_receive(store, clock):
    queue, dead = await a_pair(store, ".fifo")
    await store.send(queue, [a_grouped_message("m1"), a_grouped_message("m2")])
    await store.receive(queue, 1, visibility_s=1)
    clock.advance(seconds=1)

    assert bodies(await store.receive(queue, 10)) == ["m2"]
    assert bodies(await store.peek(dead)) == ["m1"]


async def test_on_fifo_equal_deduplication_ids_do_not_swallow_one_another_in_the_dead_letters(store, clock):
    queue, dead = await a_pair(store, ".fifo", deduplication_scope="messageGroup")
    await store.send(queue, [a_grouped_message("x", group="g", deduplication_id="d")])
    await store.send(queue, [a_grouped_message("y", group="h", deduplication_id="d")])
    await spend(store, clock, queue)
    await store.receive(queue, 10)

    assert sorted(bodies(await store.peek(dead))) == ["x", "y"]


async def test_a_receive_stops_moving_once_it_has_enough(store, clock):
    queue, dead = await a_pair(store)
    await store.send(queue, some_messages("fresh", "spent"))
    [fresh, _] = await store.receive(queue, 2, visibility_s=1)
    await store.undo_receive(queue, [receipt_of(queue, fresh)])
    clock.advance(seconds=1)

    assert bodies(await store.receive(queue, 1)) == ["fresh"]
    assert await store.counts(dead) == (0, 0, 0)
    assert await store.receive(queue, 1) == []
    assert bodies(await store.peek(dead)) == ["spent"]


async def test_any_number_of_spent_messages_makes_way_for_one_fresh_message(store, clock):
    queue, dead = await a_pair(store)
    await store.send(queue, [a_message(f"spent {n}") for n in range(40)])
    await store.receive(queue, 40, visibility_s=1)
    clock.advance(seconds=1)
    await store.send(queue, some_messages("fresh"))

    assert bodies(await store.receive(queue, 1)) == ["fresh"]
    assert (await store.counts(dead)).visible == 40


@pytest.mark.parametrize("suffix", ["", ".fifo"])
async def test_a_backlog_that_is_spent_is_moved_some_at_a_time_until_the_receive_has_something(
    store, clock, events, suffix, monkeypatch, reopen
):
    at_once: list[int] = []
    counted = events.counted

    def heard(event, queue_id, count):
        if event == "dead_lettered":
            at_once.append(count)
        counted(event, queue_id, count)

    monkeypatch.setattr(events, "counted", heard)
    monkeypatch.setattr(decide, "SPENT_AT_ONCE", 10)
    queue, dead = await a_pair(store, suffix)
    await store.send(queue, [_of_own_group(f"spent {n}", suffix) for n in range(45)])
    await store.receive(queue, 45, visibility_s=1)
    clock.advance(seconds=1)
    await store.send(queue, [_of_own_group("fresh", suffix), _of_own_group("fresher", suffix)])

    assert bodies(await store.receive(queue, 1)) == ["fresh"]
    assert (await store.counts(dead)).visible == 45
    assert sum(at_once) == 45 and max(at_once) <= 10  # each is told of with the transaction that moved it

    await store.receive(dead, 45, visibility_s=1)
    assert bodies(await store.receive(queue, 5)) == ["fresher"]


async def test_a_hold_too_goes_on_behind_a_backlog_that_is_spent(store, clock, monkeypatch):
    monkeypatch.setattr(decide, "SPENT_AT_ONCE", 10)
    queue, dead = await a_pair(store)
    await store.send(queue, [a_message(f"spent {n}") for n in range(45)])
    await store.receive(queue, 45, visibility_s=1)
    clock.advance(seconds=1)
    await store.send(queue, some_messages("fresh"))

    held = await store.receive_hold(queue, HoldKey("stream", 0, 0), 5, visibility_s=30)
    assert (bodies(held.messages), held.again) == (["fresh"], False)
    assert (await store.counts(dead)).visible == 45


def _of_own_group(body, suffix):
    return a_grouped_message(body, body.replace(" ", "-")) if suffix else a_message(body)


async def test_without_its_dead_letter_queue_a_message_is_delivered_as_usual(store, clock):
    queue, dead = await a_pair(store)
    await store.delete_queue(dead)
    await store.send(queue, [a_message()])
    await spend(store, clock, queue)

    [again] = await store.receive(queue, 1)
    assert again.receive_count == 2


async def test_dead_letters_of_the_other_type_are_not_used(store, clock):
    await make_queue(store, "dead.fifo")
    queue = await make_queue(store, redrive=redrive_to("dead.fifo", 1))
    await store.send(queue, [a_message()])
    await spend(store, clock, queue)

    assert len(await store.receive(queue, 1)) == 1


async def test_two_queues_that_are_each_others_dead_letters_move_a_message_once_per_receive(store, clock):
    queue = await make_queue(store, "a", redrive=redrive_to("b", 1))
    other = await make_queue(store, "b", redrive=redrive_to("a", 1))
    await store.send(queue, [a_message()])
    await spend(store, clock, queue)

    assert await store.receive(queue, 1) == []
    assert (await store.counts(queue), await store.counts(other)) == ((0, 0, 0), (1, 0, 0))
    assert await store.receive(other, 1) == []
    assert (await store.counts(queue), await store.counts(other)) == ((1, 0, 0), (0, 0, 0))


async def test_a_queue_that_is_its_own_dead_letters_keeps_and_delivers_what_is_spent(store, clock, events):
    # It is where it would go: to move it would only make its receives cost a round, and never give it to anybody again.
    queue = await make_queue(store, redrive=redrive_to("orders", 1))
    await store.send(queue, some_messages("a", "b", "c"))
    for times in range(1, 6):
        held = await store.receive(queue, 10, visibility_s=1)
        assert sorted(bodies(held)) == ["a", "b", "c"]
        assert {message.receive_count for message in held} == {times}
        assert {message.dead_letter_source for message in held} == {None}
        clock.advance(seconds=1)

    assert await store.counts(queue) == (3, 0, 0)
    assert events.totals["dead_lettered", queue.id] == 0
    held = await store.receive(queue, 10)
    assert await store.delete(queue, receipts_of(queue, held)) == [Deletion.DELETED] * 3
    assert await store.counts(queue) == (0, 0, 0)


async def test_a_fifo_queue_that_is_its_own_dead_letters_keeps_its_order(store, clock):
    queue = await make_queue(store, "orders.fifo", redrive=redrive_to("orders.fifo", 1))
    await store.send(queue, [a_grouped_message("m1"), a_grouped_message("m2")])
    for _ in range(4):
        assert bodies(await store.receive(queue, 10, visibility_s=1)) == ["m1", "m2"]
        clock.advance(seconds=1)

    assert await store.counts(queue) == (2, 0, 0)


async def test_dead_letters_of_others_pass_through_a_queue_that_is_its_own(store, clock):
    own = await make_queue(store, "own", redrive=redrive_to("own", 1))
    queue = await make_queue(store, redrive=redrive_to("own", 1))
    await store.send(queue, some_messages("x"))
    await spend(store, clock, queue)

    assert await store.receive(queue, 1) == []
    [letter] = await store.receive(own, 10)
    assert (letter.body, letter.dead_letter_source, letter.receive_count) == ("x", queue.key.arn, 2)


async def test_a_message_is_in_exactly_one_queue_after_a_restart(store, clock, reopen):
    queue, dead = await a_pair(store)
    await store.send(queue, some_messages("x"))
    await spend(store, clock, queue)
    await store.receive(queue, 1)

    store = await reopen()
    assert await store.peek(queue) == []
    [letter] = await store.peek(dead)
    assert (letter.body, letter.dead_letter_source, letter.receive_count) == ("x", queue.key.arn, 1)
