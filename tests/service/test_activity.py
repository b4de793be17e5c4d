"""What the service notes for those who look: rates, callers, and who holds which lease."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.journal_kit import exported
from tests.stores.kit import a_message, make_queue, receipt_of
from tests.waiting import until_async
from veil.core.attempt import ReportedOutcome
from veil.core.clock import ManualClock, TroubleKind
from veil.core.lease import HoldKey
from veil.core.message import Caller, StoredMessage
from veil.core.message_rules import Draft
from veil.core.queue import Queue, QueueKey, QueueSettings, RedrivePolicy
from veil.service import attempts as attempts_module
from veil.service.activity import Activity, Tallies
from veil.service.attempts import KnownConsumer, LiveAttempts
from veil.service.messages import delete, extend_lease, purge, send
from veil.service.queues import create_queue, delete_queue
from veil.service.receive import delete_holds, extend_holds, give_back, receipt_text, receive, receive_hold
from veil.service.service import Service
from veil.stores.memory import MemoryStore
from veil.stores.postgres import PostgresStore
from veil.stores.store import Extension

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

    def consumer(self, caller: Caller) -> KnownConsumer:
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


async def test_of_a_consumer_that_goes_from_queue_to_queue_the_latest_are_known(scene: Scene, monkeypatch):
    monkeypatch.setattr(attempts_module, "QUEUES_MAX", 3)
    for number in range(5):
        queue = await create_queue(scene.service, QueueKey("r", "1", f"reply-{number}"), {}, {})
        await receive(scene.service, queue, count=1, visibility_s=30, wait_s=0, caller=BOB)
        await delete_queue(scene.service, queue)
        await scene.receive(BOB)
    assert len(scene.consumer(BOB).queues) == 3
    assert [*scene.consumer(BOB).queues][-2:] == [queue.id, scene.queue.id]


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


async def test_what_a_stream_holds_is_renewed_and_completed_by_its_name(scene: Scene):
    # ANN is an executor, and BOB the driver that extends and deletes what all executors received.
    service, queue = scene.service, scene.queue
    await scene.send(3)
    for batch in (1, 2):
        key = HoldKey("epoch", batch, 0)
        await receive_hold(service, queue, key, count=batch, visibility_s=30, caller=ANN)
    scene.clock.advance(seconds=20)
    await extend_holds(service, queue, "epoch", "driver", 30, caller=BOB)
    scene.clock.advance(seconds=20)
    assert scene.consumer(ANN).in_progress == 3
    holder = scene.activity.attempts.holder(queue.id, (await service.store.peek(queue))[0])
    assert holder is not None
    assert (holder.caller, holder.renewals, holder.deadline_ms - scene.clock.now_ms()) == (ANN, 1, 10_000)

    await delete_holds(service, queue, "epoch", "driver", 1, caller=BOB)
    assert (scene.consumer(ANN).in_progress, dict(scene.consumer(BOB).outcomes)) == (2, {"completed": 1})
    await delete_holds(service, queue, "epoch", "driver", 2, caller=BOB)
    scene.clock.advance(seconds=60)
    assert (scene.consumer(ANN).in_progress, dict(scene.consumer(ANN).outcomes)) == (0, {})
    assert dict(scene.consumer(BOB).outcomes) == {"completed": 3}


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
    tallies = {event: scene.service.tallies.of(event, scene.queue.id) for event in ann.outcomes}
    assert tallies == {"completed": 0, "given_back": 1, "undone": 1}


async def test_a_receive_without_a_window_is_given_back_on_the_page_and_in_the_metrics(scene: Scene):
    await scene.send(2)
    await receive(scene.service, scene.queue, count=2, visibility_s=0, wait_s=0, caller=ANN)
    assert scene.consumer(ANN).outcomes == {"given_back": 2}
    assert scene.service.tallies["given_back", scene.queue.id] == 2


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


FAILED = ReportedOutcome("failed", "shop.NoStock", "none left")


async def test_a_failed_attempt_waits_for_its_retry_and_is_in_nobodys_hands(scene: Scene):
    await scene.send(2)
    failed, _ = await scene.receive(ANN)
    await extend_lease(scene.service, scene.queue, [(failed, 600)], caller=ANN, reported=[FAILED])

    ann = scene.consumer(ANN)
    assert (ann.in_progress, ann.waiting, ann.outcomes, ann.renewals) == (1, 1, {"failed": 1}, 0)
    assert scene.activity.attempts.waiting(scene.queue.id) == 1
    messages = await scene.service.store.peek(scene.queue)
    first, second = (scene.activity.attempts.holder(scene.queue.id, message) for message in messages)
    assert first is not None and second is not None
    assert (first.outcome, first.reported, second.outcome) == ("failed", FAILED, None)
    assert [(each.outcome, each.reported) for each in ann.recent] == [("failed", FAILED)]

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
    assert (before.worker, before.reports_outcomes) == ("worker-7", False)
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


# ---- what is noted of a whole receive at once

steps = st.tuples(
    st.sampled_from(["renew", "delete", "advance", "receive"]),
    st.sets(st.integers(1, 4), min_size=1),
    st.sampled_from([1, 20, 60]),
)


@given(st.lists(steps, max_size=12))
def test_leases_noted_together_come_to_what_they_come_to_one_by_one(lived: list[tuple[str, set[int], int]]):
    queue = Queue(1, QueueKey("r", "1", "orders"), QueueSettings())
    clock = ManualClock()
    together, apart = Noted(clock), Noted(clock)
    for kind, chosen, seconds in [("receive", {1, 2, 3}, 30), *lived]:
        if kind == "advance":
            clock.advance(seconds=seconds)
        elif kind == "receive":
            messages = [a_stored_message(seq, clock.now_ms()) for seq in sorted(chosen)]
            for each in (together, apart):
                each.attempts.received(queue, messages, seconds, ANN)
        elif kind == "renew":
            renewed = together.attempts.renewed(queue, [*chosen], seconds, BOB)
            assert renewed == sum(
                apart.attempts.changed(queue, [(seq, seconds, None)], BOB) for seq in chosen
            )
        else:
            together.attempts.ended(queue, [*chosen], "completed", BOB)
            for seq in chosen:
                apart.attempts.ended(queue, [seq], "completed", BOB)
        assert together.told(queue) == apart.told(queue)


class Noted:
    """Attempts, and how long they took."""

    def __init__(self, clock: ManualClock) -> None:
        self.handled: Counter[int] = Counter()
        self.tallies = Tallies()
        self.attempts = LiveAttempts(clock, self.tallies, self._handled)

    def _handled(self, queue_id: int, ms: int, count: int) -> None:
        self.handled[ms] += count

    def told(self, queue: Queue) -> list[object]:
        """All that anybody can learn of them."""
        consumers = self.attempts.consumers()
        facts = [{**vars(each), "recent": list(each.recent)} for each in consumers]
        held = [self.attempts.held_by(each) for each in consumers]
        return [facts, held, self.attempts.waiting(queue.id), self.tallies, self.handled]


def a_stored_message(seq: int, now_ms: int) -> StoredMessage:
    facts = (None, None, "1", 0, None, None, None, 1, 0, 1, 2, now_ms + 30_000, now_ms)
    return StoredMessage(seq, f"id-{seq}", "x", "md5", *facts)


# ---- several nodes on one store


class OtherNode:
    """Another node of the store: whom it hears, and what it tells of that."""

    def __init__(self, clock: ManualClock) -> None:
        self.attempts = LiveAttempts(clock, Tallies(), is_shared=True)
        self.last_told: bytes | None = None
        self.is_alive = self.tells = True

    def live(self, queue: Queue, *callers: Caller) -> None:
        """A second passes; these poll there, and find nothing."""
        list(self.attempts.judge(()))
        for caller in callers:
            self.attempts.received(queue, [], 30, caller)

    def told(self) -> bytes | None:
        if self.is_alive and self.tells:
            self.last_told = self.attempts.heard()
        return self.last_told


class SharedStore(MemoryStore):
    """A store that other nodes work on as well."""

    is_shared = True
    others: list[OtherNode]

    async def share_heard(self, packed: bytes) -> list[bytes | None]:
        return [other.told() for other in self.others]


@pytest.fixture
async def shared() -> AsyncIterator[tuple[Scene, OtherNode]]:
    clock = ManualClock()
    store = SharedStore(clock, journal=True)
    store.others = [OtherNode(clock)]
    service = Service(store, clock)
    service.watch()
    await service.start()
    queue = await create_queue(service, QueueKey("r", "1", "orders"), {"delay_s": 0}, {})
    yield Scene(service, clock, queue), store.others[0]
    await service.stop()


async def live_on_both(
    scene: Scene, other: OtherNode, seconds: int, here: Sequence[Caller] = (), there: Sequence[Caller] = ()
) -> list[str]:
    told: list[str] = []
    for _ in range(seconds):
        told += await live(scene, 1, *here)
        if other.is_alive:
            other.live(scene.queue, *there)
    return told


async def lapsed_here(scene: Scene, other: OtherNode) -> None:
    """A lease of Ann's lapses while Bob polls at the other node."""
    await scene.send(1)
    await scene.receive(ANN, visibility_s=30)
    await live_on_both(scene, other, 31, there=[BOB])


