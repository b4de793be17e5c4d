"""Who asked is handed through to the journal, by every operation that changes a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.service.kit import HeldAnswers, quiet, until
from tests.stores.journal_kit import A_CALLER, exported
from tests.stores.kit import a_key
from veil.core.clock import ManualClock
from veil.core.message_rules import Draft
from veil.core.queue import RedrivePolicy
from veil.service.messages import delete, extend_lease, purge, send
from veil.service.moves import start_move
from veil.service.queues import create_queue, delete_queue
from veil.service.receive import give_back, receipt_text, receive
from veil.service.service import Service
from veil.stores.memory import MemoryStore


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    clock = ManualClock()
    service = Service(MemoryStore(clock, journal=True), clock)
    await service.start()
    yield service
    await service.stop()


async def told_by(service: Service) -> set[tuple[str, str]]:
    """The kinds of the events since the last look, each with the key id of who asked."""
    return {(event.kind, event.caller.key_id) for event in await exported(service.store)}


async def test_every_operation_names_who_asked(service: Service) -> None:
    queue = await create_queue(service, a_key("orders"), {}, {})
    for _ in range(3):
        await send(service, queue, [Draft("x")], sender="", caller=A_CALLER)
    messages = await receive(service, queue, count=2, visibility_s=30, wait_s=0, caller=A_CALLER)
    first, second = (receipt_text(service, queue, message) for message in messages)
    await extend_lease(service, queue, [(first, 60), (second, 0)], caller=A_CALLER)
    await delete(service, queue, [first, first], caller=A_CALLER)
    await purge(service, queue, caller=A_CALLER)
    await extend_lease(service, queue, [(second, 60)], caller=A_CALLER)

    kinds = ("sent", "received", "extended", "released", "deleted", "delete_refused", "purged")
    assert await told_by(service) == {(kind, A_CALLER.key_id) for kind in (*kinds, "extension_refused")}


async def test_a_deleted_queue_names_who_deleted_it(service: Service) -> None:
    queue = await create_queue(service, a_key("orders"), {}, {})
    await send(service, queue, [Draft("x")], sender="")
    await exported(service.store)
    await delete_queue(service, queue, caller=A_CALLER)
    assert await told_by(service) == {("purged", A_CALLER.key_id)}


async def test_what_is_given_back_names_who_had_received_it(service: Service) -> None:
    queue = await create_queue(service, a_key("orders"), {}, {})
    await send(service, queue, [Draft("x")], sender="")
    messages = await receive(service, queue, count=1, visibility_s=30, wait_s=0)
    await exported(service.store)
    give_back(service, queue, messages, caller=A_CALLER)
    await quiet(service)
    assert await told_by(service) == {("undone", A_CALLER.key_id)}


async def test_a_receiver_that_left_is_named_by_what_it_gave_back(service: Service) -> None:
    queue = await create_queue(service, a_key("orders"), {}, {})
    await send(service, queue, [Draft("x")], sender="")
    await exported(service.store)
    held = HeldAnswers(service)
    receiver = asyncio.create_task(
        receive(service, queue, count=1, visibility_s=30, wait_s=0, caller=A_CALLER)
    )
    await until(lambda: held.claimed is not None)
    receiver.cancel()
    held.let_go()
    await quiet(service)
    assert await told_by(service) == {("received", A_CALLER.key_id), ("undone", A_CALLER.key_id)}


async def test_what_a_move_task_moves_names_who_started_it(service: Service) -> None:
    dead = await create_queue(service, a_key("dead"), {}, {})
    policy = RedrivePolicy(a_key("dead"), 1)
    queue = await create_queue(service, a_key("orders"), {"redrive": policy}, {})
    await send(service, queue, [Draft("x")], sender="")
    for _ in range(2):
        await receive(service, queue, count=1, visibility_s=0, wait_s=0)
    await exported(service.store)
    await start_move(service, dead.key.arn, None, None, account=dead.key.account, caller=A_CALLER)
    await quiet(service)
    assert await told_by(service) == {("redriven", A_CALLER.key_id), ("sent", A_CALLER.key_id)}
