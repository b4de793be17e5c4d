"""How events become rows: one of `leases` for each receive, one of `messages` for each message.

This runs inside Spark's tasks (or in this process, where little is new): a task gets all events of its messages at once, as
Arrow columns, and works on whole columns with numpy.

The tables must not depend on how many runs made them. So a stored row can become events again (`rows_as_events`), and a run
that learns more about a message makes its rows from those and the new ones: there is one way from events to rows, and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from veil.core.attempt import AttemptOutcome
from veil.core.sequence import COUNTER_BITS
from veil.pipeline.lifecycles.columns import (
    INSTANT,
    NONE,
    TEXT,
    Bools,
    Coded,
    Ints,
    coalesce,
    flags,
    ms_between,
    numbers,
    or_never,
    or_none,
    picked,
    table_of,
    whole,
)
from veil.pipeline.lifecycles.tables import HOUR_MS, LEASES_STORED, MESSAGES_STORED, arrow_schema

# Of the message, wherever it is; the others are of a lease. `said` is none of the journal's: the holder's word as a stored row
# has it, whichever event it came with.
_OF_MESSAGE: Final = ("sent", "delayed", "redriven", "expired", "purged")
_OF_LEASE: Final = (
    "received", "extended", "graced", "given_back", "released", "undone", "deleted", "delete_refused", "extension_refused",
    "dead_lettered", "holder_seen", "holder_silent", "holder_late", "said",
)  # fmt: skip
_NUMBER: Final = {kind: number for number, kind in enumerate((*_OF_MESSAGE, *_OF_LEASE))}
_PLACE: Final = ("region", "account", "queue")
_CALLER: Final = ("caller_key", "caller_address", "user_agent")
_ERROR: Final = ("error_type", "error_text", "traceback")
# Columns of `leases` that `_Lives` has under the same name.
_OF_ROWS: Final = (
    "delivery", "received_at", "first_deadline", "deadline", "extensions", "last_extended_at", "ended_at", "rule",
    "held_ms", "processing_ms", "recovery_ms", "home_rank", "set_at", "set_position", "said_at", "undone_at",
    "deleted_at", "delete_refused_at", "refused_at", "seen_at", "silent_at", "dead_lettered_at", "worked_ms",
)  # fmt: skip
# What a task is given of an event. `count`: a stored row tells of all its extensions at once.
EVENTS: Final = pa.schema(
    {
        "kind": TEXT, "at": INSTANT, "position": pa.int64(), "seq": pa.int64(), "delivery": pa.int32(),
        "deadline": INSTANT, **dict.fromkeys(_PLACE, TEXT), "message_id": pa.string(), "message_type": TEXT,
        "body_bytes": pa.int32(), "receive_count": pa.int32(), "other_queue": TEXT, **dict.fromkeys(_CALLER, TEXT),
        "outcome": TEXT, **dict.fromkeys(_ERROR, TEXT), "rule": pa.int32(), "count": pa.int32(),
        "worked_ms": pa.int32(),
    }
)  # fmt: skip
TEXTS: Final = tuple(field.name for field in EVENTS if field.type == TEXT)


def as_events(columns: pa.Table) -> pa.Table:
    """The columns of events that there are, with the others null: what an older journal lacks is not known."""
    there = set(columns.column_names)

    def column(field: pa.Field) -> Any:
        if field.name not in there:
            return pa.nulls(columns.num_rows, field.type)
        found = columns[field.name]
        if found.type == field.type:
            return found
        return found.dictionary_encode() if field.type == TEXT else found.cast(field.type)

    return pa.Table.from_arrays([column(field) for field in EVENTS], schema=EVENTS)


def lives(events: pa.Table, newest_ms: int) -> tuple[pa.Table, pa.Table]:
    """The rows of `leases` and of `messages` that these events tell of, by message; judged as of the last known instant."""
    made = _Lives(_Events(events), newest_ms)
    return made.leases(), made.messages()


class _Events:
    """Events by message, lease and time. `row` numbers the leases (and, as delivery 0, what concerns the message itself),
    `message` the messages."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table = table.unify_dictionaries().combine_chunks()
        kinds = Coded.of(table["kind"])
        kind = np.array([_NUMBER.get(kind, -1) for kind in kinds.texts.to_pylist()], np.int8)[kinds.numbers]
        seq, at, position = (numbers(table[name]) for name in ("seq", "at", "position"))
        delivery = np.where(kind < len(_OF_MESSAGE), 0, numbers(table["delivery"]))
        self._order = order = np.lexsort((position, at, delivery, seq))
        self.kind, self.seq, self.at = kind[order], seq[order], at[order]
        self.delivery, self.position = delivery[order], position[order]
        is_message = np.diff(self.seq, prepend=NONE) != 0
        is_row = is_message | (np.diff(self.delivery, prepend=-1) != 0)
        self.row, self.message = np.cumsum(is_row) - 1, np.cumsum(is_message) - 1
        self.starts = np.flatnonzero(is_row)  # of each row, its first event
        self.has_id = flags(whole(table["message_id"]).is_valid())[order]

    def numbers(self, name: str) -> Ints:
        return numbers(self._table[name])[self._order]

    def coded(self, name: str) -> Coded:
        found = Coded.of(self._table[name])
        return found._replace(numbers=found.numbers[self._order])

    def texts(self, name: str, events: Ints) -> Any:
        """The texts of some events as they are; none for -1."""
        return whole(self._table[name]).take(pa.array(self._order[events], mask=events < 0))

    def which(self, *kinds: str) -> Ints:
        found = self.kind == _NUMBER[kinds[0]]
        for kind in kinds[1:]:
            found |= self.kind == _NUMBER[kind]
        return np.flatnonzero(found)

    def first(self, events: Ints) -> Ints:
        """Of each row the first of these events, -1 where it has none."""
        return self.last(events[::-1])

    def last(self, events: Ints) -> Ints:
        """Of each row the last of these events, -1 where it has none."""
        found = np.full(len(self.starts), -1)
        found[self.row[events]] = events  # of several for one place, numpy keeps the last
        return found


