"""Dependencies of handlers, and what is open while a consumer runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from tests.consumer.handler_kit import a_message
from veil import Consumer, Delete, Depends, Lease, Message, SettingsError
from veil.consumer.handlers.payload import HandlerRefused
from veil.consumer.handlers.running import HandlingSettings
from veil.consumer.handlers.table import HandlerTable
from veil.testing import ConsumerHarness, VeilServer

steps: list[str] = []


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    steps.clear()
    yield


def transaction() -> Iterator[str]:
    steps.append(f"begin {threading.current_thread() is threading.main_thread()}")
    try:
        yield "transaction"
    except ValueError:
        steps.append("rollback")
        raise
    else:
        steps.append("commit")


async def session(within: Annotated[str, Depends(transaction)], message: Message) -> AsyncIterator[str]:
    yield f"session of {message.id} in {within}"
    steps.append("session closed")


def tenant(message: Message, *, prefix: str = "tenant") -> str:
    return f"{prefix} {message.queue}"


async def outcome_of(function: Any, **settings: Any) -> Any:
    table = HandlerTable(HandlingSettings())
    table.handler(**settings)(function) if settings else table.handler(function)
    (handler,) = table.handlers
    if settings:
        return await handler.call([a_message('{"id": 7}')])
    return await handler.call(a_message('{"id": 7}'))


async def test_each_message_gets_its_own_and_they_are_closed_behind_it_in_turn() -> None:
    async def ship(
        order: dict[str, Any],
        opened: Annotated[str, Depends(session)],
        again: Annotated[str, Depends(transaction)],
        lease: Lease,
        whose: str = Depends(tenant),  # type: ignore[assignment]
    ) -> None:
        steps.append(f"{order['id']} {opened}, {again}, {whose}, {lease.message_id}")

    assert await outcome_of(ship) == Delete()
    assert steps == [
        "begin False",  # sync: in a thread; and once, though two ask for it
        "7 session of m-1 in transaction, transaction, tenant orders, m-1",
        "session closed",
        "commit",
    ]


async def test_a_dependency_is_told_of_the_error_and_the_message_comes_back() -> None:
    def ship(order: dict[str, Any], opened: Annotated[str, Depends(transaction)]) -> None:
        raise ValueError("no")

    assert await outcome_of(ship) != Delete()
    assert steps == ["begin False", "rollback"]


async def test_an_error_that_a_dependency_swallows_is_still_one() -> None:
    def forgiving() -> Iterator[None]:
        try:
            yield
        except ValueError:
            steps.append("swallowed")

    async def ship(order: dict[str, Any], nothing: Any = Depends(forgiving)) -> None:  # noqa: B008
        raise ValueError("no")

    assert await outcome_of(ship) != Delete()
    assert steps == ["swallowed"]


async def test_a_dependency_that_fails_is_a_failure_of_the_attempt_and_the_handler_is_not_called() -> None:
    async def broken() -> str:
        raise OSError("the database is away")

    async def ship(order: dict[str, Any], opened: Any = Depends(broken)) -> None:  # noqa: B008
        steps.append("called")

    assert await outcome_of(ship) != Delete()
    assert steps == []


async def test_batch_handlers_have_them_once_a_batch() -> None:
    def many(messages: list[Message]) -> str:
        return f"{len(messages)} messages"

    async def ship(orders: list[dict[str, Any]], told: Any = Depends(many)) -> None:  # noqa: B008
        steps.append(told)

    assert await outcome_of(ship, batch=10) == [Delete()]
    assert steps == ["1 messages"]


class Repository:
    def __init__(self, message: Message) -> None:
        self.key = message.id


class Numbers:
    async def __call__(self) -> int:
        return 7


async def test_classes_and_objects_that_are_called_can_be_depended_on() -> None:
    async def ship(
        order: dict[str, Any],
        repository: Annotated[Repository, Depends(Repository)],
        number: Annotated[int, Depends(Numbers())],
        made: Annotated[int, Depends(int)],
    ) -> None:
        steps.append(f"{repository.key} {number} {made}")

    assert await outcome_of(ship) == Delete()
    assert steps == ["m-1 7 0"]


def test_what_cannot_be_given_is_refused_when_the_handler_is_decorated() -> None:
    def wants(order: dict[str, Any]) -> None: ...

    for function, words in (
        (wants, "parameter 'order' of the dependency"),
        (needs_itself, "circle: needs_itself needs"),
    ):

        def ship(order: dict[str, Any], made: Any = Depends(function)) -> None: ...  # noqa: B008

        with pytest.raises(HandlerRefused, match=words):
            HandlerTable(HandlingSettings()).handler(ship)


def needs_itself(other: Any = None) -> None: ...


needs_itself.__defaults__ = (Depends(needs_itself),)


pool = threading.Semaphore(1)


def connection() -> Iterator[None]:
    assert pool.acquire(timeout=20)  # waits for somebody who needs a thread to give it back
    yield
    pool.release()


async def test_dependencies_in_threads_that_wait_for_each_other_have_a_thread_for_each_slot() -> None:
    app = Consumer("orders", concurrency=40)

    @app.handler
    async def ship(body: str, within: Annotated[None, Depends(connection)]) -> None: ...

    async with ConsumerHarness(app) as harness:
        for number in range(80):
            await harness.send(str(number))
        await harness.settle()
        assert len(harness.deleted) == 80


async def test_a_lifespan_is_open_before_the_first_message_and_closed_after_the_last(
    veil_server: VeilServer,
) -> None:
    @asynccontextmanager
    async def lifespan(app: Consumer) -> AsyncIterator[None]:
        app.state.pool = "pool"
        steps.append("open")
        yield
        steps.append("closed")

    await asyncio.to_thread(veil_server.client().create_queue, QueueName="spanned")
    app = Consumer("spanned", endpoint=veil_server.endpoint_url, lifespan=lifespan)

    @app.handler
    async def ship(body: str) -> None:
        steps.append(f"{body} with {app.state.pool}")
        await asyncio.sleep(0.05)
        steps.append("handled")

    await app.asend("x")
    async with app:
        while "x with pool" not in steps:
            await asyncio.sleep(0.01)
    assert steps == ["open", "x with pool", "handled", "closed"]


async def test_a_lifespan_that_fails_is_told_and_nothing_is_received(veil_server: VeilServer) -> None:
    @asynccontextmanager
    async def lifespan(app: Consumer) -> AsyncIterator[None]:
        raise OSError("the database is away")
        yield

    app = Consumer("nowhere", endpoint=veil_server.endpoint_url, lifespan=lifespan)

    @app.handler
    async def ship(body: str) -> None: ...

    with pytest.raises(OSError, match="the database is away"):
        await app.start()


async def test_a_lifespan_that_is_no_context_manager_is_named(veil_server: VeilServer) -> None:
    async def lifespan(app: Consumer) -> AsyncIterator[None]:
        yield

    app = Consumer("nowhere", endpoint=veil_server.endpoint_url, lifespan=lifespan)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"lifespan=.*lifespan.*@asynccontextmanager"):
        await app.start()


class Shop:
    async def __call__(self) -> str:
        return "open"


async def test_a_class_may_be_asked_for_although_its_objects_can_be_awaited() -> None:
    async def ship(order: dict[str, Any], shop: Annotated[Shop, Depends(Shop)]) -> None:
        steps.append(await shop())

    assert await outcome_of(ship) == Delete()
    assert steps == ["open"]
