"""A message as the store has it now, and its life as the journal and the store tell it together."""

from __future__ import annotations

from typing import NamedTuple

from veil.console.journal_looks import journal_looks
from veil.console.lives import Life, tell
from veil.console.visit import Visit
from veil.core.lease import State
from veil.core.message import StoredMessage
from veil.core.queue import Queue, QueueKey, parse_arn
from veil.core.sequence import instant_of
from veil.journal.life_event import LifeEvent
from veil.service.activity import Holder

STATES = {State.VISIBLE: "visible", State.DELAYED: "delayed", State.IN_FLIGHT: "in flight"}


class Present(NamedTuple):
    """Where a message is now."""

    queue: Queue
    message: StoredMessage
    holder: Holder | None

    @property
    def state(self) -> str:
        return STATES[State(self.message.state)]

    @property
    def signature(self) -> tuple[object, ...]:
        """Differs once something has happened to the message."""
        message = self.message
        return self.queue.id, message.seq, message.state, message.delivery, message.due_at_ms


class Told(NamedTuple):
    """A life, and how much of it is known."""

    life: Life
    present: Present | None
    is_whole: bool
    looked_until: str | None
    problems: list[str]
    from_store_only: bool


async def find_present(visit: Visit, key: QueueKey, seq: int) -> Present | None:
    """The message of that key in that queue, if it is there."""
    queue = await visit.service.store.find_queue(key)
    if queue is None:
        return None
    found = await visit.service.store.peek(queue, after_seq=seq - 1, up_to_seq=seq, limit=1)
    if not found:
        return None
    message = found[0]
    if message.state == State.IN_FLIGHT and (message.due_at_ms or 0) <= visit.now_ms:
        message.state, message.due_at_ms = State.VISIBLE, None  # lapsed, and the store has not looked yet
    return Present(queue, message, visit.console.activity.holder(queue.id, message))


async def tell_message(visit: Visit, key: QueueKey, seq: int, further: int = 1) -> Told | None:
    """All that is known about the message; None where neither the queue nor the journal knows it."""
    look = await journal_looks(visit.console).life(seq, further)
    # Keys are the whole store's: what another account did is not ours to tell.
    events = [event for event in look.events if event.queue.account == key.account]
    if not any(event.queue == key and event.seq == seq for event in events) and not _led_to(events, key, seq):
        events = []
    await visit.turn.pause()
    life = tell(events, visit.now_ms)
    await visit.turn.pause()
    place = (key, seq) if life is None else (life.stays[-1].queue, life.stays[-1].seq)
    present = await find_present(visit, *place)
    if present is not None:
        added = _missing(present, events)
        if added:
            events = sorted([*events, *added], key=lambda event: event.at_ms)
            life = tell(events, visit.now_ms)
    await visit.turn.pause()
    if life is None:
        return None
    return Told(
        life, present, look.is_whole, look.looked_until, look.problems, from_store_only=not look.events
    )


def _led_to(events: list[LifeEvent], key: QueueKey, seq: int) -> bool:
    """Whether a dead-lettering led there and nothing has happened to the message since."""
    return any(
        event.kind == "dead_lettered"
        and event.other_queue == key.name
        and event.queue.region == key.region
        and (event.other_seq or event.seq) == seq
        for event in events
    )


def _missing(present: Present, events: list[LifeEvent]) -> list[LifeEvent]:
    """What the store tells and the journal does not: it is off, was off, or has not been exported yet."""
    queue, message = present.queue, present.message
    facts = {
        "message_id": message.message_id,
        "message_type": message.message_type,
        "body_bytes": message.body_bytes,
        "receive_count": message.receive_count,
    }
    added: list[LifeEvent] = []
    if not events:
        sent_ms = instant_of(message.seq)
        source = _source(message)
        sent_to = queue.key if source is None else source
        added.append(LifeEvent(0, sent_ms, "sent", sent_to, message.seq, **facts))  # type: ignore[arg-type]
        if source is not None:
            # When it was moved the store does not say: not before it was last received there.
            moved_ms = max(sent_ms, message.first_received_wall_ms or sent_ms)
            added.append(LifeEvent(1, moved_ms, "dead_lettered", source, message.seq, other_queue=queue.name))
    known = max((event.delivery for event in events if event.seq == message.seq), default=0)
    if message.state == State.IN_FLIGHT and message.delivery > known and message.received_at_ms is not None:
        caller = None if present.holder is None else present.holder.caller
        added.append(
            LifeEvent(
                2,
                message.received_at_ms,
                "received",
                queue.key,
                message.seq,
                message.message_id,
                message.delivery,
                message.due_at_ms,
                message.receive_count,
                caller_key=None if caller is None else caller.key_id,
                caller_address=None if caller is None else caller.peer,
                user_agent=None if caller is None else caller.user_agent,
            )
        )
    return added


def _source(message: StoredMessage) -> QueueKey | None:
    return None if message.dead_letter_source is None else parse_arn(message.dead_letter_source)