class _Lives:
    """The rows, column by column. Each step adds columns that the later ones need; `self.x[i]` is of row i."""

    def __init__(self, events: _Events, newest_ms: int) -> None:
        self._events, self._newest_ms = events, newest_ms
        self.seq, self.delivery = events.seq[events.starts], events.delivery[events.starts]
        self.message = events.message[events.starts]
        self.is_lease = self.delivery > 0
        self._firsts = np.flatnonzero(np.diff(self.message, prepend=-1))  # of each message, its first row
        self._take_facts()
        self._find_queues()
        self._find_neighbours()
        self._judge()
        self._measure()

    def _of_messages(self, reduce: np.ufunc, values: Ints) -> Ints:
        found: Ints = reduce.reduceat(values, self._firsts)
        return found

    def _take_facts(self) -> None:
        """What each row's own events say."""
        events, at, deadlines = self._events, self._events.at, self._events.numbers("deadline")

        def first_at(kind: str) -> Ints:
            return picked(at, events.first(events.which(kind)))

        def last_at(*kinds: str) -> Ints:
            return picked(at, events.last(events.which(*kinds)))

        self.sending, self.redriving = (
            events.first(events.which("sent")),
            events.first(events.which("redriven")),
        )
        self.sent_at, self.redriven_at = picked(at, self.sending), picked(at, self.redriving)
        self.sent_deadline = picked(deadlines, self.sending)
        self.expired_at, self.purged_at = first_at("expired"), first_at("purged")
        self.receiving = events.first(events.which("received"))
        self.received_at, self.first_deadline = picked(at, self.receiving), picked(deadlines, self.receiving)
        extending = events.which("extended")
        self.last_extended_at = picked(at, events.last(extending))
        count = events.numbers("count")[extending]
        self.extensions = np.bincount(
            events.row[extending], np.where(count == NONE, 1, count), len(events.starts)
        ).astype(np.int64)
        # The latest receive, extension or return set the deadline; of a message, the latest time that its delay was set.
        setting = events.last(
            events.which("received", "extended", "graced", "given_back", "released", "delayed")
        )
        self.set_at, self.set_position = picked(at, setting), picked(events.position, setting)
        set_kind = np.where(setting >= 0, events.kind[setting], -1)
        is_released = set_kind == _NUMBER["released"]
        # A release: a deadline of now.
        self.deadline = np.where(is_released, self.set_at, picked(deadlines, setting))
        self.is_returned = is_released | (set_kind == _NUMBER["given_back"])
        self.undone_at, self.deleted_at = first_at("undone"), first_at("deleted")
        self.delete_refused_at = first_at("delete_refused")
        self.refused_at = last_at("delete_refused", "extension_refused", "holder_late")
        self.seen_at, self.silent_at = last_at("holder_seen"), last_at("holder_silent")
        words = events.coded("outcome")
        self.saying = events.last(np.flatnonzero(words.numbers >= 0))
        self.said, self.said_at = words.picked(self.saying), picked(at, self.saying)
        self.dead_lettering = events.first(events.which("dead_lettered"))
        self.dead_lettered_at = picked(at, self.dead_lettering)
        self.rule = np.maximum(np.maximum.reduceat(events.numbers("rule"), events.starts), 1)
        self.worked_ms = np.maximum.reduceat(events.numbers("worked_ms"), events.starts)

    def _find_queues(self) -> None:
        """Where it was and what it is about, as the first of sent or received, dead_lettered, anything else and a receipt of
        a message that is gone says: a message that went to its dead letters has later events in another queue."""
        events = self._events
        rank = np.where(events.has_id, 2, 3)
        rank[events.which("dead_lettered")] = 1
        rank[events.which("sent", "received")] = 0
        columns = [events.coded(name) for name in _PLACE]
        place = np.zeros(len(rank), np.int64)
        for column in columns:
            place = place * len(column.texts) + column.numbers
        _, example, place = np.unique(place, return_index=True, return_inverse=True)
        home = np.minimum.reduceat(rank * len(example) + place, events.starts)
        self.home_rank, self.home = home // len(example), home % len(example)
        self._places = dict(zip(_PLACE, (column.picked(example) for column in columns), strict=True))
        # Of a message: its own events first, then the first lease that knows it.
        size = len(self.home)
        best = self._of_messages(np.minimum, np.arange(size) + np.where(self.home_rank < 3, 0, size)) % size
        self.message_home = self.home[best]
        self.about = np.full(len(self._firsts), -1)
        known = np.flatnonzero(events.has_id)[::-1]
        self.about[events.message[known]] = known

    def _find_neighbours(self) -> None:
        """What a lease needs of the others: the next receive that somebody saw, and when the message went away."""
        # A receive whose answer never left is nobody's.
        self.counted_at = np.where(self.undone_at == NONE, self.received_at, NONE)
        size = len(self.counted_at)
        at_or_after = np.minimum.accumulate(np.where(self.counted_at != NONE, np.arange(size), size)[::-1])[
            ::-1
        ]
        after = np.minimum(np.append(at_or_after[1:], size), size - 1)
        is_later = (after > np.arange(size)) & (self.message[after] == self.message)
        self.next_received_at = np.where(is_later, self.counted_at[after], NONE)
        ends = (self.deleted_at, self.expired_at, self.purged_at, self.redriven_at)
        gone_at = self._of_messages(np.minimum, np.minimum.reduce([or_never(each) for each in ends]))
        self.gone_at = or_none(gone_at)[self.message]

    def _judge(self) -> None:
        """How each lease ended, and what came of the attempt."""
        # Without any deadline only a late word of the holder is known: it lapsed.
        is_over = (self.deadline == NONE) | (self.deadline <= self._newest_ms)
        self.how = Coded.first_of(
            [
                ("undone", self.undone_at != NONE),
                ("deleted", self.deleted_at != NONE),
                ("released", self.is_returned),
                ("removed", (self.gone_at != NONE) & (self.gone_at < self.deadline)),
                ("dead_lettered", self.dead_lettered_at != NONE),
                ("superseded", self.next_received_at != NONE),
                ("expired", is_over),
            ],
            "open",
        )
        self.is_undone, self.is_open = self.how.is_in("undone"), self.how.is_in("open")
        self.ended_at = np.select(
            [self.how.is_in(how) for how in ("undone", "deleted", "released", "removed", "open")],
            [self.undone_at, self.deleted_at, self.set_at, self.gone_at, np.int64(NONE)],
            self.deadline,
        )
        # A receive without a window gave the message back as it took it.
        had_no_window = (
            (self.deadline != NONE) & (self.received_at != NONE) & (self.deadline <= self.received_at)
        )
        facts = {**vars(self), "is_returned": self.is_returned | had_no_window}
        self.outcome = outcomes(facts, self._newest_ms)
        self.is_failed = self.outcome.is_in("failed")
        self.is_let_go = self.outcome.is_in("failed", "given_back")

    def _measure(self) -> None:
        """How long the lease was held, what is known of the work, how long recovery took."""
        until = np.where(self.is_open, self._newest_ms, self.ended_at)
        # A delete that was refused still tells when the work was done; a holder that failed or gave back says so, or shows
        # it by the deadline that it set.
        self.worked_until = np.where(
            self.is_let_go,
            coalesce(self.said_at, np.where(self.is_returned, self.set_at, NONE)),
            coalesce(self.deleted_at, self.delete_refused_at),
        )
        self.held_ms = ms_between(self.received_at, until)
        known_until = coalesce(self.worked_until, np.maximum(until, self.refused_at))
        self.is_censored = self.is_undone | (self.worked_until == NONE)
        known_ms = ms_between(self.received_at, known_until)
        # A message that waits for a free slot is held and not worked on, which its holder alone can tell.
        is_told = (self.worked_ms != NONE) & ~self.is_censored & (known_ms != NONE)
        known_ms = np.where(is_told, np.minimum(self.worked_ms, known_ms), known_ms)
        self.processing_ms = np.where(self.is_undone, NONE, known_ms)
        # After an accepted delete, further ones are repeats and no sign of work. An extension after somebody else's receive
        # was accepted because that holder had lapsed too.
        late_at, again_at = coalesce(self.deleted_at, self.refused_at), self.next_received_at
        is_late = (late_at != NONE) & (self.deadline != NONE) & (late_at > self.deadline)
        is_revived = (again_at != NONE) & (self.last_extended_at > again_at)
        self.is_overrun = ~self.is_undone & (is_late | is_revived)
        self.is_duplicate = self.is_overrun & (again_at != NONE) & ~self.is_let_go
        is_lost = self.how.is_in("superseded") & ~self.is_overrun & ~self.is_let_go
        last_sign_at = np.maximum(self.received_at, self.last_extended_at)
        self.recovery_ms = np.where(is_lost, ms_between(last_sign_at, again_at), NONE)
        is_wasted = self.is_lease & ~self.how.is_in("deleted", "open") & (self.held_ms != NONE)
        self.wasted_ms = np.where(is_wasted, self.held_ms, 0)

    def _about(self, rows: Ints, homes: Ints, about: Ints) -> dict[str, Any]:
        events = self._events
        return {
            "hour": (self.seq[rows] >> COUNTER_BITS) // HOUR_MS * HOUR_MS,
            **{name: column.picked(homes) for name, column in self._places.items()},
            "seq": self.seq[rows],
            "message_id": events.texts("message_id", about),
            "message_type": events.coded("message_type").picked(about),
            "body_bytes": picked(events.numbers("body_bytes"), about),
        }

    def leases(self) -> pa.Table:
        events, rows = self._events, np.flatnonzero(self.is_lease)
        plain = {
            **{name: getattr(self, name) for name in _OF_ROWS},
            "receive_count": picked(events.numbers("receive_count"), self.receiving),
            "censored": self.is_censored,
            "overrun": self.is_overrun,
            "duplicate": self.is_duplicate,
            "returned": self.is_returned,
        }
        texts = {
            "how": self.how.picked(rows),
            "outcome": self.outcome.picked(rows),
            "said": self.said.picked(rows),
            **{name: events.coded(name).picked(self.saying[rows]) for name in _ERROR},
            **{name: events.coded(name).picked(self.receiving[rows]) for name in _CALLER},
            "dead_letter_queue": events.coded("other_queue").picked(self.dead_lettering[rows]),
        }
        about = self._about(rows, self.home[rows], self.about[self.message[rows]])
        columns = {**about, **{name: values[rows] for name, values in plain.items()}, **texts}
        return table_of(columns, arrow_schema(LEASES_STORED))

    def messages(self) -> pa.Table:
        # A message's own events stand on its row of delivery 0, which is the first; where that is a lease there are none.
        firsts, queues = self._firsts, self._events.coded("other_queue")
        own = np.where(self.is_lease[firsts], -1, firsts)
        sent_at = picked(self.sent_at, own)
        available_at = coalesce(picked(self.deadline, own), picked(self.sent_deadline, own), sent_at)
        first_received_at = or_none(self._of_messages(np.minimum, or_never(self.counted_at)))
        ends = {
            "deleted": self._of_messages(np.maximum, self.deleted_at),
            "redriven": picked(self.redriven_at, own),
            "purged": picked(self.purged_at, own),
            "expired": picked(self.expired_at, own),
        }
        dead_lettered_at = self._of_messages(np.maximum, self.dead_lettered_at)
        became = [(name, at != NONE) for name, at in (*ends.items(), ("dead_lettered", dead_lettered_at))]
        ended_at = coalesce(*ends.values())
        # Dead letters may have dead letters of their own: the last is where it rests.
        dead_lettering = self._of_messages(np.maximum, self.dead_lettering)
        columns = {
            **self._about(firsts, self.message_home, self.about),
            "sent_at": sent_at,
            "available_at": available_at,
            "first_received_at": first_received_at,
            "wait_ms": ms_between(available_at, first_received_at),
            "leases": self._of_messages(np.add, self.is_lease.astype(np.int64)),
            "extensions": self._of_messages(np.add, self.extensions),
            "duplicates": self._of_messages(np.add, (self.is_lease & self.is_duplicate).astype(np.int64)),
            "failures": self._of_messages(np.add, (self.is_lease & self.is_failed).astype(np.int64)),
            "wasted_ms": self._of_messages(np.add, self.wasted_ms),
            "outcome": Coded.first_of(became, "open"),
            "ended_at": ended_at,
            "end_to_end_ms": ms_between(sent_at, ended_at),
            "dead_lettered_at": dead_lettered_at,
            "dead_letter_queue": queues.picked(dead_lettering),
            "redriven_to": queues.picked(np.where(own >= 0, self.redriving[own], -1)),
            "own": own >= 0,
            "set_at": picked(self.set_at, own),
            "set_position": picked(self.set_position, own),
            **{f"{name}_at": ends[name] for name in ("redriven", "purged", "expired")},
        }
        return table_of(columns, arrow_schema(MESSAGES_STORED))


