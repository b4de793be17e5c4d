"""The rules of the visibility window, called as functions."""

from __future__ import annotations

import pytest

from veil.core.errors import MessageGone, ReceiptExpired, VisibilityTooLong
from veil.core.lease import WAITING, Deletion, State, is_open, judge_deletion, judge_extension, judge_rotation
from veil.core.limits import VISIBILITY_MAX_S
from veil.core.message import HeldMessage
from veil.core.receipt import DELIVERY_BITS, Receipt

NOW_MS = 1_000_000
OPEN = HeldMessage(
    seq=77,
    message_id="m",
    group=None,
    body_bytes=1,
    message_type=None,
    state=State.IN_FLIGHT,
    due_at_ms=NOW_MS + 1,
    received_at_ms=NOW_MS - 5_000,
    delivery=3,
    holder=3,
    receive_count=1,
    first_received_wall_ms=1,
)
LAPSED = OPEN._replace(due_at_ms=NOW_MS)
FREE = OPEN._replace(state=State.VISIBLE, holder=0, due_at_ms=None)


def receipt(delivery: int) -> Receipt:
    return Receipt(1, 77, delivery, "the text")


def rotated(delivery: int, rotation: int) -> Receipt:
    return receipt(delivery | rotation << DELIVERY_BITS)


def test_a_lease_is_open_until_its_deadline_and_over_at_it():
    assert is_open(OPEN, NOW_MS)
    assert not is_open(OPEN, NOW_MS + 1)
    assert not is_open(FREE, NOW_MS)


@pytest.mark.parametrize(
    ("held", "delivery", "expected"),
    [
        (None, 1, Deletion.GONE),
        (OPEN, 3, Deletion.DELETED),
        (OPEN, 2, Deletion.STALE),
        (OPEN, 4, Deletion.STALE),
        (LAPSED, 3, Deletion.DELETED),
        (LAPSED, 1, Deletion.DELETED),
        (LAPSED, 4, Deletion.STALE),
        (FREE, 2, Deletion.DELETED),
        (FREE, 4, Deletion.STALE),
    ],
)
def test_a_standard_delete_is_lenient_to_the_late_and_never_touches_an_open_lease(held, delivery, expected):
    assert judge_deletion(held, receipt(delivery), NOW_MS, fifo=False) is expected


@pytest.mark.parametrize(("held", "delivery"), [(OPEN, 2), (OPEN, 4), (LAPSED, 3), (FREE, 3)])
def test_a_fifo_delete_needs_the_open_lease(held, delivery):
    with pytest.raises(ReceiptExpired) as refusal:
        judge_deletion(held, receipt(delivery), NOW_MS, fifo=True)
    assert refusal.value.receipt == "the text"


def test_a_fifo_delete_by_the_holder_or_of_nothing_succeeds():
    assert judge_deletion(OPEN, receipt(3), NOW_MS, fifo=True) is Deletion.DELETED
    assert judge_deletion(None, receipt(3), NOW_MS, fifo=True) is Deletion.GONE


@pytest.mark.parametrize("held", [OPEN, LAPSED, FREE])
def test_an_extension_counts_from_now(held):
    assert judge_extension(held, receipt(3), 10, NOW_MS, fifo=False) == NOW_MS + 10_000


@pytest.mark.parametrize("held", [OPEN, LAPSED, FREE])
def test_a_length_of_zero_is_a_release(held):
    assert judge_extension(held, receipt(3), 0, NOW_MS, fifo=False) is None


@pytest.mark.parametrize(("held", "delivery"), [(None, 3), (OPEN, 2), (OPEN, 4), (LAPSED, 4), (FREE, 4)])
@pytest.mark.parametrize("visibility_s", [0, 10])
def test_a_standard_extension_is_refused_where_there_is_nothing_to_extend(held, delivery, visibility_s):
    with pytest.raises(MessageGone):
        judge_extension(held, receipt(delivery), visibility_s, NOW_MS, fifo=False)


@pytest.mark.parametrize(("held", "delivery"), [(OPEN, 2), (LAPSED, 3), (FREE, 3)])
@pytest.mark.parametrize("visibility_s", [0, 10])
def test_a_fifo_extension_needs_the_open_lease(held, delivery, visibility_s):
    with pytest.raises(ReceiptExpired):
        judge_extension(held, receipt(delivery), visibility_s, NOW_MS, fifo=True)


