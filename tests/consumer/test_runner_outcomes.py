"""What becomes of a message, carried out against the queue's real rules."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest

from veil import (
    Backoff,
    Consumer,
    ConsumerFailed,
    DeadLetter,
    Discard,
    Drop,
    Fatal,
    Lease,
    LetExpire,
    Message,
    NoRenewal,
    Outcome,
    Reject,
    Release,
    Retry,
    RetryAfter,
    Stop,
)
from veil.client.api import Failure
from veil.core.queue import RedrivePolicy
from veil.testing import ConsumerHarness


def failing(
    outcome: Outcome | None = None, *, times: int = 1, **settings: object
) -> tuple[Consumer, list[Message]]:
    """A consumer whose handler fails so many times, then succeeds."""
    app = Consumer("orders", on_failure=outcome, **settings)  # type: ignore[arg-type]
    seen: list[Message] = []

    @app.handler
    async def handle(message: Message) -> None:
        seen.append(message)
        if len(seen) <= times:
            raise ValueError("not today")

    return app, seen


async def test_let_expire_leaves_the_message_to_its_window():
    app, seen = failing(LetExpire())
    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        assert await harness.in_flight() == ["hello"]
        await harness.advance(29)
        assert len(seen) == 1
        await harness.advance(1.5)
        assert [message.receive_count for message in seen] == [1, 2]
        assert harness.deleted == ["hello"]


async def test_release_makes_it_visible_at_once():
    app, seen = failing(Release())
    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        assert [message.receive_count for message in seen] == [1, 2]
        assert harness.deleted == ["hello"]


async def test_retry_after_waits_just_so_long():
    app, seen = failing(RetryAfter(90))
    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        await harness.advance(89)
        assert len(seen) == 1
        await harness.advance(1.5)
        assert len(seen) == 2


async def test_backoff_grows_with_the_receive_count():
    app, seen = failing(Backoff(base_s=10, factor=3, jitter=0), times=2)
    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        for wait_s, receives in ((9, 1), (2, 2), (28, 2), (2, 3)):
            await harness.advance(wait_s)
            assert len(seen) == receives
        assert harness.deleted == ["hello"]


async def test_a_delay_is_cut_to_what_the_twelve_hours_leave():
    app, seen = failing(RetryAfter(43_200))

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        await harness.advance(43_100)
        assert len(seen) == 1
        await harness.advance(101)
        assert len(seen) == 2


async def test_discard_takes_it_out_unhandled():
    app, seen = failing(Discard())
    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        assert harness.deleted == ["hello"]
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("raised", "visible_again_s"), [(Retry(after_s=7), 7), (Drop(), None)], ids=["Retry", "Drop"]
)
async def test_a_handler_can_say_the_outcome_itself(raised: Exception, visible_again_s: float | None):
    app, seen = Consumer("orders"), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(body)
        if len(seen) == 1:
            raise raised

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        assert harness.deleted == ([] if visible_again_s else ["hello"])
        if visible_again_s:
            await harness.advance(visible_again_s + 0.5)
            assert len(seen) == 2


async def test_a_dead_letter_carries_its_reason_and_the_original_is_gone():
    app = Consumer("orders")

    @app.handler
    async def handle(body: str) -> None:
        raise Reject("the customer does not exist")

    async with ConsumerHarness(app) as harness:
        sent = await harness.send("order 7", attributes={"tenant": "acme"})
        await harness.settle()
        (dead,) = await harness.dead_letters()
        assert dead.body == "order 7"
        assert dead.attributes is not None
        told = {name: attribute.value for name, attribute in dead.attributes.items()}
        assert told["tenant"] == "acme"
        assert told["veil.reason"] == "the customer does not exist"
        assert told["veil.source_queue"] == "orders"
        assert told["veil.message_id"] == sent
        assert harness.deleted == ["order 7"]


@pytest.mark.parametrize("by_policy", [False, True])
async def test_an_error_may_be_the_reason_of_a_dead_letter(by_policy: bool):
    app = Consumer("orders", on_failure=lambda error, message: DeadLetter(error))  # type: ignore[arg-type]

    @app.handler
    async def handle(body: str) -> None:
        raise ValueError("no such customer") if by_policy else Reject(ValueError("no such customer"))  # type: ignore[arg-type]

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        (dead,) = await harness.dead_letters()
        assert dead.attributes is not None
        assert dead.attributes["veil.reason"].value == "no such customer"


async def test_a_message_whose_outcome_cannot_be_carried_out_comes_back_when_its_window_ends(
    caplog: pytest.LogCaptureFixture,
):
    app, seen = Consumer("orders"), []

    @app.handler
    async def handle(message: Message) -> None:
        seen.append(message.receive_count)
        if len(seen) == 1:
            message.settling = lambda: nullcontext(1 / 0)

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        await harness.advance(31)  # renewed on and on it would be hidden for twelve hours
        assert seen == [1, 2]
        assert harness.deleted == ["hello"]
    assert "settling failed in an unforeseen way" in caplog.text


async def test_a_dead_letter_that_cannot_be_sent_is_not_lost(caplog: pytest.LogCaptureFixture):
    app = Consumer("orders", on_failure=DeadLetter())
    seen = []

    @app.handler
    async def handle(message: Message) -> None:
        seen.append(message.receive_count)
        raise ValueError("broken")

    async with ConsumerHarness(app) as harness:
        await harness.send()
        harness.fail("send", Failure.UNREACHABLE)
        await harness.settle()
        assert await harness.dead_letters() == []
        assert await harness.in_flight() == ["hello"]
        await harness.advance(6)
        assert seen == [1, 2]
        assert [dead.body for dead in await harness.dead_letters()] == ["hello"]
    assert "could not be sent" in caplog.text


async def test_the_copy_is_sent_while_the_lease_is_still_renewed():
    app = Consumer("orders", on_failure=DeadLetter())

    @app.handler
    async def handle(body: str) -> None:
        await harness.sleep(100)
        raise ValueError("broken")

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        await harness.advance(101)
        assert [dead.body for dead in await harness.dead_letters()] == ["hello"]
        assert harness.deleted == ["hello"]


async def test_without_dead_letters_the_message_is_left_to_expire_with_a_warning(
    caplog: pytest.LogCaptureFixture,
):
    app, _ = failing(DeadLetter())
    async with ConsumerHarness(app, dead_letters=False) as harness:
        await harness.send()
        await harness.settle()
        assert await harness.in_flight() == ["hello"]
    assert "has no dead letters" in caplog.text


async def test_a_queue_that_is_its_own_dead_letter_queue_has_none(caplog: pytest.LogCaptureFixture):
    """A copy would come back to the handler that gave the original up, and so on for ever."""
    app, _ = failing(DeadLetter())
    async with ConsumerHarness(app, dead_letters=False) as harness:
        own = RedrivePolicy((await harness.service.queue("orders")).key, 1)
        await harness.service.change("orders", redrive=own)
        await harness.advance(61)
        await harness.send()
        await harness.settle()
        assert await harness.in_flight() == ["hello"]
        assert await harness.visible() == []
    assert "has no dead letters" in caplog.text


async def test_dead_letters_given_to_the_queue_later_are_noticed():
    app, _ = failing(DeadLetter())
    async with ConsumerHarness(app, dead_letters=False) as harness:
        await harness.service.create("late-dead")
        await harness.service.create("donor", dead_letters="late-dead")
        redrive = (await harness.service.queue("donor")).settings.redrive
        await harness.service.change("orders", redrive=redrive)
        await harness.advance(61)
        await harness.send()
        await harness.settle()
        assert [dead.body for dead in await harness.service.messages("late-dead")] == ["hello"]


@pytest.mark.parametrize("how", ["outcome", "raised"])
async def test_fatal_releases_the_message_and_stops_the_consumer(how: str):
    app, seen = Consumer("orders", on_failure=Fatal()), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(body)
        raise Stop("the database is gone") if how == "raised" else ValueError("the database is gone")

    harness = ConsumerHarness(app)
    with pytest.raises(ConsumerFailed, match="the database is gone"):
        async with harness:
            await harness.send()
            with pytest.raises(ConsumerFailed):
                await app.wait()
            assert await harness.visible() == ["hello"]
            assert seen == ["hello"]  # its own waiting receive did not take it again


async def test_poison_goes_to_the_dead_letters_with_the_reason():
    app = Consumer("orders")

    @app.handler
    async def handle(order: dict) -> None:
        raise AssertionError("never called")

    async with ConsumerHarness(app) as harness:
        await harness.send("this is no JSON")
        await harness.settle()
        (dead,) = await harness.dead_letters()
        assert dead.attributes is not None
        assert "veil.reason" in dead.attributes
        assert harness.deleted == ["this is no JSON"]


async def test_poison_can_be_left_to_the_redrive_policy():
    app = Consumer("orders", on_poison=LetExpire())

    @app.handler
    async def handle(order: dict) -> None:
        raise AssertionError("never called")

    async with ConsumerHarness(app, visibility_s=10, receives_max=2) as harness:
        await harness.send("this is no JSON")
        await harness.settle()
        await harness.advance(25)
        (dead,) = await harness.dead_letters()
        assert dead.receive_count == 2
        assert harness.deleted == []


async def test_a_message_that_no_handler_is_for_is_poison():
    app = Consumer("orders")

    @app.handler(type="paid")
    async def paid(order: dict) -> None: ...

    async with ConsumerHarness(app) as harness:
        await harness.send({}, type="paid")
        await harness.send({}, type="shipped")
        await harness.settle()
        assert len(harness.deleted) == 2
        assert len(await harness.dead_letters()) == 1


# ---- leases


async def test_the_result_of_a_handler_that_lost_its_lease_is_not_deleted():
    app, seen = Consumer("orders"), []

    @app.handler(cancel_when_lost=False)
    async def handle(body: str, lease: Lease) -> None:
        seen.append(lease.token)
        if lease.token == 1:
            harness.clock.advance(seconds=60)  # as if the process had been stopped for two windows

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        assert seen == [1, 2]
        assert harness.deleted == ["hello"]
        assert harness.service.calls["delete"] == 1


async def test_a_consumer_that_may_not_delete_stops_instead_of_doing_all_work_again():
    app, seen = Consumer("orders", concurrency=1, prefetch=0), []

    @app.handler
    async def handle(body: str) -> None:
        seen.append(body)

    with pytest.raises(ConsumerFailed, match=r"queue orders: .*InjectedFatal"):
        async with ConsumerHarness(app) as harness:
            harness.fail("delete", Failure.FATAL, times=100)
            for number in range(20):
                await harness.send(str(number))
            await harness.settle()
            assert not harness.runner.is_receiving
    assert len(seen) < 20


async def test_an_async_handler_that_loses_its_lease_is_cancelled():
    app, ends = Consumer("orders", renewal=NoRenewal()), []

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        try:
            if lease.token == 1:
                await harness.sleep(1_000)
            ends.append("done")
        except BaseException as error:
            ends.append(type(error).__name__)
            raise

    async with ConsumerHarness(app, visibility_s=30) as harness:
        await harness.send()
        await harness.settle()
        await harness.advance(31)
        assert sorted(ends) == ["CancelledError", "done"]
        assert harness.deleted == ["hello"]


async def test_a_handler_that_released_its_message_by_hand_has_the_last_word():
    app, seen = Consumer("orders"), []

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        seen.append(lease.token)
        if lease.token == 1:
            await lease.release()

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        assert seen == [1, 2]
        assert harness.service.calls["delete"] == 1


async def test_no_copy_of_a_released_message_goes_to_the_dead_letters():
    app, seen = Consumer("orders", on_failure=DeadLetter()), []

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        seen.append(lease.token)
        if lease.token == 1:
            await lease.release()
            raise ValueError("not mine any more")

    async with ConsumerHarness(app) as harness:
        await harness.send()
        await harness.settle()
        assert seen == [1, 2]
        assert await harness.dead_letters() == []
        assert harness.deleted == ["hello"]


async def test_a_message_that_waits_for_a_slot_is_renewed_too():
    app, tokens = Consumer("orders", concurrency=1, prefetch=5), []

    @app.handler
    async def handle(body: str, lease: Lease) -> None:
        tokens.append(lease.token)
        await harness.sleep(100)

    async with ConsumerHarness(app, visibility_s=30) as harness:
        for number in range(4):
            await harness.send(str(number))
        await harness.settle()
        assert len(await harness.in_flight()) == 4
        await harness.advance(401)
        assert tokens == [1, 1, 1, 1]
        assert harness.deleted == ["0", "1", "2", "3"]


# ---- deletes


async def test_a_failed_delete_is_tried_again():
    app, seen = failing(times=0)
    async with ConsumerHarness(app) as harness:
        harness.fail("delete", times=2)
        await harness.send()
        await harness.settle()
        await harness.advance(5)
        assert harness.deleted == ["hello"]
        assert len(seen) == 1


async def test_a_message_whose_delete_failed_for_good_is_deleted_when_it_comes_back_and_not_handled_again(
    caplog: pytest.LogCaptureFixture,
):
    app, seen = failing(times=0)
    async with ConsumerHarness(app, visibility_s=30) as harness:
        harness.fail("delete", times=5)
        await harness.send()
        await harness.settle()
        await harness.advance(20)
        assert harness.deleted == []
        assert "not deleted" in caplog.text
        await harness.advance(20)
        assert harness.deleted == ["hello"]
        assert len(seen) == 1


async def test_a_delete_that_is_refused_says_so_once_and_is_remembered(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING)
    app, seen = failing(times=0)
    async with ConsumerHarness(app, visibility_s=10) as harness:
        harness.fail("delete", Failure.LOST)
        await harness.send()
        await harness.settle()
        assert harness.service.calls["delete"] == 1
        assert "lease had ended" in caplog.text
        await harness.advance(11)
        assert harness.deleted == ["hello"]
        assert len(seen) == 1


async def test_deletes_share_calls():
    app, seen = failing(times=0, concurrency=100)
    async with ConsumerHarness(app) as harness:
        await harness.stop()
        for number in range(100):
            await harness.send(str(number))
        await harness.start()
        await harness.settle()
        assert len(harness.deleted) == len(seen) == 100
        assert harness.service.calls["delete"] <= 20


async def test_a_release_that_fails_is_tried_again():
    app, seen = failing(Release())
    async with ConsumerHarness(app) as harness:
        harness.fail("extend", times=2)
        await harness.send()
        await harness.settle()
        await harness.advance(3)
        assert len(seen) == 2


# ---- batches


async def test_a_batch_handler_gets_what_waits_and_each_message_its_own_end():
    app, batches = Consumer("orders", concurrency=1, on_failure=RetryAfter(60)), []

    @app.handler(batch=10)
    async def handle(messages: list[Message]) -> list[str]:
        batches.append([message.body for message in messages])
        return [message.id for message in messages if message.body == "bad" and message.receive_count == 1]

    async with ConsumerHarness(app) as harness:
        await harness.stop()
        for body in ("a", "bad", "c"):
            await harness.send(body)
        await harness.start()
        await harness.settle()
        assert batches == [["a", "bad", "c"]]
        assert sorted(harness.deleted) == ["a", "c"]
        assert await harness.in_flight() == ["bad"]
        await harness.advance(61)
        assert batches[1:] == [["bad"]]
        assert sorted(harness.deleted) == ["a", "bad", "c"]
