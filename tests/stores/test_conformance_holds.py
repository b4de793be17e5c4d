"""Holds: a name gives the same messages whoever asks and however often, and an acknowledgement deletes no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.stores.journal_kit import A_CALLER, exported, kinds
from tests.stores.kit import (
    a_grouped_message,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    receipts_of,
    redrive_to,
    some_messages,
)
from veil.core.errors import HoldClosed, QueueMissing, StreamTaken
from veil.core.lease import STREAM_REST_MS, Deletion, HoldKey
from veil.core.limits import VISIBILITY_MAX_S
from veil.stores.store import Extension, QueueContent


def key(batch=0, part=0, stream="epoch"):
    return HoldKey(stream, batch, part)


async def a_queue(store, *names, **settings):
    queue = await make_queue(store, **settings)
    await store.send(queue, some_messages(*names))
    return queue


async def hold(store, queue, count=10, *, visibility_s=30, **named):
    return await store.receive_hold(queue, key(**named), count, visibility_s=visibility_s)


async def extend(store, queue, visibility_s=30, owner="me", stream="epoch"):
    return await store.extend_holds(queue, stream, owner, visibility_s=visibility_s)


async def delete(store, queue, up_to_batch=0, owner="me", stream="epoch"):
    return await store.delete_holds(queue, stream, owner, up_to_batch=up_to_batch)


# ---- receiving under a name


async def test_a_name_gives_the_same_messages_with_the_same_receipts(store, clock):
    queue = await a_queue(store, "a", "b", "c")
    first = await hold(store, queue, 2)
    clock.advance(seconds=10)
    again = await hold(store, queue, 1)  # how many was decided the first time

    assert bodies(first.messages) == ["a", "b"]
    assert (first.lost, first.again, again.lost, again.again) == (0, False, 0, True)
    assert receipts_of(queue, again.messages) == receipts_of(queue, first.messages)
    assert [message.receive_count for message in again.messages] == [1, 1]
    assert await store.counts(queue) == (1, 2, 0)


async def test_a_repeated_receive_begins_its_windows_and_the_twelve_hours_anew(store, clock):
    queue = await a_queue(store, "a")
    await hold(store, queue, visibility_s=VISIBILITY_MAX_S)
    clock.advance(seconds=VISIBILITY_MAX_S - 1)
    again = await hold(store, queue, visibility_s=VISIBILITY_MAX_S)

    assert again.messages[0].due_at_ms == clock.now_ms() + VISIBILITY_MAX_S * 1000
    clock.advance(seconds=VISIBILITY_MAX_S - 1)
    assert await store.receive(queue, 1) == []


async def test_different_names_give_different_messages(store):
    queue = await a_queue(store, "a", "b", "c", "d")
    given = [
        await hold(store, queue, 1, batch=0, part=0),
        await hold(store, queue, 1, batch=0, part=1),
        await hold(store, queue, 1, batch=1, part=0),
        await hold(store, queue, 1, stream="other"),
    ]

    assert [bodies(content.messages) for content in given] == [["a"], ["b"], ["c"], ["d"]]


async def test_a_name_that_gave_nothing_gives_nothing_for_ever(store):
    queue = await a_queue(store)
    assert await hold(store, queue) == ([], 0, False)
    await store.send(queue, some_messages("late"))

    assert await hold(store, queue) == ([], 0, True)
    assert bodies(await store.receive(queue, 1)) == ["late"]


async def test_what_lapsed_and_nobody_received_is_taken_back(store, clock):
    queue = await a_queue(store, "a", "b")
    first = await hold(store, queue)
    clock.advance(seconds=31)
    assert await store.counts(queue) == (2, 0, 0)
    again = await hold(store, queue)

    assert (bodies(again.messages), again.lost) == (["a", "b"], 0)
    assert receipts_of(queue, again.messages) == receipts_of(queue, first.messages)
    assert await store.counts(queue) == (0, 2, 0)
    assert await store.receive(queue, 1) == []


async def test_what_was_deleted_or_received_by_another_is_lost_and_counted(store, clock):
    queue = await a_queue(store, "deleted", "taken", "kept")
    first = await hold(store, queue)
    await store.delete(queue, receipts_of(queue, first.messages[:1]))
    clock.advance(seconds=31)
    [taken] = await store.receive(queue, 1)
    again = await hold(store, queue)

    assert (taken.body, bodies(again.messages), again.lost) == ("taken", ["kept"], 2)
    assert await store.delete(queue, [receipt_of(queue, taken)]) == [Deletion.DELETED]


async def test_what_one_reader_was_not_given_no_later_one_is_and_no_acknowledgement_deletes(store, clock):
    """The last reader's result may be the one that counts, so what it has not seen must stay in the queue."""
    queue = await a_queue(store, "a", "b")
    await hold(store, queue)
    clock.advance(seconds=31)
    [other] = await store.receive(queue, 1, visibility_s=5)
    assert (await hold(store, queue)).lost == 1
    clock.advance(seconds=6)  # the other one lapsed too: nobody holds it now
    again = await hold(store, queue)

    assert (bodies(again.messages), again.lost) == (["b"], 1)
    assert await delete(store, queue) == (1, 1)
    assert bodies(await store.receive(queue, 10)) == [other.body] == ["a"]


