"""A message's life, told from its events: where it stayed, who held it when, and what came of each attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from veil.core.attempt import AttemptFacts, AttemptOutcome, ReportedOutcome, outcome_of
from veil.core.event import Kind
from veil.core.message import Caller
from veil.core.queue import QueueKey
from veil.journal.lives import LifeEvent, Look, Sightings, find_message, keys_before, read_events, read_life
from veil.journal.schema import Outbox
from veil.journal.segments import SegmentIndex
from veil.journal.storage import Storage

OPEN: Final = "open"
LAPSED: Final = "lapsed"
_RETURNED: Final = ("released", "given_back")
_ENDS_LEASE: Final = frozenset(("deleted", "released", "undone", "expired", "purged", "redriven"))
_GONE: Final = frozenset(("deleted", "expired", "purged", "redriven"))
_LEAVES: Final = frozenset(("deleted", "expired", "purged", "redriven", "dead_lettered"))
_REFUSED: Final = frozenset(("delete_refused", "extension_refused"))
_LATE: Final = _REFUSED | {"holder_late"}
_AFTERWARDS: Final = _LATE | {"holder_seen", "holder_silent"}


class Renewal(NamedTuple):
    """A new deadline, and when it was given."""

    at_ms: int
    deadline_ms: int


@dataclass(slots=True)
class LeaseLife:
    """One lease from its receive to its end."""

    delivery: int
    received_at_ms: int
    first_deadline_ms: int
    deadline_ms: int
    key: str | None = None
    address: str | None = None
    user_agent: str | None = None
    renewals: list[Renewal] = field(default_factory=list)
    late: list[LifeEvent] = field(default_factory=list)  # what its holder asked for when it no longer held it
    ended_at_ms: int | None = None  # None: still open
    how: str = OPEN  # what ended it: deleted, released, given_back, undone, lapsed, …
    outcome: AttemptOutcome = AttemptOutcome.OPEN  # what came of the attempt
    reported: ReportedOutcome | None = None  # by its holder
    seen_at_ms: int | None = None  # its holder, after it had lapsed
    silent_at_ms: int | None = None

    @property
    def is_open(self) -> bool:
        return self.how == OPEN

    @property
    def held_ms(self) -> int | None:
        return None if self.ended_at_ms is None else self.ended_at_ms - self.received_at_ms

    @property
    def attempt_ended_at_ms(self) -> int | None:
        """When the attempt was over: with its lease, or with a delete that came after that and counted."""
        late = (event.at_ms for event in self.late if event.kind == "deleted")
        return next(late, self.ended_at_ms)

    @property
    def holder(self) -> str:
        """Who held it, in words; empty where nobody knows."""
        worker = Caller(user_agent=self.user_agent or "").worker
        return " · ".join(part for part in (self.key, self.address, worker or self.user_agent) if part)


@dataclass(slots=True)
class Stay:
    """A message in one queue under one key."""

    queue: QueueKey
    seq: int
    since_ms: int
    came: str  # sent, dead_lettered, redriven; unknown where its beginning was not found
    message_id: str | None = None
    message_type: str | None = None
    body_bytes: int | None = None
    delayed_until_ms: int | None = None
    leases: list[LeaseLife] = field(default_factory=list)
    until_ms: int | None = None  # None: it is there
    went: str | None = None  # deleted, expired, purged, redriven, dead_lettered


@dataclass(slots=True)
class Life:
    """All of it, in the order in which it happened."""

    stays: list[Stay]
    events: Sequence[LifeEvent]

    @property
    def begins_ms(self) -> int:
        return self.stays[0].since_ms

    @property
    def leases(self) -> list[LeaseLife]:
        return [lease for stay in self.stays for lease in stay.leases]

    @property
    def is_over(self) -> bool:
        return self.stays[-1].until_ms is not None

    def until_ms(self, now_ms: int) -> int:
        """The last instant there is anything to show of: its end, or now, or the deadline of who holds it."""
        ends = [stay.until_ms if stay.until_ms is not None else now_ms for stay in self.stays]
        for lease in self.leases:
            ends += [lease.deadline_ms if lease.is_open else lease.ended_at_ms or 0]
            ends += [event.at_ms for event in lease.late]
        return max(ends)


def tell(events: Sequence[LifeEvent], now_ms: int) -> Life | None:
    """The life behind the events, as it stands now; None where there are none."""
    stays: list[Stay] = []
    leases: dict[tuple[int, int], LeaseLife] = {}
    for event in events:
        if event.kind in _AFTERWARDS:
            late = leases.get((event.seq, event.delivery))
            if late is not None:
                _learn(late, event)
            continue
        stay = _stay_of(stays, event)
        stay.message_id = event.message_id or stay.message_id
        stay.message_type = event.message_type or stay.message_type
        stay.body_bytes = event.body_bytes if event.body_bytes is not None else stay.body_bytes
        _lapse(stay, event.at_ms)
        _apply(stay, event)
        if stay.leases:
            leases.setdefault((stay.seq, stay.leases[-1].delivery), stay.leases[-1])
        if event.kind == "dead_lettered":
            stays.append(_arrived(event, stay))
    if not stays:
        return None
    gone_ms = {event.seq: event.at_ms for event in reversed(events) if event.kind in _GONE}
    for stay in stays:
        _lapse(stay, now_ms)
        for lease in stay.leases:
            lease.outcome = outcome_of(_facts(lease, gone_ms.get(stay.seq)), now_ms)
    return Life(stays, events)


def _learn(lease: LeaseLife, event: LifeEvent) -> None:
    """What became known of a lease's holder after it had lost it."""
    if event.kind == "holder_seen":
        lease.seen_at_ms = event.at_ms
    elif event.kind == "holder_silent":
        lease.silent_at_ms = event.at_ms
    else:
        lease.late.append(event)
        lease.reported = _reported(event) or lease.reported


