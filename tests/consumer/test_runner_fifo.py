"""FIFO queues: groups side by side, members in order, and order kept whatever fails."""

from __future__ import annotations

import asyncio

import pytest

from veil import Consumer, DeadLetter, Lease, LetExpire, Message, Outcome, Release, RetryAfter
from veil.client.api import Failure
from veil.testing import ConsumerHarness


def recording(on_failure: Outcome | None = None, *, bad: str = "", bad_times: int = 1, **settings: object):
    """A consumer that writes down what it began; the bad one fails so many times."""
    app = Consumer("steps.fifo", on_failure=on_failure, **settings)  # type: ignore[arg-type]
    begun: list[str] = []

    @app.handler
    async def handle(message: Message) -> None:
        begun.append(message.body)
        if message.body == bad and message.receive_count <= bad_times:
            raise ValueError("not today")

    return app, begun


async def filled(harness: ConsumerHarness, *bodies: str) -> None:
    """Messages that are all there before the consumer looks; the group is the first letter."""
    await harness.stop()
    for body in bodies:
        await harness.send(body, group=body[0])
    await harness.start()


async def test_members_of_a_group_are_handled_in_order_one_at_a_time():
    app, at_work, most, order = Consumer("steps.fifo", concurrency=10), 0, 0, []

    @app.handler
    async def handle(body: str) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        order.append(body)
        at_work -= 1

    async with ConsumerHarness(app) as harness:
        await filled(harness, *(f"a{number:02}" for number in range(25)))
        await harness.settle()
        assert order == [f"a{number:02}" for number in range(25)]
        assert most == 1
        assert len(harness.deleted) == 25


async def test_groups_run_side_by_side():
    app, at_work = Consumer("steps.fifo", concurrency=3), set()

    @app.handler
    async def handle(body: str) -> None:
        at_work.add(body)
        await harness.sleep(10)
        at_work.discard(body)

    async with ConsumerHarness(app) as harness:
        await filled(harness, "a1", "a2", "b1", "b2", "c1")
        await harness.settle()
        assert at_work == {"a1", "b1", "c1"}
        await harness.advance(11)
        assert at_work == {"a2", "b2"}
        await harness.advance(11)
        assert sorted(harness.deleted) == ["a1", "a2", "b1", "b2", "c1"]


async def test_a_slow_group_does_not_hold_up_the_others():
    app, done = Consumer("steps.fifo", concurrency=2), []

    @app.handler
    async def handle(body: str) -> None:
        if body.startswith("a"):
            await harness.sleep(1_000)
        done.append(body)

    async with ConsumerHarness(app) as harness:
        await filled(harness, "a1", "a2", "b1", "b2", "b3")
        await harness.settle()
        assert done == ["b1", "b2", "b3"]


async def test_the_next_member_waits_until_the_last_one_is_deleted():
    app, begun = recording()
    async with ConsumerHarness(app) as harness:
        harness.fail("delete", times=1)
        await filled(harness, "a1", "a2")
        await harness.settle()
        assert begun == ["a1"]  # its delete is being tried again
        await harness.advance(1)
        assert begun == ["a1", "a2"]
        assert harness.deleted == ["a1", "a2"]


@pytest.mark.parametrize(
    "outcome", [Release(), RetryAfter(5), LetExpire()], ids=["release", "later", "expire"]
)
async def test_after_a_failure_the_rest_of_the_group_is_given_back_and_comes_again_in_order(outcome: Outcome):
    app, begun = recording(outcome, bad="a2")
    async with ConsumerHarness(app, visibility_s=10) as harness:
        await filled(harness, "a1", "a2", "a3", "a4", "b1", "b2")
        await harness.settle()
        if not isinstance(outcome, Release):
            assert begun.count("a3") == 0
            assert await harness.visible() == ["a3", "a4"]  # behind a2, which nobody may have yet
            assert {"b1", "b2"} <= set(harness.deleted)  # other groups went on
        await harness.advance(11)
        assert [body for body in begun if body[0] == "a"] == ["a1", "a2", "a2", "a3", "a4"]
        assert [body for body in harness.deleted if body[0] == "a"] == ["a1", "a2", "a3", "a4"]


