"""Priority: the lowest number goes first, those of one number by age, and a message keeps its own for life."""

from __future__ import annotations

import pytest

from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue, receipt_of, redrive_to
from veil.core.queue import MoveTask
from veil.stores.store import Chosen, Extension


async def test_the_lowest_number_goes_first_and_those_of_one_number_by_age(store):
    queue = await make_queue(store)
    for body, priority in (("a8", 8), ("b16", 16), ("c1", 1), ("d8", 8), ("e1", 1), ("f7", 7), ("g9", 9)):
        await store.send(queue, [a_message(body, priority=priority)])

    assert bodies(await store.receive(queue, 3)) == ["c1", "e1", "f7"]
    assert bodies(await store.receive(queue, 10)) == ["a8", "d8", "g9", "b16"]


async def test_a_message_tells_its_priority_wherever_it_is_seen(store):
    queue = await make_queue(store)
    await store.send(
        queue, [a_message("a"), a_message("b", priority=3), a_message("c", priority=12, delay_s=5)]
    )

    assert [message.priority for message in await store.peek(queue)] == [8, 3, 12]
    assert [message.priority for message in await store.receive(queue, 10)] == [3, 8]


async def test_what_comes_back_takes_its_place_by_priority(store, clock):
    queue = await make_queue(store, visibility_s=5)
    await store.send(queue, [a_message("first", priority=2), a_message("late", priority=15)])
    [first] = await store.receive(queue, 1)
    await store.send(queue, [a_message("ordinary")])
    await store.extend(queue, [Extension(receipt_of(queue, first), 0)])
    assert bodies(await store.receive(queue, 10)) == ["first", "ordinary", "late"]

    clock.advance(seconds=5)
    assert bodies(await store.receive(queue, 10)) == ["first", "ordinary", "late"]


async def test_a_delayed_message_takes_its_place_when_its_delay_ends(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message("urgent", priority=1, delay_s=5), a_message("plain")])
    clock.advance(seconds=5)

    assert bodies(await store.receive(queue, 10)) == ["urgent", "plain"]


async def test_noisy_groups_wait_whatever_their_priority(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message(f"n{n}", group="noisy", priority=1) for n in range(40)])
    await store.receive(queue, 35)
    await store.send(queue, [a_message("x", group="noisy"), a_message("alone", priority=9)])
    await store.send(
        queue, [a_message("quiet", group="quiet"), a_message("urgent", group="quiet", priority=4)]
    )

    expected = ["urgent", "quiet", "alone", *(f"n{n}" for n in range(35, 40)), "x"]
    assert bodies(await store.peek_next(queue, limit=20)) == expected
    assert bodies(await store.receive(queue, 20)) == expected


async def test_a_spent_message_takes_its_priority_to_the_dead_letters_and_back(store, clock):
    dead = await make_queue(store, "dead")
    queue = await make_queue(store, visibility_s=1, redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message("a", priority=3)])
    await store.receive(queue, 1)
    clock.advance(seconds=1)
    await store.send(dead, [a_message("older")])
    assert await store.receive(queue, 1) == []
    [letter, _] = await store.peek_next(dead)
    assert (letter.body, letter.priority) == ("a", 3)

    await store.redrive(dead, [Chosen(letter.seq, letter.message_id)])
    await store.send(queue, [a_message("plain")])
    assert bodies(await store.receive(queue, 5)) == ["a", "plain"]


async def test_a_receive_passes_over_any_number_of_spent_messages_of_one_priority(store, clock):
    dead = await make_queue(store, "dead")
    queue = await make_queue(store, visibility_s=1, redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message(f"spent{n}", priority=3) for n in range(4)])
    await store.receive(queue, 4)
    clock.advance(seconds=1)
    await store.send(queue, [a_message("fresh", priority=3)])

    assert bodies(await store.receive(queue, 1)) == ["fresh"]
    assert (await store.counts(dead)).visible == 4


async def test_a_move_task_goes_by_age_and_keeps_priorities(store):
    dead, queue = await make_queue(store, "dead"), await make_queue(store)
    await store.send(dead, [a_message("a", priority=16), a_message("b"), a_message("c", priority=1)])
    task = MoveTask("t", dead.key, queue.key, None, "RUNNING", 0, 0, 0)
    await store.start_move(task)
    await store.step_move("t", 2)

    assert bodies(await store.receive(queue, 5)) == ["b", "a"]
    assert bodies(await store.receive(dead, 5)) == ["c"]


async def test_priorities_outlive_a_restart(store, reopen, clock):
    queue = await make_queue(store, visibility_s=5)
    await store.send(queue, [a_message("a"), a_message("b", priority=2), a_message("c", priority=16)])
    await store.receive(queue, 1)
    store = await reopen()
    clock.advance(seconds=5)

    assert bodies(await store.receive(queue, 5)) == ["b", "a", "c"]


@pytest.mark.parametrize("priority", [1, 16])
async def test_what_has_a_priority_expires_is_purged_and_is_counted_like_any_other(store, clock, priority):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message("old", priority=priority)])
    assert await store.oldest_sent_ms(queue) == clock.now_ms()
    clock.advance(seconds=60)
    assert (await store.counts(queue)).visible == 0

    await store.send(queue, [a_message("new", priority=priority), a_message("plain")])
    assert (await store.counts(queue)).visible == 2
    await store.purge(queue, rest_ms=0)
    assert await store.peek(queue) == []


async def test_a_look_at_what_is_next_changes_nothing(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message("a"), a_message("b", priority=1), a_message("c", delay_s=9)])

    looks = [bodies(await store.peek_next(queue, limit=limit)) for limit in (1, 5)]
    assert looks == [["b"], ["b", "a"]]
    assert [message.receive_count for message in await store.receive(queue, 5)] == [1, 1]
    assert await store.peek_next(queue) == []


async def test_a_look_at_a_fifo_queue_goes_by_turns_and_leading_runs(store):
    queue = await make_queue(store, "turns.fifo")
    await store.send(queue, [a_grouped_message("a1", "A"), a_grouped_message("b1", "B")])
    await store.send(queue, [a_grouped_message("a2", "A")])
    assert bodies(await store.peek_next(queue)) == ["a1", "a2", "b1"]

    await store.receive(queue, 1)
    assert bodies(await store.peek_next(queue)) == ["b1"]


async def test_a_look_shows_what_a_receive_would_dead_letter_and_leaves_it_there(store, clock):
    dead = await make_queue(store, "dead")
    queue = await make_queue(store, visibility_s=1, redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message("spent")])
    await store.receive(queue, 1)
    clock.advance(seconds=1)

    assert bodies(await store.peek_next(queue)) == ["spent"]
    assert await store.peek_next(dead) == []
