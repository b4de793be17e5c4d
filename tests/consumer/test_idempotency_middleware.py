"""What is sent, or delivered, twice is handled once."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.handler_kit import a_message, text
from veil.consumer.handlers.running import HandlingSettings
from veil.consumer.handlers.table import HandlerTable
from veil.consumer.idempotency import Claim, Claimed, Holder, IdempotencyStore, Idempotent, SqliteIdempotency
from veil.consumer.lease import Lease
from veil.consumer.message import Message
from veil.consumer.outcomes import DeadLetter, Delete, Discard, Outcome, Release, RetryAfter


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteIdempotency]:
    made = SqliteIdempotency(tmp_path / "keys.db")
    yield made
    await made.close()


class Shop:
    """A table with one handler that keeps a list of what it did."""

    def __init__(self, store: IdempotencyStore, **options: Any) -> None:
        self.done: list[Any] = []
        self.fail: BaseException | None = None
        self.table = HandlerTable(
            HandlingSettings(has_dead_letters=True, random=lambda: 0.0), on_failure={ValueError: Discard()}
        )
        self.table.use(Idempotent(store, **options))

        @self.table.handler
        async def handle(order: dict[str, Any]) -> None:
            if self.fail:
                raise self.fail
            self.done.append(order)

    async def call(self, message: Message) -> Outcome | None:
        handler = self.table.pick(message)
        assert handler is not None
        return await handler.call(message)  # type: ignore[arg-type,return-value]


def an_order(number: object = 7, **more: Any) -> Message:
    return a_message(json.dumps({"order_id": number}), **more)


async def test_a_duplicate_is_deleted_and_not_handled_again(store: SqliteIdempotency) -> None:
    shop = Shop(store, key="$.order_id")
    assert await shop.call(an_order(id="m-1")) == Delete()
    assert await shop.call(an_order(id="m-2")) == Delete()
    assert await shop.call(an_order(id="m-1", receive_count=2)) == Delete()
    assert shop.done == [{"order_id": 7}]


async def test_other_keys_are_handled(store: SqliteIdempotency) -> None:
    shop = Shop(store, key="$.order_id")
    for number in (7, "7", 8, True):
        await shop.call(an_order(number))
    assert len(shop.done) == 4


async def test_by_message_id_a_second_send_is_another_message(store: SqliteIdempotency) -> None:
    shop = Shop(store)
    await shop.call(an_order(id="m-1"))
    await shop.call(an_order(id="m-1", receive_count=2))
    await shop.call(an_order(id="m-2"))
    assert len(shop.done) == 2


async def test_a_function_may_give_the_key(store: SqliteIdempotency) -> None:
    shop = Shop(store, key=lambda message: message.attributes["request"].value)
    await shop.call(an_order(1, attributes={"request": text("r")}))
    await shop.call(an_order(2, attributes={"request": text("r")}))
    assert shop.done == [{"order_id": 1}]


async def test_queues_and_types_have_keys_of_their_own_unless_joined(store: SqliteIdempotency) -> None:
    apart, joined = Shop(store, key="$.order_id"), Shop(store, key="$.order_id", namespace="shop")
    messages = [
        an_order(attributes={"type": text(kind)}, queue=queue) for kind in "ab" for queue in ("x", "y")
    ]
    for message in messages:
        await apart.call(message)
        await joined.call(message)
    assert len(apart.done) == 4
    assert len(joined.done) == 1


async def test_a_failure_frees_the_key(store: SqliteIdempotency) -> None:
    shop = Shop(store, key="$.order_id")
    shop.fail = ValueError()
    assert await shop.call(an_order(id="m-1")) == Discard()
    shop.fail = None
    assert await shop.call(an_order(id="m-2")) == Delete()
    assert len(shop.done) == 1


async def test_an_outcome_other_than_done_frees_the_key(store: SqliteIdempotency) -> None:
    table, calls = HandlerTable(), []
    table.use(Idempotent(store))

    @table.handler
    async def handle(body: str) -> Outcome:
        calls.append(1)
        return Release()

    (handler,) = table.handlers
    for count in (1, 2):
        assert await handler.call(a_message(receive_count=count)) == Release()  # type: ignore[arg-type]
    assert len(calls) == 2


async def test_a_key_in_progress_elsewhere_makes_the_message_wait(store: SqliteIdempotency) -> None:
    shop = Shop(store, key="$.order_id", in_progress_ttl_s=20)
    await store.claim("orders/:7", Holder("somebody-else", 1), hold_ms=20_000)
    outcome = await shop.call(an_order())
    assert isinstance(outcome, RetryAfter)
    assert 1 <= outcome.seconds <= 20
    assert not shop.done


async def test_a_redelivery_takes_over_from_the_holder_that_vanished(store: SqliteIdempotency) -> None:
    shop = Shop(store, key="$.order_id")
    await store.claim("orders/:7", Holder("m-1", 1), hold_ms=43_200_000)
    assert await shop.call(an_order(id="m-1", receive_count=2)) == Delete()
    assert len(shop.done) == 1


async def test_a_handler_that_ends_after_its_lease_was_lost_does_not_mark_its_successors_work_as_done(
    store: SqliteIdempotency,
) -> None:
    table = HandlerTable()
    table.use(Idempotent(store))

    @table.handler
    async def handle(body: str, lease: Lease) -> None:
        await store.claim("orders/:m-1", Holder("m-1", 2), hold_ms=60_000)
        lease.lose("taken over")

    (handler,) = table.handlers
    assert await handler.call(a_message()) is None  # type: ignore[arg-type]
    assert await store.finish("orders/:m-1", Holder("m-1", 2), keep_ms=1_000)


async def test_a_cancellation_keeps_the_claim_for_the_next_delivery(store: SqliteIdempotency) -> None:
    table, began = HandlerTable(), asyncio.Event()
    table.use(Idempotent(store, key="$.order_id"))

    @table.handler
    async def handle(order: dict[str, Any]) -> None:
        began.set()
        await asyncio.Event().wait()

    (handler,) = table.handlers
    task = asyncio.create_task(handler.call(an_order(id="m-1")))  # type: ignore[arg-type]
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    shop = Shop(store, key="$.order_id")
    assert isinstance(await shop.call(an_order(id="m-2")), RetryAfter)
    assert await shop.call(an_order(id="m-1", receive_count=2)) == Delete()


# ---- the store is down


class Down:
    """A store that cannot be reached, from a certain step on."""

    def __init__(self, store: IdempotencyStore, *steps: str) -> None:
        self._store, self._steps = store, steps
        self.tried: list[str] = []

    def _try(self, step: str) -> None:
        self.tried.append(step)
        if step in self._steps:
            raise ConnectionError("the store is down")

    async def claim(self, key: str, holder: Holder, *, hold_ms: int) -> Claim:
        self._try("claim")
        return await self._store.claim(key, holder, hold_ms=hold_ms)

    async def finish(self, key: str, holder: Holder, *, keep_ms: int) -> bool:
        self._try("finish")
        return await self._store.finish(key, holder, keep_ms=keep_ms)

    async def give_up(self, key: str, holder: Holder) -> None:
        self._try("give_up")
        await self._store.give_up(key, holder)

    async def close(self) -> None: ...


async def test_while_the_store_is_down_nothing_is_handled_and_everything_tried_again(
    store: SqliteIdempotency, caplog: Any
) -> None:
    shop = Shop(Down(store, "claim"))
    assert await shop.call(an_order()) == RetryAfter(5)
    assert await shop.call(an_order(receive_count=3)) == RetryAfter(20)
    assert not shop.done
    assert "the idempotency store cannot be asked" in caplog.text


async def test_work_that_is_done_is_not_done_again_because_it_could_not_be_noted(
    store: SqliteIdempotency,
) -> None:
    down = Down(store, "finish")
    shop = Shop(down, key="$.order_id")
    assert await shop.call(an_order(id="m-1")) == Delete()
    assert down.tried == ["claim", "finish", "finish"]
    # A duplicate still waits behind the claim that was never finished.
    assert isinstance(await shop.call(an_order(id="m-2")), RetryAfter)
    assert len(shop.done) == 1


async def test_a_claim_that_cannot_be_given_up_does_not_hide_the_failure(store: SqliteIdempotency) -> None:
    shop = Shop(Down(store, "give_up"))
    shop.fail = ValueError()
    assert await shop.call(an_order()) == Discard()


# ---- keys


@pytest.mark.parametrize("body", ["{}", "[]", "no json", '{"order_id": null}', '{"order_id": {"a": 1}}'])
async def test_a_message_without_its_key_is_poison(store: SqliteIdempotency, body: str) -> None:
    outcome = await Shop(store, key="$.order_id").call(a_message(body))
    assert isinstance(outcome, DeadLetter)
    assert "$.order_id for its idempotency key" in outcome.reason


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("$.a.b", {"a": {"b": 1}}),
        ("$.a[1].b", {"a": [0, {"b": 1}]}),
        ("$.order-id", {"order-id": 1}),
        ("$[0]", [1]),
        ("$.a", {"specversion": "1.0", "type": "t", "data": {"a": 1}}),
    ],
)
async def test_a_path_leads_into_the_payload(store: SqliteIdempotency, path: str, body: Any) -> None:
    from veil.consumer.idempotency import key_of

    assert key_of(path)(a_message(json.dumps(body))) == "1"


@pytest.mark.parametrize("path", ["order_id", "$", "$.", "$..a", "$.a[x]", "$.a b", ""])
def test_a_path_that_is_none_is_refused_at_once(path: str, store: SqliteIdempotency) -> None:
    with pytest.raises(ValueError, match="expected a path like"):
        Idempotent(store, key=path)


@pytest.mark.parametrize("setting", ["ttl_s", "in_progress_ttl_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "7d"])
def test_a_length_that_cannot_work_is_refused(store: SqliteIdempotency, setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"Idempotent: {setting} is"):
        Idempotent(store, **{setting: value})


@pytest.mark.parametrize("store", [None, "keys.db", SqliteIdempotency])
def test_what_is_no_store_is_refused(store: Any) -> None:
    with pytest.raises(TypeError, match="expected a store"):
        Idempotent(store)


async def test_a_long_key_is_kept_as_its_digest(store: SqliteIdempotency) -> None:
    shop = Shop(store, key="$.order_id")
    await shop.call(an_order("x" * 5_000, id="m-1"))
    await shop.call(an_order("x" * 5_000, id="m-2"))
    await shop.call(an_order("x" * 4_999, id="m-3"))
    assert len(shop.done) == 2


# ---- batches


async def test_in_a_batch_what_was_done_or_is_busy_is_left_out(store: SqliteIdempotency) -> None:
    table, seen = HandlerTable(HandlingSettings(random=lambda: 0.0)), []
    table.use(Idempotent(store, key="$.order_id"))

    @table.handler(batch=10)
    async def handle(orders: list[dict[str, Any]], messages: list[Message]) -> list[Message]:
        seen.append([order["order_id"] for order in orders])
        return messages[-1:]

    (handler,) = table.handlers
    await store.claim("orders/:1", Holder("x", 1), hold_ms=60_000)
    await store.finish("orders/:1", Holder("x", 1), keep_ms=60_000)
    await store.claim("orders/:2", Holder("x", 1), hold_ms=60_000)
    bodies = [{"order_id": 1}, {"order_id": 2}, {"order_id": 3}, {"order_id": 3}, {}, {"order_id": 4}]
    messages = [a_message(json.dumps(body), id=f"m-{n}") for n, body in enumerate(bodies)]
    outcomes = await handler.call(messages)  # type: ignore[arg-type]
    assert seen == [[3, 4]]
    assert outcomes == [Delete(), RetryAfter(30), Delete(), RetryAfter(30), RetryAfter(5), RetryAfter(5)]
    # What failed is free again, what was done is not.
    assert await store.claim("orders/:4", Holder("y", 1), hold_ms=1) == Claimed()
    assert await handler.call([a_message('{"order_id": 3}', id="m-9")]) == [Delete()]  # type: ignore[arg-type]
    assert len(seen) == 1


async def test_in_a_batch_of_a_fifo_queue_what_follows_one_that_waits_is_not_handled(
    store: SqliteIdempotency,
) -> None:
    table, seen = HandlerTable(), []
    table.use(Idempotent(store, key="$.order_id"))

    @table.handler(batch=10)
    async def handle(orders: list[dict[str, Any]]) -> None:
        seen.extend(order["order_id"] for order in orders)

    (handler,) = table.handlers
    await store.claim("orders.fifo/:1", Holder("x", 1), hold_ms=60_000)
    members = [("a", 1), ("b", 2), ("a", 3)]
    messages = [an_order(n, id=f"m-{n}", group=group, queue="orders.fifo") for group, n in members]
    assert await handler.call(messages) == [RetryAfter(30), Delete(), Release()]  # type: ignore[arg-type]
    assert seen == [2]


async def test_a_batch_that_fails_frees_its_keys(store: SqliteIdempotency) -> None:
    table, calls = HandlerTable(on_failure=Discard()), []
    table.use(Idempotent(store))

    @table.handler(batch=10)
    async def handle(messages: list[Message]) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError

    (handler,) = table.handlers
    assert await handler.call([a_message()]) == [Discard()]  # type: ignore[arg-type]
    assert await handler.call([a_message()]) == [Delete()]  # type: ignore[arg-type]