async def test_a_holder_that_is_silent_at_every_node_while_others_go_on_at_one_has_crashed(shared):
    scene, other = shared
    await lapsed_here(scene, other)
    assert await live_on_both(scene, other, 66, there=[BOB]) == []
    assert await live_on_both(scene, other, 6, there=[BOB]) == ["holder_silent"]
    assert scene.consumer(ANN).outcomes == {"unknown": 0, "crashed": 1}


async def test_a_holder_that_goes_on_at_another_node_has_failed(shared):
    scene, other = shared
    await lapsed_here(scene, other)
    other.live(scene.queue, ANN)
    assert await live_on_both(scene, other, 75, here=[BOB]) == ["holder_seen"]
    assert scene.consumer(ANN).outcomes == {"unknown": 0, "failed": 1}


@pytest.mark.parametrize("how", ["tells nothing", "died", "forgets"])
async def test_silence_means_nothing_where_a_node_may_have_heard_the_holder(shared, how, monkeypatch):
    scene, other = shared
    other.tells = how != "tells nothing"
    await lapsed_here(scene, other)
    if how == "forgets":
        monkeypatch.setattr(attempts_module, "CONSUMERS_MAX", 1)
        other.live(scene.queue, ANN, BOB)
        monkeypatch.undo()
    await live_on_both(scene, other, 10, here=[BOB], there=[BOB])
    other.is_alive = how != "died"

    assert await live_on_both(scene, other, 300, here=[BOB], there=[BOB]) == []
    assert scene.consumer(ANN).outcomes == {"unknown": 1}


