"""How messages are asked for: no more than there is room for, patiently when the service fails."""

from __future__ import annotations

import asyncio
import itertools
from random import Random

import pytest

from tests.consumer.handler_kit import a_message
from veil import Consumer, ConsumerFailed, Message, NoRenewal, SettingsError
from veil.client.api import BATCH_MAX, ApiError, Failure
from veil.consumer.acknowledging import Batcher, Deletes
from veil.consumer.lease import Lease, Settling
from veil.consumer.receiver import BACKOFF, HandlingTime, prefetch_for, to_ask_for
from veil.consumer.renewal.keeper import Keeper
from veil.testing import ConsumerHarness


def sleeping(seconds: float, **settings: object) -> Consumer:
    app = Consumer("orders", **settings)  # type: ignore[arg-type]

    @app.handler
    async def handle(body: str) -> None:
        await harnesses[0].sleep(seconds)

    return app


harnesses: list[ConsumerHarness] = []


@pytest.mark.parametrize(("prefetch", "held"), [(0, 4), (3, 7), (None, 4)])
async def test_no_more_is_received_than_slots_and_prefetch_allow(prefetch: int | None, held: int):
    app = sleeping(60, concurrency=4, prefetch=prefetch)
    async with ConsumerHarness(app) as harness:
        harnesses[:] = [harness]
        await harness.stop()
        for number in range(30):
            await harness.send(str(number))
        await harness.start()
        await harness.settle()
        assert harness.running == 4
        assert len(await harness.in_flight()) == held
        assert len(await harness.visible()) == 30 - held


async def test_slow_handlers_are_given_nothing_ahead_by_themselves():
    app = sleeping(60, concurrency=2)
    async with ConsumerHarness(app) as harness:
        harnesses[:] = [harness]
        await harness.stop()
        for number in range(10):
            await harness.send(str(number))
        await harness.start()
        await harness.settle()
        await harness.advance(61)  # two have ended: their time is known
        assert len(await harness.in_flight()) == 2


async def test_an_idle_queue_is_asked_by_one_call_at_a_time():
    app = sleeping(0, concurrency=200)
    async with ConsumerHarness(app) as harness:
        harnesses[:] = [harness]
        await harness.settle()
        before = harness.service.calls["receive"]
        await harness.advance(100)
        assert harness.service.calls["receive"] - before == 5  # every twenty seconds
        assert harness.runner.receiver.under_way == 1


async def test_a_backlog_is_taken_up_by_many_calls_at_once():
    app = sleeping(60, concurrency=100)
    async with ConsumerHarness(app) as harness:
        harnesses[:] = [harness]
        await harness.stop()
        for number in range(200):
            await harness.send(str(number))
        await harness.start()
        await harness.settle()
        assert harness.running == 100


async def test_receiving_goes_on_after_the_service_was_away(caplog: pytest.LogCaptureFixture):
    app, seen = Consumer("orders"), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(body)

    async with ConsumerHarness(app) as harness:
        await harness.stop()
        harness.fail("receive", times=6)
        await harness.start()
        await harness.send()
        await harness.settle()
        assert seen == []
        assert harness.runner.problem == "the queue does not answer"
        await harness.advance(120)
        await harness.settle()
        assert seen == ["hello"]
        assert harness.runner.problem is None
    assert caplog.text.count("next try in") == 6


async def test_receiving_goes_on_after_too_many_deletes_have_waited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("veil.consumer.runner._PENDING_ACKS_MAX", 20)
    app = Consumer("orders", prefetch=0)

    @app.handler
    async def handle(body: str) -> None:
        pass

    async with ConsumerHarness(app) as harness:
        harness.fail("delete", Failure.THROTTLED, times=60)
        for number in range(100):
            await harness.send(str(number))
        await harness.settle()
        assert harness.runner.deletes.pending > 20
        assert harness.runner.receiver.under_way == 0
        await harness.advance(60)
        assert len(harness.deleted) == 100
        assert harness.runner.receiver.under_way == 1


def test_pauses_grow_to_a_minute_and_are_all_jitter():
    random = Random(1)
    longest = [max(BACKOFF.pause_s(n, Failure.UNREACHABLE, random) for _ in range(200)) for n in range(12)]
    assert longest[0] <= 0.5
    assert all(a < b for a, b in itertools.pairwise(longest[:7]))
    assert 55 < longest[-1] <= BACKOFF.max_s
    assert min(BACKOFF.pause_s(11, Failure.UNREACHABLE, random) for _ in range(200)) < 2
    throttled = [BACKOFF.pause_s(0, Failure.THROTTLED, random) for _ in range(200)]
    assert max(throttled) > 1


