"""What the service notes for those who look: rates, callers, and who holds which lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.stores.journal_kit import exported
from veil.core.attempt import Said
from veil.core.clock import ManualClock, TroubleKind
from veil.core.message import Caller
from veil.core.message_rules import Draft
from veil.core.queue import Queue, QueueKey, RedrivePolicy
from veil.service import attempts as attempts_module
from veil.service.activity import Activity
from veil.service.attempts import Consumer
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

    def consumer(self, caller: Caller) -> Consumer:
        (found,) = [each for each in self.activity.attempts.consumers() if each.caller == caller]
        return found


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    clock = ManualClock()
    service = Service(MemoryStore(clock), clock)
    await service.start()
    queue = await create_queue(service, QueueKey("r", "1", "orders"), {}, {})
    yield Scene(service, clock, queue)
    await service.stop()


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
    holder = scene.activity.attempts.holder(scene.queue.id, message)

    assert holder is not None and holder.caller == ANN
    assert (holder.renewals, holder.last_renewed_ms) == (1, scene.clock.now_ms())
    assert holder.received_at_ms == scene.clock.now_ms() - 10_000
    assert scene.consumer(ANN).in_progress == 1


async def test_the_next_receiver_is_the_holder_and_the_last_one_let_it_lapse(scene: Scene):
    await scene.send(1)
    (receipt,) = await scene.receive(ANN)
    await extend_lease(scene.service, scene.queue, [(receipt, 30)], caller=ANN)
    scene.clock.advance(seconds=31)
    await scene.receive(BOB)

    (message,) = await scene.service.store.peek(scene.queue)
    holder = scene.activity.attempts.holder(scene.queue.id, message)

    assert holder is not None and (holder.caller, holder.renewals) == (BOB, 0)
    ann, bob = scene.consumer(ANN), scene.consumer(BOB)
    assert (ann.outcomes.get("unknown", 0), ann.in_progress, ann.renewals) == (1, 0, 1)
    assert (bob.outcomes.get("unknown", 0), bob.in_progress) == (0, 1)


async def test_a_lapse_is_seen_when_somebody_looks_though_nobody_receives(scene: Scene):
    await scene.send(1)
    await scene.receive(ANN)
    scene.clock.advance(seconds=31)
    assert (scene.consumer(ANN).outcomes.get("unknown", 0), scene.consumer(ANN).in_progress) == (1, 0)
    assert scene.consumer(ANN).outcomes.get("unknown", 0) == 1


async def test_deleted_released_and_given_back_are_no_lapses(scene: Scene):
    await scene.send(3)
    deleted, released, _ = await scene.receive(ANN)
    await delete(scene.service, scene.queue, [deleted], caller=ANN)
    await extend_lease(scene.service, scene.queue, [(released, 0)], caller=ANN)
    give_back(scene.service, scene.queue, scene.messages[2:], caller=ANN)
    while scene.consumer(ANN).in_progress:
        await asyncio.sleep(0)
    scene.clock.advance(seconds=31)
    ann = scene.consumer(ANN)
    assert (ann.received, ann.outcomes, ann.polls) == (3, {"completed": 1, "given_back": 1, "undone": 1}, 1)


async def test_a_purge_and_the_end_of_a_queue_end_its_leases(scene: Scene):
    await scene.send(1)
    await scene.receive(ANN)
    await purge(scene.service, scene.queue)
    assert (scene.consumer(ANN).in_progress, scene.consumer(ANN).outcomes.get("unknown", 0)) == (0, 0)
    await scene.send(1)
    await scene.receive(ANN)
    await delete_queue(scene.service, scene.queue)
    assert (scene.consumer(ANN).in_progress, scene.consumer(ANN).outcomes.get("unknown", 0)) == (0, 0)
    assert scene.activity.history.is_quiet(scene.queue.id)


async def test_what_is_remembered_is_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attempts_module, "LEASES_MAX", 20)
    monkeypatch.setattr(attempts_module, "CONSUMERS_MAX", 3)
    await scene.send(60)
    for number in range(6):
        scene.clock.advance(1)
        await scene.receive(Caller("1", str(number)))
    found = scene.activity.attempts.consumers()
    assert [each.caller.key_id for each in found] == ["5", "4", "3"]
    assert sum(each.in_progress for each in found) <= 30


# ---- what came of attempts


FAILED = Said("failed", "shop.NoStock", "none left")


async def test_a_failed_attempt_waits_for_its_retry_and_is_in_nobodys_hands(scene: Scene):
    await scene.send(2)
    failed, _ = await scene.receive(ANN)
    await extend_lease(scene.service, scene.queue, [(failed, 600)], caller=ANN, said=[FAILED])

    ann = scene.consumer(ANN)
    assert (ann.in_progress, ann.waiting, ann.outcomes, ann.renewals) == (1, 1, {"failed": 1}, 0)
    assert scene.activity.attempts.waiting(scene.queue.id) == 1
    messages = await scene.service.store.peek(scene.queue)
    first, second = (scene.activity.attempts.holder(scene.queue.id, message) for message in messages)
    assert first is not None and second is not None
    assert (first.outcome, first.said, second.outcome) == ("failed", FAILED, None)
    assert [(each.outcome, each.said) for each in ann.recent] == [("failed", FAILED)]

    scene.clock.advance(seconds=601)
    ann = scene.consumer(ANN)
    # Its backoff ended, which is no lapse; the other one's lease lapsed.
    assert (ann.waiting, ann.outcomes) == (0, {"failed": 1, "unknown": 1})
    assert scene.activity.attempts.waiting(scene.queue.id) == 0


async def test_less_time_than_was_left_is_a_give_back_until_it_is_renewed(scene: Scene):
    await scene.send(1)
    (receipt,) = await scene.receive(ANN, visibility_s=600)
    await extend_lease(scene.service, scene.queue, [(receipt, 30)], caller=ANN)
    assert (scene.consumer(ANN).waiting, scene.service.tallies.of("extended", scene.queue.id)) == (1, 0)
    await extend_lease(scene.service, scene.queue, [(receipt, 60)], caller=ANN)
    assert (scene.consumer(ANN).in_progress, scene.consumer(ANN).waiting) == (1, 0)


async def noted(scene: Scene) -> list[str]:
    """Let a second of the server's life pass, and tell what the journal has learned of holders."""
    scene.clock.advance(seconds=1)
    while scene.service._background:
        await asyncio.sleep(0)
    told = await exported(scene.service.store)
    return [event.kind for event in told if event.kind.startswith("holder")]


