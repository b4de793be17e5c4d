"""The journal: everything that happens to a message is recorded with it, once, and can be taken away safely."""

from __future__ import annotations

import pytest

from tests.stores.journal_kit import A_CALLER, exported, kinds, plan_of, rows_of, swept, tell
from tests.stores.kit import (
    a_grouped_message,
    a_key,
    a_message,
    make_queue,
    receipt_of,
    receipts_of,
    redrive_to,
    some_messages,
)
from veil.core.attempt import ReportedOutcome
from veil.core.effect import HolderSeen, HolderSilent
from veil.core.errors import MessageGone, ReceiptExpired, VisibilityTooLong
from veil.core.event import NOBODY
from veil.core.lease import Deletion
from veil.core.queue import MoveTask
from veil.core.receipt import Receipt
from veil.stores.store import Extension

DAY_MS = 86_400_000


@pytest.fixture
def given():
    return {"journal": True}


async def the_one(store):
    """The only event since the last look."""
    [event] = await exported(store)
    return event


async def received(store, queue, **given):
    """A message that was just received, with nothing left to read of how that came about."""
    [message] = await store.receive(queue, 1, **given)
    await exported(store)
    return message


# ---- what is told of each change


async def test_a_send_is_told_with_the_message_and_who_sent_it(store, clock):
    queue = await make_queue(store)
    [sent] = await store.send(queue, [a_message("grüße", message_type="Order")], caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.queue, event.seq) == ("sent", "orders", sent.seq)
    assert (event.message_id, event.at_ms) == (sent.message_id, clock.now_ms())
    assert (event.body_bytes, event.message_type, event.receive_count) == (7, "Order", 0)
    assert (event.delivery, event.deadline_ms, event.caller) == (0, None, A_CALLER)


async def test_a_delayed_send_tells_when_the_delay_ends(store, clock):
    queue = await make_queue(store, delay_s=9)
    await store.send(queue, [a_message()])
    assert (await the_one(store)).deadline_ms == clock.now_ms() + 9_000


async def test_a_send_that_stores_nothing_is_not_told(store):
    queue = await make_queue(store, "orders.fifo")
    await store.send(queue, [a_grouped_message("a", deduplication_id="same")], retry_key=b"k")
    await exported(store)
    await store.send(queue, [a_grouped_message("a", deduplication_id="same")])
    await store.send(queue, [a_grouped_message("b", deduplication_id="other")], retry_key=b"k")
    assert await exported(store) == []


async def test_a_receive_is_told_with_its_lease(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message("four", message_type="T")])
    await exported(store)
    clock.advance(5)
    [message] = await store.receive(queue, 1, visibility_s=20, caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.seq, event.message_id) == ("received", message.seq, message.message_id)
    assert (event.delivery, event.receive_count) == (message.delivery, 1)
    assert (event.at_ms, event.deadline_ms) == (clock.now_ms(), clock.now_ms() + 20_000)
    assert (event.body_bytes, event.message_type, event.caller) == (4, "T", A_CALLER)


