"""Several messages at once, and which of them failed."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.consumer.handler_kit import a_message, as_logged
from veil.consumer.handlers.running import CallNext, CallNextBatch, HandlingSettings
from veil.consumer.handlers.table import BatchHandler, HandlerTable
from veil.consumer.lease import Lease
from veil.consumer.message import Message
from veil.consumer.outcomes import DeadLetter, Delete, Discard, LetExpire, Outcome, Release, RetryAfter


class Order(msgspec.Struct):
    id: int


def a_batch_handler(
    function: Callable[..., Any], table: HandlerTable | None = None, **options: Any
) -> BatchHandler:
    table = table or HandlerTable(on_failure=options.pop("on_failure", Discard()))
    table.handler(batch=10, **options)(function)
    made = table.handlers[-1]
    assert isinstance(made, BatchHandler)
    return made


def three(bodies: Sequence[str] = ('{"id": 1}', '{"id": 2}', '{"id": 3}'), **more: Any) -> list[Message]:
    return [a_message(body, id=f"m-{number}", **more) for number, body in enumerate(bodies, 1)]


DONE, BAD = Delete(), Discard()


async def test_payloads_messages_and_leases_come_side_by_side() -> None:
    seen: list[Any] = []

    async def ship(orders: list[Order], messages: list[Message], leases: list[Lease]) -> None:
        seen.extend(zip(orders, messages, leases, strict=True))

    messages = three()
    assert await a_batch_handler(ship).call(messages) == [DONE, DONE, DONE]
    assert seen == [(Order(n), message, message.lease) for n, message in enumerate(messages, 1)]


async def test_a_sync_batch_handler_runs_in_a_thread() -> None:
    threads: list[Any] = []

    def ship(messages: list[Message]) -> list[str]:
        threads.append(threading.current_thread())
        return [messages[0].id]

    assert await a_batch_handler(ship).call(three()) == [BAD, DONE, DONE]
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, [DONE, DONE, DONE]),
        ([], [DONE, DONE, DONE]),
        ({}, [DONE, DONE, DONE]),
        (["m-2"], [DONE, BAD, DONE]),
        ({"m-1", "m-3"}, [BAD, DONE, BAD]),
        ({"batchItemFailures": []}, [DONE, DONE, DONE]),
        ({"batchItemFailures": None}, [DONE, DONE, DONE]),
        ({"batchItemFailures": [{"itemIdentifier": "m-3"}]}, [DONE, DONE, BAD]),
    ],
)
async def test_the_answer_says_which_failed(answer: Any, expected: list[Outcome]) -> None:
    async def ship(orders: list[Order]) -> Any:
        return answer

    assert await a_batch_handler(ship).call(three()) == expected


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (["m-2", "nobody"], "named 'nobody' as failed, expected ids of its 3 messages"),
        ({"batchItemFailures": [{"itemIdentifier": ""}]}, "named '' as failed"),
        ({"batchItemFailures": [{"itemIdentifier": None}]}, "returned dict, expected None, a list"),
        ({"batchItemFailures": "m-1"}, "returned dict"),
        ({"failures": []}, "returned dict"),
        ([Order(1)], "returned Order"),
        (True, "returned bool"),
        ("m-1", "returned str"),
    ],
)
async def test_an_answer_that_cannot_be_understood_fails_all_and_says_so(
    answer: Any, words: str, caplog: Any
) -> None:
    async def ship(orders: list[Order]) -> Any:
        return answer

    assert await a_batch_handler(ship).call(three()) == [BAD, BAD, BAD]
    assert words in caplog.text
    assert "all are taken as failed" in caplog.text


async def test_failed_messages_may_be_named_as_messages() -> None:
    async def ship(messages: list[Message]) -> list[Message]:
        failed = messages[1:2]
        messages.clear()  # the list is the handler's own
        return failed

    assert await a_batch_handler(ship).call(three()) == [DONE, BAD, DONE]


async def test_an_exception_fails_all_and_its_trace_is_told_once(caplog: Any) -> None:
    async def ship(orders: list[Order]) -> None:
        raise ConnectionError("down")

    handler = a_batch_handler(ship, on_failure={ConnectionError: RetryAfter(7)})
    assert await handler.call(three()) == [RetryAfter(7)] * 3
    assert as_logged(caplog.records).count("Traceback") == 1


async def test_poison_fails_alone() -> None:
    seen: list[Order] = []

    async def ship(orders: list[Order]) -> list[str]:
        seen.extend(orders)
        return ["m-3"]

    table = HandlerTable(HandlingSettings(has_dead_letters=True), on_failure=Discard())
    outcomes = await a_batch_handler(ship, table).call(three(['{"id": 1}', "nonsense", '{"id": 3}']))
    assert outcomes[0] == DONE
    assert isinstance(outcomes[1], DeadLetter)
    assert outcomes[2] == BAD
    assert seen == [Order(1), Order(3)]


async def test_poison_stays_poison_when_the_rest_fails() -> None:
    async def ship(orders: list[Order]) -> None:
        raise ConnectionError

    table = HandlerTable(HandlingSettings(on_poison=LetExpire()), on_failure=Discard())
    outcomes = await a_batch_handler(ship, table).call(three(["nonsense", '{"id": 2}', '{"id": 3}']))
    assert outcomes == [LetExpire(), BAD, BAD]


async def test_nothing_is_called_for_a_batch_of_poison() -> None:
    async def ship(orders: list[Order]) -> None:
        raise AssertionError("called")

    assert await a_batch_handler(ship).call(three(["a", "b", "c"])) == [LetExpire()] * 3


async def test_in_a_fifo_queue_what_follows_poison_in_its_group_waits_and_other_groups_go_on() -> None:
    seen: list[int] = []

    async def ship(orders: list[Order]) -> None:
        seen.extend(order.id for order in orders)

    members = [("a", '{"id": 1}'), ("a", "nonsense"), ("b", '{"id": 3}'), ("a", '{"id": 4}')]
    messages = [
        a_message(body, id=f"m-{number}", group=group, queue="orders.fifo")
        for number, (group, body) in enumerate(members)
    ]
    assert await a_batch_handler(ship).call(messages) == [DONE, LetExpire(), DONE, Release()]
    assert seen == [1, 3]


async def test_a_batch_goes_on_until_every_lease_is_lost() -> None:
    began, go_on, cancelled = asyncio.Event(), asyncio.Event(), []

    async def ship(messages: list[Message]) -> None:
        began.set()
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    messages = three()
    task = asyncio.create_task(a_batch_handler(ship).call(messages))
    await began.wait()
    messages[0].lease.lose("taken over")
    messages[1].lease.lose("taken over")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    go_on.set()
    assert await task == [None, None, DONE]
    assert not cancelled

    messages, go_on = three(), asyncio.Event()
    began.clear()
    task = asyncio.create_task(a_batch_handler(ship).call(messages))
    await began.wait()
    for message in messages:
        message.lease.lose("taken over")
    assert await task == [None, None, None]
    assert cancelled


async def test_what_was_lost_before_is_left_out() -> None:
    seen: list[int] = []

    async def ship(orders: list[Order]) -> None:
        seen.extend(order.id for order in orders)

    messages = three()
    messages[1].lease.lose("waited too long")
    assert await a_batch_handler(ship).call(messages) == [DONE, None, DONE]
    assert seen == [1, 3]


async def test_a_middleware_for_batches_is_around_the_batch_and_one_for_messages_is_not() -> None:
    steps: list[Any] = []

    class Both:
        async def __call__(self, message: Message, call_next: CallNext) -> Outcome:
            raise AssertionError("called for a single message")

        async def call_batch(self, messages: Sequence[Message], call_next: CallNextBatch) -> list[Outcome]:
            steps.append(len(messages))
            return [Release(), *await call_next(messages[1:])]

    async def ship(orders: list[Order]) -> None:
        steps.append([order.id for order in orders])

    table = HandlerTable()
    table.use(Both())
    assert await a_batch_handler(ship, table).call(three()) == [Release(), DONE, DONE]
    assert steps == [3, [2, 3]]


@pytest.mark.parametrize("answer", [None, [], [Delete()], [None, None, None]])
async def test_a_batch_middleware_that_answers_nonsense_fails_the_batch(answer: Any) -> None:
    class Broken:
        async def __call__(self, message: Message, call_next: CallNext) -> Outcome:
            return await call_next(message)

        async def call_batch(self, messages: Sequence[Message], call_next: CallNextBatch) -> Any:
            return answer

    async def ship(orders: list[Order]) -> None: ...

    table = HandlerTable(on_failure=Discard())
    table.use(Broken())
    assert await a_batch_handler(ship, table).call(three()) == [BAD, BAD, BAD]