async def test_a_receipt_of_before_that_holds_the_message_now_is_not_disturbed(store, clock):
    queue = await a_queue(store, "a")
    [before] = await store.receive(queue, 1, visibility_s=1)
    clock.advance(seconds=2)
    await hold(store, queue, visibility_s=1)
    clock.advance(seconds=2)
    assert await store.extend(queue, [Extension(receipt_of(queue, before), 30)]) == [None]

    assert await hold(store, queue) == ([], 1, True)
    assert await store.delete(queue, [receipt_of(queue, before)]) == [Deletion.DELETED]


async def test_what_went_to_the_dead_letters_was_purged_or_expired_is_lost(store, clock):
    dead = await make_queue(store, "dead")
    queue = await a_queue(store, "a", redrive=redrive_to("dead", 1))
    await hold(store, queue, visibility_s=1)
    clock.advance(seconds=2)
    await store.receive(queue, 1)
    assert bodies(await store.peek(dead)) == ["a"]
    assert await hold(store, queue) == ([], 1, True)

    await store.send(queue, some_messages("b"))
    assert len((await hold(store, queue, batch=1)).messages) == 1
    await store.purge(queue, rest_ms=0)
    assert await hold(store, queue, batch=1) == ([], 1, True)

    await store.edit_queue(queue, lambda content: QueueContent(_short(content.settings), content.tags))
    await store.send(queue, some_messages("c"))
    assert len((await hold(store, queue, batch=2, visibility_s=100)).messages) == 1
    clock.advance(seconds=61)
    assert await hold(store, queue, batch=2) == ([], 1, True)
    assert await delete(store, queue, 2) == (0, 3)


def _short(settings):
    return replace(settings, retention_s=60)


async def test_a_first_receive_dead_letters_what_is_spent_like_any_other(store, clock):
    dead = await make_queue(store, "dead")
    queue = await a_queue(store, "a", redrive=redrive_to("dead", 1))
    await store.receive(queue, 1, visibility_s=1)
    await store.send(queue, some_messages("b"))
    clock.advance(seconds=2)

    assert bodies((await hold(store, queue)).messages) == ["b"]
    assert bodies(await store.peek(dead)) == ["a"]


async def test_a_hold_takes_fewer_where_few_more_may_be_in_flight(store, in_flight_max):
    in_flight_max(3)
    queue = await a_queue(store, "a", "b", "c", "d")
    await store.receive(queue, 1)

    assert bodies((await hold(store, queue)).messages) == ["b", "c"]
    assert await hold(store, queue, part=1) == ([], 0, False)


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_hold_stops_at_so_many_bytes_of_bodies(store, monkeypatch, group):
    monkeypatch.setattr("veil.core.decide.HOLD_BYTES_MAX", 25)
    queue = await make_queue(store)
    await store.send(queue, [a_message(f"ten bytes{n}", group=group) for n in range(5)])

    assert bodies((await hold(store, queue)).messages) == ["ten bytes0", "ten bytes1", "ten bytes2"]
    assert len((await hold(store, queue)).messages) == 3
    assert len((await hold(store, queue, part=1)).messages) == 2