def _reported(event: LifeEvent) -> ReportedOutcome | None:
    if event.outcome is None:
        return None
    return ReportedOutcome(event.outcome, event.error_type, event.error_text, event.traceback)


def _facts(lease: LeaseLife, gone_ms: int | None) -> AttemptFacts:
    late_delete = next((event.at_ms for event in lease.late if event.kind == "deleted"), None)
    return AttemptFacts(
        deadline=lease.deadline_ms,
        undone_at=lease.ended_at_ms if lease.how == "undone" else None,
        said=None if lease.reported is None else lease.reported.outcome,
        deleted_at=lease.ended_at_ms if lease.how == "deleted" else late_delete,
        is_returned=lease.how in _RETURNED,
        gone_at=gone_ms,
        refused_at=max((event.at_ms for event in lease.late if event.kind in _LATE), default=None),
        seen_at=lease.seen_at_ms,
        silent_at=lease.silent_at_ms,
    )


def _stay_of(stays: list[Stay], event: LifeEvent) -> Stay:
    for stay in reversed(stays):
        if stay.queue == event.queue and stay.seq == event.seq:
            return stay
    came = "unknown"
    if event.kind == "sent":
        came = "sent" if event.other_seq is None else "redriven"
    stay = Stay(event.queue, event.seq, event.at_ms, came)
    stays.append(stay)
    return stay


def _arrived(event: LifeEvent, source: Stay) -> Stay:
    there = event.queue._replace(name=event.other_queue or "?")
    seq = event.seq if event.other_seq is None else event.other_seq
    return Stay(
        there, seq, event.at_ms, "dead_lettered", source.message_id, source.message_type, source.body_bytes
    )


def _apply(stay: Stay, event: LifeEvent) -> None:
    lease = stay.leases[-1] if stay.leases else None
    if event.kind == "sent":
        if event.deadline_ms is not None and event.deadline_ms > event.at_ms:
            stay.delayed_until_ms = event.deadline_ms
    elif event.kind == "delayed":
        stay.delayed_until_ms = event.deadline_ms
    elif event.kind == "received":
        _receive(stay, lease, event)
    elif event.kind == "extended":
        # A late receipt may take its message back, if nobody else has received it: the lease goes on.
        _renew(_lease_of(stay, event), event)
    elif event.kind == "given_back":
        lease = _lease_of(stay, event)
        lease.deadline_ms, lease.ended_at_ms = event.deadline_ms or event.at_ms, event.at_ms
        lease.how, lease.reported = event.kind, _reported(event)
    elif event.kind in _ENDS_LEASE and lease is not None and lease.is_open:
        lease.ended_at_ms, lease.how = event.at_ms, event.kind
        lease.reported = _reported(event) or lease.reported
    elif event.kind == "deleted" and event.delivery:
        # By a receipt that had lapsed while nobody else took the message: the work was done, only too late.
        lease = _lease_of(stay, event)
        lease.late.append(event)
        lease.reported = _reported(event) or lease.reported
    if event.kind in _LEAVES:
        stay.until_ms, stay.went = event.at_ms, event.kind