def outcomes(facts: Mapping[str, Any], now: int) -> Coded:
    """What came of each attempt: `veil.core.attempt.outcome_of` for whole columns, named like the fields of its facts."""
    deadline, said = facts["deadline"], facts["said"]

    def known(name: str) -> Bools:
        found: Bools = facts[name] != NONE
        return found

    def since_deadline(name: str) -> Bools:
        found: Bools = known("deadline") & known(name) & (facts[name] >= deadline)
        return found

    return Coded.first_of(
        [
            (AttemptOutcome.UNDONE, known("undone_at")),
            (AttemptOutcome.FAILED, said.is_in(AttemptOutcome.FAILED)),
            (AttemptOutcome.GIVEN_BACK, said.is_in(AttemptOutcome.GIVEN_BACK)),
            (AttemptOutcome.COMPLETED, known("deleted_at")),
            (AttemptOutcome.GIVEN_BACK, facts["is_returned"]),
            (AttemptOutcome.REMOVED, known("gone_at") & (facts["gone_at"] < deadline)),
            (AttemptOutcome.OPEN, deadline > now),
            (AttemptOutcome.OVERRAN, known("refused_at")),
            (AttemptOutcome.FAILED, since_deadline("seen_at")),
            (AttemptOutcome.CRASHED, since_deadline("silent_at")),
        ],
        AttemptOutcome.UNKNOWN,
    )


