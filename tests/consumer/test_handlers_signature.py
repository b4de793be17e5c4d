"""What a function may ask for, and how it is told that it cannot be a handler."""

import functools
from typing import Any

import msgspec
import pytest

from veil.consumer.handlers.payload import HandlerRefused
from veil.consumer.handlers.signature import Asked, read_signature
from veil.consumer.handlers.table import HandlerTable
from veil.consumer.lease import Lease
from veil.consumer.message import Message


class Order(msgspec.Struct):
    id: int


class Stranger:
    pass


def called(function: Any, *, batch: bool = False) -> dict[str, Any]:
    """By which parameter each thing arrives."""
    signature = read_signature(function, batch=batch)
    args, kwargs = signature.arguments("payload", "message", "lease")
    bound = __import__("inspect").signature(function).bind(*args, **kwargs)
    return dict(bound.arguments)


def test_payload_message_and_lease_come_in_any_order() -> None:
    def one(order: Order) -> None: ...
    def two(lease: Lease, order: Order) -> None: ...
    def three(message: Message, order: Order, lease: Lease) -> None: ...
    def by_name(order: Order, *, lease: Lease, message: Message) -> None: ...
    def by_place(order: Order, lease: Lease, /) -> None: ...

    assert called(one) == {"order": "payload"}
    assert called(two) == {"lease": "lease", "order": "payload"}
    assert called(three) == {"message": "message", "order": "payload", "lease": "lease"}
    assert called(by_name) == {"order": "payload", "lease": "lease", "message": "message"}
    assert called(by_place) == {"order": "payload", "lease": "lease"}


def test_a_message_alone_is_enough() -> None:
    def handle(message: Message) -> None: ...

    assert called(handle) == {"message": "message"}
    assert read_signature(handle).decoder is None


def test_a_parameter_with_a_default_keeps_it_but_a_lease_is_given_all_the_same() -> None:
    def handle(order: Order, limit: int = 5, db: Any = None, lease: Lease | None = None) -> None: ...

    assert called(handle) == {"order": "payload", "lease": "lease"}


def test_bound_arguments_methods_and_objects_are_handlers_too() -> None:
    def with_db(db: object, order: Order) -> None: ...
    def with_db_named(order: Order, db: object) -> None: ...

    class Shop:
        async def ship(self, order: Order) -> None: ...
        async def __call__(self, order: Order, lease: Lease) -> None: ...

    assert called(functools.partial(with_db, object())) == {"order": "payload"}
    assert called(functools.partial(with_db_named, db=1)) == {"order": "payload"}
    assert called(Shop().ship) == {"order": "payload"}
    assert called(Shop()) == {"order": "payload", "lease": "lease"}
    assert read_signature(Shop()).is_async
    assert read_signature(functools.partial(Shop().ship)).is_async
    assert read_signature(Shop().ship).name.endswith("Shop.ship")
    assert not read_signature(functools.partial(with_db, 1)).is_async


def test_annotations_in_quotes_are_read() -> None:
    def handle(order: "Order", lease: "Lease | None") -> None: ...

    assert read_signature(handle).by_place == (Asked.PAYLOAD, Asked.LEASE)


def no_parameter() -> None: ...
def only_a_lease(lease: Lease) -> None: ...
def two_payloads(order: Order, note: str) -> None: ...
def no_annotation(order) -> None: ...  # type: ignore[no-untyped-def]
def any_number(*orders: Order) -> None: ...
def any_names(**orders: Order) -> None: ...
def a_stranger(order: Stranger) -> None: ...
def a_list_of_messages(messages: list[Message]) -> None: ...
def a_generator(order: Order):  # type: ignore[no-untyped-def]
    yield order


async def an_async_generator(order: Order):  # type: ignore[no-untyped-def]
    yield order


def not_importable(order: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def misspelt(order: "list[") -> None: ...  # type: ignore[name-defined]  # noqa: F722
def behind_a_default(order: Order, limit: int = 5, lease: Lease | None = None, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_parameter, "no parameter asks for the payload, expected one of a pydantic model"),
        (only_a_lease, "no parameter asks for the payload"),
        (two_payloads, "parameters 'order' and 'note' both ask for the payload, expected one"),
        (no_annotation, "parameter 'order' has no annotation, expected one of a pydantic model"),
        (any_number, "parameter '*orders: "),
        (any_names, "parameter '**orders: "),
        (a_stranger, "parameter 'order': Stranger is no payload type, expected a pydantic model"),
        (
            a_list_of_messages,
            "parameter 'messages' is list[Message], expected Message in a handler of single",
        ),
        (a_generator, "is a generator"),
        (an_async_generator, "is a generator"),
        (not_importable, "an annotation cannot be read: name 'Nowhere' is not defined"),
        (misspelt, "an annotation cannot be read: Forward reference must be an expression"),
        (behind_a_default, "parameter 'lease' is positional-only behind one with a default"),
        (Stranger, "is a class"),
        (3, "cannot be called"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_in_one_line_that_names_it(function: Any, words: str) -> None:
    with pytest.raises(HandlerRefused) as refused:
        HandlerTable().handler(function)
    said = str(refused.value)
    assert words in said
    assert "\n" not in said
    assert said.startswith("handler ")
    if hasattr(function, "__name__"):
        assert function.__name__ in said


def orders_only(orders: list[Order]) -> None: ...
def messages_only(messages: list[Message]) -> None: ...
def all_three(orders: list[Order], messages: list[Message], leases: list[Lease]) -> None: ...
def not_a_list(order: Order) -> None: ...
def one_message(orders: list[Order], message: Message) -> None: ...
def a_bare_list(orders: list) -> None: ...  # type: ignore[type-arg]


def test_a_batch_handler_takes_lists() -> None:
    assert called(orders_only, batch=True) == {"orders": "payload"}
    assert called(messages_only, batch=True) == {"messages": "message"}
    assert called(all_three, batch=True) == {"orders": "payload", "messages": "message", "leases": "lease"}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (not_a_list, "parameter 'order' of a batch handler must be a list[…] of"),
        (a_bare_list, "parameter 'orders' of a batch handler must be a list[…] of"),
        (one_message, "parameter 'message' is Message, expected list[Message] in a batch handler"),
    ],
)
def test_a_batch_handler_that_takes_no_lists_is_refused(function: Any, words: str) -> None:
    with pytest.raises(HandlerRefused) as refused:
        HandlerTable().handler(batch=10)(function)
    assert words in str(refused.value)


@pytest.mark.parametrize("batch", [0, -1, True, 2.5, 10_001])
def test_a_batch_of_no_size_is_refused(batch: Any) -> None:
    with pytest.raises(HandlerRefused, match="batch is"):
        HandlerTable().handler(batch=batch)(orders_only)


def test_a_single_handler_may_ask_for_a_list_that_is_one_payload() -> None:
    assert called(orders_only) == {"orders": "payload"}
