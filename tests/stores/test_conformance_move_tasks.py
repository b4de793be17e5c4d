"""Move tasks: dead letters go back, step by step, and each step is counted with what it moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stores.kit import (
    a_grouped_message,
    a_key,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    redrive_to,
    some_messages,
)
from veil.core.errors import MoveTaskMissing, MoveTaskNotRunning, MoveTaskRunning
from veil.core.lease import Deletion
from veil.core.message import SOURCE_QUEUE, MessageAttribute
from veil.core.queue import DESTINATION_MISSING, SOURCE_UNKNOWN, Chosen, MoveTask, Scan, ScanStep
from veil.core.sequence import instant_of


def a_task(task_id="task-1", source="dead", destination=None, started_wall_ms=5):
    return MoveTask(
        id=task_id,
        source=a_key(source),
        destination=a_key(destination) if destination else None,
        rate_per_s=50,
        status="RUNNING",
        moved=0,
        to_move=0,
        started_wall_ms=started_wall_ms,
    )


async def with_dead_letters(store, *names, suffix=""):
    """A queue whose messages of those names have all become dead letters."""
    dead = await make_queue(store, f"dead{suffix}")
    queue = await make_queue(store, f"orders{suffix}", redrive=redrive_to(f"dead{suffix}", 1))
    await store.send(queue, [a_grouped_message(n, group=n[0]) if suffix else a_message(n) for n in names])
    await store.receive(queue, len(names), visibility_s=0)
    assert await store.receive(queue, len(names)) == []
    return queue, dead


async def test_a_started_task_counts_what_there_is_to_move(store):
    await with_dead_letters(store, "a", "b")
    task = await store.start_move(a_task())

    assert (task.status, task.moved, task.to_move, task.rate_per_s) == ("RUNNING", 0, 2, 50)
    assert await store.active_moves() == [task]
    assert await store.list_moves(a_key("dead"), 10) == [task]


async def test_messages_go_back_to_their_sources_oldest_first_and_the_task_ends(store, events):
    queue, dead = await with_dead_letters(store, "a", "b", "c")
    task = await store.start_move(a_task())
    events.available.clear()

    task = await store.step_move(task.id, 2)
    assert (task.status, task.moved) == ("RUNNING", 2)
    assert (bodies(await store.peek(queue)), bodies(await store.peek(dead))) == (["a", "b"], ["c"])
    assert events.available[queue.id] >= 2

    task = await store.step_move(task.id, 2)
    assert (task.status, task.moved, task.failure) == ("COMPLETED", 3, None)
    assert bodies(await store.peek(queue)) == ["a", "b", "c"]
    assert await store.active_moves() == []
    assert await store.list_moves(a_key("dead"), 10) == [task]


async def test_a_moved_message_is_new_in_all_but_content(store, clock):
    queue, dead = await with_dead_letters(store, "a")
    [letter] = await store.peek(dead)
    clock.advance(seconds=100)
    await store.start_move(a_task())
    await store.step_move("task-1", 10)

    [moved] = await store.peek(queue)
    assert (moved.body, moved.body_md5, moved.sender) == (letter.body, letter.body_md5, letter.sender)
    assert moved.message_id != letter.message_id
    assert moved.seq > letter.seq
    assert (instant_of(moved.seq), moved.sent_wall_ms) == (clock.now_ms(), clock.wall_ms())
    assert (moved.receive_count, moved.delivery, moved.first_received_wall_ms) == (0, 0, None)
    assert (moved.dead_letter_source, moved.received_at_ms) == (None, None)


async def test_a_task_with_a_destination_moves_everything_there(store):
    _, dead = await with_dead_letters(store, "a")
    other = await make_queue(store, "other")
    await store.send(dead, some_messages("sent here directly"))
    await store.start_move(a_task(destination="other"))
    task = await store.step_move("task-1", 10)

    assert (task.status, task.moved) == ("COMPLETED", 2)
    assert bodies(await store.peek(other)) == ["a", "sent here directly"]


async def test_what_is_moved_waits_for_the_delay_of_its_new_queue(store, clock):
    await with_dead_letters(store, "a")
    other = await make_queue(store, "other", delay_s=10)
    await store.start_move(a_task(destination="other"))
    await store.step_move("task-1", 10)

    assert await store.counts(other) == (0, 0, 1)
    clock.advance(seconds=10)
    assert bodies(await store.receive(other, 1)) == ["a"]


async def test_messages_in_flight_or_delayed_stay(store):
    _, dead = await with_dead_letters(store, "a", "b")
    [held] = await store.receive(dead, 1)
    await store.send(dead, [a_message("delayed", delay_s=60)])
    task = await store.start_move(a_task())
    assert task.to_move == 1
    task = await store.step_move(task.id, 10)

    assert (task.status, task.moved) == ("COMPLETED", 1)
    assert bodies(await store.peek(dead)) == ["a", "delayed"]
    assert await store.delete(dead, [receipt_of(dead, held)]) == [Deletion.DELETED]


async def test_the_receipts_of_a_moved_message_are_void(store, clock):
    _, dead = await with_dead_letters(store, "a")
    [held] = await store.receive(dead, 1, visibility_s=1)
    clock.advance(seconds=1)
    await store.start_move(a_task())
    await store.step_move("task-1", 10)

    assert await store.delete(dead, [receipt_of(dead, held)]) == [Deletion.GONE]


async def test_what_a_consumer_gave_up_returns_to_where_it_says_it_was_received(store):
    queue, dead = await with_dead_letters(store, "a")
    written = {SOURCE_QUEUE: MessageAttribute("String", queue.name)}
    await store.send(dead, [a_message("given up", attributes=written)])
    await store.start_move(a_task())
    task = await store.step_move("task-1", 10)

    assert (task.status, task.moved) == ("COMPLETED", 2)
    assert (bodies(await store.peek(queue)), await store.peek(dead)) == (["a", "given up"], [])


async def test_a_message_of_unknown_source_fails_the_task_and_stays(store):
    queue, dead = await with_dead_letters(store, "a")
    await store.send(dead, some_messages("unknown"))
    await store.start_move(a_task())
    task = await store.step_move("task-1", 10)

    assert (task.status, task.moved, task.failure) == ("FAILED", 1, SOURCE_UNKNOWN)
    assert (bodies(await store.peek(queue)), bodies(await store.peek(dead))) == (["a"], ["unknown"])
    assert await store.active_moves() == []


async def test_a_destination_that_is_gone_fails_the_task_and_the_message_stays(store):
    queue, dead = await with_dead_letters(store, "a")
    await store.start_move(a_task())
    await store.delete_queue(queue)
    task = await store.step_move("task-1", 10)

    assert (task.status, task.moved) == ("FAILED", 0)
    assert task.failure == DESTINATION_MISSING
    assert bodies(await store.peek(dead)) == ["a"]


async def test_an_empty_source_completes_the_task(store):
    await make_queue(store, "dead")
    await store.start_move(a_task())

    assert (await store.step_move("task-1", 10)).status == "COMPLETED"


async def test_one_task_at_a_time_for_each_source(store):
    await with_dead_letters(store, "a")
    await make_queue(store, "dead2")
    await store.start_move(a_task())
    with pytest.raises(MoveTaskRunning):
        await store.start_move(a_task("task-2"))
    await store.start_move(a_task("task-3", source="dead2"))

    await store.step_move("task-1", 10)
    await store.start_move(a_task("task-4"))
    assert [task.id for task in await store.active_moves()] == ["task-3", "task-4"]


async def test_a_cancelled_task_moves_nothing_more(store):
    queue, dead = await with_dead_letters(store, "a", "b")
    await store.start_move(a_task())
    await store.step_move("task-1", 1)

    task = await store.cancel_move("task-1")
    assert (task.status, task.moved) == ("CANCELLING", 1)
    with pytest.raises(MoveTaskRunning):
        await store.start_move(a_task("task-2"))
    task = await store.step_move("task-1", 10)
    assert (task.status, task.moved) == ("CANCELLED", 1)
    assert (bodies(await store.peek(queue)), bodies(await store.peek(dead))) == (["a"], ["b"])
    await store.start_move(a_task("task-2"))


async def test_only_a_running_task_can_be_cancelled(store):
    await make_queue(store, "dead")
    with pytest.raises(MoveTaskMissing):
        await store.cancel_move("nobody")
    await store.start_move(a_task())
    await store.cancel_move("task-1")
    with pytest.raises(MoveTaskNotRunning) as cancelling:
        await store.cancel_move("task-1")
    await store.step_move("task-1", 1)
    with pytest.raises(MoveTaskNotRunning) as cancelled:
        await store.cancel_move("task-1")

    assert (cancelling.value.status, cancelled.value.status) == ("CANCELLING", "CANCELLED")


async def test_a_step_of_a_task_at_its_end_changes_nothing(store):
    _, dead = await with_dead_letters(store, "a")
    await store.start_move(a_task())
    done = await store.step_move("task-1", 10)
    await store.send(dead, some_messages("later"))

    assert await store.step_move("task-1", 10) == done
    assert bodies(await store.peek(dead)) == ["later"]
    with pytest.raises(MoveTaskMissing):
        await store.step_move("nobody", 10)


async def test_tasks_are_listed_newest_first(store):
    await make_queue(store, "dead")
    for n in range(4):
        await store.start_move(a_task(f"task-{n}"))
        await store.step_move(f"task-{n}", 1)

    assert [task.id for task in await store.list_moves(a_key("dead"), 3)] == ["task-3", "task-2", "task-1"]
    assert await store.list_moves(a_key("other"), 3) == []


async def test_on_fifo_the_order_within_a_group_holds_and_nothing_is_taken_for_a_duplicate(store):
    queue, dead = await with_dead_letters(store, "g1", "h1", "g2", suffix=".fifo")
    letters = await store.peek(dead)
    await store.start_move(a_task(source="dead.fifo"))
    task = await store.step_move("task-1", 10)

    moved = await store.peek(queue)
    assert (task.status, task.moved) == ("COMPLETED", 3)
    assert bodies(moved) == bodies(letters)
    assert [m.group for m in moved] == [letter.group for letter in letters]
    assert all(m.deduplication_id == m.message_id for m in moved)
    assert [body for body in bodies(await store.receive(queue, 10)) if body[0] == "g"] == ["g1", "g2"]


async def test_a_task_goes_on_after_a_restart_where_it_was(store, reopen):
    queue, dead = await with_dead_letters(store, "a", "b", "c")
    await store.start_move(a_task())
    before = await store.step_move("task-1", 1)

    store = await reopen()
    assert await store.active_moves() == [before]
    task = await store.step_move("task-1", 10)
    assert (task.status, task.moved, task.to_move) == ("COMPLETED", 3, 3)
    assert (bodies(await store.peek(queue)), bodies(await store.peek(dead))) == (["a", "b", "c"], [])


async def test_a_scan_goes_on_with_what_it_moved_and_over_a_restart(store, reopen):
    queue, dead = await with_dead_letters(store, "a", "b", "c")
    first, second, third = await store.peek(dead)
    scan = Scan("{}", third.seq)
    started = await store.start_move(replace(a_task(), scan=scan))
    assert await store.active_moves() == [started]
    chosen = [
        Chosen(second.seq, second.message_id),
        Chosen(first.seq, "another"),
        Chosen(first.seq, first.message_id, a_key("nowhere")),
    ]
    task = await store.step_move("task-1", 10, ScanStep(chosen, second.seq, 2, is_last=False))
    assert (task.status, task.moved, task.scan.after_seq, task.scan.looked) == ("RUNNING", 1, second.seq, 2)
    assert (task.scan.refused, "nowhere" in task.scan.refusal) == (2, True)

    store = await reopen()
    assert await store.active_moves() == [task]
    await store.cancel_move("task-1")
    found = ScanStep([Chosen(third.seq, third.message_id)], third.seq, 1, is_last=True)
    task = await store.step_move("task-1", 10, found)
    assert (task.status, task.moved, task.scan.looked) == ("CANCELLED", 1, 2)
    assert (bodies(await store.peek(queue)), bodies(await store.peek(dead))) == (["b"], ["a", "c"])


async def test_the_last_step_of_a_scan_completes_it(store):
    queue, dead = await with_dead_letters(store, "a")
    [letter] = await store.peek(dead)
    await store.start_move(replace(a_task(), scan=Scan("{}", letter.seq)))
    found = ScanStep([Chosen(letter.seq, letter.message_id)], letter.seq, 1, is_last=True)
    task = await store.step_move("task-1", 10, found)
    assert (task.status, task.moved, task.scan.refused) == ("COMPLETED", 1, 0)
    assert bodies(await store.peek(queue)) == ["a"]


async def test_a_new_queue_has_none_of_the_tasks_of_an_earlier_one_of_its_name(store, clock):
    _, dead = await with_dead_letters(store, "a", "b")
    await store.start_move(a_task())
    await store.delete_queue(dead)
    clock.advance(seconds=60)
    await make_queue(store, "dead")

    assert await store.list_moves(a_key("dead"), 10) == []
    task = await store.start_move(a_task("task-2"))
    assert await store.list_moves(a_key("dead"), 10) == [task]
