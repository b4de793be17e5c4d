"""From a message to what shall become of it: one handler, called."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.consumer.handler_kit import ManualTime, a_message, as_logged
from veil.consumer.handlers.running import HandlingSettings
from veil.consumer.handlers.table import Handler, HandlerTable
from veil.consumer.lease import Lease
from veil.consumer.message import Message, current_message
from veil.consumer.outcomes import (
    DeadLetter,
    Delete,
    Discard,
    Fatal,
    LetExpire,
    Outcome,
    Reject,
    Release,
    Retry,
    RetryAfter,
)


class Order(msgspec.Struct):
    id: int


def a_handler(
    function: Callable[..., Any], settings: HandlingSettings | None = None, **options: Any
) -> Handler:
    table = HandlerTable(settings)
    table.handler(**options)(function)
    (made,) = table.handlers
    assert isinstance(made, Handler)
    return made


async def test_a_message_that_was_handled_is_deleted_and_a_line_tells_how_long_it_took(caplog: Any) -> None:
    time = ManualTime()
    seen: list[Any] = []

    async def ship(order: Order, lease: Lease, message: Message) -> None:
        seen.append((order, lease, message))
        time.advance(1.5)

    message = a_message('{"id": 7}')
    with caplog.at_level(logging.DEBUG, "veil.consumer"):
        assert await a_handler(ship, HandlingSettings(monotonic=time)).call(message) == Delete()
    assert seen == [(Order(7), message.lease, message)]
    (record,) = caplog.records
    assert record.getMessage().endswith("ship took 1.500 s; message m-1, receive 1")
    assert record.facts["seconds"] == 1.5


async def test_a_sync_function_runs_in_the_threads_it_was_given() -> None:
    threads: list[str] = []

    def ship(order: Order) -> None:
        threads.append(threading.current_thread().name)

    with ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        handler = a_handler(ship, HandlingSettings(executor=executor))
        assert await handler.call(a_message('{"id": 7}')) == Delete()
    assert threads == ["mine_0"]


async def test_a_sync_function_sees_the_context_of_its_message() -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")
    seen: list[Any] = []

    def ship(body: str) -> None:
        seen.append((request.get(), current_message()))

    request.set("r-1")
    message = a_message()
    await a_handler(ship).call(message)
    assert seen == [("r-1", message)]
    assert current_message() is None


@pytest.mark.parametrize("outcome", [Release(), Discard(), LetExpire(), RetryAfter(9), DeadLetter("why")])
async def test_a_handler_may_return_the_outcome(outcome: Outcome) -> None:
    async def ship(body: str) -> Outcome:
        return outcome

    assert await a_handler(ship).call(a_message()) == outcome


async def test_any_other_result_is_ignored() -> None:
    async def ship(body: str) -> bool:
        return False

    assert await a_handler(ship).call(a_message()) == Delete()


@pytest.mark.parametrize("returned", [LetExpire, Retry, Retry(after_s=60), Reject("no")], ids=repr)
async def test_what_was_meant_to_be_made_or_raised_does_not_delete_the_message(returned: Any) -> None:
    async def ship(body: str) -> Any:
        return returned

    assert isinstance(await a_handler(ship).call(a_message()), RetryAfter)


async def test_a_coroutine_that_nobody_awaited_does_not_delete_the_message(caplog: Any) -> None:
    async def really() -> None: ...

    async def ship(body: str) -> Any:
        return really()

    assert isinstance(await a_handler(ship).call(a_message()), RetryAfter)
    assert "await" in caplog.text


async def test_a_sync_function_that_only_makes_a_coroutine_does_not_delete_the_message(caplog: Any) -> None:
    async def really() -> None: ...

    def ship(body: str) -> Any:
        return really()

    assert isinstance(await a_handler(ship).call(a_message()), RetryAfter)
    assert "declare it async" in caplog.text


async def test_a_sync_function_that_raises_stop_iteration_fails_and_does_not_hang() -> None:
    def ship(body: str) -> None:
        next(iter(()))

    # What a coroutine makes of it, so that sync and async functions fail alike.
    handler = a_handler(ship, on_failure={RuntimeError: Discard()})
    assert await asyncio.wait_for(handler.call(a_message()), 60) == Discard()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_handler_that_ends_the_process_stops_the_consumer(kind: type[BaseException]) -> None:
    def sync(body: str) -> None:
        raise kind("enough")

    async def not_sync(body: str) -> None:
        raise kind("enough")

    for function in (sync, not_sync):
        outcome = await a_handler(function, on_failure=Discard()).call(a_message())
        assert isinstance(outcome, Fatal)
        assert "enough" in outcome.reason


# ---- poison


async def test_an_undecodable_payload_goes_to_the_dead_letters_when_there_are_any() -> None:
    async def ship(order: Order) -> None:
        raise AssertionError("never called")

    handler = a_handler(ship, HandlingSettings(has_dead_letters=True))
    outcome = await handler.call(a_message("{}"))
    assert isinstance(outcome, DeadLetter)
    assert outcome.reason == "payload is not Order: Object missing required field `id`"
    assert outcome.handler == handler.name
    assert outcome.error is not None


async def test_without_dead_letters_poison_is_left_to_expire() -> None:
    async def ship(order: Order) -> None: ...

    assert await a_handler(ship).call(a_message("{}")) == LetExpire()


async def test_what_becomes_of_poison_can_be_set_for_all_and_for_one_handler() -> None:
    async def ship(order: Order) -> None: ...

    settings = HandlingSettings(has_dead_letters=True, on_poison=Discard())
    assert await a_handler(ship, settings).call(a_message("{}")) == Discard()
    assert await a_handler(ship, settings, on_poison=Release()).call(a_message("{}")) == Release()


async def test_poison_is_no_failure_of_the_handler() -> None:
    async def ship(order: Order) -> None: ...

    handler = a_handler(ship, HandlingSettings(on_poison=Release()), on_failure=Discard())
    assert await handler.call(a_message("{}")) == Release()


# ---- the lost lease


async def test_an_async_handler_is_cancelled_when_its_lease_is_lost_and_nothing_becomes_of_it() -> None:
    began, cleaned = asyncio.Event(), asyncio.Event()

    async def ship(body: str) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    message = a_message()
    task = asyncio.create_task(a_handler(ship).call(message))
    await began.wait()
    threading.Thread(target=message.lease.lose, args=("taken over",)).start()
    assert await task is None
    assert cleaned.is_set()
    assert task.cancelling() == 0


async def test_a_sync_handler_sees_that_its_lease_is_lost_and_its_result_is_not_kept() -> None:
    began, loop = asyncio.Event(), asyncio.get_running_loop()
    seen: list[bool] = []

    def ship(body: str, lease: Lease) -> None:
        loop.call_soon_threadsafe(began.set)
        seen.append(lease.wait_lost(30))

    message = a_message()
    task = asyncio.create_task(a_handler(ship).call(message))
    await began.wait()
    message.lease.lose("taken over")
    assert await task is None
    assert seen == [True]


async def test_a_handler_can_choose_to_be_told_instead_of_cancelled() -> None:
    lost = asyncio.Event()
    ended: list[bool] = []

    async def ship(body: str, lease: Lease) -> None:
        lease.lose("taken over")
        lost.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ended.append(lease.lost)

    assert await a_handler(ship, cancel_when_lost=False).call(a_message()) is None
    assert ended == [True]


async def test_a_message_whose_lease_is_already_lost_is_not_begun() -> None:
    async def ship(body: str) -> None:
        raise AssertionError("begun")

    message = a_message()
    message.lease.lose("waited too long")
    assert await a_handler(ship).call(message) is None


async def test_a_handler_that_ignores_its_cancellation_does_not_confuse_what_follows() -> None:
    async def ship(body: str, lease: Lease) -> None:
        lease.lose("taken over")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # swallowed

    async def call_then_go_on() -> Outcome | None:
        outcome = await a_handler(ship).call(a_message())
        await asyncio.sleep(0)  # a cancellation left behind would strike here
        return outcome

    assert await asyncio.create_task(call_then_go_on()) is None


async def test_a_lease_lost_after_the_handler_has_ended_cancels_nobody() -> None:
    async def ship(body: str) -> None: ...

    message = a_message()
    assert await a_handler(ship).call(message) == Delete()
    message.lease.lose("late")
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_an_error_of_a_handler_that_lost_its_lease_decides_nothing() -> None:
    def ship(body: str, lease: Lease) -> None:
        lease.lose("taken over")
        raise RuntimeError("stopped because the lease is lost")

    assert await a_handler(ship, on_failure=Discard()).call(a_message()) is None


async def test_a_cancellation_from_outside_goes_through() -> None:
    began = asyncio.Event()

    async def ship(body: str) -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(a_handler(ship, on_failure=Discard()).call(a_message()))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_goes_through_even_when_the_lease_is_lost_as_well() -> None:
    began = asyncio.Event()

    async def ship(body: str) -> None:
        began.set()
        await asyncio.Event().wait()

    message = a_message()
    task = asyncio.create_task(a_handler(ship).call(message))
    await began.wait()
    message.lease.lose("taken over")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_handler_whose_own_helper_was_cancelled_has_failed() -> None:
    async def ship(body: str) -> None:
        helper = asyncio.create_task(asyncio.Event().wait())
        helper.cancel()
        await helper

    assert (
        await a_handler(ship, on_failure={asyncio.CancelledError: Discard()}).call(a_message()) == Discard()
    )


# ---- what is told


class Told:
    def __init__(self) -> None:
        self.all: list[tuple[str, Outcome | None, float]] = []

    def handled(self, message: Message, handler: str, outcome: Outcome | None, seconds: float) -> None:
        self.all.append((handler, outcome, seconds))


async def test_the_observer_is_told_of_every_ending_with_its_time() -> None:
    time, told = ManualTime(), Told()

    async def ship(body: str) -> None:
        time.advance(2.5)
        if body == "bad":
            raise ValueError

    settings = HandlingSettings(observer=told.handled, monotonic=time)
    handler = a_handler(ship, settings, on_failure=Discard(), name="ship")
    for body in ("good", "bad"):
        await handler.call(a_message(body, time=time))
    lost = a_message()
    lost.lease.lose("gone")
    await handler.call(lost)
    assert told.all == [("ship", Delete(), 2.5), ("ship", Discard(), 2.5), ("ship", None, 0.0)]


async def test_an_observer_that_fails_does_not_fail_the_message() -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("no room")

    async def ship(body: str) -> None: ...

    assert await a_handler(ship, HandlingSettings(observer=broken)).call(a_message()) == Delete()


async def test_a_failure_is_logged_with_the_facts_of_the_message_and_without_its_body(caplog: Any) -> None:
    async def ship(body: str) -> None:
        raise ValueError("no stock")

    with caplog.at_level(logging.INFO, "veil.consumer"):
        await a_handler(ship, on_failure=Discard(), name="ship").call(a_message("secret", receive_count=4))
    (record,) = caplog.records
    assert (
        record.getMessage()
        == "handler ship failed: ValueError: no stock; outcome discard; message m-1, receive 4"
    )
    assert (record.message_id, record.queue, record.receive_count) == ("m-1", "orders", 4)
    assert record.facts["outcome"] == "discard"
    assert "secret" not in caplog.text
    assert "Traceback" in as_logged(caplog.records)