# ---- stored rows as events again: kind, the column that has its instant, and where the event's other columns come from

_EventSource = tuple[str, str, Mapping[str, str]]
_WORKED: Final = {"worked_ms": "worked_ms"}  # told with whichever of these ended the attempt
_LEASE_EVENTS: Final[Sequence[_EventSource]] = (
    (
        "received",
        "received_at",
        {"deadline": "first_deadline", **{name: name for name in ("receive_count", *_CALLER)}},
    ),
    (
        "extended",
        "last_extended_at",
        {"deadline": "extended_deadline", "position": "extended_position", "count": "extensions"},
    ),
    ("graced", "graced_at", {"deadline": "deadline", "position": "set_position"}),
    ("given_back", "returned_at", {"deadline": "deadline", "position": "set_position"}),
    ("said", "said_at", {"outcome": "said", **{name: name for name in _ERROR}, **_WORKED}),
    ("undone", "undone_at", {}),
    ("deleted", "deleted_at", _WORKED),
    ("delete_refused", "delete_refused_at", _WORKED),
    ("extension_refused", "refused_at", {}),
    ("holder_seen", "seen_at", {}),
    ("holder_silent", "silent_at", {}),
    ("dead_lettered", "dead_lettered_at", {"other_queue": "dead_letter_queue"}),
)
_MESSAGE_EVENTS: Final[Sequence[_EventSource]] = (
    ("sent", "sent_at", {"deadline": "available_at"}),
    ("delayed", "set_at", {"deadline": "available_at", "position": "set_position"}),
    ("redriven", "redriven_at", {"other_queue": "redriven_to"}),
    ("purged", "purged_at", {}),
    ("expired", "expired_at", {}),
)


