"""What operations come to, called as functions: facts in, effects out; and the journal's event of each effect."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.core.test_lease import DELAYED, FREE, LAPSED, NOW_MS, OPEN, receipt
from tests.stores.kit import redrive_to
from veil.core import decide, effect, limits
from veil.core.attempt import ReportedOutcome
from veil.core.clock import LeaseTime, ManualClock, Trouble, TroubleKind
from veil.core.effect import (
    DeadLettered,
    Deleted,
    DeleteRefused,
    Enqueued,
    Expired,
    Extended,
    ExtensionRefused,
    Lapsed,
    Postponed,
    Purged,
    Redriven,
    Released,
    Undone,
)
from veil.core.errors import InFlightLimit, VisibilityTooLong
from veil.core.event import Event, EventRecorder, Kind, unpack
from veil.core.lease import HOLD_BYTES_MAX, WAITING, Deletion, Member, State, is_open
from veil.core.limits import IN_FLIGHT_MAX, VISIBILITY_MAX_S
from veil.core.message import SOURCE_QUEUE, Caller, MessageAttribute, NewMessage, StoredMessage
from veil.core.queue import DESTINATION_MISSING, SOURCE_UNKNOWN, MoveTask, Queue, QueueKey, QueueSettings
from veil.core.receipt import DELIVERY_BITS
from veil.core.sequence import expires_at_ms, first_seq_of

RETENTION_S = 345_600
SETTINGS = QueueSettings(retention_s=RETENTION_S)
TROUBLE = Trouble(0, NOW_MS, "disk")
KEY, DEAD_KEY = QueueKey("r", "a", "q"), QueueKey("r", "a", "dead")


def a_queue(queue_id: int = 1, key: QueueKey = KEY, **settings) -> Queue:
    return Queue(queue_id, key, QueueSettings(**settings))


def a_stored(seq: int = 77, **given) -> StoredMessage:
    facts = {
        **dict.fromkeys(("attributes", "trace_header", "group", "deduplication_id", "dead_letter_source")),
        **dict.fromkeys(("first_received_wall_ms", "due_at_ms", "received_at_ms")),
        "message_id": "m",
        "body": "b",
        "body_md5": "d",
        "sender": "s",
        "sent_wall_ms": 5,
        "receive_count": 0,
        "delivery": 0,
        "state": State.VISIBLE,
        "body_bytes": 1,
        **given,
    }
    return StoredMessage(seq=seq, **facts)


# ---- send and receive


def test_a_message_is_delayed_by_its_own_delay_else_by_the_queues():
    new = NewMessage("m", "ä", "d")
    assert decide.enqueue(new, 7, QueueSettings(), NOW_MS) == Enqueued(new, 7, State.VISIBLE, None, 2)
    queued = decide.enqueue(new, 7, QueueSettings(delay_s=5), NOW_MS)
    assert (queued.state, queued.due_at_ms) == (State.DELAYED, NOW_MS + 5_000)
    own = decide.enqueue(replace(new, delay_s=0), 7, QueueSettings(delay_s=5), NOW_MS)
    assert own.state == State.VISIBLE


@pytest.mark.parametrize(
    ("in_flight", "taken"), [(0, 10), (IN_FLIGHT_MAX - 3, 3), (IN_FLIGHT_MAX, 0), (IN_FLIGHT_MAX + 1, -1)]
)
def test_a_receive_never_passes_the_limit_of_messages_in_flight(in_flight, taken):
    fifo = Queue(1, KEY, QueueSettings(fifo=True))
    assert decide.receive_budget(fifo, in_flight, 10, None).count == taken
    assert decide.receive_budget(a_queue(), in_flight, 10, None, hold=True).count == taken
    if taken > 0:
        assert decide.receive_budget(a_queue(), in_flight, 10, None).count == taken
    else:
        with pytest.raises(InFlightLimit):
            decide.receive_budget(a_queue(), in_flight, 10, None)


def test_a_message_is_spent_when_one_more_receive_would_exceed_the_maximum():
    queue, dead = a_queue(redrive=redrive_to("dead", 3)), a_queue(2, DEAD_KEY)
    messages = [a_stored(seq, receive_count=count) for seq, count in enumerate((2, 3, 4, 0, 0), 1)]

    taken, spent = decide.receive_budget(queue, 0, 2, dead).choose(iter(messages))
    assert ([m.seq for m in taken], [m.seq for m in spent]) == ([1, 4], [2, 3])
    taken, spent = decide.receive_budget(queue, 0, 3, None).choose(iter(messages))
    assert ([m.seq for m in taken], spent) == ([1, 2, 3], [])


def test_a_receive_meets_no_more_spent_messages_than_one_transaction_moves():
    queue, dead = a_queue(redrive=redrive_to("dead", 1)), a_queue(2, DEAD_KEY)
    backlog = [a_stored(seq, receive_count=1) for seq in range(1, 2 * decide.SPENT_AT_ONCE)]
    budget = decide.receive_budget(queue, 0, 10, dead)
    taken, spent = budget.choose([*backlog, a_stored(5_000)])
    assert (taken, len(spent), budget.is_cut, budget.is_left()) == ([], decide.SPENT_AT_ONCE, True, False)

    large = [a_stored(seq, receive_count=1, body_bytes=limits.RECEIVE_BYTES_MAX // 2) for seq in range(1, 9)]
    budget = decide.receive_budget(queue, 0, 10, dead)
    assert (len(budget.choose(large)[1]), budget.is_cut) == (2, True)

    budget = decide.receive_budget(queue, 0, 1, dead)
    taken, spent = budget.choose([*backlog[: decide.SPENT_AT_ONCE - 1], a_stored(5_000)])
    assert ([m.seq for m in taken], budget.is_cut) == ([5_000], False)


def test_a_hold_takes_no_more_once_it_has_its_bytes():
    messages = [a_stored(seq, body_bytes=HOLD_BYTES_MAX // 2) for seq in range(1, 5)]
    taken, _ = decide.receive_budget(a_queue(), 0, 10, None, hold=True).choose(messages)
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("target", "is_valid"),
    [(None, False), (a_queue(2, DEAD_KEY), True), (Queue(2, DEAD_KEY, QueueSettings(fifo=True)), False)],
)
def test_dead_letters_go_where_there_is_a_queue_of_the_same_type(target, is_valid):
    queue = a_queue(redrive=redrive_to("dead", 3))
    assert decide.dead_letters_of(queue, lambda key: target) == (target if is_valid else None)
    assert decide.dead_letters_of(a_queue(), lambda key: target) is None


def test_a_receive_opens_a_lease_with_the_next_delivery_number():
    again, first, other = decide.open_leases(
        [a_stored(delivery=4, receive_count=2), a_stored(), a_stored()], 30, NOW_MS, 99
    )
    assert again.lease == (State.IN_FLIGHT, NOW_MS + 30_000, NOW_MS, 5, 5, 3, 99)
    assert first.lease == other.lease == (State.IN_FLIGHT, NOW_MS + 30_000, NOW_MS, 1, 1, 1, 99)
    assert [each.delivery for each in (again, first, other)] == [5, 1, 1]
    [looked] = decide.open_leases([a_stored(delivery=4, first_received_wall_ms=7)], 0, NOW_MS, 99)
    assert looked.lease == (State.VISIBLE, None, NOW_MS, 5, 0, 1, 7)
    assert (looked.delivery, looked.deadline_ms) == (5, NOW_MS)


def test_an_attempt_gives_again_only_what_is_as_it_was_given():
    held = a_stored(state=State.IN_FLIGHT, due_at_ms=NOW_MS + 1, delivery=3, holder=3, receive_count=1)
    claims = [(77, 3, NOW_MS + 1)]
    settings = QueueSettings(visibility_s=30)
    [again] = decide.repeat_attempt(claims, {77: held}, settings, 30, NOW_MS) or []
    assert again.lease[:5] == (State.IN_FLIGHT, NOW_MS + 30_000, NOW_MS, 3, 3)
    rotated = replace(held, holder=3 | 1 << DELIVERY_BITS)
    for messages in ({}, {77: rotated}, {77: replace(held, due_at_ms=NOW_MS + 2)}):
        assert decide.repeat_attempt(claims, messages, settings, 30, NOW_MS) is None
    assert decide.repeat_attempt(claims, {77: held}, settings, 30, NOW_MS + 1) is None
    assert decide.repeat_attempt(claims, {77: held}, settings, 0, NOW_MS) is None


@pytest.mark.parametrize(
    ("claimed_ms", "moved_ms", "is_repeated"),
    [
        (-1_000, 14_000, True),  # it ran out in the trouble and has its grace
        (-1_000, 9_000, True),  # which was written down while the trouble lasted
        (-1_000, 14_001, False),  # no grace reaches so far: its holder was here
        (-21_000, 14_000, False),  # it had lapsed before
        (1_000, 14_000, False),  # it had not run out yet
    ],
)
def test_an_attempt_gives_again_what_a_grace_has_moved(claimed_ms, moved_ms, is_repeated):
    trouble = Trouble(NOW_MS - 20_000, NOW_MS - 1_000, "disk")
    held = a_stored(state=State.IN_FLIGHT, due_at_ms=NOW_MS + moved_ms, delivery=3, holder=3, receive_count=1)
    claims = [(77, 3, NOW_MS + claimed_ms)]
    again = decide.repeat_attempt(claims, {77: held}, QueueSettings(visibility_s=30), 30, NOW_MS, trouble)
    assert (again is not None) == is_repeated


# ---- receipts


def test_a_deletion_tells_the_deadline_of_the_receipts_own_open_lease():
    assert decide.decide_deletion(OPEN, receipt(3), NOW_MS, fifo=False) == Deleted(OPEN, 3, OPEN.due_at_ms)
    assert decide.decide_deletion(FREE, receipt(2), NOW_MS, fifo=False) == Deleted(FREE, 2, None)


@pytest.mark.parametrize(
    ("message", "fifo", "deletion", "raises"),
    [
        (None, False, Deletion.GONE, False),
        (OPEN, False, Deletion.STALE, False),
        (OPEN, True, Deletion.STALE, True),
    ],
)
def test_a_refused_deletion_is_success_except_on_fifo_queues(message, fifo, deletion, raises):
    refused = decide.decide_deletion(message, receipt(2), NOW_MS, fifo=fifo)
    assert isinstance(refused, DeleteRefused)
    assert (refused.deletion, refused.error is not None) == (deletion, raises)


def test_an_extension_extends_releases_does_nothing_or_is_refused():
    extended = decide.decide_extension(LAPSED, receipt(2), 10, NOW_MS, fifo=False)
    assert isinstance(extended, Extended)
    assert extended.lease[:5] == (State.IN_FLIGHT, NOW_MS + 10_000, OPEN.received_at_ms, 3, 2)
    released = decide.decide_extension(OPEN, receipt(3), 0, NOW_MS, fifo=False)
    assert isinstance(released, Released)
    assert (released.lease.state, released.lease.holder, released.deadline_ms) == (
        State.VISIBLE,
        0,
        OPEN.due_at_ms,
    )
    assert decide.decide_extension(FREE, receipt(3), 0, NOW_MS, fifo=False) is None
    refused = decide.decide_extension(None, receipt(3), 10, NOW_MS, fifo=False)
    assert isinstance(refused, ExtensionRefused)
    too_long = decide.decide_extension(OPEN, receipt(3), VISIBILITY_MAX_S, NOW_MS, fifo=False)
    assert isinstance(too_long, VisibilityTooLong)


def test_less_time_than_was_left_is_a_give_back_and_so_is_whatever_the_holder_says_to_be_the_end():
    reported = ReportedOutcome("failed", "ValueError", "no", "  File …")
    held = OPEN._replace(due_at_ms=NOW_MS + 30_000)
    later, earlier = 31, 29
    for visibility_s, told, kind in (
        (later, None, Extended),
        (earlier, None, effect.GivenBack),
        (later, reported, effect.GivenBack),
    ):
        changed = decide.decide_extension(held, receipt(3), visibility_s, NOW_MS, fifo=False, reported=told)
        assert type(changed) is kind
    # A lease that had lapsed has nothing left that could become less.
    assert type(decide.decide_extension(LAPSED, receipt(3), 1, NOW_MS, fifo=False)) is Extended
    [event] = _events(decide.decide_extension(OPEN, receipt(3), 0, NOW_MS, fifo=False, reported=reported))
    assert (event.kind, ReportedOutcome(*event[-5:])) == (Kind.RELEASED, reported)
    for ended in (
        decide.decide_deletion(OPEN, receipt(3), NOW_MS, fifo=False, reported=reported),
        decide.decide_deletion(None, receipt(3), NOW_MS, fifo=False, reported=reported),
        decide.decide_extension(None, receipt(3), 5, NOW_MS, fifo=False, reported=reported),
    ):
        assert ReportedOutcome(*_events(ended)[0][-5:]) == reported


def test_a_rotation_begins_the_lease_again_and_a_delay_stays_one():
    rotated = decide.decide_rotation(OPEN, receipt(3), 5, NOW_MS)
    assert isinstance(rotated, Extended | effect.GivenBack)
    assert rotated.lease[:5] == (
        State.IN_FLIGHT,
        NOW_MS + 5_000,
        NOW_MS,
        3,
        decide.rotated_receipt(receipt(3)).holder,
    )
    delayed = decide.decide_rotation(DELAYED, receipt(WAITING), 5, NOW_MS)
    assert isinstance(delayed, effect.DelayChanged)
    assert (delayed.lease.state, delayed.lease.due_at_ms) == (State.DELAYED, NOW_MS + 5_000)


def test_a_receive_that_is_undone_is_not_counted():
    undone = decide.decide_undo(OPEN, receipt(3), NOW_MS)
    assert isinstance(undone, Undone)
    assert (undone.lease.receive_count, undone.lease.first_received_wall_ms) == (0, None)
    assert decide.decide_undo(OPEN, receipt(2), NOW_MS) is None
    assert decide.decide_undo(LAPSED, receipt(3), NOW_MS) is None


# ---- what happens by itself


def test_what_is_due_lapses_expires_or_is_postponed():
    seq = first_seq_of(NOW_MS - 1_000)
    held = LAPSED._replace(seq=seq)
    assert isinstance(decide.decide_due(held, SETTINGS, NOW_MS), Lapsed)
    assert decide.decide_due(held._replace(state=State.VISIBLE, due_at_ms=None), SETTINGS, NOW_MS) is None
    later = held._replace(due_at_ms=NOW_MS + 5)
    assert decide.decide_due(later, SETTINGS, NOW_MS) == Postponed(later, NOW_MS + 5)


def test_a_lease_that_would_have_outlasted_its_message_ends_with_it():
    ends_ms = expires_at_ms(OPEN.seq, RETENTION_S)
    outlasting, lapsed = OPEN._replace(due_at_ms=ends_ms), OPEN._replace(due_at_ms=ends_ms - 1)
    assert decide.decide_due(outlasting, SETTINGS, ends_ms) == Expired(outlasting, 3, ends_ms)
    assert decide.decide_due(lapsed, SETTINGS, ends_ms) == Expired(lapsed, 0, None)
    assert decide.purge(OPEN) == Purged(OPEN, 3, OPEN.due_at_ms)
    assert decide.purge(FREE) == Purged(FREE, 0, None)


# ---- holds and redrives


def test_a_hold_keeps_what_it_has_takes_back_what_lapsed_and_strikes_the_rest():
    messages = {1: OPEN._replace(seq=1), 2: FREE._replace(seq=2), 3: OPEN._replace(seq=3, holder=9)}
    members = [Member(seq, 3) for seq in (1, 2, 3, 4)]
    kept = decide.keep_hold(a_queue(), members, messages, {}, 30, NOW_MS, again=True)
    assert [member.seq for member in kept.open] == [member.seq for member in kept.left] == [1, 2]
    assert [type(each) for each in kept.effects] == [Extended, Extended, ExtensionRefused, ExtensionRefused]


def test_a_hold_takes_nothing_back_from_behind_what_it_does_not_keep():
    fifo = Queue(1, KEY, QueueSettings(fifo=True))
    messages = {seq: FREE._replace(seq=seq, group="g") for seq in (1, 2)}
    for group_seqs, open_seqs in (({"g": [1, 2]}, [1, 2]), ({"g": [0, 1, 2]}, [])):
        members = [Member(1, 3), Member(2, 3)]
        kept = decide.keep_hold(fifo, members, messages, group_seqs, 30, NOW_MS, again=False)
        assert [member.seq for member in kept.open] == open_seqs


def test_a_hold_is_extended_for_twelve_hours_after_the_receive_and_no_longer():
    old = OPEN._replace(received_at_ms=NOW_MS - VISIBILITY_MAX_S * 1_000 + 500)
    [extended] = decide.keep_hold(a_queue(), [Member(77, 3)], {77: old}, {}, 30, NOW_MS, again=False).effects
    assert isinstance(extended, Extended)
    assert extended.deadline_ms == NOW_MS + 500


@pytest.mark.parametrize(
    ("written", "home"),
    [
        (KEY.name, KEY),
        (f"http://veil:9324/{KEY.account}/{KEY.name}", KEY),
        (KEY.arn, KEY),
        (KEY._replace(account="999999999999").arn, None),
        (f"{KEY.name}.fifo", None),
        (DEAD_KEY.name, None),  # it would be moved for ever
        ("", None),
    ],
)
def test_a_letter_that_a_consumer_gave_up_goes_where_it_was_received_and_nowhere_else(written, home):
    attributes = {SOURCE_QUEUE: MessageAttribute("String", written)}
    assert decide.home_of(a_stored(attributes=attributes), DEAD_KEY) == home
    known = a_stored(attributes=attributes, dead_letter_source=KEY.arn)
    assert decide.home_of(known, DEAD_KEY) == KEY


def test_a_move_task_fails_where_it_does_not_know_where_to_go():
    task = MoveTask("t", DEAD_KEY, None, None, "RUNNING", 0, 3, 0)
    home = a_stored(dead_letter_source=KEY.arn)

    def make(message, target, content):
        return decide.redrive(message, target, 99, "n", NOW_MS, 1, content)

    moves, done = decide.step_move(task, [home], 10, lambda key: a_queue(), make)
    assert ([move.target.key for move in moves], done.status, done.moved) == ([KEY], "COMPLETED", 1)
    moves, failed = decide.step_move(task, [home, a_stored()], 2, lambda key: a_queue(), make)
    assert (len(moves), failed.status, failed.failure) == (1, "FAILED", SOURCE_UNKNOWN)
    _, failed = decide.step_move(task, [home], 1, lambda key: None, make)
    assert failed.failure == DESTINATION_MISSING


# ---- events


def _events(*effects: effect.AnyEffect) -> list[Event]:
    recorder = EventRecorder()
    recorder.record(NOW_MS, KEY, effects, Caller("a"))
    return unpack(recorder.pack()).events


def test_a_lease_whose_holder_may_be_in_time_waits_for_the_end_of_the_wait():
    held = LAPSED._replace(seq=first_seq_of(NOW_MS))
    due_ms = held.due_at_ms or 0
    clock = ManualClock(due_ms - 1)
    lease_time = LeaseTime(clock)
    lease_time.waits("early", TroubleKind.DISK)
    assert isinstance(decide.decide_due(held, SETTINGS, NOW_MS, None, LeaseTime(clock)), Lapsed)
    now_ms = due_ms + 50
    assert decide.decide_due(held, SETTINGS, now_ms, None, lease_time) == Postponed(held, now_ms + 50)
    assert is_open(decide.excused(held, now_ms, lease_time), now_ms)
    clock.advance(1)
    lease_time.answered("early")
    lease_time.waits("at the deadline", TroubleKind.DISK)
    assert isinstance(decide.decide_due(held, SETTINGS, now_ms, None, lease_time), Lapsed)
    assert decide.excused(held, now_ms, lease_time) is held


def test_every_effect_has_its_event_and_a_lapse_has_none():
    dead = a_queue(2, DEAD_KEY)
    told = {
        Kind.SENT: decide.enqueue(NewMessage("m", "b", "d"), 7, QueueSettings(), NOW_MS),
        Kind.RECEIVED: decide.open_leases([a_stored()], 30, NOW_MS, 1)[0],
        Kind.EXTENDED: decide.decide_rotation(OPEN, receipt(3), 500, NOW_MS),
        Kind.GIVEN_BACK: decide.decide_extension(
            OPEN._replace(due_at_ms=NOW_MS + 2_000), receipt(3), 1, NOW_MS, fifo=False
        ),
        Kind.GRACED: decide.decide_due(LAPSED._replace(seq=first_seq_of(NOW_MS)), SETTINGS, NOW_MS, TROUBLE),
        Kind.HOLDER_SEEN: effect.HolderSeen(7, 3),
        Kind.HOLDER_SILENT: effect.HolderSilent(7, 3),
        Kind.HOLDER_LATE: effect.HolderLate(7, 3, NOW_MS - 60_000),
        Kind.RELEASED: decide.decide_extension(OPEN, receipt(3), 0, NOW_MS, fifo=False),
        Kind.UNDONE: decide.decide_undo(OPEN, receipt(3), NOW_MS),
        Kind.DELETED: decide.decide_deletion(OPEN, receipt(3), NOW_MS, fifo=False),
        Kind.DELETE_REFUSED: decide.decide_deletion(None, receipt(3), NOW_MS, fifo=False),
        Kind.EXTENSION_REFUSED: decide.decide_extension(OPEN, receipt(2), 5, NOW_MS, fifo=False),
        Kind.DEAD_LETTERED: decide.dead_letter(a_stored(), dead, 77),
        Kind.EXPIRED: Expired(OPEN, 3, 5),
        Kind.PURGED: decide.purge(OPEN),
        Kind.DELAYED: decide.decide_rotation(DELAYED, receipt(WAITING), 5, NOW_MS),
    }
    for kind, one in told.items():
        assert [event.kind for event in _events(one)] == [kind]
    redriven = decide.redrive(a_stored(), dead, 99, "n", NOW_MS, 1)
    assert [event.kind for event in _events(redriven)] == [Kind.REDRIVEN, Kind.SENT]
    assert set(told) | {Kind.REDRIVEN, Kind.TROUBLE} == set(Kind)  # a trouble is of no message
    lapsed = decide.decide_due(LAPSED._replace(seq=first_seq_of(NOW_MS)), SETTINGS, NOW_MS)
    assert isinstance(lapsed, Lapsed)
    assert _events(lapsed) == []


def test_a_move_tells_of_both_keys():
    dead = a_queue(2, DEAD_KEY)
    [kept] = _events(DeadLettered(a_stored(77), 3, None, dead, 77, None))
    [renewed] = _events(DeadLettered(a_stored(77), 3, None, dead, 78, "m"))
    assert (kept.other_queue, kept.other_seq, renewed.other_seq) == (1, None, 78)
    redriven = decide.redrive(a_stored(77), dead, 99, "n", NOW_MS, 1)
    assert isinstance(redriven, Redriven)
    gone, come = _events(redriven)
    assert (gone.seq, gone.other_seq, come.seq, come.other_seq, come.queue) == (77, 99, 99, 77, 1)
