"""Redrives of what matches: at their rate, once through the queue, one at a time, and stopped when asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.kit import Desk, open_desk, until
from tests.stores.kit import STORES, redrive_to
from veil.console.letters import LetterWish
from veil.console.redrives import Redrive, RedriveRunning, Redrives
from veil.console.turns import Turns
from veil.core.clock import ManualClock
from veil.core.event import NOBODY
from veil.core.message import MessageAttribute
from veil.service.queues import delete_queue
from veil.service.service import Service


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def service(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Service]:
    service = Service(STORES[request.param].make(tmp_path, clock), clock)
    await service.start()
    yield service
    await service.stop()


@pytest.fixture
async def dead(service: Service) -> Desk:
    return await open_desk(service, "dead")


@pytest.fixture
async def work(service: Service, dead: Desk) -> Desk:
    return await open_desk(service, "work", redrive=redrive_to("dead", 1))


async def spend(work: Desk) -> None:
    """Receive what there is, and once more: it goes to the dead letters."""
    while await work.receive(visibility_s=0):
        pass


async def fill(work: Desk, *bodies: str) -> None:
    for body in bodies:
        await work.send(body)
    await spend(work)
    assert isinstance(work.clock, ManualClock)
    work.clock.advance(1)


async def ended(task: Redrive, clock: ManualClock) -> None:
    """Let time pass until it is at its end."""

    def is_over() -> bool:
        clock.advance(100)
        return not task.is_active

    await until(is_over)


async def start(redrives: Redrives, dead: Desk, wish: LetterWish, rate_per_s: int | None = None) -> Redrive:
    return await redrives.start(
        dead.queue, wish, wish.words(), destination=None, rate_per_s=rate_per_s, caller=NOBODY
    )


async def test_only_what_matches_is_redriven_and_marked(
    service: Service, clock: ManualClock, dead: Desk, work: Desk
):
    await fill(work, "apple", "pear", "apple pie")
    task = await start(Redrives(service, Turns()), dead, LetterWish(text="APPLE"))
    await ended(task, clock)
    assert (task.status, task.moved, task.looked) == ("COMPLETED", 2, 3)
    first, second = await work.receive()
    assert {first.body, second.body} == {"apple", "apple pie"}
    assert first.attributes is not None and "Veil.RedrivenFrom" in first.attributes
    assert (await dead.counts()).visible == 1


async def test_it_keeps_to_its_rate(service: Service, clock: ManualClock, dead: Desk, work: Desk):
    await fill(work, *"abcde")
    task = await start(Redrives(service, Turns()), dead, LetterWish(source="work"), rate_per_s=10)
    for moved in range(1, 6):
        await until(lambda moved=moved: task.moved == moved)
        clock.advance(99)
        assert task.moved == moved
        clock.advance(1)
    await ended(task, clock)
    assert task.status == "COMPLETED"


async def test_what_fails_again_meanwhile_is_not_redriven_for_ever(
    service: Service, clock: ManualClock, dead: Desk, work: Desk
):
    await fill(work, "a", "b")
    task = await start(Redrives(service, Turns()), dead, LetterWish(source="work"), rate_per_s=10)
    for moved in (1, 2):
        await until(lambda moved=moved: task.moved == moved)
        clock.advance(50)
        await spend(work)  # it is back among the dead letters before the redrive has come to its end
        clock.advance(50)
    await ended(task, clock)
    assert task.moved == 2
    assert (await dead.counts()).visible == 2


async def test_one_at_a_time_for_each_queue_and_the_next_after_a_cancel(
    service: Service, clock: ManualClock, dead: Desk, work: Desk
):
    redrives = Redrives(service, Turns())
    await fill(work, *"abc")
    task = await start(redrives, dead, LetterWish(source="work"), rate_per_s=1)
    await until(lambda: task.moved == 1)
    with pytest.raises(RedriveRunning):
        await start(redrives, dead, LetterWish())
    assert redrives.cancel(task.id) is task
    clock.advance(1000)
    await ended(task, clock)
    assert (task.status, task.moved) == ("CANCELLED", 1)
    assert redrives.cancel(task.id) is None
    assert (await start(redrives, dead, LetterWish())).is_active


async def test_what_is_held_or_has_no_source_stays_and_is_counted(
    service: Service, clock: ManualClock, dead: Desk, work: Desk
):
    await fill(work, "held", "free")
    (held,) = await dead.receive(1, visibility_s=600)
    await dead.send("of nobody")
    await dead.send(
        "of a queue that is gone", attributes={"veil.source_queue": MessageAttribute("String", "gone")}
    )
    clock.advance(1)
    task = await start(Redrives(service, Turns()), dead, LetterWish())
    await ended(task, clock)
    assert (task.status, task.moved, task.refused) == ("COMPLETED", 1, 3)
    told = " ".join(task.refusals)
    assert held.message_id in told and "came from no other queue" in told and "gone" in told


async def test_a_queue_that_is_deleted_meanwhile_ends_it(
    service: Service, clock: ManualClock, dead: Desk, work: Desk
):
    await fill(work, *"abc")
    task = await start(Redrives(service, Turns()), dead, LetterWish(source="work"), rate_per_s=1)
    await until(lambda: task.moved == 1)
    await delete_queue(service, dead.queue)
    clock.advance(1000)
    await ended(task, clock)
    assert task.status == "FAILED" and task.failure is not None and "dead" in task.failure