@pytest.mark.parametrize("how", ["left", "died"])
async def test_a_node_that_is_gone_keeps_nobody_from_judging_what_lapses_after_it(shared, how):
    scene, other = shared
    await live_on_both(scene, other, 6, here=[BOB])
    other.is_alive = False
    if how == "left":
        other.last_told = other.attempts.heard(is_over=True)
    await lapsed_here(scene, other)
    assert await live_on_both(scene, other, 75, here=[BOB]) == ["holder_silent"]


async def test_a_node_that_left_has_told_whom_it_heard(shared):
    scene, other = shared
    await lapsed_here(scene, other)
    other.live(scene.queue, ANN)
    other.is_alive, other.last_told = False, other.attempts.heard(is_over=True)
    assert await live_on_both(scene, other, 75, here=[BOB]) == ["holder_seen"]


async def test_a_message_that_was_deleted_or_extended_through_another_node_did_not_fail(shared):
    scene, other = shared
    await scene.send(2)
    await scene.receive(ANN, visibility_s=30)
    store = scene.service.store
    gone, kept = (receipt_of(scene.queue, message) for message in scene.messages)
    await store.delete(scene.queue, [gone])
    await store.extend(scene.queue, [Extension(kept, 3_600)])

    told = await live_on_both(scene, other, 100, here=[ANN, BOB])
    assert told == ["holder_seen"]  # of the one that is gone: the journal has its delete besides
    assert scene.consumer(ANN).outcomes == {"unknown": 0}


async def test_two_nodes_of_one_database_judge_by_what_both_have_heard(postgres: str):
    clock = ManualClock()
    nodes = [Service(PostgresStore(postgres, clock, journal=True), clock) for _ in range(2)]
    for node in nodes:
        node.watch()
        await node.start()
    queue = await create_queue(nodes[0], QueueKey("r", "1", "orders"), {}, {})
    here = Scene(nodes[0], clock, queue)
    carl = BOB._replace(key_id="CARL")
    await here.send(2)
    await here.receive(ANN, count=1, visibility_s=30)
    await here.receive(carl, count=1, visibility_s=30)
    for _ in range(104):
        clock.advance(seconds=1)
        await until_async(lambda: not (nodes[0]._background or nodes[1]._background))
        await receive(nodes[1], queue, count=1, visibility_s=0, wait_s=0, caller=BOB)
        await receive(nodes[1], queue, count=1, visibility_s=0, wait_s=0, caller=carl)
    assert here.consumer(ANN).outcomes == {"unknown": 0, "crashed": 1}
    assert here.consumer(carl).outcomes == {"unknown": 0, "failed": 1}
    for node in nodes:
        await node.stop()


async def test_a_caller_that_was_forgotten_and_came_back_is_not_silent(told_scene: Scene, monkeypatch):
    await lapsed(told_scene)
    monkeypatch.setattr(attempts_module, "CONSUMERS_MAX", 2)
    carl = BOB._replace(key_id="CARL")
    await live(told_scene, 1, ANN, BOB, carl)
    assert "holder_silent" not in await live(told_scene, 100, BOB, carl)


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
    reported = ReportedOutcome("failed", "shop.NoStock")
    await extend_lease(service, scene.queue, [(failing, 5)], caller=ANN, reported=[reported])

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


async def test_a_stop_does_not_wait_for_a_journal_that_is_out_of_reach(clock: ManualClock) -> None:
    asked = asyncio.Event()

    class OutOfReach:
        is_kept = True

        async def events(self, keys: object) -> None:
            asked.set()
            await asyncio.Event().wait()

    store = MemoryStore(clock)
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    await store.receive(queue, 1)
    service = Service(store, clock)
    service.watch(has_history=False)
    service.lives = OutOfReach()  # type: ignore[assignment]
    await service.start()
    await asked.wait()  # who holds what is looked up there
    async with asyncio.timeout(60):
        await service.stop()