def _receive(stay: Stay, lease: LeaseLife | None, event: LifeEvent) -> None:
    if lease is not None and lease.delivery == event.delivery:
        # A repeated receive under one name: the same lease, its window started over.
        _renew(lease, event)
        return
    deadline_ms = event.deadline_ms or event.at_ms
    caller = (event.caller_key, event.caller_address, event.user_agent)
    stay.leases.append(LeaseLife(event.delivery, event.at_ms, deadline_ms, deadline_ms, *caller))


def _renew(lease: LeaseLife, event: LifeEvent) -> None:
    lease.deadline_ms, lease.ended_at_ms, lease.how = event.deadline_ms or event.at_ms, None, OPEN
    lease.renewals.append(Renewal(event.at_ms, lease.deadline_ms))


def _lease_of(stay: Stay, event: LifeEvent) -> LeaseLife:
    for lease in reversed(stay.leases):
        if lease.delivery == event.delivery:
            return lease
    # Its receive is not in the journal: it was turned on later, or the day is gone.
    lease = LeaseLife(event.delivery, event.at_ms, event.at_ms, event.deadline_ms or event.at_ms)
    stay.leases.append(lease)
    return lease


def _lapse(stay: Stay, now_ms: int) -> None:
    """End the open lease at its deadline, if that has passed; a receive with a timeout of 0 has released the message itself."""
    if stay.leases:
        lease = stay.leases[-1]
        if lease.is_open and lease.deadline_ms <= now_ms:
            how = LAPSED if lease.deadline_ms > lease.received_at_ms else "released"
            lease.ended_at_ms, lease.how = lease.deadline_ms, how


# ---- reading the journal

FURTHER_MAX: Final = 64


class LastError(NamedTuple):
    """An error that ended an attempt, when, and how many attempts of the message ended in one."""

    reported: ReportedOutcome
    at_ms: int
    times: int


class JournalLookup:
    """What the journal of one server tells about single messages."""

    def __init__(self, store: Outbox, location: str | None) -> None:
        self._store = store
        self._index = None if location is None else SegmentIndex(Storage.at(location))
        self._looking = asyncio.Lock()

    @property
    def is_kept(self) -> bool:
        """Whether there is a journal at all."""
        return self._index is not None

    async def life(self, seq: int, further: int = 1) -> Look:
        """The events of the message with that key, wherever its life led it."""
        async with self._looking:
            return await read_life(self._store, self._index, seq, further=min(further, FURTHER_MAX))

    async def errors(self, seqs: Set[int]) -> dict[int, LastError]:
        """The last error that ended an attempt of each of these messages, where one is known."""
        if not seqs:
            return {}
        async with self._looking:
            events = (await read_events(self._store, self._index, seqs)).events
            unsent = seqs - {event.seq for event in events if event.kind == Kind.SENT.label}
            earlier = await keys_before(self._store, self._index, unsent) if unsent else {}
            if earlier:
                events += (await read_events(self._store, self._index, set(earlier.values()))).events
        now_under = {old: new for new, old in earlier.items()}
        found: dict[int, LastError] = {}
        for event in events:
            reported = _reported(event)
            if reported is not None and reported.error_type:
                seq = now_under.get(event.seq, event.seq)
                times = found[seq].times if seq in found else 0
                found[seq] = LastError(reported, event.at_ms, times + 1)
        return found

    async def events(self, seqs: Set[int]) -> Sequence[LifeEvent]:
        """What is known of these messages, at least one, in the order in which it happened."""
        async with self._looking:
            return (await read_events(self._store, self._index, seqs)).events

    async def described(self, message_id: str, account: str, now_ms: int) -> Life | None:
        """The life of a message of that account by its id; None where the journal does not know it."""
        sightings = [each for each in (await self.find(message_id)).found if each.queue.account == account]
        if not sightings:
            return None
        # On FIFO queues a dead letter has another key than the message had before: its life begins with the first.
        look = await self.life(min(each.seq for each in sightings))
        return tell([event for event in look.events if event.queue.account == account], now_ms)

    async def find(self, message_id: str, before: str | None = None) -> Sightings:
        """Where a message of that id was seen."""
        async with self._looking:
            return await find_message(self._store, self._index, message_id, before=before)
