"""`Buffered` does what the NServiceBus transport does, vector by vector, and better where that goes wrong."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tests.consumer.renewal_stories import play
from veil.client.api import Failure
from veil.consumer.renewal import Buffered, RenewalRefused, RenewalWarning
from veil.consumer.renewal.policies import Window

TWELVE_HOURS = timedelta(hours=12)
SOON = 300

# name, V, M, D, P, events (time, remaining, asked, expiry), when deleted
DELETED = [
    ("N1", 30, SOON, 0, 19, [], 19),
    ("N2", 30, SOON, 0, 45, [(20, 10, 40, 60)], 45),
    ("N3", 30, SOON, 0, 100, [(20, 10, 40, 60), (50, 10, 40, 90), (80, 10, 40, 120)], 100),
    ("N5", 10, SOON, 0, 30, [(5, 5, 15, 20), (12.5, 7.5, 17, 29.5), (21, 8.5, 18, 39)], 30),
    ("N6", 20, SOON, 0, 60, [(10, 10, 30, 40), (30, 10, 30, 60), (50, 10, 30, 80)], 60),
    ("N7", 15, SOON, 0, 40, [(7.5, 7.5, 22, 29.5), (19.5, 10, 25, 44.5), (34.5, 10, 25, 59.5)], 40),
    ("N8", 1, SOON, 0, 2, [(0.5, 0.5, 1, 1.5), (1, 0.5, 1, 2), (1.5, 0.5, 1, 2.5)], 2),
    ("N9", 2, SOON, 0, 6, [(1, 1, 3, 4), (2.5, 1.5, 3, 5.5), (4, 1.5, 3, 7), (5.5, 1.5, 3, 8.5)], 6),
    ("N10", 5, SOON, 0, 12, [(2.5, 2.5, 7, 9.5), (6, 3.5, 8, 14), (10, 4, 9, 19)], 12),
    ("N11", 120, 3600, 0, 300, [(110, 10, 130, 240), (230, 10, 130, 360)], 300),
    ("N12", 30, SOON, 32, 60, [(32, -2, 32, 64), (54, 10, 40, 94), (84, 10, 40, 124)], 92),
    ("N13", 30, SOON, 30.5, 30, [(30.5, -0.5, 30, 60.5), (50.5, 10, 40, 90.5)], 60.5),
    ("N14", 30, SOON, 75, 30, [(75, -45, 75, 150)], 105),
    ("N15", 30, SOON, 29.7, 60, [(29.7, 0.3, 30, 59.7), (49.7, 10, 40, 89.7), (79.7, 10, 40, 119.7)], 89.7),
    ("N16", 30, SOON, 29.6, 60, [(29.8, 0.2, 30, 59.8), (49.8, 10, 40, 89.8), (79.8, 10, 40, 119.8)], 89.6),
]  # fmt: skip

# name, V, M, D, P, events, when renewal stops, when the message is visible
STOPPED = [
    ("N4", 30, SOON, 0, 400, [(20 + 30 * k, 10, 40, 60 + 30 * k) for k in range(10)], 300, 330),
    ("N18", 30, 15, 0, 60, [], 15, 30),
    ("N19", 600, 300, 0, 900, [], 300, 600),
    ("N20", 30, 20, 5, 60, [(20, 10, 40, 60)], 25, 60),
    ("N21", 30, 14, 5, 60, [], 19, 30),
]  # fmt: skip

# name, P, when the process was paused, events, when deleted
LATE = [
    ("N22", 30, 70, (19.9, 24), [(24, 6, 36, 60), (50, 10, 40, 90)], 70),
    ("N23", 30, 70, (19.9, 32), [(32, -2, 32, 64), (54, 10, 40, 94)], 70),
    ("N24", 10, 17, (12.4, 16), [(5, 5, 15, 20), (16, 4, 14, 30)], 17),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "v", "m", "d", "p", "events", "deleted"), DELETED, ids=[v[0] for v in DELETED]
)
def test_the_schedule_is_the_original_one(name, v, m, d, p, events, deleted):
    # A message held so late that its window has lapsed waits for its old holder here, as the vectors assume.
    story = play(Buffered(m), visibility_s=v, handler_s=p, held_after_s=d, patient=True)
    assert story.events == events
    assert (story.deleted_at_s, story.lost_at_s) == (deleted, None)


@pytest.mark.parametrize("name", ["N12", "N13", "N14", "N15", "N16"])
def test_a_message_that_is_held_from_its_receipt_never_gets_that_late(name):
    """The originals begin when a handler does; here the wait for a slot is covered too."""
    _, v, m, d, p, _, deleted = next(vector for vector in DELETED if vector[0] == name)
    story = play(Buffered(m), visibility_s=v, handler_s=d + p)
    assert story.deleted_at_s == deleted
    assert all(each.remaining_s >= 10 for each in story.extensions)


@pytest.mark.parametrize(
    ("name", "v", "m", "d", "p", "events", "stops", "visible"), STOPPED, ids=[v[0] for v in STOPPED]
)
def test_at_its_maximum_it_stops_and_the_handler_is_told_before_anybody_else_gets_the_message(
    name, v, m, d, p, events, stops, visible
):
    """The original's handler runs on unaware; ours is warned, told that this is the last window, and then that it ended."""
    story = play(Buffered(m), visibility_s=v, handler_s=p, held_after_s=d)
    assert story.events == events
    assert story.capped_at_s == stops
    assert story.warned_at_s is not None and story.warned_at_s < stops
    assert story.visible_at_s == visible
    # Held late and never renewed, the first window is in doubt by as much: a long poll looks the same.
    assert story.lost_at_s == (visible if events or not d else visible + d)
    assert "the most that is allowed" in story.why