async def live(scene: Scene, seconds: int, *callers: Caller) -> list[str]:
    """So many seconds pass; the callers go on polling, and find nothing."""
    told: list[str] = []
    for _ in range(seconds):
        told += await noted(scene)
        for caller in callers:
            await receive(
                scene.service, scene.queue, count=1, visibility_s=0, wait_s=0, caller=caller, attempt_id=None
            )
    return told


@pytest.fixture
async def told_scene() -> AsyncIterator[Scene]:
    clock = ManualClock()
    service = Service(MemoryStore(clock, journal=True), clock)
    service.watch()
    await service.start()
    queue = await create_queue(service, QueueKey("r", "1", "orders"), {"delay_s": 0}, {})
    yield Scene(service, clock, queue)
    await service.stop()


async def lapsed(scene: Scene) -> str:
    """A lease of Ann's lapses, and Bob takes the message and completes it."""
    await scene.send(1)
    (receipt,) = await scene.receive(ANN, visibility_s=30)
    await live(scene, 30, BOB)
    (taken,) = await scene.receive(BOB)
    await delete(scene.service, scene.queue, [taken], caller=BOB)
    return receipt


async def test_a_holder_that_is_silent_while_others_go_on_has_crashed(told_scene: Scene):
    await lapsed(told_scene)
    assert await live(told_scene, 58, BOB) == []
    assert told_scene.consumer(ANN).outcomes == {"unknown": 1}
    assert await live(told_scene, 4, BOB) == ["holder_silent"]
    assert told_scene.consumer(ANN).outcomes == {"unknown": 0, "crashed": 1}


async def test_a_process_that_is_restarted_at_once_is_told_apart_by_its_application_id(told_scene: Scene):
    """A connection would not tell: clients close theirs at work, and proxies share them."""
    agent = "Boto3/1.44.0 md/Botocore#1.44.0 ua/2.1 os/linux app/worker-{} Botocore/1.44.0"
    before, after = (ANN._replace(user_agent=agent.format(pid)) for pid in (7, 8))
    await told_scene.send(1)
    await told_scene.receive(before, visibility_s=30)
    assert await live(told_scene, 95, after) == ["holder_silent"]
    assert told_scene.consumer(before).outcomes == {"unknown": 0, "crashed": 1}
    assert (before.worker, before.says_outcomes) == ("worker-7", False)
    # It does not say how its attempts end, whatever it calls itself.
    await told_scene.send(1)
    await told_scene.receive(after, visibility_s=30)
    assert set(await live(told_scene, 95, after)) == {"holder_seen"}


