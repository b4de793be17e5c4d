"""The autopilot on a real server: what it changes, what it leaves alone, what it says, and what a crash does to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.pipeline.autopilot_kit import HOUR_MS, QUICKLY, REGION, World, a_world, quick, slow
from tests.pipeline.test_autopilot_advice import WHOLE
from veil.core.autopilot import (
    FILE,
    RESUME_TAG,
    AutopilotState,
    Decision,
    DecisionKind,
    Intent,
    PilotedQueue,
    StateUnreadable,
    encode_state,
)
from veil.core.findings import Findings
from veil.journal.storage import Storage
from veil.pipeline.autopilot.loop import JournalHealth
from veil.pipeline.timeouts.history import Work
from veil.words import exact_length

STEPS = ("intended", "asked", "set", "ended", "kept")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with a_world(tmp_path) as world:
        yield world


class Killed(BaseException):
    """The process is gone."""


def test_a_timeout_that_is_too_short_is_changed_once_and_audited(world: World):
    world.create(30)
    world.pass_time(2, slow)
    pilot = world.look()
    assert world.timeout_s is not None
    assert 90 <= world.timeout_s <= 120
    (change,) = world.actions("change")
    assert change["outcome"] == "done"
    assert change["target"] == "orders"
    assert change["account"] == "000000000000"
    assert change["differences"] == [["Visibility timeout", "30 s", exact_length(world.timeout_s)]]
    where = f"--endpoint {world.client.target.endpoint} --region {REGION}"
    assert change["commands"] == [f"veil queue edit orders --visibility-timeout 30s {where}"]
    assert "outlast the timeout" in change["detail"]
    assert re.search("; by [0-9]+ attempts, of which half took up to ", change["detail"])
    world.look(pilot)
    assert len(world.actions("change")) == 1


def test_the_queue_of_another_account_that_has_the_same_name_counts_for_nothing(world: World):
    world.create(30)
    world.pass_time(2, quick)
    world.pass_time(2, slow, account="111111111111")
    world.look()
    assert world.timeout_s == 30
    assert world.actions("change") == []


def test_a_state_of_another_account_or_region_is_refused_and_kept(world: World):
    """One server's journal tells of all of its accounts, so two autopilots may be given the same tables: the second would take
    the changes of the first for its own, on queues of the same names."""
    world.create(30)
    decision = Decision(kind=DecisionKind.CHANGE, code="", reason="", at_ms=0, before_s=20, after_s=30)
    queues = {"orders": PilotedQueue(intent=Intent(id="x", decision=decision))}
    for region, account in ((REGION, "111111111111"), ("us-west-2", "000000000000")):
        state = encode_state(AutopilotState(region=region, account=account, queues=queues))
        world.tables.write(FILE, state)
        with pytest.raises(
            StateUnreadable, match=f"account {account} in {region}: expected .* 000000000000 in {REGION}"
        ):
            world.look()
        assert world.tables.read(FILE) == state
    assert world.audit() == []


def test_the_goals_of_queues_are_not_those_of_another_accounts_queues(world: World):
    world.create(30)
    world.pass_time(2, quick)
    asked: list[Work] = []
    world.look(world.pilot(find_all=asked.extend))
    assert asked == [Work(REGION, "000000000000", "orders", "")]


@pytest.mark.parametrize("tag", ["advise target=0.05", "off", "nonsense"])
def test_without_leave_nothing_is_changed(world: World, tag: str):
    world.create(30, tag)
    world.pass_time(2, slow)
    world.look(world.look())
    assert world.timeout_s == 30
    assert not world.actions("change")
    assert len(world.actions("advise")) == (1 if tag.startswith("advise") else 0)
    unreadable = [
        each for each in world.actions("nothing") if "is not readable: 'nonsense'" in each["detail"]
    ]
    assert len(unreadable) == (1 if tag == "nonsense" else 0)


def test_doing_nothing_is_audited_once_for_each_reason(world: World):
    world.create(30)
    world.pass_time(1, quick, attempts=5)
    pilot = world.look()
    world.pass_time(0.1, quick, attempts=5)
    world.look(pilot)
    (nothing,) = world.actions("nothing")
    assert "not enough evidence" in nothing["detail"]


def test_a_persons_change_wins_and_silences_until_told_otherwise(world: World):
    world.create(30)
    world.pass_time(2, slow)
    pilot = world.look()
    world.queues.set_timeout("orders", 45)
    world.pass_time(1, slow)
    pilot = world.look(pilot)
    world.pass_time(1, slow)
    pilot = world.look(pilot)
    assert world.timeout_s == 45
    assert any("a person changed the timeout" in each["detail"] for each in world.actions("nothing"))
    world.queues.tag("orders", RESUME_TAG, str(world.now_ms))
    world.pass_time(1, slow)
    world.look(pilot)
    assert world.timeout_s != 45
    assert len(world.actions("change")) == 2


def test_whoever_resumes_at_once_has_their_own_timeout_as_the_new_beginning(world: World):
    world.create(30)
    world.pass_time(2, slow)
    pilot = world.look()
    world.queues.set_timeout("orders", 45)
    world.queues.tag("orders", RESUME_TAG, f"{world.now_ms} 45")  # before the autopilot has looked again
    world.pass_time(1, slow)
    world.look(pilot)
    assert world.timeout_s not in (None, 45)
    assert world.actions("change")[-1]["differences"][0][1] == "45 s"
    world.queues.tag("orders", RESUME_TAG, f"{world.now_ms} {world.timeout_s}")
    world.queues.set_timeout("orders", 45)  # after that: a person's own again
    world.pass_time(1, slow)
    assert world.look(pilot).state.queues["orders"].silenced_ms == world.now_ms
    assert world.timeout_s == 45


def test_a_change_that_makes_things_worse_is_taken_back_and_the_queue_rests(world: World):
    world.create(600)
    world.pass_time(25, quick)
    pilot = world.look()
    shorter_s = world.timeout_s
    assert shorter_s is not None
    assert shorter_s < 20
    world.pass_time(1, slow)
    world.look(pilot)
    assert world.timeout_s == 600
    (taken_back,) = world.actions("take back")
    assert taken_back["outcome"] == "done"
    assert "goes back to 10 min" in taken_back["detail"]
    world.pass_time(1, quick)
    world.look(pilot)
    assert world.timeout_s == 600
    assert pilot.state.queues["orders"].resting_ms > world.now_ms


def test_a_change_that_holds_is_kept_and_says_so(world: World):
    world.create(600)
    world.pass_time(25, quick)
    pilot = world.look()
    world.pass_time(1, quick)
    world.look(pilot)
    (kept,) = world.actions("keep")
    assert "stays: 0 of" in kept["detail"]
    assert pilot.state.queues["orders"].watch is None


def test_work_whose_nature_changes_is_noticed_and_what_came_before_forgotten(world: World):
    world.create(600, "advise target=0.05")
    world.pass_time(26, quick, attempts=800)
    pilot = world.look()
    world.pass_time(2, slow)
    world.pass_time(1, slow)
    world.look(pilot)
    (drift,) = world.actions("drift")
    assert "the work has changed" in drift["detail"]
    assert world.now_ms - pilot.state.queues["orders"].memory_ms <= 5 * HOUR_MS


def test_what_a_timeout_cannot_mend_is_recorded_once_and_told_once_a_day(world: World):
    findings = Findings(1, "", 0.001, [msgspec.structs.replace(WHOLE, failed=6_200)])
    world.create(30, "advise")
    world.pass_time(2, quick)
    pilot = world.look(world.pilot(find_all=lambda goals: findings))
    assert len(world.actions("advise")) == 1
    for _ in range(5):
        world.pass_time(5, quick, attempts=100)
        pilot.look_at_all()
    (advice,) = world.actions("advise")
    assert advice["detail"].startswith("62 % of the attempts failed")
    assert [told.reason for _, told in world.told if told.kind is DecisionKind.ADVISE] == [
        advice["detail"]
    ] * 2


# ---- what cannot be relied on


def test_nothing_is_done_on_a_journal_that_is_behind(world: World):
    world.create(30)
    world.pass_time(2, slow)
    world.now_ms += HOUR_MS
    pilot = world.look()
    assert world.timeout_s == 30
    assert "quarter of an hour" in (pilot.state.problem or "")
    (nothing,) = world.actions("nothing")
    assert "cannot be relied on" in nothing["detail"]


@pytest.mark.parametrize("health", [JournalHealth(3_600.0, 0.0), "the server's /metrics cannot be read"])
def test_nothing_is_done_where_the_server_says_so(world: World, health: JournalHealth | str):
    world.create(30)
    world.pass_time(2, slow)
    world.health = health
    world.look()
    assert world.timeout_s == 30


def test_lost_events_make_the_past_useless(world: World):
    world.create(30)
    world.pass_time(2, slow, attempts=100)
    pilot = world.look(world.pilot())
    world.health = JournalHealth(0.0, 12.0)
    pilot.look_at_all()
    assert "could not record 12 events" in (pilot.state.problem or "")
    assert pilot.state.queues["orders"].memory_ms == world.now_ms
    world.health = JournalHealth(0.0, 5.0)  # of a server that was started again
    pilot.look_at_all()
    assert "could not record 5 events" in (pilot.state.problem or "")


def test_nothing_is_done_after_the_clock_was_set_back(world: World):
    world.create(30)
    world.pass_time(2, slow)
    world.now_ms -= HOUR_MS
    pilot = world.look()
    assert world.timeout_s == 30
    assert "clock" in (pilot.state.problem or "")


def test_a_step_of_the_wall_clock_matters_to_nobody_where_the_server_tells_the_time(world: World):
    world.create(30)
    world.pass_time(2, slow)
    world.health = JournalHealth(0.0, 0.0, now_ms=world.now_ms)
    pilot = world.look(world.pilot(now_ms=lambda: world.now_ms - 3 * HOUR_MS))
    assert pilot.state.problem is None
    assert world.timeout_s != 30


def test_nothing_is_done_on_a_journal_with_a_broken_segment(world: World):
    world.create(30)
    world.pass_time(2, slow)
    (segment,) = [
        each.name for each in world.journal.entries(recursive=True) if each.name.endswith(".parquet")
    ]
    world.journal.write(segment, b"PAR1")
    pilot = world.look()
    assert world.timeout_s == 30
    assert "cannot be read" in (pilot.state.problem or "")


def test_two_autopilots_on_one_server_know_of_each_other(world: World, tmp_path: Path):
    world.create(30)
    world.pass_time(2, slow)
    first, second = world.pilot(), world.pilot()
    second.state = first.state  # a copy of the tables that somebody made: another owner, the same findings
    from msgspec.structs import replace

    second.state = replace(second.state, owner="the other")
    first.look_at_all()
    assert first.has_claimed
    second.look_at_all()
    second.look_at_all()
    assert not second.has_claimed
    assert world.timeout_s == 30
    first.look_at_all()
    assert world.timeout_s != 30
    assert len(world.actions("change")) == 1


# ---- crashes


@pytest.mark.parametrize("step", STEPS)
def test_whatever_step_it_dies_at_the_change_is_made_once_and_audited_once(world: World, step: str):
    world.create(30)
    world.pass_time(2, slow)
    calls: list[int] = []
    make = world.queues.set_timeout

    def counted(queue: str, timeout_s: int) -> None:
        calls.append(timeout_s)
        make(queue, timeout_s)

    world.queues.set_timeout = counted  # type: ignore[method-assign]

    def on_step(name: str) -> None:
        if name == step:
            raise Killed

    with pytest.raises(Killed):
        world.look(world.pilot(on_step=on_step))
    pilot = world.look(world.look())
    assert len(calls) == 1
    assert world.timeout_s == calls[0]
    done = [each for each in world.actions("change") if each["outcome"] == "done"]
    assert len(done) == 1
    assert not [each for each in world.actions("change") if each["outcome"] == "asked"]
    state = pilot.state.queues["orders"]
    assert state.intent is None
    assert state.silenced_ms is None
    assert state.watch is not None


def test_a_call_that_fails_leaves_the_intent_to_the_next_look(world: World):
    world.create(30)
    world.pass_time(2, slow)
    make = world.queues.set_timeout

    def failing(queue: str, timeout_s: int) -> None:
        make(queue, timeout_s)
        raise OSError("no answer")

    world.queues.set_timeout = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no answer"):
        world.look()
    world.queues.set_timeout = make  # type: ignore[method-assign]
    world.look()
    (change,) = world.actions("change")
    assert change["outcome"] == "done"
    assert world.timeout_s != 30


def test_a_state_of_the_tables_is_read_by_whoever_starts_next(world: World):
    world.create(30)
    world.pass_time(2, slow)
    pilot = world.look()
    assert world.pilot().state == pilot.state
    assert Storage.at(world.tables.uri).exists("autopilot.json")
    assert QUICKLY.startswith(pilot.state.queues["orders"].mode)