# ---- FIFO


async def a_fifo_queue(store, *names):
    queue = await make_queue(store, "orders.fifo")
    await store.send(queue, [a_grouped_message(name, group=name[0]) for name in names])
    return queue


async def test_on_a_fifo_queue_a_hold_locks_its_groups_like_any_receive(store, clock):
    queue = await a_fifo_queue(store, "a1", "a2", "a3", "b1")
    first = await hold(store, queue, 2)
    assert bodies(first.messages) == ["a1", "a2"]
    assert bodies((await hold(store, queue, part=1)).messages) == ["b1"]
    assert await store.receive(queue, 10) == []

    clock.advance(seconds=31)
    again = await hold(store, queue)
    assert receipts_of(queue, again.messages) == receipts_of(queue, first.messages)
    assert bodies(await store.receive(queue, 10)) == ["b1"]  # a3 waits behind what was taken back
    assert await delete(store, queue) == (2, 1)  # b1 is another's by now
    assert bodies(await store.receive(queue, 10)) == ["a3"]


async def test_on_a_fifo_queue_nothing_is_taken_back_from_behind_another_holder(store, clock):
    queue = await a_fifo_queue(store, "a1", "a2", "b1")
    await hold(store, queue)
    clock.advance(seconds=31)
    assert bodies(await store.receive(queue, 1)) == ["a1"]
    again = await hold(store, queue)

    assert (bodies(again.messages), again.lost) == (["b1"], 2)
    assert await extend(store, queue) == (1, 2)
    assert await store.counts(queue) == (1, 2, 0)


async def test_on_a_fifo_queue_what_another_hold_keeps_does_not_help(store, clock):
    """Also of the same stream: the other one may be acknowledged long before this one."""
    queue = await a_fifo_queue(store, "a1", "a2")
    await hold(store, queue, 2, visibility_s=5, batch=1)
    clock.advance(seconds=5)
    first = await hold(store, queue, 1, visibility_s=5, batch=0)
    assert bodies(first.messages) == ["a1"]
    clock.advance(seconds=5)

    tally = await extend(store, queue)

    assert (tally.messages, tally.lost) == (1, 2)


async def test_on_a_fifo_queue_what_lapsed_behind_a_kept_one_is_taken_back(store, clock):
    queue = await a_fifo_queue(store, "a1", "a2", "a3")
    first = await hold(store, queue)
    await store.extend(queue, [Extension(receipt_of(queue, first.messages[0]), 100)])
    await store.delete(queue, receipts_of(queue, first.messages[1:2]))
    clock.advance(seconds=31)

    assert (bodies((await hold(store, queue)).messages)) == ["a1", "a3"]


# ---- extending


async def test_an_extension_reaches_every_member_of_every_hold_of_the_stream(store, clock):
    queue = await a_queue(store, *"abcdef")
    await hold(store, queue, 2)
    await hold(store, queue, 2, batch=7, part=3)
    await hold(store, queue, 1, stream="other")
    clock.advance(seconds=20)

    assert await extend(store, queue, 30) == (4, 0)
    clock.advance(seconds=20)  # the others lapse
    assert bodies(await store.receive(queue, 10)) == ["e", "f"]
    clock.advance(seconds=11)
    assert len(await store.receive(queue, 10)) == 4


