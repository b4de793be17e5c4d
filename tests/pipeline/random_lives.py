"""Random lives of messages under the queue's rules, with everything that can happen to one."""

from __future__ import annotations

import random

from tests.pipeline.journal_kit import (
    HOUR_MS,
    START_MS,
    JournalEvent,
    MessageStory,
    S,
    journal_of,
    said_failed,
    seq_of,
)


def random_journal(rng: random.Random, messages: int, *, lost: float = 0.0) -> list[JournalEvent]:
    """A journal of that many messages over some hours and queues; a share of the events may be lost."""
    stories: list[MessageStory] = []
    for counter in range(messages):
        sent_at = START_MS + rng.randrange(0, 40 * HOUR_MS, 250)
        _live(rng, sent_at, counter, stories)
    events = [event for event in journal_of(*stories) if rng.random() >= lost]
    newest = max(event.at for event in events)
    horizon = newest - rng.randrange(0, 3) * HOUR_MS  # some leases are open at the end
    return [event for event in events if event.at <= horizon] or events


def _return(rng: random.Random, story: MessageStory, now: int) -> None:
    """The holder lets go: with its reason or without, and for now or for later."""
    said = rng.choice([{}, {"outcome": "given_back"}, said_failed(rng.choice(["ValueError", "KeyError"]))])
    if rng.random() < 0.4:
        story.released(now, **said)
    else:
        story.given_back(now, wait=rng.choice([0, 1 * S, 90 * S]), **said)


def _live(rng: random.Random, sent_at: int, counter: int, stories: list[MessageStory]) -> None:
    fifo = rng.random() < 0.2
    queue = rng.choice(["orders", "mails"]) + (".fifo" if fifo else "")
    story = MessageStory(
        seq_of(sent_at, counter), queue, rng.choice([None, "invoice", "reminder"]), f"id-{sent_at}-{counter}"
    )
    stories.append(story)
    delay = rng.choice([0, 0, 5 * S])
    story.sent(sent_at, delay=delay)
    now = sent_at + 5 * S
    for _ in range(rng.choice([0, 1, 2]) if delay else 0):
        now = sent_at + rng.choice([0, 1 * S, 4 * S])
        story.delayed(now, delay=(delay := rng.choice([0, 2 * S, 60 * S])))
        now += delay
        if not delay:
            break
    late: list[tuple[int, int]] = []  # holders that will come back: when, which delivery
    for _ in range(rng.randrange(0, 7)):
        if rng.random() < 0.05:
            (story.purged if rng.random() < 0.5 else story.expired)(now)
            return _leftovers(rng, story, late)
        now += rng.randrange(0, 600 * S, 50)
        visibility = rng.choice([0, 10 * S, 30 * S, 12 * HOUR_MS])
        story.received(now, visibility=visibility)
        received, deadline, delivery = now, now + visibility, story.delivery
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            now = min(now + rng.randrange(0, max(1, visibility)), deadline - 1) if deadline > now else now
            # Sometimes in the very millisecond of the receive; sometimes to a nearer deadline.
            visibility = rng.choice([5 * S, 30 * S])
            story.extended(now, visibility=visibility)
            deadline = now + visibility
        fate = rng.random()
        if fate < 0.35:
            at = rng.randrange(now, deadline) if deadline > now else now
            worked = {"worked_ms": rng.randrange(0, 2 * (at - received + 1))} if rng.random() < 0.3 else {}
            story.deleted(at, **worked, **(said_failed("Poison") if rng.random() < 0.1 else {}))
            if rng.random() < 0.2:
                story.delete_refused(at + 40 * S, delivery=delivery, gone=True)  # deleted twice, to be sure
            return _leftovers(rng, story, late)
        if fate < 0.45:
            now = min(now, deadline)
            _return(rng, story, now)
            now = story.events[-1].deadline or now
        elif fate < 0.5:
            story.undone(now)
        elif fate < 0.55:
            now = min(received + 1, deadline)
            story.purged(now)
            late.append((now + 5 * S, delivery))
            return _leftovers(rng, story, late)
        else:
            now = deadline
            if rng.random() < 0.4:
                late.append((deadline + rng.randrange(0, 900 * S, 10), delivery))
            elif rng.random() < 0.5:
                (story.holder_seen if rng.random() < 0.5 else story.holder_silent)(deadline + 60 * S)
        if not fifo and late and rng.random() < 0.2:
            _, delivery = late.pop()
            if rng.random() < 0.5:
                story.deleted(now + 1, delivery=delivery)
                return _leftovers(rng, story, late)
            story.extended(now + 1, visibility=10 * S, delivery=delivery)
            now += 1 + 10 * S
        if story.delivery >= 4 and not story.queue.startswith("dead"):
            other = seq_of(now + 7, counter) if fifo else None
            story.dead_lettered(now + 7, f"dead-{story.queue}", other_seq=other)
            now += 7
            if fifo:
                return _as_fifo_dead_letter(rng, story, other or 0, now, stories)
            if rng.random() < 0.3:
                return _redriven(rng, story, now + 100, counter, stories)
    return _leftovers(rng, story, late)


def _leftovers(rng: random.Random, story: MessageStory, late: list[tuple[int, int]]) -> None:
    for at, delivery in late:
        gone = rng.random() < 0.5
        if rng.random() < 0.7:
            story.delete_refused(at, delivery=delivery, gone=gone)
        else:
            story.extension_refused(at, delivery=delivery, gone=gone)


def _as_fifo_dead_letter(
    rng: random.Random, old: MessageStory, seq: int, now: int, stories: list[MessageStory]
) -> None:
    """It goes on under another order key, without a send of its own."""
    story = MessageStory(seq, old.queue, old.message_type, old.message_id)
    story.delivery = old.delivery
    if rng.random() < 0.6:
        story.received(now + 60 * S)
        if rng.random() < 0.5:
            story.deleted(now + 70 * S)
    elif rng.random() < 0.5:
        story.expired(now + 90 * S)
    stories.append(story)


def _redriven(
    rng: random.Random, old: MessageStory, now: int, counter: int, stories: list[MessageStory]
) -> None:
    seq = seq_of(now, counter)
    old.redriven(now, "orders", other_seq=seq)
    story = MessageStory(seq, "orders", old.message_type, f"again-{old.message_id}")
    story.sent(now, other_seq=old.seq)
    if rng.random() < 0.7:
        story.received(now + 2 * S).deleted(now + 3 * S)
    stories.append(story)
