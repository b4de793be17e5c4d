"""The visibility window: from the receive to its deadline nobody else sees the message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stores.kit import a_message, bodies, make_queue, receipt_of, receipts_of, redrive_to, some_messages
from veil.core.errors import InFlightLimit, MessageGone, VisibilityTooLong
from veil.core.lease import Deletion, State
from veil.stores.store import Extension


async def test_a_received_message_is_hidden_until_its_deadline_and_not_a_millisecond_longer(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    [first] = await store.receive(queue, 1)
    assert (first.state, first.due_at_ms) == (State.IN_FLIGHT, clock.now_ms() + 30_000)

    clock.advance(29_999)
    assert await store.receive(queue, 1) == []
    clock.advance(1)
    [second] = await store.receive(queue, 1)

    assert (second.seq, second.delivery, second.receive_count) == (first.seq, 2, 2)


async def test_the_visibility_given_with_a_receive_beats_the_queues_own(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    await store.receive(queue, 1, visibility_s=5)

    clock.advance(seconds=5)
    [again] = await store.receive(queue, 1)
    assert again.due_at_ms == clock.now_ms() + 30_000


async def test_a_receive_with_visibility_zero_counts_but_hides_nothing(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])

    [look] = await store.receive(queue, 1, visibility_s=0)
    [real] = await store.receive(queue, 1)

    assert (look.state, look.due_at_ms, look.delivery, look.receive_count) == (State.VISIBLE, None, 1, 1)
    assert look.received_at_ms == clock.now_ms()
    assert (real.delivery, real.receive_count) == (2, 2)


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_receive_of_many_stops_at_so_many_bytes_of_bodies(store, monkeypatch, group):
    monkeypatch.setattr("veil.core.limits.RECEIVE_BYTES_MAX", 25)
    await make_queue(store, "dead")
    queue = await make_queue(store, redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message("spent, and not counted", group=group)])
    await store.receive(queue, 1, visibility_s=0)
    await store.send(queue, [a_message(f"ten bytes{n}", group=group) for n in range(5)])

    assert bodies(await store.receive(queue, 11)) == ["ten bytes0", "ten bytes1", "ten bytes2"]
    assert bodies(await store.receive(queue, 10)) == ["ten bytes3", "ten bytes4"]


async def test_one_receive_never_gives_the_same_message_twice(store):
    queue = await make_queue(store, visibility_s=0)
    await store.send(queue, some_messages("a", "b"))

    assert bodies(await store.receive(queue, 10)) == ["a", "b"]


async def test_two_receivers_never_hold_the_same_message(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages(*"abcdef"))

    one, other = await store.receive(queue, 3), await store.receive(queue, 10)

    assert bodies(one) + bodies(other) == list("abcdef")


async def test_the_wall_time_of_the_first_receive_is_kept_over_later_ones(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, [a_message()])
    [first] = await store.receive(queue, 1)
    received_wall_ms = clock.wall_ms()
    clock.advance(seconds=1)
    [second] = await store.receive(queue, 1)

    assert first.first_received_wall_ms == second.first_received_wall_ms == received_wall_ms


async def test_an_extension_counts_from_the_call(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=20)

    assert await store.extend(queue, [Extension(receipt_of(queue, held), 15)]) == [None]

    clock.advance(14_999)
    assert await store.receive(queue, 1) == []
    clock.advance(1)
    assert len(await store.receive(queue, 1)) == 1


async def test_an_extension_may_shorten_the_window(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    await store.extend(queue, [Extension(receipt_of(queue, held), 1)])

    clock.advance(seconds=1)
    assert len(await store.receive(queue, 1)) == 1


async def test_an_extension_is_not_remembered_by_the_next_receive(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    await store.extend(queue, [Extension(receipt_of(queue, held), 100)])
    clock.advance(seconds=100)

    [again] = await store.receive(queue, 1)
    assert again.due_at_ms == clock.now_ms() + 30_000


async def test_a_release_makes_the_message_visible_at_once_and_says_so(store, events):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    events.available.clear()

    assert await store.extend(queue, [Extension(receipt_of(queue, held), 0)]) == [None]

    assert events.available[queue.id] >= 1
    [again] = await store.receive(queue, 1)
    assert (again.seq, again.receive_count) == (held.seq, 2)


async def test_of_two_changes_of_one_message_in_a_call_the_second_finds_what_the_first_left(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    held, other = await store.receive(queue, 2)
    receipt = receipt_of(queue, held)
    released, again, alone = (
        Extension(receipt, 0),
        Extension(receipt, 60),
        Extension(receipt_of(queue, other), 60),
    )

    await store.extend(queue, [released, again, alone])
    counts = await store.counts(queue)

    assert (counts.visible, counts.in_flight) == (0, 2)


async def test_no_extension_reaches_more_than_twelve_hours_after_the_receive(store, clock):
    queue = await make_queue(store, visibility_s=60)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=10)

    [refusal, agreed] = await store.extend(
        queue, [Extension(receipt_of(queue, held), 43_191), Extension(receipt_of(queue, held), 43_190)]
    )
    assert isinstance(refusal, VisibilityTooLong)
    assert agreed is None


async def test_a_refused_extension_leaves_the_window_as_it_was(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=1)
    await store.extend(queue, [Extension(receipt_of(queue, held), 43_200)])

    clock.advance(28_999)
    assert await store.receive(queue, 1) == []
    clock.advance(1)
    assert len(await store.receive(queue, 1)) == 1


async def test_a_lapse_is_announced_and_counted(store, clock, events):
    queue = await make_queue(store, visibility_s=3)
    await store.send(queue, some_messages("a", "b"))
    await store.receive(queue, 2)
    events.available.clear()
    clock.advance(seconds=3)

    await store.settle()

    assert events.available[queue.id] >= 2
    assert events.totals["lapsed", queue.id] == 2


async def test_the_next_due_instant_is_never_later_than_the_next_lapse(store, clock):
    queue = await make_queue(store)
    assert store.next_due_ms() is None
    await store.send(queue, some_messages("a", "b"))
    await store.receive(queue, 1, visibility_s=20)
    await store.receive(queue, 1, visibility_s=10)

    due_ms = store.next_due_ms()
    assert due_ms is not None and due_ms <= clock.now_ms() + 10_000


async def test_the_owner_is_told_whenever_something_is_due_sooner(store, clock, events):
    queue, other = await make_queue(store, "orders"), await make_queue(store, "other")

    async def due_after_s(change) -> int:
        told = events.sooner
        await change()
        assert events.sooner > told
        return (store.next_due_ms() - clock.now_ms()) // 1000

    assert await due_after_s(lambda: store.send(queue, some_messages("a", "b"))) == 345_600  # the retention
    assert await due_after_s(lambda: store.receive(queue, 1, visibility_s=20)) == 20
    assert await due_after_s(lambda: store.send(other, [a_message(delay_s=15)])) == 15
    [second] = await store.receive(queue, 1, visibility_s=20)
    assert await due_after_s(lambda: store.extend(queue, [Extension(receipt_of(queue, second), 10)])) == 10
    clock.advance(seconds=10)
    await store.settle()
    assert await due_after_s(lambda: store.receive(queue, 1, visibility_s=3)) == 3


async def test_an_undone_receive_is_not_counted_and_its_receipt_is_void(store, events):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [lost] = await store.receive(queue, 1)
    events.available.clear()

    await store.undo_receive(queue, [receipt_of(queue, lost)])

    assert events.available[queue.id] >= 1
    [peeked] = await store.peek(queue)
    assert (peeked.state, peeked.receive_count, peeked.first_received_wall_ms) == (State.VISIBLE, 0, None)
    [real] = await store.receive(queue, 1)
    assert (real.receive_count, real.delivery) == (1, 2)
    assert await store.delete(queue, [receipt_of(queue, lost)]) == [Deletion.STALE]


async def test_undoing_a_later_receive_keeps_the_first_one(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, [a_message()])
    [first] = await store.receive(queue, 1)
    clock.advance(seconds=1)
    [second] = await store.receive(queue, 1)
    await store.undo_receive(queue, [receipt_of(queue, second)])

    [peeked] = await store.peek(queue)
    assert (peeked.receive_count, peeked.first_received_wall_ms) == (1, first.first_received_wall_ms)


async def test_a_receipt_that_lost_its_lease_undoes_nothing(store, clock):
    queue = await make_queue(store, visibility_s=1)
    await store.send(queue, some_messages("lapsed", "taken again", "deleted"))
    lapsed, again, deleted = await store.receive(queue, 3)
    await store.delete(queue, [receipt_of(queue, deleted)])
    clock.advance(seconds=1)
    await store.undo_receive(queue, [receipt_of(queue, lapsed)])
    await store.receive(queue, 2)

    await store.undo_receive(queue, receipts_of(queue, [again, deleted]))

    assert [(m.state, m.receive_count) for m in await store.peek(queue)] == [(State.IN_FLIGHT, 2)] * 2


async def test_a_step_of_the_wall_clock_moves_no_deadline(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    await store.receive(queue, 1)

    clock.step_wall(3_600_000)
    assert await store.receive(queue, 1) == []
    clock.step_wall(-7_200_000)
    clock.advance(seconds=30)
    assert len(await store.receive(queue, 1)) == 1


async def test_a_standard_queue_refuses_to_have_more_in_flight_than_the_limit(store, in_flight_max):
    limit = in_flight_max(50)
    queue = await make_queue(store)
    await store.send(queue, [a_message("x", message_id=f"id-{n}") for n in range(limit + 1)])
    held = await store.receive(queue, limit)
    assert len(held) == limit

    with pytest.raises(InFlightLimit):
        await store.receive(queue, 1)
    await store.delete(queue, [receipt_of(queue, held[0])])
    assert len(await store.receive(queue, 10)) == 1


async def test_the_window_survives_a_restart_with_the_time_that_was_left(store, clock, reopen):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    [held] = await store.receive(queue, 1)
    clock.advance(seconds=10)

    store = await reopen()
    clock.advance(19_999)
    assert await store.receive(queue, 1) == []
    clock.advance(1)
    [again] = await store.receive(queue, 1)
    assert (again.seq, again.delivery) == (held.seq, 2)


async def test_a_lease_that_lapsed_while_nobody_was_there_is_over_at_the_start(store, clock, reopen):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    await store.receive(queue, 1)
    store = await reopen()
    clock.advance(seconds=30)

    assert (await store.counts(queue)).visible == 1


async def test_the_holder_still_holds_after_a_restart_and_nobody_else_does(store, clock, reopen):
    queue = await make_queue(store, visibility_s=5)
    await store.send(queue, [a_message()])
    [old] = await store.receive(queue, 1)
    clock.advance(seconds=5)
    [current] = await store.receive(queue, 1)

    store = await reopen()
    [refusal, agreed] = await store.extend(
        queue, [Extension(receipt_of(queue, old), 60), Extension(receipt_of(queue, current), 60)]
    )
    assert isinstance(refusal, MessageGone)
    assert agreed is None
    assert await store.delete(queue, [receipt_of(queue, current)]) == [Deletion.DELETED]


# ---- pauses


def _pausing(paused):
    return lambda content: content._replace(settings=replace(content.settings, paused=paused))


@pytest.mark.parametrize("name", ["plain", "steps.fifo"])
async def test_a_paused_queue_gives_nothing_until_it_is_resumed(store, events, name):
    queue = await make_queue(store, name)
    group = "g" if name.endswith(".fifo") else None
    await store.send(queue, [a_message(body, group=group, deduplication_id=body) for body in "abc"])
    await store.edit_queue(queue, _pausing(True))
    assert await store.receive(queue, 3) == []
    assert (await store.counts(queue)).visible == 3
    assert len(await store.peek_next(queue)) == 3

    events.available.clear()
    await store.edit_queue(queue, _pausing(False))
    assert events.available[queue.id] >= 3  # whoever waits is woken; a node's heartbeat may wake them too
    assert len(await store.receive(queue, 3)) == 3


async def test_a_pause_leaves_open_leases_alone_and_dead_letters_nothing(store, clock):
    await make_queue(store, "dead")
    queue = await make_queue(store, visibility_s=30, redrive=redrive_to("dead", 1))
    await store.send(queue, some_messages(*"abc"))
    held = await store.receive(queue, 2)
    await store.edit_queue(queue, _pausing(True))

    assert await store.extend(queue, [Extension(receipt_of(queue, held[0]), 60)]) == [None]
    assert await store.delete(queue, [receipt_of(queue, held[1])]) == [Deletion.DELETED]
    clock.advance(seconds=60)
    assert await store.receive(queue, 10) == []
    assert await store.counts(queue) == (2, 0, 0)  # the spent one stays until somebody may receive


async def test_a_pause_outlives_a_restart(store, reopen):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    await store.edit_queue(queue, _pausing(True))

    store = await reopen()
    assert (await store.find_queue(queue.key)).settings.paused
    assert await store.receive(queue, 1) == []
