"""Long polls wake for whatever becomes receivable, one receiver for one message."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.kit import Desk, HeldAnswers, Looks, open_desk, quiet, until
from veil.core.clock import ManualClock
from veil.core.errors import InFlightLimit, QueueMissing, StoreError
from veil.core.message import StoredMessage
from veil.service.queues import delete_queue, set_paused
from veil.service.service import Service


def bodies(messages: list[StoredMessage]) -> list[str]:
    return [message.body for message in messages]


async def test_a_poll_answers_at_once_when_there_is_something(orders: Desk) -> None:
    await orders.send("a")
    assert await orders.bodies(wait_s=20) == ["a"]


async def test_a_poll_without_a_wait_answers_at_once_with_nothing(orders: Desk) -> None:
    assert await orders.receive(wait_s=0) == []
    assert orders.tally("empty_receive") == 1


async def test_the_queues_own_wait_holds_when_the_receive_names_none(
    service: Service, clock: ManualClock
) -> None:
    desk = await open_desk(service, "patient", wait_s=5)
    poll = asyncio.create_task(desk.receive(wait_s=None))
    await until(lambda: service.waiting.waiting(desk.queue.id) == 1)
    clock.advance(4_999)
    await quiet(service)
    assert not poll.done()
    clock.advance(1)
    assert await poll == []


async def test_an_explicit_zero_beats_the_queues_own_wait(service: Service) -> None:
    desk = await open_desk(service, "patient", wait_s=20)
    assert await desk.receive(wait_s=0) == []


async def test_a_send_wakes_it(orders: Desk) -> None:
    poll = await orders.poll()
    await orders.send("a")
    assert bodies(await poll) == ["a"]


async def test_a_poll_at_a_paused_queue_waits_for_the_resume(orders: Desk) -> None:
    await set_paused(orders.service, orders.queue, True)
    poll = await orders.poll()
    await orders.send("a")
    await quiet(orders.service)
    assert not poll.done()

    await set_paused(orders.service, orders.queue, False)
    assert bodies(await poll) == ["a"]


async def test_the_end_of_a_delay_wakes_it(orders: Desk, clock: ManualClock) -> None:
    poll = await orders.poll()
    await orders.send("later", delay_s=3)
    clock.advance(2_999)
    await quiet(orders.service)
    assert not poll.done()
    clock.advance(1)
    assert bodies(await poll) == ["later"]


async def test_a_lapse_wakes_it(orders: Desk, clock: ManualClock) -> None:
    await orders.send("a")
    await orders.receive_one(visibility_s=10)
    poll = await orders.poll()
    clock.advance(9_999)
    await quiet(orders.service)
    assert not poll.done()
    clock.advance(1)
    assert bodies(await poll) == ["a"]


async def test_a_shortened_lease_wakes_it_at_its_new_deadline(orders: Desk, clock: ManualClock) -> None:
    await orders.send("a")
    receipt = orders.receipt(await orders.receive_one(visibility_s=600))
    poll = await orders.poll()
    await orders.extend(receipt, 2)
    clock.advance(seconds=2)
    assert bodies(await poll) == ["a"]


async def test_a_release_wakes_it(orders: Desk) -> None:
    await orders.send("a")
    receipt = orders.receipt(await orders.receive_one())
    poll = await orders.poll()
    await orders.release(receipt)
    assert bodies(await poll) == ["a"]


async def test_a_delete_that_unlocks_a_fifo_group_wakes_it(steps: Desk) -> None:
    await steps.send_all("a", "b", group="g")
    receipt = steps.receipt(await steps.receive_one())
    poll = await steps.poll()
    await steps.delete(receipt)
    assert bodies(await poll) == ["b"]


async def test_a_send_into_a_locked_fifo_group_wakes_nobody_with_a_message(
    steps: Desk, clock: ManualClock
) -> None:
    await steps.send_all("a", group="g")
    await steps.receive_one(visibility_s=600)
    poll = await steps.poll()
    await steps.send_all("b", group="g")
    await quiet(steps.service)
    assert not poll.done()
    clock.advance(seconds=20)
    assert await poll == []


async def test_a_look_with_a_timeout_of_zero_leaves_the_message_to_the_next_waiter(orders: Desk) -> None:
    polls = [await orders.poll(visibility_s=0) for _ in range(3)]
    await orders.send("a")
    assert [bodies(await poll) for poll in polls] == [["a"]] * 3


async def test_it_ends_with_nothing_when_its_time_is_up(orders: Desk, clock: ManualClock) -> None:
    poll = await orders.poll(wait_s=20)
    clock.advance(19_999)
    await quiet(orders.service)
    assert not poll.done()
    clock.advance(1)
    assert await poll == []
    assert orders.service.waiting.waiting(orders.queue.id) == 0


async def test_the_longest_waiting_receiver_is_served_first(orders: Desk) -> None:
    first, second = await orders.poll(), await orders.poll()
    await orders.send("a")
    assert bodies(await first) == ["a"]
    await orders.send("b")
    assert bodies(await second) == ["b"]


async def test_one_message_wakes_exactly_one_of_five_thousand(orders: Desk) -> None:
    polls = [asyncio.create_task(orders.receive(1, wait_s=20)) for _ in range(5_000)]
    waiting = orders.service.waiting
    await until(lambda: waiting.waiting(orders.queue.id) == 5_000)
    looks = Looks(orders.service)
    await orders.send("a")
    await until(lambda: any(poll.done() for poll in polls))
    await quiet(orders.service)
    assert looks.count == 1
    # Which one it is is said elsewhere: those who look at the same time may sit down in any order.
    (answered,) = (poll for poll in polls if poll.done())
    assert bodies(answered.result()) == ["a"]
    assert waiting.waiting(orders.queue.id) == 4_999
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    assert waiting.waiting(orders.queue.id) == 0


async def test_as_many_messages_wake_as_many_receivers(orders: Desk) -> None:
    polls = [await orders.poll(count=1) for _ in range(5)]
    for number in range(3):
        await orders.send(str(number))
    await until(lambda: sum(poll.done() for poll in polls) == 3)
    await quiet(orders.service)
    assert [poll.done() for poll in polls] == [True] * 3 + [False] * 2
    assert sorted(body for poll in polls[:3] for body in bodies(poll.result())) == ["0", "1", "2"]
    for poll in polls[3:]:
        poll.cancel()


async def test_a_receiver_that_was_overtaken_waits_on_at_the_front_with_the_time_it_has_left(
    orders: Desk, clock: ManualClock
) -> None:
    first, second = await orders.poll(wait_s=10), await orders.poll(wait_s=20)
    clock.advance(seconds=4)
    waiting = orders.service.waiting
    orders.service.messages_available(orders.queue.id, 1)  # the message was taken before it could look
    assert waiting.waiting(orders.queue.id) == 1
    await until(lambda: waiting.waiting(orders.queue.id) == 2)  # however long its look takes
    await orders.send("a")
    assert bodies(await first) == ["a"]
    assert not second.done()
    third = await orders.poll(wait_s=20)
    orders.service.messages_available(orders.queue.id, 1)
    await until(lambda: waiting.waiting(orders.queue.id) == 2)
    clock.advance(seconds=16)
    assert await second == []
    assert not third.done()
    third.cancel()


async def test_a_message_that_arrives_between_the_look_and_the_wait_is_not_missed(orders: Desk) -> None:
    held = HeldAnswers(orders.service)
    poll = asyncio.create_task(orders.receive(wait_s=20))
    await until(lambda: held.claimed == [])  # it has seen nothing, and does not wait yet
    await orders.send("a")
    held.let_go()
    assert bodies(await poll) == ["a"]


async def test_a_cancelled_waiter_hands_its_wake_up_on(orders: Desk) -> None:
    first, second = await orders.poll(), await orders.poll()
    # Woken and cancelled in the same turn of the loop, before it could run.
    orders.service.messages_available(orders.queue.id, 1)
    looks = Looks(orders.service)
    first.cancel()
    await until(first.done)
    await quiet(orders.service)
    assert first.cancelled()
    assert looks.count == 1
    await orders.send("a")
    assert bodies(await second) == ["a"]


async def test_a_waiter_cancelled_before_the_message_came_takes_no_wake_up_with_it(orders: Desk) -> None:
    first, second = await orders.poll(), await orders.poll()
    first.cancel()
    await orders.send("a")
    assert bodies(await second) == ["a"]


async def test_a_woken_receiver_that_the_store_fails_hands_its_wake_up_on(orders: Desk) -> None:
    first, second = await orders.poll(), await orders.poll()
    receive = orders.service.store.receive

    async def fail_once(*args: object, **given: object) -> list[StoredMessage]:
        orders.service.store.receive = receive  # type: ignore[method-assign]
        raise StoreError("disk trouble")

    orders.service.store.receive = fail_once  # type: ignore[method-assign]
    await orders.send("a")
    with pytest.raises(StoreError):
        await first
    assert bodies(await second) == ["a"]


async def test_deleting_the_queue_ends_its_polls_with_queue_missing(orders: Desk, service: Service) -> None:
    other = await open_desk(service, "other")
    poll, elsewhere = await orders.poll(), await other.poll()
    await delete_queue(service, orders.queue)
    with pytest.raises(QueueMissing):
        await poll
    assert not elsewhere.done()
    elsewhere.cancel()


async def test_a_poll_that_was_looking_when_the_queue_went_ends_with_queue_missing(orders: Desk) -> None:
    held = HeldAnswers(orders.service)
    poll = asyncio.create_task(orders.receive(wait_s=20))
    await until(lambda: held.claimed == [])
    await delete_queue(orders.service, orders.queue)
    held.let_go()
    with pytest.raises(QueueMissing):
        await poll


async def test_stopping_ends_every_poll_with_nothing(orders: Desk) -> None:
    polls = [await orders.poll() for _ in range(3)]
    await orders.service.stop()
    assert await asyncio.gather(*polls) == [[], [], []]


async def test_the_in_flight_limit_is_an_error_to_a_short_poll_and_a_wait_to_a_long_one(
    orders: Desk, clock: ManualClock
) -> None:
    receive = orders.service.store.receive

    async def full(*args: object, **given: object) -> list[StoredMessage]:
        raise InFlightLimit(120_000)

    orders.service.store.receive = full  # type: ignore[method-assign]
    with pytest.raises(InFlightLimit):
        await orders.receive(wait_s=0)
    first, second = await orders.poll(count=1), await orders.poll(count=1)
    clock.advance(seconds=5)
    await until(lambda: orders.service.waiting.waiting(orders.queue.id) == 2)
    assert not first.done() and not second.done()
    orders.service.store.receive = receive  # type: ignore[method-assign]
    await orders.send("a")
    await orders.send("b")
    clock.advance(seconds=1)
    assert sorted(bodies(await first) + bodies(await second)) == ["a", "b"]


async def test_a_receiver_that_met_the_limit_wakes_the_next_when_it_is_over(
    orders: Desk, clock: ManualClock
) -> None:
    receive = orders.service.store.receive
    looks = 0

    async def full(*args: object, **given: object) -> list[StoredMessage]:
        nonlocal looks
        looks += 1
        raise InFlightLimit(120_000)

    first, second = await orders.poll(count=1), await orders.poll(count=1)
    orders.service.store.receive = full  # type: ignore[method-assign]
    for number, body in enumerate("ab", 1):  # both wake the first, which sits down at the front each time
        await orders.send(body)
        await until(lambda number=number: looks == number)  # type: ignore[misc]
        await until(lambda: orders.service.waiting.waiting(orders.queue.id) == 2)
    orders.service.store.receive = receive  # type: ignore[method-assign]
    clock.advance(seconds=1)
    assert bodies(await first) == ["a"]
    assert bodies(await second) == ["b"]


async def test_a_long_poll_on_a_full_queue_ends_with_nothing(orders: Desk, clock: ManualClock) -> None:
    async def full(*args: object, **given: object) -> list[StoredMessage]:
        raise InFlightLimit(120_000)

    orders.service.store.receive = full  # type: ignore[method-assign]
    poll = await orders.poll(wait_s=3)
    for _ in range(3):
        clock.advance(seconds=1)
        await quiet(orders.service)
    assert await poll == []