async def test_poison_that_is_dead_lettered_lets_its_group_go_on():
    app, order = Consumer("steps.fifo"), []

    @app.handler
    async def handle(step: int) -> None:
        order.append(step)

    async with ConsumerHarness(app) as harness:
        await harness.stop()
        for body in ("1", "poison", "3"):
            await harness.send(body)
        await harness.start()
        await harness.settle()
        assert order == [1, 3]
        assert [dead.body for dead in await harness.dead_letters()] == ["poison"]


async def test_poison_that_cannot_be_dead_lettered_halts_its_group():
    app, order = Consumer("steps.fifo", on_poison=DeadLetter()), []

    @app.handler
    async def handle(step: int) -> None:
        order.append(step)

    async with ConsumerHarness(app) as harness:
        await harness.stop()
        for body in ("1", "poison", "3"):
            await harness.send(body)
        harness.fail("send", Failure.THROTTLED)
        await harness.start()
        await harness.settle()
        assert order == [1]
        assert await harness.visible() == ["3"]
        await harness.advance(10)
        assert order == [1, 3]
        assert [dead.body for dead in await harness.dead_letters()] == ["poison"]


async def test_poison_left_to_the_redrive_policy_halts_its_group_until_it_is_dead():
    app, order = Consumer("steps.fifo", on_poison=LetExpire()), []

    @app.handler
    async def handle(step: int) -> None:
        order.append(step)

    async with ConsumerHarness(app, visibility_s=10, receives_max=5) as harness:
        await harness.stop()
        for body in ("1", "poison", "3"):
            await harness.send(body)
        await harness.start()
        await harness.settle()
        await harness.advance(35)
        assert order == [1]
        await harness.advance(20)
        # The one behind it was received with it the first time only: it did not share its fate.
        assert order == [1, 3]
        assert [dead.body for dead in await harness.dead_letters()] == ["poison"]


async def test_the_whole_group_is_renewed_while_its_first_member_is_handled():
    app, tokens = Consumer("steps.fifo"), []

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        tokens.append((body, lease.token))
        await harness.sleep(100)

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await filled(harness, "a1", "a2", "a3")
        await harness.settle()
        await harness.advance(301)
        assert tokens == [("a1", 1), ("a2", 1), ("a3", 1)]


async def test_a_lost_lease_halts_the_group():
    app, begun = Consumer("steps.fifo"), []

    @app.handler
    async def handle(message: Message) -> None:
        begun.append((message.body, message.receive_count))
        if message.body == "a1" and message.receive_count == 1:
            harness.clock.advance(seconds=45)
            await harness.sleep(1)

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await filled(harness, "a1", "a2")
        await harness.settle()
        await harness.advance(60)
        assert [body for body, _ in begun] == ["a1", "a1", "a2"]
        assert harness.deleted == ["a1", "a2"]


async def test_a_message_whose_delete_failed_is_not_handled_again_and_its_group_goes_on_after_it():
    app, begun = recording()
    async with ConsumerHarness(app, visibility_s=30) as harness:
        harness.fail("delete", Failure.REFUSED)
        await filled(harness, "a1", "a2")
        await harness.settle()
        assert begun == ["a1"]  # a1 may still be there: a2 must not overtake it
        await harness.advance(31)
        assert begun == ["a1", "a2"]
        assert harness.deleted == ["a1", "a2"]


async def test_an_unanswered_receive_is_asked_again_under_the_same_attempt():
    app, begun = recording()
    async with ConsumerHarness(app, visibility_s=300) as harness:
        await harness.stop()
        await harness.send("a1", group="a")
        receive, attempts = type(harness.api).receive, []

        async def cut(api, url, **given):
            attempts.append(given["attempt_id"])
            messages = await receive(api, url, **given)
            if len(attempts) == 1:  # taken, and the answer lost on its way
                from veil.client.api import ApiError

                raise ApiError(Failure.UNREACHABLE, "", "the connection was cut")
            return messages

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(harness.api), "receive", cut)
            await harness.start()
            await harness.settle()
            await harness.advance(1)
            assert begun == ["a1"]  # not a window later
            assert attempts[0] == attempts[1]


async def test_a_batch_of_a_fifo_queue_is_of_one_group_and_in_order():
    app, batches = Consumer("steps.fifo", concurrency=1), []

    @app.handler(batch=5)
    async def handle(messages: list[Message]) -> None:
        batches.append([message.body for message in messages])

    async with ConsumerHarness(app) as harness:
        await filled(harness, "a1", "b1", "a2", "b2", "a3")
        await harness.settle()
        assert sorted(batches) == [["a1", "a2", "a3"], ["b1", "b2"]]
