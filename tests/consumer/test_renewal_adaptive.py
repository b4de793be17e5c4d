"""`Adaptive`: early enough to fail and try again, and windows that fit the work."""

from __future__ import annotations

import ast
import asyncio
import pickle
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

import veil.consumer.renewal
from tests.consumer.renewal_stories import Noted, play
from tests.consumer.simulated_queue import SimulatedQueue, run_virtual
from veil.client.api import ApiError, Failure
from veil.consumer.renewal import Adaptive, NoRenewal, RenewalRefused, RenewalWarning
from veil.consumer.renewal.keeper import LeaseKeeper
from veil.consumer.renewal.policies import UsualTime, Window


def window(*, visibility_s: float = 30, asked_at_s: float = 0, deadline_s: float | None = None) -> Window:
    return Window(0, visibility_s, 0, 0, asked_at_s, visibility_s if deadline_s is None else deadline_s)


def taught(duration_s: float, **settings: object) -> Adaptive:
    policy = Adaptive(**settings)
    for _ in range(50):
        policy.observed(duration_s)
    return policy


def test_half_of_the_window_is_kept_for_further_tries_but_never_more_than_a_minute():
    assert Adaptive().due_s(window(visibility_s=30)) == 15
    assert Adaptive().due_s(window(visibility_s=1)) == 0.5
    assert Adaptive().due_s(window(visibility_s=600)) == 540


def test_a_short_handler_is_never_renewed():
    assert play(Adaptive(), visibility_s=30, handler_s=14).extensions == []


def test_an_hour_of_work_takes_fewer_renewals_than_either_of_the_others():
    story = play(Adaptive(), visibility_s=30, handler_s=3600)
    assert story.deleted_at_s == 3600
    assert len(story.events) < 50  # Buffered: 120, Heartbeat: 144
    assert max(asked for _, _, asked, _ in story.events) == 300


def test_windows_grow_with_the_time_that_a_crash_would_cost_anyway():
    story = play(Adaptive(), visibility_s=30, handler_s=3600)
    assert all(asked <= max(30, at / 4 + 68) for at, _, asked, _ in story.events)
    assert all(asked == 30 for at, _, asked, _ in story.events if at < 100)


def test_what_usually_takes_two_minutes_is_renewed_once():
    plain = play(Adaptive(), visibility_s=30, handler_s=120)
    learned = play(taught(120), visibility_s=30, handler_s=120)
    assert (len(plain.events), len(learned.events)) == (7, 1)
    # And nobody waits much longer than the work takes should the consumer die.
    assert learned.events[0][2] <= 1.5 * 120


def test_a_renewal_that_would_come_just_before_the_usual_end_waits_for_it():
    policy = taught(18)
    known_s = policy.known_s()
    assert known_s is not None and 18 <= known_s[1] <= 20
    assert policy.due_s(window()) == known_s[1]
    assert taught(28).due_s(window()) == 15


def test_a_quarter_of_the_window_is_kept_even_if_most_end_a_little_later():
    policy = Adaptive()
    for number in range(100):
        policy.observed(16 + number * 0.1)  # half of them are done at 21 s, all of them at 26 s
    assert policy.due_s(window()) == 22.5
    # A window after that belongs to one that is slow already: no more waiting.
    assert policy.due_s(window(asked_at_s=22.5, deadline_s=52.5)) == 37.5


def test_what_is_learned_is_learned_for_each_kind_of_handler():
    policy = Adaptive()
    for _ in range(50):
        policy.observed(120, "slow")
        policy.observed(0.01, "fast")
    assert policy.known_s("slow")[1] == pytest.approx(120, rel=0.1)
    assert policy.known_s("fast")[1] == pytest.approx(0.01, rel=0.1)
    assert policy.known_s() is None


def test_the_keeper_teaches_it_what_it_sees():
    async def whole() -> float | None:
        loop = asyncio.get_running_loop()
        policy, queue = Adaptive(), SimulatedQueue(loop.time)
        keeper = LeaseKeeper(lambda: queue, policy, monotonic=loop.time, random=Random(1))
        await keeper.start()
        for number in range(20):
            lease = queue.lease(number, 30, kind="ship")
            keeper.hold(lease)
            await asyncio.sleep(40)
            lease.end()
            await keeper.let_go(lease)
            queue.handled(lease)
        await keeper.close()
        return (policy.known_s("ship") or (None, None))[1]

    assert run_virtual(whole()) == pytest.approx(40, rel=0.1)