def rows_as_events(leases: pa.Table, messages: pa.Table) -> pa.Table:
    """The stored rows as events that make the same rows again, and other ones together with what is new."""

    def only(condition: Any, column: Any) -> Any:
        return pc.if_else(condition, column, pa.scalar(None, column.type))

    set_at, returned = leases["set_at"], leases["returned"]
    is_extension = pc.and_(pc.invert(returned), pc.equal(set_at, leases["last_extended_at"]))
    is_own = pc.or_(returned, pc.or_(is_extension, pc.equal(set_at, leases["received_at"])))
    is_graced = pc.invert(pc.fill_null(is_own, True))
    leases = (
        leases.append_column("extended_deadline", only(is_extension, leases["deadline"]))
        .append_column("extended_position", only(is_extension, leases["set_position"]))
        .append_column("graced_at", only(is_graced, set_at))
        .append_column("returned_at", only(returned, set_at))
    )
    # What its own events did not know, others may have told.
    knows = pc.less(leases["home_rank"], 3)
    for name in ("message_id", "message_type", "body_bytes"):
        leases = leases.set_column(leases.column_names.index(name), name, only(knows, leases[name]))
    events = [_events_of_kind(leases, each) for each in _LEASE_EVENTS]
    events += [_events_of_kind(messages.filter(messages["own"]), each) for each in _MESSAGE_EVENTS]
    return pa.concat_tables(events)


def _events_of_kind(rows: pa.Table, source: _EventSource) -> pa.Table:
    kind, at, columns = source
    rows = rows.filter(pc.is_valid(rows[at]))
    size = rows.num_rows
    own = {name: rows[name] for name in (*_PLACE, "seq", "message_id", "message_type", "body_bytes")}
    own["kind"], own["at"] = pa.repeat(kind, size), rows[at]
    own["delivery"] = (
        rows["delivery"] if "delivery" in rows.column_names else pa.repeat(pa.scalar(0, pa.int32()), size)
    )
    if "rule" in rows.column_names:
        own["rule"] = rows["rule"]
    own |= {name: rows[column] for name, column in columns.items()}
    # Before all that the journal has of the same millisecond, unless it is known where it stood.
    place = own.get("position", pa.nulls(size, pa.int64()))
    own["position"] = pc.fill_null(place, -1)
    return as_events(pa.table(own))
