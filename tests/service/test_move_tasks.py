"""Move tasks: dead letters go back, no faster than asked, once at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.kit import Desk, open_desk, quiet, until
from tests.stores.kit import ACCOUNT, a_key, redrive_to
from veil.core.clock import ManualClock
from veil.core.errors import (
    ArnRefused,
    MoveTaskHandleInvalid,
    MoveTaskMissing,
    MoveTaskNotRunning,
    MoveTaskRunning,
    MoveToItself,
    NotDeadLetters,
    NotForQueueType,
    ResourceMissing,
    StoreError,
)
from veil.core.message import MessageAttribute
from veil.core.queue import DESTINATION_MISSING, MoveTask, ScanStep
from veil.service.background import MoveRunners
from veil.service.dead_letters import LetterFilter
from veil.service.moves import cancel_move, list_moves, read_task_handle, start_move, task_handle
from veil.service.queues import change_settings, delete_queue
from veil.service.service import Service
from veil.service.time_slices import TimeSlices


@pytest.fixture
async def dead(service: Service) -> Desk:
    return await open_desk(service, "dead")


@pytest.fixture
async def work(service: Service, dead: Desk) -> Desk:
    return await open_desk(service, "work", redrive=redrive_to("dead", 1))


async def fill(work: Desk, count: int) -> None:
    for number in range(count):
        await work.send(str(number))
    received: list[object] = []
    while len(received) < count:
        received += await work.receive(visibility_s=0)
    while await work.receive(visibility_s=0):
        pass


async def start(
    dead: Desk,
    *,
    destination: str | None = None,
    rate_per_s: int | None = None,
    letters: LetterFilter | None = None,
) -> MoveTask:
    arn = dead.queue.key.arn
    return await start_move(dead.service, arn, destination, rate_per_s, account=ACCOUNT, letters=letters)


async def newest(dead: Desk) -> MoveTask:
    return (await list_moves(dead.service, dead.queue.key.arn, 1))[0]


async def moved_so_far(dead: Desk) -> int:
    """How many were moved when the runner next pauses, or ends."""
    task = await newest(dead)
    await until(lambda: task.id in dead.service.moves.pauses or not dead.service.moves.is_running(task.id))
    return (await newest(dead)).moved


async def finished(dead: Desk) -> MoveTask:
    for _ in range(1_000):
        task = await newest(dead)
        if not task.is_active:
            return task
        await quiet(dead.service)
    raise AssertionError("the task did not end")


async def test_everything_goes_back_to_where_it_came_from(work: Desk, dead: Desk) -> None:
    await fill(work, 5)
    assert (await dead.counts()).visible == 5
    task = await start(dead)
    assert (task.status, task.to_move) == ("RUNNING", 5)
    task = await finished(dead)
    assert (task.status, task.moved) == ("COMPLETED", 5)
    messages = await work.receive()
    assert [message.body for message in messages] == ["0", "1", "2", "3", "4"]
    assert {message.receive_count for message in messages} == {1}


async def test_a_destination_takes_everything(work: Desk, dead: Desk, service: Service) -> None:
    spare = await open_desk(service, "spare")
    await fill(work, 2)
    await start(dead, destination=spare.queue.key.arn)
    await finished(dead)
    assert await spare.bodies() == ["0", "1"]


async def test_a_moved_message_wakes_a_waiting_receiver(work: Desk, dead: Desk) -> None:
    await fill(work, 1)
    poll = await work.poll()
    await start(dead)
    assert [message.body for message in await poll] == ["0"]


async def test_the_rate_is_kept_by_the_clock(work: Desk, dead: Desk, clock: ManualClock) -> None:
    await fill(work, 5)
    await start(dead, rate_per_s=2)
    assert await moved_so_far(dead) == 1
    clock.advance(499)
    await quiet(dead.service)
    assert await moved_so_far(dead) == 1
    clock.advance(1)
    for moved in (2, 3, 4):
        await quiet(dead.service)
        assert await moved_so_far(dead) == moved
        clock.advance(500)


async def test_without_a_rate_it_moves_five_hundred_a_second(
    work: Desk, dead: Desk, clock: ManualClock
) -> None:
    await fill(work, 120)
    await start(dead)
    moved = []
    for _ in range(3):
        await quiet(dead.service)
        moved.append(await moved_so_far(dead))
        clock.advance(100)
    assert moved == [50, 100, 120]
    assert (await finished(dead)).status == "COMPLETED"


async def test_one_task_at_a_time_for_each_source(work: Desk, dead: Desk) -> None:
    await fill(work, 3)
    await start(dead, rate_per_s=1)
    with pytest.raises(MoveTaskRunning):
        await start(dead)


async def test_a_cancelled_task_stops_and_leaves_the_rest(work: Desk, dead: Desk, clock: ManualClock) -> None:
    await fill(work, 3)
    task = await start(dead, rate_per_s=1)
    await moved_so_far(dead)
    cancelled = await cancel_move(dead.service, task.id)
    assert (cancelled.status, cancelled.moved) == ("CANCELLING", 1)
    assert (await finished(dead)).status == "CANCELLED"  # at once, not at the next step's time
    clock.advance(seconds=10)
    await quiet(dead.service)
    assert (await dead.counts()).visible == 2
    with pytest.raises(MoveTaskNotRunning):
        await cancel_move(dead.service, task.id)
    with pytest.raises(MoveTaskMissing):
        await cancel_move(dead.service, "nobody")


async def test_a_task_goes_on_after_a_restart(work: Desk, dead: Desk, clock: ManualClock) -> None:
    await fill(work, 3)
    await start(dead, rate_per_s=1)
    assert await moved_so_far(dead) == 1
    await dead.service.moves.stop()
    clock.advance(seconds=60)
    await quiet(dead.service)
    assert (await newest(dead)).moved == 1  # nobody carries it out
    dead.service.moves = MoveRunners(dead.service.store, clock, TimeSlices(), ())
    await dead.service.moves.resume()
    assert await moved_so_far(dead) == 2
    for _ in range(2):  # the last step is the one that finds nothing left
        clock.advance(seconds=1)
        await quiet(dead.service)
        assert await moved_so_far(dead) == 3
    assert (await finished(dead)).status == "COMPLETED"


@pytest.mark.parametrize("failure", [StoreError("disk trouble"), RuntimeError("nobody has thought of it")])
async def test_a_step_that_fails_is_tried_again(
    work: Desk, dead: Desk, clock: ManualClock, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    await fill(work, 1)
    step_move = dead.service.store.step_move
    tries = 0

    async def fail_once(task_id: str, count: int, found: ScanStep | None = None) -> MoveTask:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise failure
        return await step_move(task_id, count, found)

    dead.service.store.step_move = fail_once  # type: ignore[method-assign]
    await start(dead)
    await until(lambda: tries == 1)
    await moved_so_far(dead)
    clock.advance(seconds=1)
    assert (await finished(dead)).status == "COMPLETED"
    assert str(failure) in caplog.text


async def test_a_destination_that_goes_fails_the_task(work: Desk, dead: Desk, service: Service) -> None:
    await fill(work, 1)
    await delete_queue(service, work.queue)
    await open_desk(service, "other", redrive=redrive_to("dead", 1))
    await start(dead)
    task = await finished(dead)
    assert (task.status, task.failure) == ("FAILED", DESTINATION_MISSING)
    assert (await dead.counts()).visible == 1


async def test_what_a_task_names_must_exist_and_fit(work: Desk, dead: Desk, service: Service) -> None:
    await open_desk(service, "q.fifo")

    async def refused(source: str, destination: str | None, account: str = ACCOUNT) -> Exception:
        with pytest.raises(Exception) as refusal:
            await start_move(service, source, destination, None, account=account)
        return refusal.value

    source = dead.queue.key.arn
    assert isinstance(await refused("dead", None), ArnRefused)
    assert isinstance(await refused(source, "arn:aws:s3:::bucket"), ArnRefused)
    missing = await refused(a_key("nowhere").arn, None)
    assert isinstance(missing, ResourceMissing) and missing.parameter == "SourceArn"
    missing = await refused(source, a_key("nowhere").arn)
    assert isinstance(missing, ResourceMissing) and missing.parameter == "DestinationArn"
    assert isinstance(await refused(source, None, account="111111111111"), ResourceMissing)
    assert isinstance(await refused(source, a_key("q.fifo").arn), NotForQueueType)
    assert isinstance(await refused(work.queue.key.arn, None), NotDeadLetters)
    with pytest.raises(ResourceMissing):
        await list_moves(service, a_key("nowhere").arn, 1)


async def test_tasks_are_listed_newest_first(work: Desk, dead: Desk) -> None:
    tasks = []
    for _ in range(3):
        await fill(work, 1)
        tasks.append((await start(dead)).id)
        await finished(dead)
    listed = await list_moves(dead.service, dead.queue.key.arn, 2)
    assert [task.id for task in listed] == [tasks[2], tasks[1]]


async def test_a_handle_names_task_and_source(work: Desk, dead: Desk) -> None:
    task = await start(dead)
    assert read_task_handle(task_handle(task)) == (task.id, dead.queue.key.arn)


@pytest.mark.parametrize(
    "text", ["", "?", "bm90IGpzb24=", "e30=", "W10=", "eyJ0YXNrSWQiOjEsInNvdXJjZUFybiI6Mn0=", "ü"]
)
def test_anything_else_is_no_handle(text: str) -> None:
    with pytest.raises(MoveTaskHandleInvalid):
        read_task_handle(text)


async def test_a_queue_is_not_moved_to_itself_since_that_would_never_end(
    service: Service, work: Desk, dead: Desk
) -> None:
    await fill(work, 3)
    with pytest.raises(MoveToItself):
        await start(dead, destination=dead.queue.key.arn)
    assert await list_moves(service, dead.queue.key.arn, 1) == []


async def test_a_task_on_a_queue_that_is_its_own_dead_letter_queue_ends_and_leaves_everything(
    service: Service,
) -> None:
    own = await open_desk(service, "own")
    await change_settings(service, own.queue, {"redrive": redrive_to("own", 1)})
    for body in ("a", "b", "c"):
        await own.send(body)
    await own.receive(visibility_s=0)
    task = await start(own)
    await until(lambda: not service.moves.is_running(task.id))
    assert ((await newest(own)).status, (await newest(own)).moved) == ("FAILED", 0)
    assert sorted(message.body for message in await service.store.peek(own.queue)) == ["a", "b", "c"]
    elsewhere = await open_desk(service, "elsewhere")
    task = await start(own, destination=elsewhere.queue.key.arn)
    await until(lambda: not service.moves.is_running(task.id))
    assert ((await newest(own)).status, (await newest(own)).moved) == ("COMPLETED", 3)


# ---- of what matches


async def spent(work: Desk, *bodies: str) -> None:
    """Messages of these bodies among the dead letters, and a millisecond later."""
    for body in bodies:
        await work.send(body)
    while await work.receive(visibility_s=0):
        pass
    assert isinstance(work.clock, ManualClock)
    work.clock.advance(1)


async def ended(dead: Desk) -> MoveTask:
    """The newest task, when time has passed until its end."""
    for _ in range(1_000):
        if not (task := await newest(dead)).is_active:
            return task
        assert isinstance(dead.clock, ManualClock)
        dead.clock.advance(100)
        await quiet(dead.service)
    raise AssertionError("the task did not end")


async def test_only_what_matches_is_redriven_and_marked(work: Desk, dead: Desk) -> None:
    await spent(work, "apple", "pear", "apple pie")
    await start(dead, letters=LetterFilter(text="APPLE"))
    task = await ended(dead)
    assert task.scan is not None
    assert (task.status, task.moved, task.scan.looked) == ("COMPLETED", 2, 3)
    first, second = await work.receive()
    assert {first.body, second.body} == {"apple", "apple pie"}
    assert first.attributes is not None and "Veil.RedrivenFrom" in first.attributes
    assert (await dead.counts()).visible == 1


async def test_a_filter_keeps_to_its_rate(work: Desk, dead: Desk, clock: ManualClock) -> None:
    await spent(work, *"abcde")
    await start(dead, letters=LetterFilter(source="work"), rate_per_s=10)
    for moved in range(1, 6):
        assert await moved_so_far(dead) == moved
        clock.advance(99)
        assert (await newest(dead)).moved == moved
        clock.advance(1)
        await quiet(dead.service)
    assert (await ended(dead)).status == "COMPLETED"


async def test_what_fails_again_meanwhile_is_not_redriven_for_ever(
    work: Desk, dead: Desk, clock: ManualClock
) -> None:
    await spent(work, "a", "b")
    await start(dead, letters=LetterFilter(), rate_per_s=10)
    for moved in (1, 2):
        assert await moved_so_far(dead) == moved
        clock.advance(50)
        while await work.receive(visibility_s=0):
            pass  # it is back among the dead letters before the redrive has come to its end
        clock.advance(50)
        await quiet(dead.service)
    assert (await ended(dead)).moved == 2
    assert (await dead.counts()).visible == 2


async def test_what_is_held_or_has_no_source_stays_and_is_counted(
    work: Desk, dead: Desk, clock: ManualClock
) -> None:
    await spent(work, "held", "free")
    await dead.receive(1, visibility_s=600)
    await dead.send("of nobody")
    gone = {"veil.source_queue": MessageAttribute("String", "gone")}
    await dead.send("of a queue that is gone", attributes=gone)
    clock.advance(1)
    await start(dead, letters=LetterFilter())
    task = await ended(dead)
    assert task.scan is not None
    assert (task.status, task.moved, task.scan.refused) == ("COMPLETED", 1, 3)
    assert "gone" in task.scan.refusal


async def test_a_queue_of_the_same_name_has_none_of_the_tasks_of_one_that_was_deleted(
    work: Desk, dead: Desk, clock: ManualClock
) -> None:
    await fill(work, 1)
    await start(dead)
    await quiet(dead.service)
    await delete_queue(dead.service, dead.queue)
    clock.advance(61_000)
    again = await open_desk(dead.service, "dead")
    assert await list_moves(again.service, again.queue.key.arn, 10) == []


async def test_tasks_are_listed_and_cancelled_also_after_the_wall_clock_was_set_back(
    work: Desk, dead: Desk, clock: ManualClock
) -> None:
    await fill(work, 3)
    clock.step_wall(-3_600_000)
    task = await start(dead, rate_per_s=1)
    assert [each.id for each in await list_moves(dead.service, dead.queue.key.arn, 10)] == [task.id]
    await cancel_move(dead.service, task.id)
    assert (await ended(dead)).status == "CANCELLED"


async def test_a_filtered_task_ends_with_a_queue_that_is_deleted_while_it_looks(
    work: Desk, dead: Desk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spent(work, *"abc")
    peek = dead.service.store.peek

    async def deleted_first(*given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        await delete_queue(dead.service, dead.queue)
        return await peek(*given, **named)

    monkeypatch.setattr(dead.service.store, "peek", deleted_first)
    task = await start(dead, letters=LetterFilter())
    await until(lambda: task.id in dead.service.moves.pauses)
    clock.advance(61_000)
    await until(lambda: not dead.service.moves.is_running(task.id))
    again = await open_desk(dead.service, "dead")
    task = await start(again, letters=LetterFilter())
    await until(lambda: not again.service.moves.is_running(task.id))
    assert (await newest(again)).status == "COMPLETED"


async def test_a_filtered_task_is_cancelled_and_ends_with_its_queue(work: Desk, dead: Desk) -> None:
    await spent(work, *"abc")
    task = await start(dead, letters=LetterFilter(source="work"), rate_per_s=1)
    assert await moved_so_far(dead) == 1
    await cancel_move(dead.service, task.id)
    assert ((await ended(dead)).status, (await newest(dead)).moved) == ("CANCELLED", 1)
    await start(dead, letters=LetterFilter(source="work"), rate_per_s=1)
    assert await moved_so_far(dead) == 1
    await delete_queue(dead.service, dead.queue)
    assert isinstance(dead.clock, ManualClock)
    dead.clock.advance(1_000)
    await until(lambda: not dead.service.moves._running)
    assert await dead.service.store.active_moves() == []


async def test_a_filtered_task_is_cancelled_while_the_journal_is_out_of_reach(work: Desk, dead: Desk) -> None:
    class Away:
        async def errors(self, seqs: object) -> Any:
            raise OSError("the share is away")

    await spent(work, "a")
    dead.service.moves.lives = Away()  # type: ignore[assignment]
    task = await start(dead, letters=LetterFilter(error="ValueError"))
    await until(lambda: task.id in dead.service.moves.pauses)
    await cancel_move(dead.service, task.id)
    assert (await ended(dead)).status == "CANCELLED"


async def test_a_filtered_task_is_gone_on_with_where_it_was(
    work: Desk, dead: Desk, clock: ManualClock
) -> None:
    await spent(work, "apple 1", "pear", "apple 2", "apple 3")
    task = await start(dead, letters=LetterFilter(text="apple"), rate_per_s=10)
    assert await moved_so_far(dead) == 1
    await dead.service.moves.stop()
    clock.advance(1_000)
    left = await newest(dead)
    assert left.is_active and left.scan is not None and left.scan.looked == 1
    await dead.service.moves.resume()
    task = await ended(dead)
    assert task.scan is not None
    assert (task.status, task.moved, task.scan.looked) == ("COMPLETED", 3, 4)
    assert sorted(message.body for message in await work.receive()) == ["apple 1", "apple 2", "apple 3"]
