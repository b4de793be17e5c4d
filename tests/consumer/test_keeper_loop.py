"""A keeper on an event loop, in virtual time: what each answer means, stalls, letting go, and the handler's own hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

import pytest

from tests.consumer.renewal_stories import Noted
from tests.consumer.simulated_queue import URL, NothingToWaitFor, SimulatedQueue, VirtualTimeLoop, run_virtual
from veil.client.api import ApiError, Failure
from veil.consumer.lease import Lease, LeaseLost, LeaseStatus
from veil.consumer.renewal import Adaptive, Buffered, Heartbeat, NoRenewal, RenewalPolicy
from veil.consumer.renewal.keeper import KeeperEvents, LeaseKeeper
from veil.consumer.renewal.ledger import Held


class Rig:
    """A keeper, its queue, and what happened."""

    def __init__(self, loop: VirtualTimeLoop, policy: RenewalPolicy, **settings: Any) -> None:
        self.loop = loop
        self.queue = SimulatedQueue(loop.time, **settings)
        self.events = Noted(loop)
        self.keeper = LeaseKeeper(
            lambda: self.queue, policy, monotonic=loop.time, events=self.events, random=Random(1)
        )

    def held(self, number: int = 1, visibility_s: float = 30) -> Lease:
        lease = self.queue.lease(number, visibility_s)
        self.keeper.hold(lease)
        return lease


def in_virtual_time(
    story: Callable[[Rig], Coroutine[Any, Any, None]], policy: RenewalPolicy | None = None, **settings: Any
) -> Rig:
    async def whole() -> Rig:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        rig = Rig(loop, policy or Adaptive(), **settings)
        await rig.keeper.start()
        await story(rig)
        await rig.keeper.close()
        return rig

    return run_virtual(whole())


def failing(failure: Failure) -> Callable[[float], Coroutine[Any, Any, None]]:
    async def trouble(now_s: float) -> None:
        raise ApiError(failure, "Code", "in the service's words")

    return trouble


# ---- answers


def test_an_entry_that_is_lost_leaves_the_others_of_its_call_alone():
    async def story(rig: Rig) -> None:
        leases = [rig.held(number) for number in range(3)]
        rig.queue.handled(leases[1])  # deleted behind the keeper's back
        await asyncio.sleep(16)
        assert not leases[0].lost and not leases[2].lost
        assert "does not exist" in leases[1].why
        await asyncio.sleep(60)
        assert not leases[0].lost

    rig = in_virtual_time(story)
    assert rig.events.leases.count(("lost", "m1")) == 1
    assert rig.queue.calls[0] == (15, 3)
    assert all(entries == 2 for _, entries in rig.queue.calls[1:])


def test_capped_by_the_service_is_not_lost_the_handler_is_warned_and_nothing_is_tried_again():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(16)
        assert (lease.lost, lease.warned) == (False, True)
        assert lease.ends_in_s == 14
        await asyncio.sleep(13.9)
        assert not lease.lost
        await asyncio.sleep(0.2)
        assert lease.lost and "last window" in lease.why

    rig = in_virtual_time(story, trouble=failing(Failure.CAPPED))
    assert rig.queue.call_count == 1
    assert (rig.events.count("capped"), rig.events.count("warned"), rig.events.count("lost")) == (1, 1, 1)


@pytest.mark.parametrize("failure", [Failure.THROTTLED, Failure.UNREACHABLE, Failure.FATAL])
def test_what_may_pass_is_tried_many_times_before_the_deadline(failure):
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(29.9)
        assert not lease.lost
        await asyncio.sleep(2.2)
        assert lease.lost

    rig = in_virtual_time(story, trouble=failing(failure))
    times = [at for at, _ in rig.queue.calls]
    assert len([at for at in times if at < 30]) >= 20
    assert times[0] == 15
    assert times[-1] > 30  # and once more in the grace, since nobody may have taken it
    assert rig.events.at("lost") == 32


def test_what_the_service_refuses_is_told_once_and_lost_only_after_the_deadline():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(30)
        assert not lease.lost
        await asyncio.sleep(2.1)
        assert lease.lost

    rig = in_virtual_time(story, trouble=failing(Failure.REFUSED))
    assert rig.events.count("failed") == 1
    assert rig.queue.call_count < 25


def test_a_fault_of_the_client_ends_nothing(caplog):
    times: list[float] = []

    async def trouble(now_s: float) -> None:
        times.append(now_s)
        if len(times) < 3:
            raise KeyError("a bug")

    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(40)
        assert not lease.lost

    in_virtual_time(story, trouble=trouble)
    assert "the client failed" in caplog.text


def test_an_answer_with_too_few_entries_is_no_answer():
    class Short(SimulatedQueue):
        async def extend(self, url: str, changes: Sequence[tuple[str, int]]) -> list[ApiError | None]:
            return (await super().extend(url, changes))[:-1]

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        queue, events = Short(loop.time), Noted(loop)
        keeper = LeaseKeeper(lambda: queue, Adaptive(), monotonic=loop.time, events=events, random=Random(1))
        await keeper.start()
        keeper.hold(queue.lease(1, 30))
        await asyncio.sleep(16)
        await keeper.close()
        assert events.count("renewed") == 0 and events.count("failed") >= 1

    run_virtual(whole())


def test_an_answer_that_does_not_come_is_not_waited_for():
    async def hang(now_s: float) -> None:
        if now_s < 20:
            await asyncio.sleep(3600)

    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(60)
        assert not lease.lost

    rig = in_virtual_time(story, trouble=hang)
    assert len([at for at, _ in rig.queue.calls if at < 20]) >= 3


def test_answers_that_are_always_slow_are_waited_for():
    async def slow(now_s: float) -> None:
        await asyncio.sleep(0.45)

    async def story(rig: Rig) -> None:
        lease = rig.held(visibility_s=2)
        await asyncio.sleep(30)
        assert not lease.lost

    rig = in_virtual_time(story, Adaptive(visibility=2, window_min=2, window_max=2), trouble=slow)
    assert rig.events.count("failed") == 0


def test_the_deadline_counts_from_before_the_request():
    async def slow(now_s: float) -> None:
        await asyncio.sleep(1.5)

    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(17)
        assert lease.deadline_s == 15 + 30
        assert rig.queue.expiry_s(lease) == 16.5 + 30

    in_virtual_time(story, trouble=slow)


def test_retries_of_one_failed_call_stay_in_one_call():
    async def trouble(now_s: float) -> None:
        if now_s < 20:
            raise ApiError(Failure.UNREACHABLE, "", "cut")

    async def story(rig: Rig) -> None:
        for number in range(10):
            rig.held(number)
        await asyncio.sleep(25)

    rig = in_virtual_time(story, trouble=trouble)
    assert all(entries == 10 for _, entries in rig.queue.calls)


# ---- stalls


def test_after_a_stall_the_handler_is_told_before_anything_is_sent():
    async def story(rig: Rig) -> None:
        order: list[str] = []
        stalled, healthy = rig.held(1), rig.held(2, visibility_s=300)
        stalled.when_lost(lambda: order.append(f"told at {rig.loop.time():g}, {rig.queue.call_count} calls"))
        await asyncio.sleep(5)
        rig.loop.stall(60)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["told at 65, 0 calls"]
        assert not healthy.lost

    rig = in_virtual_time(story)
    assert rig.events.count("late") == 1


def test_a_handler_that_looks_before_the_keeper_has_woken_up_knows_already():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(5)
        rig.loop.stall(60)
        assert lease.lost  # in the same turn
        await rig.keeper.let_go(lease)

    rig = in_virtual_time(story)
    assert rig.events.count("lost") == 1  # and it is counted, although the keeper was told first
    assert rig.queue.call_count == 0


def test_a_stall_while_an_answer_is_under_way_is_noticed_too():
    async def slow(now_s: float) -> None:
        await asyncio.sleep(0.2)

    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(15.1)
        rig.loop.stall(60)
        await asyncio.sleep(0.5)
        assert lease.lost

    in_virtual_time(story, trouble=slow)


def test_waking_on_time_is_not_late():
    async def story(rig: Rig) -> None:
        rig.held()
        await asyncio.sleep(100)

    assert in_virtual_time(story).events.count("late") == 0


# ---- letting go


def test_after_letting_go_nothing_is_sent():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(14.999)
        settling = rig.keeper.let_go(lease)
        assert not settling.futures
        await settling
        await asyncio.sleep(100)

    assert in_virtual_time(story).queue.call_count == 0


def test_a_release_that_waits_for_the_renewal_under_way_is_not_undone():
    async def slow(now_s: float) -> None:
        await asyncio.sleep(1)

    async def story(rig: Rig) -> None:
        lease, other = rig.held(1), rig.held(2)
        await asyncio.sleep(15.5)  # its renewal is under way
        settling = rig.keeper.let_go(lease)
        assert not any(future.done() for future in settling.futures)
        await settling
        assert rig.loop.time() == 16
        await rig.queue.extend(URL, [(lease.receipt, 0)])
        await asyncio.sleep(60)
        assert [each.visibility_s for each in rig.queue.extensions(lease)] == [30, 0]
        assert not other.lost

    in_virtual_time(story, trouble=slow)


def test_two_may_wait_for_the_same_call_and_one_may_give_up():
    async def slow(now_s: float) -> None:
        await asyncio.sleep(1)

    async def story(rig: Rig) -> None:
        lease, other = rig.held(1), rig.held(2)
        await asyncio.sleep(15.5)
        first, second = rig.keeper.let_go(lease), rig.keeper.let_go(other)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(_awaited(first)), 0.1)
        await second
        assert rig.loop.time() == 16

    in_virtual_time(story, trouble=slow)


async def _awaited(settling: Any) -> None:
    await settling


def test_letting_go_of_a_stranger_or_twice_is_harmless():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await rig.keeper.let_go(lease)
        await rig.keeper.let_go(lease)
        await rig.keeper.let_go(rig.queue.lease(2, 30))

    in_virtual_time(story)


def test_holding_twice_is_holding_once():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        rig.keeper.hold(lease)
        await asyncio.sleep(16)

    assert in_virtual_time(story).queue.calls == [(15, 1)]


def test_a_lease_that_was_ended_and_forgotten_is_not_renewed():
    async def story(rig: Rig) -> None:
        rig.held().end()
        await asyncio.sleep(100)

    rig = in_virtual_time(story)
    assert (rig.queue.call_count, rig.events.all) == (0, [])


def test_what_is_left_when_the_keeper_closes_is_renewed_no_more():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await rig.keeper.close()
        await asyncio.sleep(40)
        assert lease.lost  # nobody watches it, and yet it knows

    assert in_virtual_time(story).queue.call_count == 0


def test_closing_cuts_off_what_is_under_way():
    async def hang(now_s: float) -> None:
        await asyncio.sleep(3600)

    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(15.1)
        settling = rig.keeper.let_go(lease)
        await rig.keeper.close()
        await settling
        assert rig.loop.time() == pytest.approx(15.1)

    in_virtual_time(story, trouble=hang)


def test_short_lived_leases_leave_nothing_behind():
    async def story(rig: Rig) -> None:
        for number in range(20_000):
            lease = rig.held(number)
            await rig.keeper.let_go(lease)
        assert len(rig.keeper._ledger) == 0
        assert len(rig.keeper._ledger._heap) < 2_000

    in_virtual_time(story)


@pytest.mark.parametrize("policy", [Adaptive, Heartbeat, Buffered, NoRenewal])
@pytest.mark.parametrize("trouble", [None, Failure.UNREACHABLE, Failure.CAPPED])
def test_leases_of_one_receive_fare_as_if_each_had_been_held_by_itself(
    policy: type[RenewalPolicy], trouble: Failure | None
):
    ends: list[object] = []
    for together in (True, False):

        async def story(rig: Rig, together: bool = together) -> None:
            leases = [rig.queue.lease(number, 30) for number in range(25)]
            for held in [leases] if together else [[lease] for lease in leases]:
                rig.keeper.hold(*held)
            for lease in leases[::3]:
                await asyncio.sleep(2)
                await rig.keeper.let_go(lease)
            if trouble is None:
                await leases[1].extend(100)
            rig.queue.handled(leases[2])  # deleted behind the keeper's back
            await asyncio.sleep(60)
            for lease in leases[:8]:
                await rig.keeper.let_go(lease)
            await asyncio.sleep(60)
            ends.append([(lease.state, lease.why, lease.deadline_s, lease.warned) for lease in leases])

        rig = in_virtual_time(story, policy(), trouble=failing(trouble) if trouble else None)
        ends.append((rig.queue.calls, sorted(rig.events.leases)))
    assert ends[:2] == ends[2:]


def test_a_lapse_that_nobody_was_awake_for_is_noticed_when_one_of_many_is_let_go():
    async def story(rig: Rig) -> None:
        leases = [rig.queue.lease(number, 30) for number in range(3)]
        rig.keeper.hold(*leases)
        rig.loop.stall(60)
        await rig.keeper.let_go(leases[1])
        assert leases[1].lost and not leases[1].end()

    rig = in_virtual_time(story)
    assert ("lost", "m1") in rig.events.leases


# ---- by hand


def test_a_window_set_by_hand_is_not_touched_again():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(5)
        await lease.extend(600)
        assert (lease.deadline_s, lease.by_hand) == (605, True)
        await asyncio.sleep(594)
        assert not lease.lost
        assert [each.visibility_s for each in rig.queue.extensions(lease)] == [600]
        await asyncio.sleep(7)
        assert lease.lost and "its handler had set" in lease.why

    in_virtual_time(story)


def test_a_message_released_by_hand_is_visible_at_once_and_the_lease_is_over():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(5)
        await lease.release()
        assert (lease.state, lease.released, lease.lost) == (LeaseStatus.ENDED, True, False)
        assert rig.queue.expiry_s(lease) == 5
        await asyncio.sleep(60)
        assert rig.queue.call_count == 1

    in_virtual_time(story)


def test_a_renewal_under_way_cannot_undo_what_the_hand_does():
    async def slow(now_s: float) -> None:
        await asyncio.sleep(1)

    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(15.5)
        await lease.release()
        assert [each.visibility_s for each in rig.queue.extensions(lease)] == [30, 0]

    in_virtual_time(story, trouble=slow)


def test_a_change_by_hand_that_fails_leaves_the_lease_to_the_keeper():
    async def trouble(now_s: float) -> None:
        if now_s < 10:
            raise ApiError(Failure.REFUSED, "InvalidParameterValue", "no")

    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(5)
        with pytest.raises(ApiError, match="no"):
            await lease.extend(600)
        assert not lease.by_hand
        await asyncio.sleep(60)
        assert not lease.lost and lease.extensions > 0

    in_virtual_time(story, trouble=trouble)


def test_a_change_by_hand_is_tried_again_when_the_service_is_busy():
    async def trouble(now_s: float) -> None:
        if now_s < 5.3:
            raise ApiError(Failure.THROTTLED, "RequestThrottled", "slow down")

    async def story(rig: Rig) -> None:
        lease = rig.held()
        await asyncio.sleep(5)
        await lease.extend(600)
        assert 605 < lease.deadline_s < 607

    in_virtual_time(story, trouble=trouble)


def test_a_change_by_hand_tells_that_the_lease_is_lost():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        rig.queue.handled(lease)
        with pytest.raises(LeaseLost):
            await lease.extend(600)
        assert lease.lost
        with pytest.raises(LeaseLost):
            await lease.release()

    assert in_virtual_time(story).events.count("lost") == 1


def test_a_closed_keeper_changes_nothing():
    async def story(rig: Rig) -> None:
        lease = rig.held()
        await rig.keeper.close()
        with pytest.raises(ApiError, match="closed"):
            await lease.extend(600)

    in_virtual_time(story)


# ---- watching


def test_a_watcher_that_fails_does_not_stop_the_keeper(caplog):
    class Broken(KeeperEvents):
        def renewed(self, lease: Lease, visibility_s: int) -> None:
            raise ZeroDivisionError

    async def whole() -> None:
        loop = asyncio.get_running_loop()
        queue = SimulatedQueue(loop.time)
        keeper = LeaseKeeper(
            lambda: queue, Heartbeat(), monotonic=loop.time, events=Broken(), random=Random(1)
        )
        await keeper.start()
        lease = queue.lease(1, 30)
        keeper.hold(lease)
        await asyncio.sleep(100)
        await keeper.close()
        assert not lease.lost and lease.extensions == 3

    run_virtual(whole())
    assert "an observer of the keeper failed" in caplog.text


def test_a_callback_of_a_lost_lease_may_talk_to_the_keeper():
    async def story(rig: Rig) -> None:
        lease, other = rig.held(1), rig.held(2, visibility_s=300)
        lease.when_lost(lambda: [each.result(0) for each in rig.keeper.let_go(other).futures])
        await asyncio.sleep(5)
        rig.loop.stall(60)
        await asyncio.sleep(1)
        assert lease.lost

    in_virtual_time(story, NoRenewal())


def test_holding_and_letting_go_cost_microseconds():
    async def story(rig: Rig) -> None:
        leases = [rig.queue.lease(number, 30) for number in range(5_000)]
        began = time.thread_time()
        for lease in leases:
            rig.keeper.hold(lease)
        for lease in leases:
            rig.keeper.let_go(lease)
        assert (time.thread_time() - began) / len(leases) < 200e-6  # some 15 on an idle core

    in_virtual_time(story)


def test_a_loop_on_which_everybody_waits_says_so():
    async def whole() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingToWaitFor):
        run_virtual(whole())


@pytest.mark.parametrize("question", ["due_s", "ask_s", "grace_s", "slack_s", "observed"])
@pytest.mark.parametrize("after_s", [0, 20])
def test_a_policy_that_fails_for_one_lease_does_not_end_the_renewal_of_the_others(
    question: str, after_s: float
):
    def asked(window: Any, *facts: Any) -> Any:
        name = window.lease.message_id if isinstance(window, Held) else "m1"
        if name == "m1" and asyncio.get_running_loop().time() >= after_s:
            raise ZeroDivisionError
        return getattr(Adaptive, question)(policy, window, *facts)

    policy = Adaptive()
    setattr(policy, question, asked)

    async def story(rig: Rig) -> None:
        leases = [rig.held(number) for number in range(3)]
        await asyncio.sleep(100)
        assert not leases[0].lost and not leases[2].lost
        await asyncio.wait_for(rig.keeper.let_go(*leases), 60)

    in_virtual_time(story, policy)
