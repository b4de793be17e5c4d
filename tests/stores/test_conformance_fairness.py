"""Fair queues: a group that floods a standard queue waits behind the quiet ones."""

from __future__ import annotations

from tests.stores.kit import a_message, bodies, make_queue, receipt_of, receipts_of, redrive_to
from veil.stores.store import Extension


async def flood(store, queue, group, in_flight, waiting):
    """A group with so many in flight and so many visible."""
    await store.send(queue, [a_message(f"{group} held", group=group) for _ in range(in_flight)])
    held = await store.receive(queue, in_flight)
    assert len(held) == in_flight
    await store.send(queue, [a_message(group, group=group) for _ in range(waiting)])
    return held


async def test_a_quiet_group_goes_before_a_noisy_one_that_was_there_first(store):
    queue = await make_queue(store)
    await flood(store, queue, "noisy", in_flight=30, waiting=2)
    await store.send(queue, [a_message("quiet", group="quiet"), a_message("alone")])

    assert bodies(await store.receive(queue, 10)) == ["quiet", "alone", "noisy", "noisy"]


async def test_what_is_quiet_comes_by_age_whatever_its_group_has_in_flight(store):
    queue = await make_queue(store)
    await flood(store, queue, "noisy", in_flight=40, waiting=1)
    await store.send(queue, [a_message(body, group=body[0]) for body in ("a1", "b1", "c1", "a2", "b2", "c2")])

    [first] = await store.receive(queue, 1)
    [second] = await store.receive(queue, 1)
    assert bodies([first, second]) == ["a1", "b1"]
    await store.extend(queue, [Extension(receipt_of(queue, first), 0)])
    assert bodies(await store.receive(queue, 3)) == ["a1", "c1", "a2"]
    assert bodies(await store.receive(queue, 9)) == ["b2", "c2", "noisy"]


async def test_a_dead_letter_that_is_older_than_its_group_here_comes_first(store, clock):
    dead = await make_queue(store, "dead")
    queue = await make_queue(store, "orders", redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message("old", group="b")])
    await store.receive(queue, 1, visibility_s=1)
    clock.advance(seconds=1)
    await flood(store, dead, "noisy", in_flight=30, waiting=1)
    await store.send(dead, [a_message("a", group="a"), a_message("b", group="b")])
    assert await store.receive(queue, 1) == []

    assert bodies(await store.receive(dead, 1)) == ["old"]
    assert bodies(await store.receive(dead, 9)) == ["a", "b", "noisy"]


async def test_twenty_nine_in_flight_are_not_noisy(store):
    queue = await make_queue(store)
    await flood(store, queue, "busy", in_flight=29, waiting=1)
    await store.send(queue, [a_message("quiet", group="quiet")])

    assert bodies(await store.receive(queue, 10)) == ["busy", "quiet"]


async def test_a_tenth_of_what_is_in_flight_is_not_noisy(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message() for _ in range(270)])
    assert len(await store.receive(queue, 270)) == 270
    await flood(store, queue, "tenth", in_flight=30, waiting=1)
    await store.send(queue, [a_message("quiet")])

    assert bodies(await store.receive(queue, 10)) == ["tenth", "quiet"]


async def test_of_two_noisy_groups_the_one_with_fewer_in_flight_goes_first(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message("x", group="more") for _ in range(31)])
    await store.send(queue, [a_message("x", group="fewer") for _ in range(30)])
    assert len(await store.receive(queue, 61)) == 61
    await store.send(queue, [a_message("more", group="more"), a_message("fewer", group="fewer")])

    assert bodies(await store.receive(queue, 10)) == ["fewer", "more"]


async def test_messages_without_a_group_are_never_noisy_together(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message() for _ in range(40)])
    await store.receive(queue, 40)
    await store.send(queue, [a_message("alone"), a_message("grouped", group="g")])

    assert bodies(await store.receive(queue, 10)) == ["alone", "grouped"]


async def test_a_group_is_quiet_again_once_its_messages_are_deleted(store):
    queue = await make_queue(store)
    held = await flood(store, queue, "noisy", in_flight=30, waiting=1)
    await store.send(queue, [a_message("quiet")])
    await store.delete(queue, receipts_of(queue, held[:1]))

    assert bodies(await store.receive(queue, 10)) == ["noisy", "quiet"]


async def test_a_group_is_quiet_again_once_its_leases_lapse(store, clock):
    queue = await make_queue(store, visibility_s=10)
    await flood(store, queue, "noisy", in_flight=30, waiting=1)
    await store.send(queue, [a_message("quiet")])
    clock.advance(seconds=10)

    assert bodies(await store.receive(queue, 40))[-2:] == ["noisy", "quiet"]


async def test_a_noisy_group_is_served_when_there_is_nothing_else(store):
    queue = await make_queue(store)
    await flood(store, queue, "noisy", in_flight=50, waiting=3)

    assert len(await store.receive(queue, 10)) == 3


async def test_a_group_is_still_noisy_after_a_restart(store, reopen):
    queue = await make_queue(store)
    await flood(store, queue, "noisy", in_flight=30, waiting=1)
    await store.send(queue, [a_message("quiet")])

    store = await reopen()
    assert bodies(await store.receive(queue, 10)) == ["quiet", "noisy"]
