"""Whom a message is for, and what runs around it."""

import json
from typing import Any

import pytest

from tests.consumer.handler_kit import a_message, text
from veil.consumer.handlers.payload import HandlerRefused, HandlingCancelled
from veil.consumer.handlers.running import CallNext, HandlingSettings, MiddlewareRefused
from veil.consumer.handlers.table import HandlerTable
from veil.consumer.lease import Lease
from veil.consumer.message import Message
from veil.consumer.outcomes import DeadLetter, Delete, Discard, LetExpire, Outcome, Release, RetryAfter


def typed(kind: str) -> Message:
    return a_message(attributes={"type": text(kind)})


async def created(body: str) -> None: ...
async def paid(body: str) -> None: ...
async def anything(body: str) -> None: ...


def test_the_type_chooses_and_the_untyped_handler_takes_the_rest() -> None:
    table = HandlerTable()
    table.handler(type="order.created")(created)
    table.handler(type=["order.paid", "order.settled"])(paid)
    table.handler(anything)

    def chosen(message: Message) -> Any:
        handler = table.pick(message)
        return handler and handler.function

    assert chosen(typed("order.created")) is created
    assert chosen(typed("order.paid")) is chosen(typed("order.settled")) is paid
    assert chosen(typed("order.lost")) is anything
    assert chosen(a_message("no type")) is anything
    assert chosen(a_message(json.dumps({"specversion": "1.0", "type": "order.paid"}))) is paid
    assert len(table.handlers) == 3


def test_the_decorated_function_is_still_itself() -> None:
    table = HandlerTable()
    assert table.handler(created) is created
    assert table.handler(type="x")(paid) is paid


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "created handles all messages already; give one of them a type"),
        ({"type": "order.created"}, "created handles type 'order.created' already"),
        ({"type": ""}, "type is '', expected a message type or several"),
        ({"type": []}, "type is [], expected"),
        ({"type": [None]}, "type is [None], expected"),
        ({"type": 5}, "type is 5, expected a message type or several"),
        ({"type": "x", "on_poison": LetExpire}, "on_poison is <class"),
    ],
)
def test_two_handlers_for_one_type_and_options_that_cannot_work_are_refused(
    options: dict[str, Any], words: str
) -> None:
    table = HandlerTable()
    table.handler(created)
    table.handler(type="order.created", name="created")(created)
    with pytest.raises(HandlerRefused) as refused:
        table.handler(**options)(paid)
    assert words in str(refused.value)


def test_a_message_for_nobody_is_poison_unless_said_otherwise() -> None:
    table = HandlerTable(HandlingSettings(has_dead_letters=True))
    table.handler(type="a")(created)
    assert table.pick(typed("b")) is None
    assert table.unhandled(typed("b")) == DeadLetter("no handler for messages of type 'b'")
    assert HandlerTable().unhandled(a_message()) == LetExpire()
    assert HandlerTable(on_unknown="ignore").unhandled(typed("b")) == Discard()
    assert HandlerTable(on_unknown=Release()).unhandled(typed("b")) == Release()
    with pytest.raises(ValueError, match="on_unknown is 'drop', expected 'poison', 'ignore' or an Outcome"):
        HandlerTable(on_unknown="drop")


def test_the_table_knows_whether_threads_are_needed() -> None:
    def sync(body: str) -> None: ...

    table = HandlerTable()
    table.handler(type="a")(created)
    assert not table.has_sync
    table.handler(sync)
    assert table.has_sync


# ---- middleware


async def called(table: HandlerTable, message: Message) -> Outcome | None:
    handler = table.pick(message)
    assert handler is not None
    return await handler.call(message)  # type: ignore[arg-type,return-value]


async def test_the_first_registered_is_the_outermost_whether_before_or_after_the_handler() -> None:
    table, steps = HandlerTable(), []

    def named(name: str) -> Any:
        async def middleware(message: Message, call_next: CallNext) -> Outcome:
            steps.append(f"{name} in")
            outcome = await call_next(message)
            steps.append(f"{name} out")
            return outcome

        return middleware

    table.use(named("one"))

    @table.handler
    async def handle(body: str) -> None:
        steps.append("handler")

    table.use(named("two"))
    table.use(named("span"), outermost=True)
    assert await called(table, a_message()) == Delete()
    assert steps == ["span in", "one in", "two in", "handler", "two out", "one out", "span out"]


async def test_a_middleware_may_answer_in_the_handlers_place() -> None:
    table = HandlerTable()

    @table.handler
    async def handle(body: str) -> None:
        raise AssertionError("called")

    @table.use
    async def closed(message: Message, call_next: CallNext) -> Outcome:
        return RetryAfter(60)

    assert await called(table, a_message()) == RetryAfter(60)


async def test_a_middleware_sees_the_error_and_the_policy_judges_what_it_lets_through() -> None:
    table, seen = HandlerTable(on_failure={ValueError: Discard(), KeyError: Release()}), []

    @table.handler
    async def handle(body: str) -> None:
        raise ValueError(body)

    @table.use
    async def translate(message: Message, call_next: CallNext) -> Outcome:
        try:
            return await call_next(message)
        except ValueError as error:
            seen.append(str(error))
            if message.body == "key":
                raise KeyError from error
            raise

    assert await called(table, a_message("value")) == Discard()
    assert await called(table, a_message("key")) == Release()
    assert seen == ["value", "key"]


async def test_a_middleware_that_forgets_to_answer_does_not_lose_the_message(caplog: Any) -> None:
    table = HandlerTable()
    table.handler(anything)

    @table.use
    async def forgetful(message: Message, call_next: CallNext) -> Any:
        await call_next(message)

    assert isinstance(await called(table, a_message()), RetryAfter)
    assert "a middleware returned None, expected an Outcome" in caplog.text


async def test_a_middleware_learns_of_a_lost_lease_but_cannot_overrule_it() -> None:
    table, seen = HandlerTable(), []

    @table.handler
    async def handle(body: str, lease: Lease) -> None:
        import asyncio

        lease.lose("taken over")
        await asyncio.Event().wait()

    @table.use
    async def stubborn(message: Message, call_next: CallNext) -> Outcome:
        try:
            return await call_next(message)
        except HandlingCancelled as error:
            seen.append(str(error))
            return Delete()

    assert await called(table, a_message()) is None
    assert seen == ["taken over"]


def test_what_cannot_be_a_middleware_is_refused() -> None:
    with pytest.raises(MiddlewareRefused, match="expected async def \\(message, call_next\\) -> Outcome"):
        HandlerTable().use(lambda message, call_next: call_next(message))


def test_a_class_in_place_of_its_object_is_refused_as_a_middleware() -> None:
    class Timed:
        async def __call__(self, message: Message, call_next: CallNext) -> Outcome:
            return await call_next(message)

    with pytest.raises(MiddlewareRefused, match="Timed"):
        HandlerTable().use(Timed)  # type: ignore[arg-type]
    HandlerTable().use(Timed())
