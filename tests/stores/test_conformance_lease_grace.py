"""The server's own trouble costs no holder its lease: none lapses meanwhile, and each has a grace afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stores.journal_kit import exported
from tests.stores.kit import a_grouped_message, a_message, bodies, make_queue, receipt_of, receipts_of
from tests.stores.sqlite_kit import crashed_copy
from veil.core.attempt import ReportedOutcome
from veil.core.clock import DOUBT_MIN_MS, LET_IN_MS, ManualClock, Trouble, TroubleKind
from veil.core.lease import Deletion
from veil.core.queue import QueueCounts
from veil.stores.sqlite import SqliteStore
from veil.stores.store import Extension

WINDOW_S, GRACE_S = 30, 15


@pytest.fixture
def given() -> dict[str, Any]:
    return {"lease_grace": True, "journal": True}


def parts_of(store) -> list[Any]:
    """The stores that a store is made of: itself, as a rule."""
    return getattr(store, "_all", [getattr(store, "inner", store)])


def trouble_begins(store) -> None:
    """Renewals have to wait."""
    for one in parts_of(store):
        one.lease_time.waits("test", TroubleKind.DISK)


def trouble_ends(store) -> None:
    for one in parts_of(store):
        one.lease_time.answered("test")


def in_trouble(store, clock: ManualClock, seconds: float) -> None:
    """Renewals have to wait for so long."""
    trouble_begins(store)
    clock.advance(seconds=seconds)
    trouble_ends(store)


async def held(store, name: str = "orders"):
    """A queue whose one message is held for half a minute from now on."""
    queue = await make_queue(store, name, visibility_s=WINDOW_S)
    await store.send(queue, [a_grouped_message("work") if queue.settings.fifo else a_message("work")])
    return queue, *await store.receive(queue, 1)


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
async def test_no_lease_lapses_in_the_trouble_and_its_holder_can_renew_it_afterwards(store, clock, name):
    queue, message = await held(store, name)
    clock.advance(seconds=WINDOW_S - 1)

    trouble_begins(store)
    clock.advance(seconds=20)
    assert await store.receive(queue, 1) == []
    trouble_ends(store)
    clock.advance(seconds=GRACE_S - 1)
    assert await store.receive(queue, 1) == []

    assert await store.extend(queue, [Extension(receipt_of(queue, message), WINDOW_S)]) == [None]
    clock.advance(seconds=WINDOW_S - 1)
    assert await store.receive(queue, 1) == []
    assert await store.delete(queue, receipts_of(queue, [message])) == [Deletion.DELETED]


async def test_a_lease_that_nobody_renews_in_its_grace_lapses_with_it_and_not_a_millisecond_later(
    store, clock
):
    queue, message = await held(store)
    clock.advance(seconds=WINDOW_S - 1)
    in_trouble(store, clock, 20)

    clock.advance(GRACE_S * 1000 - 1)
    assert await store.receive(queue, 1) == []
    clock.advance(1)
    [again] = await store.receive(queue, 1)

    assert (again.seq, again.receive_count) == (message.seq, 2)


async def test_a_deadline_soon_after_the_trouble_waits_for_the_grace_too(store, clock):
    queue, _ = await held(store)
    clock.advance(seconds=WINDOW_S - 2)
    in_trouble(store, clock, 1.9)

    clock.advance(seconds=GRACE_S - 1)
    assert await store.receive(queue, 1) == []
    clock.advance(seconds=1)
    assert len(await store.receive(queue, 1)) == 1


async def test_what_had_lapsed_before_and_what_is_received_afterwards_keeps_its_own_time(store, clock):
    queue, lapses = await held(store)
    clock.advance(seconds=WINDOW_S + 1)
    in_trouble(store, clock, 5)
    [first] = await store.receive(queue, 1, visibility_s=3)
    clock.advance(seconds=3)
    [second] = await store.receive(queue, 1)

    assert first.seq == second.seq == lapses.seq


async def test_a_lease_that_lasts_beyond_the_grace_is_not_changed(store, clock):
    queue, _ = await held(store)
    in_trouble(store, clock, 5)
    clock.advance(seconds=WINDOW_S - 5)
    assert len(await store.receive(queue, 1)) == 1


async def test_a_receive_that_is_repeated_by_its_attempt_id_after_a_grace_gives_the_same(store, clock):
    """Its answer was lost in the trouble, say."""
    queue = await make_queue(store, "orders.fifo", visibility_s=WINDOW_S)
    await store.send(queue, [a_grouped_message("work"), a_grouped_message("more", "h")])
    taken = await store.receive(queue, 2, attempt_id="a")
    clock.advance(seconds=WINDOW_S - 1)
    in_trouble(store, clock, 20)
    await store.counts(queue)  # whoever looks first lets the grace be written down

    again = await store.receive(queue, 2, attempt_id="a")

    assert receipts_of(queue, again) == receipts_of(queue, taken)
    assert [message.receive_count for message in again] == [1, 1]
    assert await store.extend(queue, [Extension(receipt_of(queue, again[0]), WINDOW_S + 1)]) == [None]
    assert await store.receive(queue, 2, attempt_id="a") == []  # its holder has changed it


async def test_a_wait_that_is_everyday_life_gives_no_grace_but_time_to_whoever_waited(store, clock):
    queue, _ = await held(store)
    clock.advance(WINDOW_S * 1000 - 400)
    in_trouble(store, clock, 0.4)
    clock.advance(LET_IN_MS - 1)
    assert await store.receive(queue, 1) == []
    clock.advance(1 + DOUBT_MIN_MS)
    assert len(await store.receive(queue, 1)) == 1


async def test_waits_that_follow_one_another_put_off_no_lapse_for_long(store, clock):
    queue, _ = await held(store)
    clock.advance(WINDOW_S * 1000 - 200)
    for _ in range(2):
        in_trouble(store, clock, 0.4)
        clock.advance(10)
    assert len(await store.receive(queue, 1)) == 1


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
async def test_a_request_that_came_before_the_deadline_and_waited_is_in_time(store, clock, name, is_over):
    queue, message = await held(store, name)
    clock.advance(WINDOW_S * 1000 - 100)
    trouble_begins(store)
    clock.advance(300)
    if is_over:
        trouble_ends(store)
        clock.advance(LET_IN_MS - 1)
    assert await store.receive(queue, 1) == []
    assert await store.extend(queue, [Extension(receipt_of(queue, message), WINDOW_S)]) == [None]
    if not is_over:
        trouble_ends(store)
    clock.advance(seconds=WINDOW_S - 1)
    assert await store.receive(queue, 1) == []
    assert await store.delete(queue, receipts_of(queue, [message])) == [Deletion.DELETED]


async def test_short_waits_count_after_a_trouble_too(store, clock):
    queue, _ = await held(store)
    clock.advance(seconds=1)
    in_trouble(store, clock, 5)
    queue, message = await held(store, "others.fifo")
    clock.advance(WINDOW_S * 1000 - 100)
    in_trouble(store, clock, 0.3)
    assert await store.delete(queue, receipts_of(queue, [message]), strict=True) == [Deletion.DELETED]


async def test_delays_and_retention_go_on_in_the_trouble(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message("delayed", delay_s=10), a_message("held")])
    await store.receive(queue, 1, visibility_s=50)
    trouble_begins(store)
    clock.advance(seconds=10)
    assert bodies(await store.receive(queue, 1)) == ["delayed"]
    clock.advance(seconds=50)
    trouble_ends(store)
    assert await store.counts(queue) == QueueCounts(0, 0, 0)


async def test_no_grace_reaches_beyond_the_twelve_hours(store, clock):
    queue, message = await held(store)
    receipt = receipt_of(queue, message)
    for _ in range(2):
        clock.advance(seconds=21_500)
        rest_s = 43_200 - (clock.now_ms() - message.received_at_ms) // 1000
        assert await store.extend(queue, [Extension(receipt, min(21_600, rest_s))]) == [None]
    clock.advance(seconds=190)
    in_trouble(store, clock, 5)
    clock.advance(seconds=5)
    assert len(await store.receive(queue, 1)) == 1


async def test_the_journal_tells_whose_deadline_was_moved(store, clock, events):
    queue, message = await held(store)
    clock.advance(seconds=WINDOW_S - 1)
    in_trouble(store, clock, 20)
    await store.counts(queue)

    [graced] = [event for event in await exported(store) if event.kind == "graced"]
    assert (graced.seq, graced.delivery) == (message.seq, message.delivery)
    assert graced.deadline_ms == clock.now_ms() + GRACE_S * 1000
    assert events.totals["graced", queue.id] == 1


# ---- the embedded store: what a restart is


async def opened(directory: Path, clock: ManualClock) -> SqliteStore:
    store = SqliteStore(directory, clock, lease_grace=True, journal=True)
    await store.open()
    store.begin_serving()
    return store


@pytest.mark.parametrize("kind", ["stopped", "killed"])
async def test_a_restart_is_a_trouble(tmp_path, clock, kind):
    store = await opened(tmp_path / "data", clock)
    queue, _ = await held(store)
    clock.advance(seconds=5)
    await store.send(queue, [a_message("late"), a_message("later", delay_s=60)])
    data = crashed_copy(tmp_path / "data", tmp_path / "copy") if kind == "killed" else tmp_path / "data"
    store.end_serving()
    await store.close()
    clock.advance(seconds=40)

    store = await opened(data, clock)
    assert bodies(await store.receive(queue, 9)) == ["late"]
    clock.advance(seconds=GRACE_S)
    assert bodies(await store.receive(queue, 1)) == ["work"]
    store.end_serving()
    await store.close()


async def test_the_journal_tells_the_trouble(tmp_path, clock):
    store = await opened(tmp_path / "data", clock)
    clock.advance(seconds=1)
    began_ms = clock.now_ms()
    in_trouble(store, clock, 20)
    await make_queue(store)

    [trouble] = await exported(store)
    assert (trouble.kind, trouble.at_ms, trouble.deadline_ms) == ("trouble", clock.now_ms(), began_ms)
    assert (trouble.queue, trouble.seq, trouble.reported) == (
        "",
        0,
        ReportedOutcome("disk", None, None, None),
    )
    store.end_serving()
    await store.close()


async def test_a_server_that_takes_long_to_stop_is_in_trouble_from_the_first_moment_on(tmp_path, clock):
    store = await opened(tmp_path / "data", clock)
    queue, _ = await held(store)
    clock.advance(seconds=WINDOW_S - 5)
    store.end_serving()
    clock.advance(seconds=6)
    await store.settle()
    await store.close()
    clock.advance(seconds=60)

    store = await opened(tmp_path / "data", clock)
    assert await store.receive(queue, 1) == []
    clock.advance(seconds=GRACE_S)
    assert len(await store.receive(queue, 1)) == 1
    store.end_serving()
    await store.close()


async def test_a_trouble_before_a_crash_counts_after_it(tmp_path, clock):
    """A stalled disk, and then a crash before anything was settled."""
    store = await opened(tmp_path / "data", clock)
    queue, _ = await held(store)
    clock.advance(seconds=WINDOW_S - 5)
    store.lease_time.note(Trouble(clock.now_ms(), clock.now_ms() + 10_000, TroubleKind.DISK))
    clock.advance(seconds=10)
    await store.send(queue, [a_message("a change")])
    data = crashed_copy(tmp_path / "data", tmp_path / "copy")
    store.end_serving()
    await store.close()
    clock.advance(seconds=1)

    store = await opened(data, clock)
    assert bodies(await store.receive(queue, 9)) == ["a change"]
    store.end_serving()
    await store.close()