def test_the_holder_of_a_fifo_lease_may_extend_it():
    assert judge_extension(OPEN, receipt(3), 10, NOW_MS, fifo=True) == NOW_MS + 10_000


def test_no_deadline_lies_more_than_twelve_hours_after_the_receive():
    longest_s = VISIBILITY_MAX_S - 5  # received five seconds ago
    assert judge_extension(OPEN, receipt(3), longest_s, NOW_MS, fifo=False) == NOW_MS + longest_s * 1000
    with pytest.raises(VisibilityTooLong) as refusal:
        judge_extension(OPEN, receipt(3), longest_s + 1, NOW_MS, fifo=False)
    assert refusal.value.visibility_s == longest_s + 1


# ---- strict receipts, rotations, waiting messages

DELAYED = FREE._replace(state=State.DELAYED, delivery=0, received_at_ms=None, due_at_ms=NOW_MS + 1)


@pytest.mark.parametrize("fifo", [True, False])
def test_a_strict_delete_needs_the_open_lease_and_never_raises(fifo):
    for held, delivery in ((OPEN, 2), (LAPSED, 3), (FREE, 3), (FREE, 1)):
        assert judge_deletion(held, receipt(delivery), NOW_MS, fifo=fifo, strict=True) is Deletion.STALE
    assert judge_deletion(OPEN, receipt(3), NOW_MS, fifo=fifo, strict=True) is Deletion.DELETED


def test_only_the_latest_receipt_of_a_rotated_lease_holds_it():
    latest = rotated(3, 2)
    twice = OPEN._replace(holder=latest.holder)

    for old in (receipt(3), rotated(3, 1)):
        assert judge_deletion(twice, old, NOW_MS, fifo=False) is Deletion.STALE
        with pytest.raises(MessageGone):
            judge_extension(twice, old, 5, NOW_MS, fifo=False)
        with pytest.raises(MessageGone):
            judge_rotation(twice, old, 5, NOW_MS)
    assert judge_deletion(twice, latest, NOW_MS, fifo=False) is Deletion.DELETED
    assert judge_rotation(twice, latest, 5, NOW_MS) == NOW_MS + 5_000
    assert judge_rotation(twice, latest, 0, NOW_MS) is None


@pytest.mark.parametrize("delivery", [WAITING, 3])
@pytest.mark.parametrize("held", [None, LAPSED, FREE, DELAYED._replace(due_at_ms=NOW_MS)])
def test_a_rotation_needs_an_open_lease_or_a_delay(held, delivery):
    with pytest.raises(MessageGone):
        judge_rotation(held, receipt(delivery), 5, NOW_MS)


def test_leases_and_delays_are_rotated_by_their_own_receipts_alone():
    for held, foreign in ((OPEN, receipt(WAITING)), (DELAYED, receipt(3)), (DELAYED, receipt(1))):
        with pytest.raises(MessageGone):
            judge_rotation(held, foreign, 5, NOW_MS)


def test_a_delay_is_set_anew_by_the_latest_receipt_of_the_waiting_message():
    latest = rotated(WAITING, 1)
    once = DELAYED._replace(holder=latest.holder)

    assert judge_rotation(DELAYED, receipt(WAITING), 5, NOW_MS) == NOW_MS + 5_000
    assert judge_rotation(once, latest, 0, NOW_MS) is None
    assert judge_deletion(once, latest, NOW_MS, fifo=False) is Deletion.DELETED
    for held, other in ((once, receipt(WAITING)), (DELAYED, latest)):
        assert judge_deletion(held, other, NOW_MS, fifo=False) is Deletion.STALE
        with pytest.raises(MessageGone):
            judge_rotation(held, other, 5, NOW_MS)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("fifo", [True, False])
def test_a_waiting_message_is_deleted_by_its_own_receipt_until_its_delay_ends(fifo, strict):
    given = {"fifo": fifo, "strict": strict}
    assert judge_deletion(DELAYED, receipt(WAITING), NOW_MS, **given) is Deletion.DELETED
    assert judge_deletion(DELAYED, receipt(WAITING), NOW_MS + 1, **given) is Deletion.STALE
    assert judge_deletion(FREE, receipt(WAITING), NOW_MS, **given) is Deletion.STALE
