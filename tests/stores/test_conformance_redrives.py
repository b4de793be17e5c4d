"""Chosen redrives: what was named moves, as a move task would move it; what cannot, stays and holds up nothing. And peeks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.stores.journal_kit import A_CALLER, exported
from tests.stores.kit import (
    a_grouped_message,
    a_key,
    a_message,
    bodies,
    make_queue,
    receipt_of,
    some_messages,
)
from tests.stores.test_conformance_move_tasks import with_dead_letters
from veil.core.errors import (
    BodyMissing,
    DestinationRefused,
    MessageMissing,
    MessageNotVisible,
    QueueMissing,
    SourceUnknown,
)
from veil.core.message import REDRIVEN_FROM, MessageAttribute
from veil.core.message_rules import body_md5
from veil.core.queue import Chosen, ContentChange


def chosen(message, destination=None, change=None):
    return Chosen(message.seq, message.message_id, destination and a_key(destination), change)


def types(answers):
    return [type(answer) for answer in answers]


async def test_what_was_chosen_goes_back_and_the_rest_stays(store, clock, events):
    queue, dead = await with_dead_letters(store, "a", "b", "c")
    [a, _, c] = await store.peek(dead)
    clock.advance(seconds=5)
    events.available.clear()
    [first, second] = await store.redrive(dead, [chosen(c), chosen(a)])

    back = await store.peek(queue)
    assert [(m.body, m.message_id, m.seq) for m in back] == [("c", *first[:2]), ("a", *second[:2])]
    assert [(m.receive_count, m.delivery, m.dead_letter_source) for m in back] == [(0, 0, None)] * 2
    assert {m.sent_wall_ms for m in back} == {clock.wall_ms()}
    assert bodies(await store.peek(dead)) == ["b"]
    assert (await store.counts(queue), await store.counts(dead)) == ((2, 0, 0), (1, 0, 0))
    assert events.available[queue.id] >= 2


async def test_an_entry_that_cannot_move_fails_alone(store):
    queue, dead = await with_dead_letters(store, "gone", "held", "good")
    await make_queue(store, "other.fifo")
    await store.send(dead, [a_message("sent here"), a_message("delayed", delay_s=60)])
    [gone, held, good, sent_here, delayed] = await store.peek(dead)
    [lease] = await store.receive(dead, 1)
    await store.delete(dead, [receipt_of(dead, lease)])
    await store.receive(dead, 1)
    answers = await store.redrive(
        dead,
        [
            chosen(gone),
            chosen(held),
            chosen(delayed),
            chosen(sent_here),
            chosen(sent_here, "nowhere"),
            chosen(sent_here, "other.fifo"),
            chosen(good)._replace(message_id="another"),
            chosen(good),
            chosen(good),
        ],
    )

    assert types(answers[:7]) == [
        MessageMissing,
        MessageNotVisible,
        MessageNotVisible,
        SourceUnknown,
        QueueMissing,
        DestinationRefused,
        MessageMissing,
    ]
    assert [str(answers[1])[-9:], str(answers[2])[-7:]] == ["in flight", "delayed"]
    assert bodies(await store.peek(queue)) == ["good"]
    assert type(answers[8]) is MessageMissing  # named twice, moved once


async def test_a_message_can_be_changed_on_its_way_by_the_rules_of_where_it_goes(store):
    queue, dead = await with_dead_letters(store, "a", "b")
    blue = MessageAttribute("String", "blue")
    change = ContentChange("ä", {"colour": blue}, ("colour",), is_marked=True)
    [a, b] = await store.peek(dead)
    answers = await store.redrive(dead, [chosen(a, change=change), chosen(b, change=ContentChange(""))])

    [moved] = await store.peek(queue)
    assert (moved.body, moved.body_md5, moved.body_bytes, moved.message_type) == (
        "ä",
        body_md5("ä".encode()),
        2,
        "blue",
    )
    assert moved.attributes == {"colour": blue, REDRIVEN_FROM: MessageAttribute("String", a.message_id)}
    assert type(answers[1]) is BodyMissing
    assert bodies(await store.peek(dead)) == ["b"]


async def test_on_fifo_queues_what_is_redriven_goes_to_the_end_of_its_group(store):
    queue, dead = await with_dead_letters(store, "a1", "a2", suffix=".fifo")
    [one, two] = await store.peek(dead)
    await store.redrive(dead, [chosen(two), chosen(one)])

    assert bodies(await store.receive(queue, 10)) == ["a2", "a1"]


async def test_a_missing_queue_is_refused(store):
    _, dead = await with_dead_letters(store, "a")
    await store.delete_queue(dead)
    with pytest.raises(QueueMissing):
        await store.redrive(dead, [])


async def test_redrives_survive_a_restart(store, reopen):
    queue, dead = await with_dead_letters(store, "a")
    [answer] = await store.redrive(dead, [chosen(each) for each in await store.peek(dead)])
    store = await reopen()

    [moved] = await store.peek(queue)
    assert (moved.message_id, await store.peek(dead)) == (answer.message_id, [])


@pytest.fixture
def given() -> dict[str, Any]:
    return {"journal": True}


async def test_the_journal_tells_where_it_went_and_who_asked(store):
    _, dead = await with_dead_letters(store, "a")
    [letter] = await store.peek(dead)
    await exported(store)
    longer = chosen(
        letter, change=ContentChange("longer", {"type": MessageAttribute("String", "t")}, ("type",))
    )
    [answer] = await store.redrive(dead, [longer], caller=A_CALLER)
    [gone, come] = await exported(store)

    assert (gone.kind, gone.queue, gone.seq, gone.other_queue, gone.other_seq) == (
        "redriven", "dead", letter.seq, "orders", answer.seq,
    )  # fmt: skip
    assert (come.kind, come.queue, come.seq, come.other_seq) == ("sent", "orders", answer.seq, letter.seq)
    assert (gone.body_bytes, come.body_bytes, come.message_type) == (1, 6, "t")
    assert gone.caller == come.caller == A_CALLER


# ---- peeking within bounds


async def sent_each_second(store, clock):
    queue = await make_queue(store)
    for name in "abcde":
        await store.send(queue, some_messages(name))
        clock.advance(seconds=1)
    return queue, await store.peek(queue)


async def test_a_peek_can_be_bounded_by_when_messages_were_sent(store, clock):
    queue, all_five = await sent_each_second(store, clock)
    second, fourth = all_five[1].sent_wall_ms, all_five[3].sent_wall_ms

    assert bodies(await store.peek(queue, sent_after_ms=second)) == ["b", "c", "d", "e"]
    assert bodies(await store.peek(queue, sent_before_ms=second)) == ["a", "b"]
    found = await store.peek(queue, sent_after_ms=second, sent_before_ms=fourth, limit=2)
    assert bodies(found) == ["b", "c"]
    rest = await store.peek(queue, after_seq=found[-1].seq, sent_after_ms=second, sent_before_ms=fourth)
    assert bodies(rest) == ["d"]


async def test_a_search_by_time_goes_on_past_what_one_look_sees(store, clock, monkeypatch):
    monkeypatch.setattr("veil.stores.sqlite.messages.TIMES_AT_ONCE", 2)
    queue, all_five = await sent_each_second(store, clock)
    await store.receive(queue, 2)

    assert bodies(await store.peek(queue, sent_after_ms=all_five[3].sent_wall_ms)) == ["d", "e"]
    assert bodies(await store.peek(queue, sent_after_ms=0, limit=5)) == list("abcde")


async def test_a_peek_shows_nothing_after_a_bound_that_was_seen_before(store, clock):
    queue, all_five = await sent_each_second(store, clock)
    bound = all_five[2].seq

    assert bodies(await store.peek(queue, up_to_seq=bound)) == ["a", "b", "c"]
    assert bodies(await store.peek(queue, up_to_seq=bound, after_seq=all_five[0].seq, sent_after_ms=0)) == [
        "b",
        "c",
    ]


@pytest.mark.parametrize("filtered", [{}, {"sent_after_ms": 0}])
async def test_a_peek_ends_with_the_message_that_makes_it_large(store, clock, filtered):
    queue, _ = await sent_each_second(store, clock)
    assert bodies(await store.peek(queue, bytes_max=3, **filtered)) == ["a", "b", "c"]


def key(message):
    return message.seq, message.message_id


async def test_what_is_discarded_is_gone_for_good_unless_somebody_holds_it(store, clock):
    queue = await make_queue(store)
    await store.send(
        queue, [a_message("held"), a_message("free"), a_message("kept"), a_message("late", delay_s=60)]
    )
    [held, free, kept, late] = await store.peek(queue)
    await store.receive(queue, 1)
    answers = await store.discard(
        queue, [key(held), key(free), key(free), key(late), (kept.seq, "another")], caller=A_CALLER
    )
    assert types(answers) == [MessageNotVisible, type(None), MessageMissing, type(None), MessageMissing]
    assert bodies(await store.peek(queue)) == ["held", "kept"]
    assert await store.counts(queue) == (1, 1, 0)
    told = [event for event in await exported(store) if event.kind == "purged"]
    assert [(event.seq, event.caller) for event in told] == [(free.seq, A_CALLER), (late.seq, A_CALLER)]
    with pytest.raises(QueueMissing):
        await store.discard(replace(queue, id=99), [key(kept)])


async def test_the_next_of_a_group_follows_one_that_was_discarded(store):
    queue = await make_queue(store, "q.fifo")
    await store.send(queue, [a_grouped_message("a1", group="a"), a_grouped_message("a2", group="a")])
    [first, _] = await store.peek(queue)
    assert await store.discard(queue, [key(first)]) == [None]
    assert bodies(await store.receive(queue, 10)) == ["a2"]
