"""What the service notes for those who look: rates, callers, and who holds which lease."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from veil.core.clock import ManualClock
from veil.core.message import Caller
from veil.core.message_rules import Draft
from veil.core.queue import Queue, QueueKey
from veil.service import activity as activity_module
from veil.service.activity import Activity
from veil.service.messages import delete, extend_lease, purge, send
from veil.service.queues import create_queue, delete_queue
from veil.service.receive import give_back, receipt_text, receive
from veil.service.service import Service
from veil.stores.memory import MemoryStore

ANN = Caller("1", "ANN", "ann/1", "10.0.0.1")
BOB = Caller("1", "BOB", "bob/1", "10.0.0.2")


class Scene:
    """A queue that is watched."""

    def __init__(self, service: Service, clock: ManualClock, queue: Queue) -> None:
        self.service, self.clock, self.queue = service, clock, queue
        self.activity: Activity = service.watch()

    async def send(self, count: int) -> None:
        await send(self.service, self.queue, [Draft("x") for _ in range(count)], sender="1", caller=ANN)

    async def receive(self, caller: Caller, count: int = 10, visibility_s: int = 30) -> list[str]:
        self.messages = await receive(
            self.service, self.queue, count=count, visibility_s=visibility_s, wait_s=0, caller=caller
        )
        return [receipt_text(self.service, self.queue, message) for message in self.messages]

    def consumer(self, caller: Caller) -> activity_module.Consumer:
        (found,) = [each for each in self.activity.consumers() if each.caller == caller]
        return found


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock = ManualClock()
    service = Service(MemoryStore(clock), clock)
    await service.start()
    queue = await create_queue(service, QueueKey("r", "1", "orders"), {}, {})
    yield Scene(service, clock, queue)
    await service.stop()


async def test_what_happens_is_counted_in_the_bucket_of_its_time(scene: Scene):
    scene.clock.advance(5_000 - scene.clock.now_ms() % 5_000)
    await scene.send(3)
    scene.clock.advance(seconds=5)
    await scene.send(2)
    assert scene.activity.fine("sent", scene.queue.id, 4) == [0, 0, 3, 2]
    scene.clock.advance(seconds=10)
    assert scene.activity.fine("sent", scene.queue.id, 4) == [3, 2, 0, 0]
    scene.clock.advance(seconds=600)
    assert sum(scene.activity.fine("sent", scene.queue.id)) == 0
    assert sum(scene.activity.coarse("sent", scene.queue.id)) == 5
    scene.clock.advance(seconds=4 * 3600)
    await scene.send(1)
    assert sum(scene.activity.coarse("sent", scene.queue.id)) == 1


async def test_counters_are_whole_whether_or_not_they_were_looked_at(scene: Scene):
    await scene.send(3)
    scene.activity.tick()
    await scene.send(2)
    assert scene.service.tallies.of("sent", scene.queue.id) == 5
    assert scene.service.tallies.totals() == [("sent", scene.queue.id, 5)]


async def test_the_holder_of_a_lease_is_known_with_its_renewals(scene: Scene):
    await scene.send(1)
    (receipt,) = await scene.receive(ANN)
    scene.clock.advance(seconds=10)
    await extend_lease(scene.service, scene.queue, [(receipt, 60)], caller=ANN)

    (message,) = await scene.service.store.peek(scene.queue)
    holder = scene.activity.holder(scene.queue.id, message)

    assert holder is not None and holder.caller == ANN
    assert (holder.renewals, holder.last_renewed_ms) == (1, scene.clock.now_ms())
    assert holder.received_at_ms == scene.clock.now_ms() - 10_000
    assert scene.consumer(ANN).in_flight == 1


async def test_the_next_receiver_is_the_holder_and_the_last_one_let_it_lapse(scene: Scene):
    await scene.send(1)
    (receipt,) = await scene.receive(ANN)
    await extend_lease(scene.service, scene.queue, [(receipt, 30)], caller=ANN)
    scene.clock.advance(seconds=31)
    await scene.receive(BOB)

    (message,) = await scene.service.store.peek(scene.queue)
    holder = scene.activity.holder(scene.queue.id, message)

    assert holder is not None and (holder.caller, holder.renewals) == (BOB, 0)
    ann, bob = scene.consumer(ANN), scene.consumer(BOB)
    assert (ann.lapses, ann.in_flight, ann.renewals) == (1, 0, 1)
    assert (bob.lapses, bob.in_flight) == (0, 1)


async def test_a_lapse_is_seen_when_somebody_looks_though_nobody_receives(scene: Scene):
    await scene.send(1)
    await scene.receive(ANN)
    scene.clock.advance(seconds=31)
    assert (scene.consumer(ANN).lapses, scene.consumer(ANN).in_flight) == (1, 0)
    assert scene.consumer(ANN).lapses == 1


async def test_deleted_released_and_given_back_are_no_lapses(scene: Scene):
    await scene.send(3)
    deleted, released, _ = await scene.receive(ANN)
    await delete(scene.service, scene.queue, [deleted], caller=ANN)
    await extend_lease(scene.service, scene.queue, [(released, 0)], caller=ANN)
    give_back(scene.service, scene.queue, scene.messages[2:], caller=ANN)
    while scene.consumer(ANN).in_flight:
        import asyncio

        await asyncio.sleep(0)
    scene.clock.advance(seconds=31)
    ann = scene.consumer(ANN)
    assert (ann.received, ann.deleted, ann.released, ann.lapses, ann.polls) == (3, 1, 1, 0, 1)


async def test_a_purge_and_the_end_of_a_queue_end_its_leases(scene: Scene):
    await scene.send(1)
    await scene.receive(ANN)
    await purge(scene.service, scene.queue)
    assert (scene.consumer(ANN).in_flight, scene.consumer(ANN).lapses) == (0, 0)
    await scene.send(1)
    await scene.receive(ANN)
    await delete_queue(scene.service, scene.queue)
    assert (scene.consumer(ANN).in_flight, scene.consumer(ANN).lapses) == (0, 0)
    assert sum(scene.activity.fine("sent", scene.queue.id)) == 0


async def test_what_is_remembered_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(activity_module, "LEASES_MAX", 20)
    monkeypatch.setattr(activity_module, "CONSUMERS_MAX", 3)
    await scene.send(60)
    for number in range(6):
        scene.clock.advance(1)
        await scene.receive(Caller("1", str(number)))
    found = scene.activity.consumers()
    assert [each.caller.key_id for each in found] == ["5", "4", "3"]
    assert sum(each.in_flight for each in found) <= 30