async def test_an_extension_takes_back_what_lapsed_and_counts_what_is_lost(store, clock):
    queue = await a_queue(store, "a", "b", "c")
    first = await hold(store, queue)
    await store.delete(queue, receipts_of(queue, first.messages[2:]))
    clock.advance(seconds=31)
    await store.receive(queue, 1)

    assert await extend(store, queue) == (1, 2)
    assert await extend(store, queue) == (1, 2)  # said each time, found out once
    assert await store.receive(queue, 10) == []


async def test_an_extension_ends_twelve_hours_after_the_receive(store, clock):
    queue = await a_queue(store, "a")
    await hold(store, queue, visibility_s=VISIBILITY_MAX_S)
    clock.advance(seconds=VISIBILITY_MAX_S - 10)
    assert await extend(store, queue, 60) == (1, 0)
    clock.advance(seconds=9)
    assert await store.receive(queue, 1) == []
    clock.advance(seconds=1)

    assert await store.counts(queue) == (1, 0, 0)
    assert await extend(store, queue, 60) == (0, 1)
    assert await delete(store, queue) == (1, 0)  # nobody has received it since: it is a member still


# ---- deleting


async def test_an_acknowledgement_deletes_the_batches_up_to_it_and_no_others(store):
    queue = await a_queue(store, *"abcdef")
    for batch in range(3):
        await hold(store, queue, 1, batch=batch, part=0)
        await hold(store, queue, 1, batch=batch, part=1)

    assert await delete(store, queue, 1) == (4, 0)
    assert bodies(await store.peek(queue)) == ["e", "f"]
    assert await delete(store, queue, 1) == (0, 0)
    assert await extend(store, queue) == (2, 0)


async def test_a_late_reader_of_an_acknowledged_batch_is_refused(store):
    queue = await a_queue(store, "a", "b")
    await hold(store, queue, 1, batch=4)
    await delete(store, queue, 4)

    for batch, part in ((4, 0), (4, 9), (3, 0)):
        with pytest.raises(HoldClosed, match="all up to 4 were acknowledged"):
            await hold(store, queue, batch=batch, part=part)
    assert await store.counts(queue) == (1, 0, 0)
    assert bodies((await hold(store, queue, batch=5)).messages) == ["b"]
    await delete(store, queue, 2)  # what is closed stays closed
    with pytest.raises(HoldClosed):
        await hold(store, queue, batch=4)


async def test_a_deletion_goes_by_the_rules_of_a_delete(store, clock):
    queue = await a_queue(store, "lapsed", "taken")
    first = await hold(store, queue)
    await store.extend(queue, [Extension(receipt_of(queue, first.messages[0]), 60)])
    clock.advance(seconds=31)
    assert bodies(await store.receive(queue, 1, visibility_s=300)) == ["taken"]
    clock.advance(seconds=31)

    assert await delete(store, queue) == (1, 1)
    assert bodies(await store.peek(queue)) == ["taken"]


# ---- streams


async def test_whoever_opened_a_stream_last_owns_it(store):
    queue = await a_queue(store, "a")
    await store.open_stream(queue, "epoch", "first")
    await hold(store, queue)
    await store.open_stream(queue, "epoch", "second")

    for call in (extend(store, queue, owner="first"), delete(store, queue, owner="first")):
        with pytest.raises(StreamTaken, match="epoch"):
            await call
    assert await extend(store, queue, owner="second") == (1, 0)
    assert await delete(store, queue, owner="second") == (1, 0)


async def test_of_a_stream_that_is_not_known_nothing_is_done_whoever_asks(store):
    queue = await a_queue(store, "a")
    assert await extend(store, queue, stream="veil-is-there", owner="nobody") == (0, 0)
    assert await delete(store, queue, 9, stream="new", owner="nobody") == (0, 0)
    assert len((await hold(store, queue, batch=3, stream="new")).messages) == 1


async def test_a_stream_is_of_one_queue(store):
    queue = await a_queue(store, "a")
    other = await make_queue(store, "other")
    await store.open_stream(queue, "epoch", "me")
    await store.open_stream(other, "epoch", "you")
    await hold(store, queue, batch=1)
    await hold(store, other, batch=1)

    assert await delete(store, other, 1, owner="you") == (0, 0)
    assert await delete(store, queue, 1, owner="me") == (1, 0)