def test_it_never_asks_for_less_than_the_queue_gives_nor_for_less_than_it_has():
    assert Adaptive().ask_s(window(visibility_s=240), 180) == 240
    after_a_long_one = window(asked_at_s=0, deadline_s=300)
    assert Adaptive().ask_s(after_a_long_one, 240) > 60


def test_the_queue_s_own_timeout_is_not_an_upper_limit():
    story = play(Adaptive(), visibility_s=5, handler_s=100)
    assert story.events[0][:3] == (2.5, 2.5, 30)


def test_a_message_that_came_at_the_end_of_a_long_poll_is_renewed_in_time_and_not_at_once():
    """Counted from before the receive, a window of 10 s is over when a poll of 20 s returns; the service knows better."""
    policy = Adaptive()
    assert policy.due_s(Window(0, 30, 20, 0, 0, 30)) == 25  # 10 s may be left: half of them
    assert policy.due_s(Window(0, 10, 20, 0, 0, 10)) == 20  # nothing may be left: now
    story = play(policy, visibility_s=10, handler_s=30, held_after_s=20, patient=True)
    assert story.events[0][0] == 20 and story.deleted_at_s == 50


def test_without_renewal_such_a_message_is_not_called_lost_before_its_window_can_have_ended():
    story = play(NoRenewal(), visibility_s=10, handler_s=30, held_after_s=20, patient=True)
    assert (story.extensions, story.lost_at_s) == ([], 30)


def test_without_renewal_a_handler_is_told_when_its_window_has_ended():
    story = play(NoRenewal(), visibility_s=30, handler_s=60)
    assert (story.extensions, story.lost_at_s, story.capped_at_s) == ([], 30, None)


def test_there_is_always_a_maximum_and_a_warning_before_it():
    story = play(Adaptive(), visibility_s=30, handler_s=50_000)
    maximum_s = 11 * 3600 + 59 * 60
    assert story.failures == []
    assert story.lost_at_s == story.visible_at_s == maximum_s
    assert story.warned_at_s == maximum_s - 60
    assert story.capped_at_s is not None and story.warned_at_s <= story.capped_at_s < maximum_s


def test_a_maximum_of_twelve_hours_is_cut_to_what_the_service_allows():
    story = play(Adaptive(maximum=timedelta(hours=12)), visibility_s=30, handler_s=50_000)
    assert story.failures == []
    assert story.lost_at_s == story.visible_at_s == 43_199


def test_a_short_maximum_ends_the_last_window_on_time():
    story = play(Adaptive(maximum=100, warn_before=20), visibility_s=30, handler_s=300)
    assert story.warned_at_s == 80
    assert story.lost_at_s == story.visible_at_s == 100


def test_throttled_for_a_third_of_the_window_it_keeps_the_lease():
    story = play(Adaptive(), visibility_s=30, handler_s=100, throttled=[(0, 25)])
    assert len(story.failures) >= 5
    gaps = [
        after - before for (before, _), (after, _) in zip(story.failures, story.failures[1:], strict=False)
    ]
    assert gaps[0] > gaps[-1]  # closer as it gets urgent
    assert (story.deleted_at_s, story.taken) == (100, False)


def test_throttled_for_longer_than_the_window_it_says_so_soon_after_the_deadline():
    story = play(Adaptive(), visibility_s=30, handler_s=100, throttled=[(0, 90)])
    assert story.lost_at_s == 32  # a grace of 2 s, in which it goes on trying
    assert sum(at > 30 for at, _ in story.failures) >= 1
    assert "renewal failed" in story.why and "slow down" in story.why