async def test_a_holder_that_goes_on_and_leaves_its_message_has_failed(told_scene: Scene):
    await lapsed(told_scene)
    assert await live(told_scene, 62, ANN, BOB) == ["holder_seen"]
    assert told_scene.consumer(ANN).outcomes == {"unknown": 0, "failed": 1}


async def test_a_holder_that_would_have_said_that_it_failed_was_still_at_work(told_scene: Scene):
    worker = ANN._replace(user_agent="veil/0.1.0 consumer host/a pid/7")
    await told_scene.send(1)
    await told_scene.receive(worker, visibility_s=30)
    assert await live(told_scene, 95, worker) == ["holder_late"]
    assert told_scene.consumer(worker).outcomes["overran"] == 1


async def test_a_holder_that_comes_late_has_overrun(told_scene: Scene):
    receipt = await lapsed(told_scene)
    await delete(told_scene.service, told_scene.queue, [receipt], caller=ANN)
    assert told_scene.consumer(ANN).outcomes == {"unknown": 0, "overran": 1}
    assert await live(told_scene, 62, BOB) == []


async def test_silence_means_nothing_while_nobody_else_is_heard(told_scene: Scene):
    await lapsed(told_scene)
    assert await live(told_scene, 200) == []
    assert told_scene.consumer(ANN).outcomes == {"unknown": 1}
    # Until somebody is.
    assert await live(told_scene, 62, BOB) == ["holder_silent"]


async def test_silence_means_nothing_while_another_node_may_have_heard_the_holder(told_scene: Scene):
    store = told_scene.service.store
    store.alone_since_ms = None
    await lapsed(told_scene)
    assert await live(told_scene, 62, BOB) == []
    # It left, but was there after the lapse.
    store.alone_since_ms = told_scene.clock.now_ms()
    assert await live(told_scene, 200, BOB) == []
    assert told_scene.consumer(ANN).outcomes == {"unknown": 1}
    # Of who lets a lease lapse from now on nobody else can have heard; and by receiving again it was heard after the first.
    await lapsed(told_scene)
    assert await live(told_scene, 62, BOB) == ["holder_seen", "holder_silent"]


async def test_silence_means_nothing_while_the_server_itself_was_away(told_scene: Scene):
    await lapsed(told_scene)
    told_scene.clock.advance(seconds=3_600)
    assert await live(told_scene, 55, BOB) == []


async def test_a_message_that_was_redriven_or_dead_lettered_has_arrived(scene: Scene):
    dead = await create_queue(scene.service, QueueKey("r", "1", "dead"), {}, {})
    redrive = RedrivePolicy(dead.key, 1)
    queue = await create_queue(scene.service, QueueKey("r", "1", "source"), {"redrive": redrive}, {})
    await send(scene.service, queue, [Draft("x")], sender="1")
    await receive(scene.service, queue, count=1, visibility_s=0, wait_s=0)
    await receive(scene.service, queue, count=1, visibility_s=0, wait_s=0)
    assert scene.service.tallies.of("arrived", dead.id) == 1


async def test_a_lease_that_the_servers_own_trouble_keeps_open_is_not_over_for_those_who_look():
    clock = ManualClock()
    store = MemoryStore(clock, lease_grace=True)
    service = Service(store, clock)
    await service.start()
    scene = Scene(service, clock, await create_queue(service, QueueKey("r", "1", "orders"), {}, {}))
    await scene.send(2)
    failing, _ = await scene.receive(ANN)
    said = Said("failed", "shop.NoStock")
    await extend_lease(service, scene.queue, [(failing, 5)], caller=ANN, said=[said])

    store.lease_time.waits(scene, TroubleKind.DISK)
    clock.advance(seconds=40)
    assert (scene.activity.attempts.waiting(scene.queue.id), scene.consumer(ANN).in_progress) == (1, 1)
    store.lease_time.answered(scene)
    await store.settle()
    clock.advance(seconds=10)
    consumer = scene.consumer(ANN)
    assert (consumer.in_progress, consumer.waiting) == (1, 1)
    assert scene.activity.attempts.waiting(scene.queue.id) == 1
    assert consumer.outcomes == {"failed": 1}
    holders = [
        scene.activity.attempts.holder(scene.queue.id, message) for message in await store.peek(scene.queue)
    ]
    assert [holder and holder.outcome for holder in holders] == ["failed", None]

    clock.advance(seconds=6)
    consumer = scene.consumer(ANN)
    assert (consumer.in_progress, consumer.waiting) == (0, 0)
    assert scene.activity.attempts.waiting(scene.queue.id) == 0
    assert consumer.outcomes == {"failed": 1, "unknown": 1}
    await service.stop()