async def test_streams_go_with_their_queue(store):
    queue = await a_queue(store, "a")
    await store.open_stream(queue, "epoch", "me")
    await hold(store, queue)
    await store.delete_queue(queue)
    for call in (hold(store, queue), extend(store, queue), store.open_stream(queue, "epoch", "me")):
        with pytest.raises(QueueMissing):
            await call


async def test_a_stream_is_forgotten_two_weeks_after_its_last_use(store, clock):
    queue = await a_queue(store)
    await store.open_stream(queue, "epoch", "me")
    await hold(store, queue, batch=1)
    await delete(store, queue, 1)
    clock.advance(STREAM_REST_MS - 10_000)
    await store.settle()
    with pytest.raises(StreamTaken):
        await extend(store, queue, owner="you")
    clock.advance(STREAM_REST_MS)
    await store.settle()

    assert await extend(store, queue, owner="you") == (0, 0)
    assert (await hold(store, queue, batch=1)) == ([], 0, False)


# ---- durability


async def test_holds_owners_and_what_is_closed_survive_a_restart(store, reopen, clock):
    queue = await a_queue(store, *"abc")
    await store.open_stream(queue, "epoch", "me")
    await hold(store, queue, 1, batch=0)
    first = await hold(store, queue, 1, batch=1)
    await hold(store, queue, 0, batch=2)
    await delete(store, queue, 0, owner="me")
    store = await reopen()

    with pytest.raises(HoldClosed):
        await hold(store, queue, batch=0)
    with pytest.raises(StreamTaken):
        await extend(store, queue, owner="you")
    again = await hold(store, queue, batch=1)
    assert receipts_of(queue, again.messages) == receipts_of(queue, first.messages)
    assert (await hold(store, queue, batch=2)).messages == []
    assert await delete(store, queue, 2, owner="me") == (1, 0)


# ---- the journal


@pytest.fixture
def given() -> dict[str, Any]:
    return {"journal": True}


async def test_the_journal_tells_of_a_hold_as_of_any_receive(store, clock):
    queue = await a_queue(store, "a", "b")
    named = {"visibility_s": 30, "caller": A_CALLER}
    [one, two] = (await store.receive_hold(queue, key(), 10, **named)).messages
    clock.advance(seconds=5)
    await store.extend_holds(queue, "epoch", "me", **named)
    await store.delete(queue, [receipt_of(queue, one)])
    await store.receive_hold(queue, key(), 10, **named)
    await store.delete_holds(queue, "epoch", "me", up_to_batch=0, caller=A_CALLER)
    told = await exported(store)

    assert kinds(told) == ["sent"] * 2 + ["received"] * 2 + ["extended"] * 2 + [
        "deleted",
        *sorted(["extension_refused", "extended"], reverse=kinds(told)[7] == "extension_refused"),
        "deleted",
    ]
    last = told[-1]
    assert (last.seq, last.delivery, last.deadline_ms) == (two.seq, 1, clock.now_ms() + 30_000)
    assert {event.caller for event in told[2:6] + told[7:]} == {A_CALLER}
    [refused] = [event for event in told if event.kind == "extension_refused"]
    assert (refused.seq, refused.delivery, refused.message_id) == (one.seq, 1, None)
    assert [event.deadline_ms for event in told[4:6]] == [clock.now_ms() + 30_000] * 2


async def test_a_member_that_is_lost_is_told_of_once(store, clock):
    queue = await a_queue(store, "a")
    [message] = (await hold(store, queue)).messages
    clock.advance(seconds=31)
    await store.receive(queue, 1)
    for _ in range(3):
        await extend(store, queue)
        await hold(store, queue)
    await delete(store, queue)

    refused = [event for event in await exported(store) if event.kind.endswith("refused")]
    assert [(event.kind, event.message_id) for event in refused] == [
        ("extension_refused", message.message_id)
    ]