@pytest.mark.parametrize("failure", [Failure.FATAL, Failure.REFUSED])
async def test_a_fatal_answer_stops_the_consumer_with_its_words(failure: Failure):
    app = sleeping(0)
    harness = ConsumerHarness(app)
    with pytest.raises(ConsumerFailed, match=r"queue orders: Injected.*: the test wants this"):
        async with harness:
            harnesses[:] = [harness]
            harness.fail("receive", failure)
            await harness.advance(20)
            with pytest.raises(ConsumerFailed):
                await app.wait()


async def test_handlers_at_work_may_end_when_receiving_fails_for_good():
    app, done = Consumer("orders", concurrency=5), []

    @app.handler
    async def handle(body: str) -> None:
        await harness.sleep(5)
        done.append(body)

    harness = ConsumerHarness(app)
    with pytest.raises(ConsumerFailed):
        async with harness:
            await harness.send()
            await harness.settle()
            await harness.service.service.store.delete_queue(await harness.service.queue("orders"))
            await harness.advance(25)
            with pytest.raises(ConsumerFailed):
                await app.wait()
    assert done == ["hello"]


async def test_a_queue_that_does_not_exist_stops_the_start():
    app = sleeping(0)
    harness = ConsumerHarness(app)
    async with harness:
        await harness.stop()
        app.configure(queue="ordres")
        with pytest.raises(ConsumerFailed, match=r"queue ordres: .*queue does not exist"):
            await harness.start()
        assert not app.is_running


async def test_a_service_that_is_not_there_yet_is_waited_for(caplog: pytest.LogCaptureFixture):
    app = sleeping(0)
    harness = ConsumerHarness(app)
    async with harness:
        await harness.stop()
        harness.fail("queue_url", times=3)
        starting = asyncio.ensure_future(harness.start())
        for _ in range(8):
            await asyncio.sleep(0)
            harness.clock.advance(seconds=2)
        await starting
        assert app.is_running
    assert caplog.text.count("next try in") == 3


async def test_a_consumer_without_a_handler_does_not_start():
    with pytest.raises(ConsumerFailed, match="no handler"):
        async with ConsumerHarness(Consumer("orders")):
            pass


async def test_a_queue_without_a_window_is_refused():
    app = sleeping(0, renewal=NoRenewal())
    with pytest.raises(SettingsError, match="visibility=0"):
        async with ConsumerHarness(app, visibility_s=0):
            pass


async def test_the_window_is_the_queues_own_and_follows_its_changes():
    app, windows = Consumer("orders"), []

    @app.handler
    async def handle(message: Message) -> None:
        windows.append(message.lease.visibility_s)

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        await harness.service.change("orders", visibility_s=90)
        await harness.advance(81)  # read again within a minute; a receive that waits still has the old window
        await harness.send()
        await harness.settle()
        assert windows == [30, 90]


async def test_a_running_consumer_keeps_its_window_when_the_queue_has_none_any_more(
    caplog: pytest.LogCaptureFixture,
):
    app, windows = Consumer("orders"), []

    @app.handler
    async def handle(message: Message) -> None:
        windows.append((message.receive_count, message.lease.visibility_s))

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.service.change("orders", visibility_s=0)
        await harness.advance(81)
        await harness.send()
        await harness.settle()
        assert windows == [(1, 30)]
        assert harness.deleted == ["hello"]
        assert "visibility timeout of 0" in caplog.text


async def test_the_window_given_to_the_consumer_wins():
    app, windows = Consumer("orders", visibility=7), []

    @app.handler
    async def handle(message: Message) -> None:
        windows.append(message.lease.visibility_s)

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        assert windows == [7]


# ---- the rules behind it


def test_while_a_slot_is_free_everything_there_is_room_for_is_asked_for():
    assert to_ask_for(slots=10, taken=0, asked=0, prefetch=0) == 10
    assert to_ask_for(slots=10, taken=9, asked=0, prefetch=0) == 1
    assert to_ask_for(slots=10, taken=4, asked=6, prefetch=0) == 0
    assert to_ask_for(slots=2, taken=1, asked=0, prefetch=20) == 21


def test_what_is_received_ahead_waits_until_it_is_worth_a_call():
    assert to_ask_for(slots=1, taken=20, asked=0, prefetch=20) == 0
    assert to_ask_for(slots=1, taken=11, asked=0, prefetch=20) == 10
    assert to_ask_for(slots=1, taken=2, asked=0, prefetch=1) == 0
    assert to_ask_for(slots=1, taken=1, asked=0, prefetch=1) == 1


def test_the_prefetch_follows_from_how_long_handlers_take():
    assert prefetch_for(10, None) == 0
    assert prefetch_for(10, 60.0) == 0
    assert prefetch_for(10, 0.5) == 5
    assert prefetch_for(10, 0.05) == 50
    assert prefetch_for(10, 0.001) == 600
    assert prefetch_for(100, 0.0) == 600