def test_n17_a_maximum_of_zero_turns_it_off():
    story = play(Buffered(0), visibility_s=30, handler_s=60)
    assert (story.events, story.lost_at_s, story.visible_at_s) == ([], 30, 30)
    assert not Buffered(0).renews


@pytest.mark.parametrize(("name", "v", "p", "stall", "events", "deleted"), LATE, ids=[v[0] for v in LATE])
def test_waking_late_it_asks_for_as_much_more(name, v, p, stall, events, deleted):
    story = play(Buffered(), visibility_s=v, handler_s=p, stalls=[stall], patient=True)
    assert story.events == events
    assert story.deleted_at_s == deleted
    assert story.late == 1


def test_n23_that_late_and_taken_by_somebody_else_the_handler_is_told_at_once():
    story = play(Buffered(), visibility_s=30, handler_s=70, stalls=[(19.9, 32)])
    assert (story.lost_at_s, story.events) == (32, [])


def test_n25_a_throttled_renewal_is_tried_again_before_the_deadline():
    """The original's loop is over and the message visible at 60; here the same schedule, and then another try."""
    story = play(Buffered(), visibility_s=30, handler_s=120, throttled=[(49, 54)])
    first, second, *rest = story.events
    assert first == (20, 10, 40, 60)
    assert story.failures[0] == (50, Failure.THROTTLED)
    assert len(story.failures) >= 3
    assert 54 < second[0] < 60 and second[2] == 40
    assert rest and (story.deleted_at_s, story.taken) == (120, False)


def test_n26_a_receipt_that_is_invalid_is_a_lost_lease_and_nothing_is_released():
    story = play(Buffered(), visibility_s=30, handler_s=120, gone_at_s=20)
    assert story.lost_at_s == 20
    assert len(story.extensions) == 1
    assert "ReceiptHandleIsInvalid" in story.why


@pytest.mark.parametrize(
    ("name", "v", "last", "before", "visible"),
    [
        ("N27", 30, (43160, 10, 39, 43199), 43130, 43199),
        ("N28", 3600, (39590, 10, 3609, 43199), 35990, 43199),
        ("N29", 43200, None, None, 43200),
    ],
    ids=["N27", "N28", "N29"],
)  # fmt: skip
def test_at_twelve_hours_it_asks_for_what_is_left_and_a_healthy_handler_goes_on(
    name, v, last, before, visible
):
    """The original asks for too much, takes the refusal for a loss and cancels the handler ten seconds early."""
    story = play(Buffered(TWELVE_HOURS), visibility_s=v, handler_s=50_000)
    if last is not None:
        assert story.events[-1] == last
        assert story.events[-2][:3] == (before, 10, v + 10)
    else:
        assert story.events == []
    assert story.failures == []  # not one request that the service must refuse
    assert story.lost_at_s == story.visible_at_s == visible
    assert story.capped_at_s is not None and story.capped_at_s < visible
    assert "twelve hours" in story.why or "allowed" in story.why


def test_n30_a_window_of_zero_is_refused_instead_of_renewed_without_end():
    with pytest.raises(RenewalRefused, match=r"visibility=0 s: expected"):
        Buffered(visibility=0)
    with pytest.raises(RenewalRefused, match=r"visibility=0 s: expected"):
        Buffered().check(0)
    Buffered(0, visibility=0).check(0)  # off is off


@pytest.mark.parametrize("step_s", [25, -100], ids=["N31", "N32"])
def test_a_step_of_the_wall_clock_changes_nothing(step_s, monkeypatch):
    """The original counts on the wall clock: a step back by 100 s delays recovery after a crash to 160 s."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    story = play(Buffered(), visibility_s=30, handler_s=45)
    assert story.events == [(20, 10, 40, 60)]


def test_the_settings_are_lengths_in_either_form():
    assert Buffered(timedelta(minutes=5)).maximum_s == Buffered(300).maximum_s == 300
    assert Buffered(visibility=timedelta(seconds=45)).receive_visibility_s == 45
    assert Buffered().receive_visibility_s is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_duration": -1}, "max_duration=-1 s: expected 0 s to 43200 s"),
        ({"max_duration": timedelta(hours=13)}, "max_duration=46800 s"),
        ({"max_duration": float("nan")}, "max_duration=nan s"),
        ({"max_duration": "5 min"}, "max_duration='5 min': expected a timedelta, or seconds"),
        ({"max_duration": True}, "max_duration=True"),
        ({"visibility": 43_201}, "visibility=43201 s"),
        ({"visibility": 1.5}, "visibility=1.5 s: expected whole seconds"),
        ({"warn_before": -1}, "warn_before=-1 s"),
    ],
)
def test_what_cannot_work_is_refused_with_name_value_and_expectation(settings, said):
    with pytest.raises(RenewalRefused) as refused:
        Buffered(**settings)
    assert said in str(refused.value)


def test_a_maximum_shorter_than_the_window_is_worth_a_warning():
    with pytest.warns(RenewalWarning, match="nothing will ever be renewed"):
        Buffered(300, visibility=600)
    with pytest.warns(RenewalWarning):
        Buffered(15).check(30)


def test_the_rule_itself_needs_no_clock():
    window = Window(0, 30, 0, 0, 0, 30)
    policy = Buffered()
    assert policy.due_s(window) == 20
    assert policy.ask_s(window, 20) == 40
    assert policy.ask_s(window, 32) == 32
