"""What happens to messages from their send to their end, a column of messages at a time.

Each turn of the loop is one receive of all the messages that are still there. It follows the rules of `veil.core.lease`:
a lapsed receipt deletes as long as nobody has received the message again (not on FIFO queues), and is refused otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from bench.journal_world import CONSUMERS, DAY_MS, QUEUES, Bools, Floats, Ints, World
from veil.core.event import Kind

NONE: Final = -1  # a null, in every column of events
_NEVER: Final = 1 << 60
_ROUNDS: Final = 12  # receives_max is five at most; the others were undone
_RENEW_AT: Final = 0.6  # of the window
_TYPE_FACTOR: Final = np.array([1.0, 0.6, 0.5, 1.6, 0.8, 2.2])


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages to be sent."""

    queue: Ints
    kind: Ints  # place in TYPES, or NONE
    sent_ms: Ints
    seq: Ints
    body_bytes: Ints
    delay_ms: Ints
    poison: Bools  # no holder will ever finish it
    origin: Ints  # its seq in the dead letters, or NONE

    def __len__(self) -> int:
        return len(self.seq)

    def take(self, which: Ints | Bools) -> Messages:
        """Some of them."""
        return Messages(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    @staticmethod
    def together(parts: list[Messages]) -> Messages:
        """All of them."""
        names = [field.name for field in fields(Messages)]
        return Messages(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


Events = dict[str, Ints]
COLUMNS: Final = (
    "at", "kind", "queue", "seq", "id_seq", "delivery", "deadline", "receive_count", "body_bytes", "type",
    "other_queue", "other_seq", "caller",
)  # fmt: skip


class _Recorder:
    """Takes events down, filling in what follows from the message."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._parts: list[list[Ints]] = [[] for _ in COLUMNS]

    def record(
        self, kind: Kind, which: Ints, at: Ints, *, gone: Bools | bool = False, **given: Ints | int
    ) -> None:
        """One event for each of the messages; of one that is gone, only the receipt is known."""
        of = self._messages
        absent = np.broadcast_to(np.asarray(gone), which.shape)
        values: dict[str, Ints | int] = {
            "at": at,
            "kind": int(kind),
            "queue": of.queue[which],
            "seq": of.seq[which],
            "id_seq": of.seq[which],
            "delivery": 0,
            "deadline": NONE,
            "receive_count": NONE,
            "body_bytes": of.body_bytes[which],
            "type": of.kind[which],
            "other_queue": NONE,
            "other_seq": NONE,
            "caller": NONE,
        }
        values.update(given)
        for name in ("id_seq", "receive_count", "body_bytes", "type"):
            values[name] = np.where(absent, NONE, values[name])
        for column, part in zip(COLUMNS, self._parts, strict=True):
            part.append(np.broadcast_to(np.asarray(values[column], dtype=np.int64), which.shape))

    def events(self) -> Events:
        """All that was taken down."""
        return {name: np.concatenate(parts) for name, parts in zip(COLUMNS, self._parts, strict=True)}


class SeqMaker:
    """Order keys for messages that are made on the way; their counters lie above those of ordinary sends."""

    def __init__(self) -> None:
        self._made = 0

    def at(self, ms: Ints) -> Ints:
        """A key for each instant."""
        counter = (self._made + np.arange(len(ms))) % (1 << 19)
        self._made += len(ms)
        return ms << 20 | (1 << 19) | counter


def live(world: World, rng: np.random.Generator, sent: Messages, seqs: SeqMaker) -> tuple[Events, Messages]:
    """The events of the messages, in no order but that of each message; and what redrives send anew."""
    told = _Recorder(sent)
    everyone = np.arange(len(sent))
    available = sent.sent_ms + sent.delay_ms
    told.record(
        Kind.SENT,
        everyone,
        sent.sent_ms,
        deadline=np.where(sent.delay_ms > 0, available, NONE),
        receive_count=0,
        other_seq=sent.origin,
        caller=np.where(sent.origin == NONE, world.caller(sent.queue, 0), NONE),
    )
    expires = sent.sent_ms + world.retention_ms[sent.queue]
    receives = np.zeros(len(sent), dtype=np.int64)
    late_at = np.full(len(sent), _NEVER)  # when the holder before will try to delete
    late_caller = np.zeros(len(sent), dtype=np.int64)
    redriven: list[Messages] = []
    m = everyone
    for delivery in range(1, _ROUNDS + 1):
        if len(m) == 0:
            break
        queue = sent.queue[m]
        received = available[m] + _waits(world, rng, queue, available[m], first=delivery == 1)
        purge_every = world.purge_every_ms[queue]
        purged = np.where(
            purge_every > 0, (available[m] // np.maximum(purge_every, 1) + 1) * purge_every, _NEVER
        )
        removed = np.minimum(purged, expires[m])
        late = late_at[m]
        late_by = late_caller[m]
        before = delivery - 1

        # The holder before comes back while nobody holds the message: its delete counts, except on FIFO queues.
        free = late < np.minimum(received, removed)
        fifo = world.fifo[queue]
        told.record(
            Kind.DELETED, m[free & ~fifo], late[free & ~fifo], delivery=before, caller=late_by[free & ~fifo],
            receive_count=receives[m[free & ~fifo]],
        )  # fmt: skip
        told.record(
            Kind.DELETE_REFUSED, m[free & fifo], late[free & fifo], delivery=before, caller=late_by[free & fifo],
            receive_count=receives[m[free & fifo]],
        )  # fmt: skip
        there = ~(free & ~fifo)
        pending = ~free & (late < _NEVER)

        # Retention or a purge takes it while it waits.
        lost = there & (removed <= received)
        _remove(told, m[lost], removed[lost], purged[lost] == removed[lost], receives[m[lost]])
        moved = there & ~lost & (receives[m] >= world.receives_max[queue])
        gone = (lost | moved) & pending
        told.record(
            Kind.DELETE_REFUSED, m[gone], late[gone], gone=True, delivery=before, caller=late_by[gone]
        )
        redriven.append(
            _dead_letter(world, rng, told, sent, seqs, m[moved], received[moved], before, receives[m[moved]])
        )

        # The rest is received.
        held = there & ~lost & ~moved
        m, queue, received, purged, removed = (
            m[held],
            queue[held],
            received[held],
            purged[held],
            removed[held],
        )
        late, late_by, pending = late[held], late_by[held], pending[held]
        receives[m] += 1
        caller = world.caller(queue, rng.integers(1, CONSUMERS + 1, len(m)))
        visibility = world.visibility_ms[queue]
        told.record(
            Kind.RECEIVED, m, received, delivery=delivery, deadline=received + visibility, caller=caller,
            receive_count=receives[m],
        )  # fmt: skip

        fate = rng.random(len(m))
        undone = fate < 0.0005
        fails = np.where(sent.poison[m], 0.5, world.release[queue])
        crashes = ~undone & (rng.random(len(m)) < np.where(sent.poison[m], 0.5, world.crash[queue]))
        gives_up = ~undone & ~crashes & (sent.poison[m] | (rng.random(len(m)) < fails))
        work = _processing(world, rng, queue, sent.kind[m])
        cut_short = np.where(crashes | gives_up, rng.random(len(m)), 1.0)
        until = received + np.maximum(
            1, np.where(undone, rng.integers(1, 2000, len(m)), work * cut_short)
        ).astype(np.int64)

        step = (visibility * _RENEW_AT).astype(np.int64)
        renewals = np.where(world.renews[queue] & ~undone, np.minimum((until - received - 1) // step, 200), 0)
        broken = rng.random(len(m)) < 0.02  # the renewer fell over
        renewals = np.where(broken, np.minimum(renewals, rng.integers(0, 3, len(m))), renewals)
        deadline = received + visibility + renewals * step
        acts = np.where(crashes, _NEVER, until)
        in_time = acts < deadline
        closed = np.where(in_time, acts, deadline)
        taken = removed < closed
        lease = np.repeat(np.arange(len(m)), renewals)
        turn = np.arange(len(lease)) - np.repeat(np.cumsum(renewals) - renewals, renewals) + 1
        at = received[lease] + turn * step[lease]
        lease, at = lease[at < removed[lease]], at[at < removed[lease]]
        told.record(
            Kind.EXTENDED, m[lease], at, delivery=delivery, deadline=at + visibility[lease], caller=caller[lease],
            receive_count=receives[m[lease]],
        )  # fmt: skip

        _remove(told, m[taken], removed[taken], purged[taken] == removed[taken], receives[m[taken]])
        for kind, when in ((Kind.DELETE_REFUSED, ~gives_up), (Kind.EXTENSION_REFUSED, gives_up)):
            too_late = taken & when & ~undone & (acts < _NEVER)
            told.record(
                kind, m[too_late], acts[too_late], gone=True, delivery=delivery, caller=caller[too_late]
            )
        ends = in_time & ~taken
        deletes = ends & ~undone & ~gives_up
        for kind, when in (
            (Kind.DELETED, deletes),
            (Kind.RELEASED, ends & gives_up),
            (Kind.UNDONE, ends & undone),
        ):
            told.record(
                kind, m[when], acts[when], delivery=delivery, caller=caller[when],
                deadline=deadline[when] if kind == Kind.DELETED else NONE,
                receive_count=receives[m[when]] - (kind == Kind.UNDONE),
            )  # fmt: skip
        receives[m[ends & undone]] -= 1

        # The holder before meets this lease, or finds the message gone. In between it would delete it after all; such a
        # holder is taken for dead instead.
        gone_at = np.where(taken, removed, np.where(deletes, closed, _NEVER))
        meets = pending & (late >= received) & (late < np.minimum(closed, gone_at))
        finds_none = pending & (late >= gone_at)
        refused = meets | finds_none
        told.record(
            Kind.DELETE_REFUSED, m[refused], late[refused], gone=finds_none[refused], delivery=before,
            caller=late_by[refused], receive_count=receives[m[refused]],
        )  # fmt: skip
        asks = meets & world.renews[queue]
        told.record(
            Kind.EXTENSION_REFUSED, m[asks], (received + late)[asks] // 2, delivery=before,
            caller=late_by[asks], receive_count=receives[m[asks]],
        )  # fmt: skip

        stays = ~taken & ~deletes
        late_at[m] = np.where(~in_time & ~gives_up, acts, _NEVER)
        late_caller[m] = caller
        available[m] = closed
        m = m[stays]
    return told.events(), Messages.together(redriven)


def _remove(told: _Recorder, which: Ints, at: Ints, purged: Bools, receives: Ints) -> None:
    for kind, when in ((Kind.PURGED, purged), (Kind.EXPIRED, ~purged)):
        told.record(kind, which[when], at[when], receive_count=receives[when])


def _dead_letter(
    world: World, rng: np.random.Generator, told: _Recorder, sent: Messages, seqs: SeqMaker,
    which: Ints, at: Ints, delivery: int, receives: Ints,
) -> Messages:  # fmt: skip
    """Move messages to the dead letters, and let some be redriven, some be looked at and deleted, the others expire."""
    source = sent.queue[which]
    place = source + QUEUES
    fifo = world.fifo[source]
    seq = np.where(fifo, seqs.at(at), sent.seq[which])
    told.record(
        Kind.DEAD_LETTERED, which, at, delivery=delivery, receive_count=receives, other_queue=place,
        other_seq=np.where(fifo, seq, NONE),
    )  # fmt: skip
    chance = rng.random(len(which))
    later = at + 60_000 + rng.exponential(1_200_000, len(which)).astype(np.int64)
    back = chance < 0.5
    seen = (chance >= 0.5) & (chance < 0.7)
    left = chance >= 0.7

    caller = world.caller(source, 1)[seen]
    told.record(
        Kind.RECEIVED, which[seen], later[seen], queue=place[seen], seq=seq[seen], delivery=delivery + 1,
        deadline=later[seen] + 30_000, receive_count=receives[seen] + 1, caller=caller,
    )  # fmt: skip
    told.record(
        Kind.DELETED, which[seen], later[seen] + 5_000, queue=place[seen], seq=seq[seen], delivery=delivery + 1,
        deadline=later[seen] + 30_000, receive_count=receives[seen] + 1, caller=caller,
    )  # fmt: skip
    # On standard queues the retention goes on from the send.
    ends = (seq >> 20) + 4 * DAY_MS
    told.record(
        Kind.EXPIRED, which[left], ends[left], queue=place[left], seq=seq[left], receive_count=receives[left]
    )

    new_seq = seqs.at(later[back])
    told.record(
        Kind.REDRIVEN, which[back], later[back], queue=place[back], seq=seq[back], receive_count=receives[back],
        other_queue=source[back], other_seq=new_seq,
    )  # fmt: skip
    poison = sent.poison[which[back]] & (rng.random(int(back.sum())) < 0.3)
    return Messages(
        queue=source[back],
        kind=sent.kind[which[back]],
        sent_ms=later[back],
        seq=new_seq,
        body_bytes=sent.body_bytes[which[back]],
        delay_ms=np.zeros(len(new_seq), dtype=np.int64),
        poison=poison,
        origin=seq[back],
    )


def _waits(world: World, rng: np.random.Generator, queue: Ints, available: Ints, *, first: bool) -> Ints:
    """How long until somebody asks: mostly at once, minutes where a queue is behind, never for what nobody wants."""
    wait = np.exp(rng.normal(np.log(40.0), 1.5, len(queue)))
    # In one ten-minute slot in sixty a queue falls behind.
    behind = (queue * 7919 + available // 600_000 * 104_729) % 60 == 0
    wait += np.where(behind, rng.uniform(0, 300_000, len(queue)), 0.0)
    if first:
        wait = np.where(rng.random(len(queue)) < world.unread[queue], 30.0 * DAY_MS, wait)
    return 1 + wait.astype(np.int64)


def _processing(world: World, rng: np.random.Generator, queue: Ints, kind: Ints) -> Floats:
    factor = np.where(kind == NONE, 1.0, _TYPE_FACTOR[np.maximum(kind, 0)])
    slow = np.where(rng.random(len(queue)) < world.slow_share[queue], 10.0, 1.0)
    length: Floats = (
        world.median_ms[queue]
        * factor
        * slow
        * np.exp(rng.normal(0.0, 1.0, len(queue)) * world.spread[queue])
    )
    return np.minimum(length, 6 * 3_600_000.0)