def test_one_try_in_three_is_enough():
    """A thousand leases of ten windows each, every call throttled, broken, delayed or cut two times out of three."""

    async def whole() -> tuple[int, int, int]:
        loop = asyncio.get_running_loop()
        random = Random(20_260_801)

        async def before(now_s: float) -> None:
            if random.random() < 1 / 3:
                await asyncio.sleep(random.uniform(0.001, 0.05))
                return
            match random.randrange(4):
                case 0:
                    raise ApiError(Failure.THROTTLED, "RequestThrottled", "slow down")
                case 1:
                    await asyncio.sleep(random.uniform(0.001, 0.3))
                    raise ApiError(Failure.UNREACHABLE, "ServiceUnavailable", "503")
                case 2:
                    await asyncio.sleep(random.uniform(5, 20))  # longer than any answer is waited for
                case 3:
                    raise ConnectionResetError("cut")

        queue = SimulatedQueue(loop.time, trouble=before, keep_history=False)
        events = Noted(loop)
        policy = Adaptive(visibility=30, window_max=30)
        keeper = LeaseKeeper(lambda: queue, policy, monotonic=loop.time, random=Random(7), events=events)
        await keeper.start()
        leases = []
        for number in range(1_000):
            leases.append(queue.lease(number, 30))
            keeper.hold(leases[-1])
            await asyncio.sleep(0.03)
        await asyncio.sleep(10 * 30)
        lost = sum(lease.lost or queue.taken(lease) for lease in leases)
        await keeper.close()
        return lost, events.count("renewed"), events.count("failed")

    import logging

    logging.getLogger(
        "veil.consumer.renewal.keeper"
    ).disabled = True  # a fault of the client is told with its traceback
    try:
        lost, renewed, failed = run_virtual(whole())
    finally:
        logging.getLogger("veil.consumer.renewal.keeper").disabled = False
    assert lost == 0
    assert renewed >= 10_000
    assert failed > 1.5 * renewed


def test_leases_that_are_due_at_about_the_same_time_share_their_calls():
    async def whole() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        queue = SimulatedQueue(loop.time)
        keeper = LeaseKeeper(lambda: queue, Adaptive(), monotonic=loop.time, random=Random(1))
        await keeper.start()
        for number in range(40):
            keeper.hold(queue.lease(number, 30))
            await asyncio.sleep(0.25)
        await asyncio.sleep(110)
        await keeper.close()
        return queue.call_count, queue.entry_count

    calls, entries = run_virtual(whole())
    assert entries / calls > 8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"window_min": 0}, "window_min=0 s"),
        ({"window_min": 60, "window_max": 30}, "window_max=30 s: expected at least window_min=60 s"),
        ({"window_max": timedelta(hours=13)}, "window_max=46800 s"),
        ({"maximum": 0}, "maximum=0 s"),
        ({"maximum": timedelta(hours=12, seconds=1)}, "maximum=43201 s"),
        ({"visibility": 0}, "visibility=0 s"),
        ({"visibility": "30"}, "visibility='30'"),
        ({"warn_before": -1}, "warn_before=-1 s"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(settings, said):
    with pytest.raises(RenewalRefused) as refused:
        Adaptive(**settings)
    assert said in str(refused.value)


def test_a_queue_whose_windows_are_longer_than_the_maximum_is_worth_a_warning():
    with pytest.warns(RenewalWarning):
        Adaptive(maximum=60).check(120)


def test_a_queue_without_windows_is_refused():
    with pytest.raises(RenewalRefused, match="use NoRenewal"):
        Adaptive().check(0)
    NoRenewal().check(0)


def test_a_policy_can_be_sent_to_a_helper_with_what_it_has_learned():
    assert pickle.loads(pickle.dumps(taught(120))).known_s()[1] == pytest.approx(120, rel=0.1)


def test_the_usual_time_forgets_what_is_long_past():
    usual = UsualTime(0.95)
    assert usual.known_s is None
    for _ in range(5_000):
        usual.add(1)
    assert usual.known_s == pytest.approx((1, 1), rel=0.11)
    for _ in range(1_000):
        usual.add(60)
    assert usual.known_s == pytest.approx((60, 60), rel=0.11)


def test_the_usual_time_covers_everything_from_nothing_to_twelve_hours():
    usual = UsualTime(0.95)
    for duration_s in (0, 1e-9, 43_200, 1e9):
        for _ in range(60):
            usual.add(duration_s)
    assert usual.known_s is not None and usual.known_s[0] < 0.01 and usual.known_s[1] > 43_200


def test_nothing_in_renewal_reads_the_wall_clock():
    for file in Path(veil.consumer.renewal.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"now", "utcnow", "today"}, file.name
                assert not (node.attr == "time" and getattr(node.value, "id", "") == "time"), file.name