def test_the_usual_time_forgets():
    handling = HandlingTime()
    handling.took(10)
    assert handling.usual_s == 10
    for _ in range(100):
        handling.took(0)
    assert handling.usual_s is not None
    assert handling.usual_s < 0.01


# ---- the collector


class Calls:
    """A service that answers when told."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.answers: list[asyncio.Future[list[ApiError | None]]] = []

    async def send(self, entries):
        self.batches.append(list(entries))
        answer = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer

    def collector(self) -> Batcher[int]:
        async def no_pause(seconds: float) -> None: ...

        return Batcher(self.send, sleep=no_pause, random=Random(0))


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_entry_waits_for_nobody_and_the_next_share_a_call():
    calls = Calls()
    collector = calls.collector()
    first = collector.add(1)
    await turn()
    others = [collector.add(number) for number in range(2, 6)]
    await turn()
    assert calls.batches == [[1]]
    calls.answers[0].set_result([None])
    await turn()
    assert await first is None
    assert calls.batches == [[1], [2, 3, 4, 5]]
    calls.answers[1].set_result([None] * 4)
    assert await asyncio.gather(*others) == [None] * 4


async def test_ten_that_have_gathered_wait_for_no_answer():
    calls = Calls()
    collector = calls.collector()
    collector.add(0)
    await turn()
    for number in range(1, 15):
        collector.add(number)
    await turn()
    assert [len(batch) for batch in calls.batches] == [1, 10]
    assert collector.pending == 4


async def test_only_the_entry_that_failed_is_tried_again():
    calls = Calls()
    collector = calls.collector()
    good, bad = collector.add(1), collector.add(2)
    await turn()
    calls.answers[0].set_result([None, ApiError(Failure.UNREACHABLE, "InternalError", "try later")])
    await turn()
    assert await good is None
    assert calls.batches == [[1, 2], [2]]
    calls.answers[1].set_result([None])
    assert await bad is None


@pytest.mark.parametrize("failure", [Failure.LOST, Failure.REFUSED, Failure.CAPPED])
async def test_what_cannot_pass_is_not_tried_again(failure: Failure):
    calls = Calls()
    answer = calls.collector().add(1)
    await turn()
    error = ApiError(failure, "", "no")
    calls.answers[0].set_result([error])
    assert await answer is error


async def test_a_fault_of_the_client_is_an_answer_too():
    calls = Calls()
    collector = calls.collector()
    collector.hurry()
    answer = collector.add(1)
    await turn()
    calls.answers[0].set_exception(ZeroDivisionError("a bug"))
    error = await answer
    assert error is not None
    assert error.failure is Failure.UNREACHABLE


async def test_what_was_about_to_pause_when_the_end_came_is_answered_too():
    calls = Calls()
    collector = calls.collector()
    answer = collector.add(1)
    await turn()
    error = ApiError(Failure.THROTTLED, "", "slower")
    calls.answers[0].set_result([error])
    asyncio.get_running_loop().call_soon(collector.hurry)  # before a task for the pause has begun
    async with asyncio.timeout(60):
        assert await answer is error


class LettingGo(Keeper):
    """Tells what was let go of."""

    def __init__(self) -> None:
        self.gone: list[str] = []

    def let_go(self, *leases: Lease) -> Settling:
        self.gone += [lease.message_id for lease in leases]
        return Settling()


async def test_what_waits_for_its_delete_is_held_and_is_not_deleted_once_it_is_lost():
    calls, keeper = Calls(), LettingGo()

    class Api:
        bulk_max = BATCH_MAX

        async def delete(
            self, url: str, receipts: list[str], *, reported: tuple[()] = ()
        ) -> list[ApiError | None]:
            return await calls.send(receipts)

    async def no_pause(seconds: float) -> None: ...

    deletes = Deletes(Api(), "url", keeper, on_fatal=print, sleep=no_pause, random=Random(0))  # type: ignore[arg-type]
    messages = [a_message(id=str(number)) for number in range(4)]
    answers = [deletes.add(messages[0])]
    await turn()
    answers += map(deletes.add, messages[1:])
    await turn()
    assert keeper.gone == ["0"]
    messages[1].lease.lose("somebody else has it")
    messages[2].lease.released = messages[2].lease.end()  # by its handler, who thought again

    calls.answers[0].set_result([ApiError(Failure.UNREACHABLE, "", "try later")])
    await turn()
    assert keeper.gone == ["0", "1", "2", "3"]
    assert calls.batches == [["receipt-of-0"], ["receipt-of-3", "receipt-of-0"]]
    calls.answers[1].set_result([None, None])
    assert [None if error is None else error.failure for error in await asyncio.gather(*answers)] == [
        None,
        Failure.LOST,
        Failure.LOST,
        None,
    ]
    # What was handled within its lease is known when it comes back; what its handler gave back is to be handled again.
    assert [deletes.was_handled(message.id) for message in messages] == [False, True, False, False]