async def test_a_receive_without_a_window_has_a_lease_that_is_over_at_once(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    await exported(store)
    await store.receive(queue, 1, visibility_s=0)
    assert (await the_one(store)).deadline_ms == clock.now_ms()


async def test_a_receive_that_finds_nothing_is_not_told(store):
    queue = await make_queue(store)
    await store.receive(queue, 1)
    assert await plan_of(store) is None


async def test_an_extension_is_told_with_the_new_deadline(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    clock.advance(seconds=3)
    await store.extend(queue, [Extension(receipt_of(queue, message), 60)], caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.seq, event.message_id) == ("extended", message.seq, message.message_id)
    assert (event.delivery, event.deadline_ms) == (message.delivery, clock.now_ms() + 60_000)
    assert (event.receive_count, event.caller) == (1, A_CALLER)


@pytest.mark.parametrize("delay_s", [60, 0])
async def test_a_delay_that_is_set_anew_is_told_with_its_new_end(store, clock, delay_s):
    queue = await make_queue(store, delay_s=9)
    [sent] = await store.send(queue, [a_message(message_type="Order")])
    await exported(store)
    clock.advance(seconds=3)
    await store.rotate(queue, [Extension(Receipt(queue.id, sent.seq, 0), delay_s)], caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.seq, event.message_id) == ("delayed", sent.seq, sent.message_id)
    assert (event.delivery, event.deadline_ms) == (0, clock.now_ms() + delay_s * 1000)
    assert (event.receive_count, event.message_type, event.caller) == (0, "Order", A_CALLER)


async def test_a_repeated_attempt_is_told_as_an_extension(store, clock):
    queue = await make_queue(store, "orders.fifo")
    await store.send(queue, [a_grouped_message("a")])
    first = await received(store, queue, attempt_id="t", visibility_s=10)
    clock.advance(seconds=4)
    await store.receive(queue, 1, attempt_id="t", visibility_s=10, caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.delivery, event.receive_count) == ("extended", first.delivery, 1)
    assert (event.deadline_ms, event.caller) == (clock.now_ms() + 10_000, A_CALLER)


async def test_less_time_than_was_left_is_told_as_a_give_back(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    clock.advance(seconds=3)
    await store.extend(queue, [Extension(receipt_of(queue, message), 5)], caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.delivery, event.deadline_ms) == (
        "given_back",
        message.delivery,
        clock.now_ms() + 5_000,
    )
    assert (event.caller, event.reported) == (A_CALLER, None)


@pytest.mark.parametrize("visibility_s", [0, 5, 60])
async def test_what_a_holder_says_of_its_attempt_is_told_with_the_change(store, visibility_s):
    reported = ReportedOutcome("failed", "shop.NoStock", "none left", "  File …")
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    await store.extend(queue, [Extension(receipt_of(queue, message), visibility_s, reported)])

    event = await the_one(store)
    assert (event.kind, event.reported) == ("given_back" if visibility_s else "released", reported)


@pytest.mark.parametrize("fifo", [False, True])
async def test_a_delete_may_say_that_its_attempt_failed(store, fifo):
    reported = ReportedOutcome("failed", "shop.Poison")
    queue = await make_queue(store, "orders.fifo" if fifo else "orders")
    await store.send(queue, [a_grouped_message("a") if fifo else a_message()])
    message = await received(store, queue)
    receipt = receipt_of(queue, message)
    await store.delete(queue, [receipt], reported={receipt.seq: reported})
    assert [(event.kind, event.reported) for event in await exported(store)] == [("deleted", reported)]
    await store.delete(queue, [receipt], reported={receipt.seq: reported})
    assert [(event.kind, event.reported) for event in await exported(store)] == [("delete_refused", reported)]


async def test_signs_of_life_are_told_of_leases_that_have_lapsed(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    clock.advance(seconds=31)
    await store.note_holders(queue, [HolderSeen(message.seq, 1), HolderSilent(message.seq, 1)])

    told = await exported(store)
    assert [(event.kind, event.seq, event.delivery) for event in told] == [
        ("holder_seen", message.seq, 1),
        ("holder_silent", message.seq, 1),
    ]
    assert (await store.counts(queue)).visible == 1


async def test_a_release_is_told_with_the_deadline_it_gave_up(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    await store.extend(queue, [Extension(receipt_of(queue, message), 0)], caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.delivery, event.caller) == ("released", message.delivery, A_CALLER)
    assert event.deadline_ms == message.due_at_ms


async def test_a_release_of_what_is_visible_already_is_not_told(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    clock.advance(seconds=31)
    assert await store.extend(queue, [Extension(receipt_of(queue, message), 0)]) == [None]
    assert await exported(store) == []


async def test_an_undone_receive_is_told_and_no_longer_counted(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    await store.undo_receive(queue, [receipt_of(queue, message)], caller=A_CALLER)
    await store.undo_receive(queue, [receipt_of(queue, message)])  # passed over

    event = await the_one(store)
    assert (event.kind, event.seq, event.delivery) == ("undone", message.seq, message.delivery)
    assert (event.receive_count, event.caller) == (0, A_CALLER)


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
async def test_a_delete_is_told_with_the_lease_it_ended(store, clock, name):
    queue = await make_queue(store, name)
    await store.send(queue, [a_grouped_message("four", message_type="T")])
    message = await received(store, queue)
    clock.advance(seconds=2)
    await store.delete(queue, [receipt_of(queue, message)], caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.queue, event.seq) == ("deleted", name, message.seq)
    assert (event.message_id, event.delivery) == (message.message_id, message.delivery)
    assert (event.at_ms, event.deadline_ms) == (clock.now_ms(), message.due_at_ms)
    assert (event.receive_count, event.body_bytes, event.message_type) == (1, 4, "T")
    assert event.caller == A_CALLER


async def test_a_delete_after_an_extension_is_told_with_the_extended_deadline(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    clock.advance(seconds=2)
    await store.extend(queue, [Extension(receipt_of(queue, message), 90)])
    extended = await the_one(store)
    await store.delete(queue, [receipt_of(queue, message)])

    event = await the_one(store)
    assert (event.kind, event.deadline_ms) == ("deleted", extended.deadline_ms)
    assert extended.deadline_ms == clock.now_ms() + 90_000


async def test_a_delete_after_a_restart_is_told_like_any_other(store, reopen, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message("four", message_type="T")])
    message = await received(store, queue)
    store = await reopen()
    await store.delete(queue, [receipt_of(queue, message)], caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.seq, event.message_id) == ("deleted", message.seq, message.message_id)
    assert (event.delivery, event.deadline_ms) == (message.delivery, message.due_at_ms)
    assert (event.receive_count, event.body_bytes, event.message_type) == (1, 4, "T")


async def test_many_deletes_in_one_call_are_told_one_by_one(store):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "bb", "ccc"))
    messages = await store.receive(queue, 3)
    await exported(store)
    await store.delete(queue, receipts_of(queue, messages))
    assert [(e.seq, e.body_bytes) for e in await exported(store)] == [(m.seq, m.body_bytes) for m in messages]


async def test_a_late_delete_that_still_works_has_no_deadline_left(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    clock.advance(seconds=31)
    assert await store.delete(queue, [receipt_of(queue, message)]) == [Deletion.DELETED]

    event = await the_one(store)
    assert (event.kind, event.delivery, event.deadline_ms) == ("deleted", message.delivery, None)


async def test_a_delete_of_what_somebody_else_holds_is_told_as_refused(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    late = await received(store, queue)
    clock.advance(seconds=31)
    await received(store, queue)
    assert await store.delete(queue, [receipt_of(queue, late)], caller=A_CALLER) == [Deletion.STALE]

    event = await the_one(store)
    assert (event.kind, event.seq, event.delivery) == ("delete_refused", late.seq, late.delivery)
    assert (event.message_id, event.receive_count) == (late.message_id, 2)
    assert (event.deadline_ms, event.caller) == (None, A_CALLER)


async def test_the_late_delete_of_a_message_that_is_gone_is_told_by_its_receipt(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    late = await received(store, queue)
    clock.advance(seconds=31)
    other = await received(store, queue)
    await store.delete(queue, [receipt_of(queue, other)])
    await exported(store)
    assert await store.delete(queue, [receipt_of(queue, late)], caller=A_CALLER) == [Deletion.GONE]

    event = await the_one(store)
    assert (event.kind, event.seq, event.delivery) == ("delete_refused", late.seq, late.delivery)
    assert (event.message_id, event.body_bytes, event.caller) == (None, None, A_CALLER)


async def test_a_fifo_delete_after_the_deadline_is_told_as_refused(store, clock):
    queue = await make_queue(store, "orders.fifo", visibility_s=30)
    await store.send(queue, [a_grouped_message("a")])
    late = await received(store, queue)
    clock.advance(seconds=31)
    [refusal] = await store.delete(queue, [receipt_of(queue, late)])

    event = await the_one(store)
    assert isinstance(refusal, ReceiptExpired)
    assert (event.kind, event.message_id) == ("delete_refused", late.message_id)


async def test_a_refused_extension_is_told_for_a_message_held_by_another_and_for_one_that_is_gone(
    store, clock
):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    late = await received(store, queue)
    clock.advance(seconds=31)
    other = await received(store, queue)
    [refusal] = await store.extend(queue, [Extension(receipt_of(queue, late), 30)], caller=A_CALLER)
    held = await the_one(store)
    await store.delete(queue, [receipt_of(queue, other)])
    await exported(store)
    await store.extend(queue, [Extension(receipt_of(queue, late), 30)])
    gone = await the_one(store)

    assert isinstance(refusal, MessageGone)
    assert (held.kind, held.delivery, held.message_id) == ("extension_refused", 1, late.message_id)
    assert held.caller == A_CALLER
    assert (gone.kind, gone.seq, gone.message_id) == ("extension_refused", late.seq, None)


async def test_an_extension_beyond_twelve_hours_is_not_told(store, clock):
    queue = await make_queue(store, visibility_s=30)
    await store.send(queue, [a_message()])
    message = await received(store, queue)
    clock.advance(seconds=1)
    [refusal] = await store.extend(queue, [Extension(receipt_of(queue, message), 43_200)])
    assert isinstance(refusal, VisibilityTooLong)
    assert await exported(store) == []


async def test_a_dead_letter_is_told_with_its_last_lease_and_where_it_went(store):
    await make_queue(store, "dead")
    queue = await make_queue(store, redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message("four", message_type="T")])
    message = await received(store, queue, visibility_s=0)
    await store.receive(queue, 1, caller=A_CALLER)

    event = await the_one(store)
    assert (event.kind, event.queue, event.seq) == ("dead_lettered", "orders", message.seq)
    assert (event.message_id, event.delivery, event.receive_count) == (message.message_id, 1, 1)
    assert (event.other_queue, event.other_seq, event.caller) == ("dead", None, NOBODY)
    assert (event.body_bytes, event.message_type) == (4, "T")


async def test_a_fifo_dead_letter_is_told_with_its_new_place(store):
    dead = await make_queue(store, "dead.fifo")
    queue = await make_queue(store, "orders.fifo", redrive=redrive_to("dead.fifo", 1))
    await store.send(queue, [a_grouped_message("a")])
    message = await received(store, queue, visibility_s=0)
    await store.receive(queue, 1)
    [there] = await store.peek(dead)

    event = await the_one(store)
    assert (event.kind, event.seq, event.message_id) == ("dead_lettered", message.seq, message.message_id)
    assert (event.other_queue, event.other_seq) == ("dead.fifo", there.seq)
    assert there.seq != message.seq


async def test_a_redrive_is_told_as_an_end_and_a_beginning_that_know_each_other(store):
    dead = await make_queue(store, "dead")
    queue = await make_queue(store, redrive=redrive_to("dead", 1), delay_s=7)
    await store.send(queue, [a_message("four", message_type="T", delay_s=0)])
    await store.receive(queue, 1, visibility_s=0)
    await store.receive(queue, 1)
    [old] = await store.peek(dead)
    await exported(store)
    task = MoveTask("task", a_key("dead"), None, None, "RUNNING", 0, 0, 0)
    await store.start_move(task, caller=A_CALLER)
    await store.step_move("task", 10)
    [new] = await store.peek(queue)

    gone, come = await exported(store)
    assert (gone.kind, gone.queue, gone.seq) == ("redriven", "dead", old.seq)
    assert (gone.message_id, gone.receive_count) == (old.message_id, 1)
    assert (gone.other_queue, gone.other_seq, gone.caller) == ("orders", new.seq, A_CALLER)
    assert (come.kind, come.queue, come.seq) == ("sent", "orders", new.seq)
    assert (come.message_id, come.receive_count) == (new.message_id, 0)
    assert (come.other_seq, come.deadline_ms, come.caller) == (old.seq, new.due_at_ms, A_CALLER)
    assert (come.body_bytes, come.message_type) == (4, "T")


async def test_retention_is_told_when_it_ends_a_message(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message("four", message_type="T")])
    await exported(store)
    clock.advance(seconds=60)
    await store.settle()

    event = await the_one(store)
    assert (event.kind, event.at_ms, event.delivery) == ("expired", clock.now_ms(), 0)
    assert (event.body_bytes, event.message_type, event.caller) == (4, "T", NOBODY)


async def test_retention_that_cuts_a_lease_short_names_the_lease(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message()])
    message = await received(store, queue, visibility_s=100)
    clock.advance(seconds=60)
    await store.settle()

    event = await the_one(store)
    assert (event.kind, event.delivery) == ("expired", message.delivery)
    assert event.deadline_ms == message.due_at_ms


async def test_a_lease_that_lapsed_before_the_retention_ended_is_not_cut_short(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message()])
    await received(store, queue, visibility_s=30)
    clock.advance(seconds=60)  # nobody looked in between
    await store.settle()

    event = await the_one(store)
    assert (event.kind, event.delivery, event.deadline_ms) == ("expired", 0, None)


async def test_a_purge_is_told_for_each_message(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message("held"), a_message("seen"), a_message("later", delay_s=9)])
    held = (await store.receive(queue, 1))[0]
    await store.send(queue, [a_message("grouped", group="g")])
    await exported(store)
    await store.purge(queue, rest_ms=0, caller=A_CALLER)

    told = await exported(store)
    assert kinds(told) == ["purged"] * 4
    assert {event.caller for event in told} == {A_CALLER}
    leases = {event.body_bytes: (event.delivery, event.deadline_ms) for event in told if event.delivery}
    assert leases == {4: (held.delivery, held.due_at_ms)}
    assert sum(event.seq == held.seq for event in told) == 1


async def test_the_deletion_of_a_queue_is_told_for_each_message_as_of_that_instant(store, clock):
    queue = await make_queue(store)
    await store.send(queue, some_messages("a", "b"))
    await store.receive(queue, 1)
    await exported(store)
    await store.delete_queue(queue, caller=A_CALLER)
    deleted_at_ms = clock.now_ms()
    clock.advance(seconds=5)
    await swept(store)

    told = await exported(store)
    assert kinds(told) == ["purged", "purged"]
    assert {(event.queue, event.at_ms, event.caller) for event in told} == {
        ("orders", deleted_at_ms, A_CALLER)
    }


async def test_messages_that_had_expired_when_their_queue_was_deleted_were_not_purged(store, clock):
    queue = await make_queue(store, retention_s=60)
    await store.send(queue, [a_message()])
    await exported(store)
    clock.advance(seconds=60)
    await store.delete_queue(queue)
    await swept(store)
    assert kinds(await exported(store)) == ["expired"]


async def test_a_whole_life_is_told_in_order(store, clock):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    [message] = await store.receive(queue, 1)
    await store.extend(queue, [Extension(receipt_of(queue, message), 60)])
    await store.extend(queue, [Extension(receipt_of(queue, message), 0)])
    [message] = await store.receive(queue, 1)
    await store.delete(queue, [receipt_of(queue, message)])

    told = await exported(store)
    assert kinds(told) == ["sent", "received", "extended", "released", "received", "deleted"]
    assert [event.delivery for event in told] == [0, 1, 1, 1, 2, 2]


# ---- taking it away


async def test_rows_are_numbered_from_one(store):
    queue = await make_queue(store)
    for body in "abc":
        await store.send(queue, [a_message(body)])
    plan = await plan_of(store)

    assert (plan.first, plan.last) == (1, 3)
    rows = await rows_of(store, plan)
    assert [row.number for row in rows] == [1, 2, 3]
    assert [kinds(tell(row.packed)) for row in rows] == [["sent"]] * 3
    assert [row.number for row in await store.outbox_rows(plan, after=1, limit=1)] == [2]


async def test_a_plan_does_not_change_while_it_is_carried_out(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    plan = await plan_of(store)
    await store.send(queue, [a_message()])

    assert await plan_of(store) == plan
    assert [row.number for row in await rows_of(store, plan)] == [1]


async def test_a_finished_plan_takes_its_rows_along_and_no_others(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    plan = await plan_of(store)
    await store.send(queue, [a_message()])
    await store.finish_export(plan)

    assert await rows_of(store, plan) == []
    following = await plan_of(store)
    assert (following.first, following.last) == (2, 2)
    assert following.journal_id == plan.journal_id


async def test_a_plan_that_is_over_is_passed_over(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    old = await plan_of(store)
    await store.finish_export(old)
    await store.send(queue, [a_message()])
    present = await plan_of(store)
    await store.finish_export(old)
    await store.finish_export(present._replace(journal_id="another"))

    assert await plan_of(store) == present
    assert len(await rows_of(store, present)) == 1


async def test_numbers_are_not_used_again_after_everything_was_taken_away(store):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    await exported(store)
    assert await plan_of(store) is None
    await store.send(queue, [a_message()])
    assert (await plan_of(store)).first == 2


async def test_a_plan_keeps_to_its_bounds_but_takes_at_least_one_row(store):
    queue = await make_queue(store)
    for _ in range(5):
        await store.send(queue, [a_message()])
    assert (await plan_of(store, rows_max=2)).last == 2
    await store.finish_export(await plan_of(store))
    assert (await plan_of(store, bytes_max=1)).last == 3
    size = len((await rows_of(store, await plan_of(store)))[0].packed)
    await store.finish_export(await plan_of(store))
    assert (await plan_of(store, bytes_max=2 * size + 1)).last == 5


async def test_no_plan_reaches_over_midnight(store, clock):
    queue = await make_queue(store, retention_s=1_209_600)
    clock.advance(DAY_MS - clock.now_ms() % DAY_MS - 1)
    await store.send(queue, [a_message()])
    clock.advance(1)
    await store.send(queue, [a_message()])

    before = await plan_of(store)
    await store.finish_export(before)
    after = await plan_of(store)
    assert (before.first, before.last, before.day) == (1, 1, "2023-11-14")
    assert (after.first, after.last, after.day) == (2, 2, "2023-11-15")


async def test_the_size_says_what_waits_and_since_when(store, clock):
    queue = await make_queue(store)
    assert await store.outbox_size() == (0, 0, None, 0)
    await store.send(queue, [a_message()])
    since_ms = clock.now_ms()
    clock.advance(seconds=1)
    await store.send(queue, [a_message()])
    rows = await rows_of(store, await plan_of(store))

    size = sum(len(row.packed) for row in rows)
    assert await store.outbox_size() == (2, size, since_ms, 0)
    await store.finish_export(await plan_of(store))
    assert await store.outbox_size() == (0, 0, None, 0)


async def test_a_plan_is_the_same_after_a_restart(store, reopen):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    plan = await plan_of(store)
    await store.send(queue, [a_message()])
    rows = await rows_of(store, plan)
    store_id = store.store_id
    store = await reopen()

    assert await plan_of(store) == plan
    assert await rows_of(store, plan) == rows
    assert store.store_id == store_id


async def test_numbers_are_not_used_again_after_a_restart(store, reopen):
    queue = await make_queue(store)
    await store.send(queue, [a_message()])
    await exported(store)
    store = await reopen()
    await store.send(queue, [a_message()])
    assert (await plan_of(store)).first == 2


async def test_who_started_a_move_is_known_after_a_restart(store, reopen):
    await make_queue(store, "dead")
    queue = await make_queue(store, redrive=redrive_to("dead", 1))
    await store.send(queue, [a_message()])
    await store.receive(queue, 1, visibility_s=0)
    await store.receive(queue, 1)
    task = MoveTask("task", a_key("dead"), None, None, "RUNNING", 0, 0, 0)
    await store.start_move(task, caller=A_CALLER)
    store = await reopen()
    await exported(store)
    await store.step_move("task", 10)
    assert {event.caller for event in await exported(store)} == {A_CALLER}


# ---- bounds


class TestABoundedOutbox:
    @pytest.fixture
    def given(self):
        return {"journal": True, "outbox_bytes_max": 400}

    async def test_the_queue_goes_on_when_the_outbox_is_full_and_counts_what_it_lost(self, store, caplog):
        queue = await make_queue(store)
        for _ in range(50):
            await store.send(queue, [a_message()])
        size = await store.outbox_size()

        assert 400 <= size.packed_bytes < 800
        assert size.rows + size.lost_events == 50
        assert (await store.counts(queue)).visible == 50
        assert len([line for line in caplog.records if "not recorded" in line.message]) == 1

    async def test_recording_goes_on_once_there_is_room(self, store, clock, caplog):
        queue = await make_queue(store)
        for _ in range(50):
            await store.send(queue, [a_message()])
        lost = (await store.outbox_size()).lost_events
        last = len(await exported(store))
        await store.send(queue, [a_message("again")])

        plan = await plan_of(store)
        assert plan.first == last + 1  # no number was spent on what was lost
        assert (await the_one(store)).body_bytes == 5
        assert (await store.outbox_size()).lost_events == lost

    async def test_the_log_says_so_once_a_minute(self, store, clock, caplog):
        queue = await make_queue(store)
        for _ in range(20):
            await store.send(queue, [a_message()])
        clock.advance(seconds=60)
        await store.send(queue, [a_message()])
        await store.send(queue, [a_message()])
        assert len([line for line in caplog.records if "not recorded" in line.message]) == 2


class TestAStoreWithoutAJournal:
    @pytest.fixture
    def given(self):
        return {}

    async def test_nothing_is_recorded(self, store):
        queue = await make_queue(store)
        await store.send(queue, [a_message()])
        [message] = await store.receive(queue, 1)
        await store.delete(queue, [receipt_of(queue, message)])
        await store.delete(queue, [receipt_of(queue, message)])

        assert await plan_of(store) is None
        assert await store.outbox_size() == (0, 0, None, 0)

    async def test_what_was_recorded_before_it_was_turned_off_waits(self, store, opener, reopen):
        queue = await make_queue(store)
        opener.given = {"journal": True}
        store = await reopen()
        await store.send(queue, [a_message()])
        opener.given = {}
        store = await reopen()
        await store.send(queue, [a_message()])
        assert await plan_of(store) is None
        opener.given = {"journal": True}
        store = await reopen()
        await store.send(queue, [a_message("third")])

        assert [event.body_bytes for event in await exported(store)] == [5, 5]
