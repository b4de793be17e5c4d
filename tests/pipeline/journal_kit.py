"""Journals from readable stories: events by what happened, written as the segments an exporter would have left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from veil.core.attempt import RULE
from veil.journal.schema import FIRST_KEY, JOURNAL_KEY, LAST_KEY, VERSION, VERSION_KEY, segment_name
from veil.journal.storage import Storage

HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000  # 2026-01-01T00:00Z
S = 1000


@dataclass(frozen=True)
class JournalEvent:
    """One row of the journal; instants in milliseconds."""

    kind: str
    at: int
    seq: int
    position: int = 0
    region: str = "eu-central-1"
    account: str = "000000000000"
    queue: str = "orders"
    message_id: str | None = None
    delivery: int = 0
    deadline: int | None = None
    receive_count: int | None = None
    body_bytes: int | None = None
    message_type: str | None = None
    other_queue: str | None = None
    other_seq: int | None = None
    caller_key: str | None = None
    caller_address: str | None = None
    user_agent: str | None = None
    outcome: str | None = None
    error_type: str | None = None
    error_text: str | None = None
    traceback: str | None = None
    rule: int | None = RULE
    worked_ms: int | None = None


class MessageStory:
    """The life of one message, told event by event: `a_message(at=…).received(…).deleted(…)`."""

    def __init__(self, seq: int, queue: str, message_type: str | None, message_id: str) -> None:
        self.seq, self.queue, self.message_type, self.message_id = seq, queue, message_type, message_id
        self.events: list[JournalEvent] = []
        self.delivery = 0

    def tell(self, kind: str, at: int, **given: Any) -> MessageStory:
        """Add an event of any kind."""
        facts: dict[str, Any] = {
            "queue": self.queue,
            "message_id": self.message_id,
            "message_type": self.message_type,
            "body_bytes": 100,
        }
        self.events.append(JournalEvent(kind, at, self.seq, **{**facts, **given}))
        return self

    def sent(self, at: int, *, delay: int = 0, **given: Any) -> MessageStory:
        return self.tell("sent", at, deadline=at + delay if delay else None, receive_count=0, **given)

    def delayed(self, at: int, *, delay: int) -> MessageStory:
        return self.tell("delayed", at, deadline=at + delay, receive_count=0)

    def received(self, at: int, *, visibility: int = 30 * S, **given: Any) -> MessageStory:
        self.delivery += 1
        caller = {"caller_key": "AKIA", "caller_address": "10.0.0.1", "user_agent": f"worker/{self.delivery}"}
        facts = {"receive_count": self.delivery, "deadline": at + visibility, **caller, **given}
        return self.tell("received", at, delivery=self.delivery, **facts)

    def extended(self, at: int, *, visibility: int = 30 * S, delivery: int | None = None) -> MessageStory:
        return self.tell("extended", at, delivery=delivery or self.delivery, deadline=at + visibility)

    def released(self, at: int, **said: Any) -> MessageStory:
        return self.tell("released", at, delivery=self.delivery, **said)

    def given_back(self, at: int, *, wait: int = 0, delivery: int | None = None, **said: Any) -> MessageStory:
        return self.tell("given_back", at, delivery=delivery or self.delivery, deadline=at + wait, **said)

    def failed(self, at: int, *, wait: int = 5 * S, error: str = "ValueError") -> MessageStory:
        """Its holder says that it failed, and when to try again."""
        return self.given_back(at, wait=wait, **said_failed(error))

    def holder_seen(self, at: int, *, delivery: int | None = None) -> MessageStory:
        return self.tell("holder_seen", at, delivery=delivery or self.delivery, **_gone(gone=True))

    def holder_silent(self, at: int, *, delivery: int | None = None) -> MessageStory:
        return self.tell("holder_silent", at, delivery=delivery or self.delivery, **_gone(gone=True))

    def undone(self, at: int) -> MessageStory:
        return self.tell("undone", at, delivery=self.delivery)

    def deleted(self, at: int, *, delivery: int | None = None, **said: Any) -> MessageStory:
        return self.tell("deleted", at, delivery=delivery or self.delivery, **said)

    def delete_refused(self, at: int, *, delivery: int, gone: bool = False) -> MessageStory:
        return self.tell("delete_refused", at, delivery=delivery, **_gone(gone))

    def extension_refused(self, at: int, *, delivery: int, gone: bool = False, **said: Any) -> MessageStory:
        return self.tell("extension_refused", at, delivery=delivery, **_gone(gone), **said)

    def dead_lettered(self, at: int, to: str, *, other_seq: int | None = None) -> MessageStory:
        self.tell("dead_lettered", at, delivery=self.delivery, other_queue=to, other_seq=other_seq)
        self.queue = to
        return self

    def redriven(self, at: int, to: str, *, other_seq: int) -> MessageStory:
        return self.tell("redriven", at, other_queue=to, other_seq=other_seq)

    def expired(self, at: int) -> MessageStory:
        return self.tell("expired", at)

    def purged(self, at: int) -> MessageStory:
        return self.tell("purged", at)


def said_failed(error: str = "ValueError") -> dict[str, str]:
    """What a holder says of an attempt that failed."""
    place = f'  File "work.py", line {len(error)}, in handle'
    return {"outcome": "failed", "error_type": error, "error_text": f"no {error}", "traceback": place}


def _gone(gone: bool) -> dict[str, None]:
    return {"message_id": None, "message_type": None, "body_bytes": None} if gone else {}


def seq_of(at_ms: int, counter: int = 0) -> int:
    """The order key of a message sent then."""
    return at_ms << 20 | counter


def a_message(
    at: int = START_MS,
    *,
    counter: int = 0,
    queue: str = "orders",
    message_type: str | None = None,
    delay: int = 0,
) -> MessageStory:
    """A message that was sent; `tell` begins with the send."""
    seq = seq_of(at, counter)
    return MessageStory(seq, queue, message_type, f"id-{seq}").sent(at, delay=delay)


def journal_of(*stories: MessageStory) -> list[JournalEvent]:
    """The events of the stories in the order in which they happened, with positions."""
    together = [event for story in stories for event in story.events]
    return numbered(sorted(together, key=lambda event: event.at))


def numbered(events: Iterable[JournalEvent], *, first_row: int = 1) -> list[JournalEvent]:
    """The events as if each had been recorded by a transaction of its own."""
    return [replace(event, position=row << 20) for row, event in enumerate(events, first_row)]


def story(number: int) -> list[JournalEvent]:
    """The events of a message that was received and deleted, in outbox rows of its own: those of other numbers differ."""
    t = START_MS
    told = journal_of(a_message(t, counter=number).received(t + S).deleted(t + (number + 2) * S))
    return numbered(told, first_row=3 * number + 1)


def write_segment_of(
    place: Storage,
    events: Sequence[JournalEvent],
    *,
    journal_id: str = "j1",
    version: int = VERSION,
    without: Sequence[str] = (),
) -> str:
    """Write numbered events (of consecutive rows) as one segment; returns its name."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    from veil.journal.segment_writer import SCHEMA

    first, last = events[0].position >> 20, events[-1].position >> 20
    columns: dict[str, Any] = {}
    for field in SCHEMA:
        values = [getattr(event, field.name) for event in events]
        if pa.types.is_timestamp(field.type):
            values = [None if value is None else value * 1000 for value in values]
        columns[field.name] = pa.array(values, field.type)
    schema = pa.schema([field for field in SCHEMA if field.name not in without])
    table = pa.Table.from_arrays([columns[field.name] for field in schema], schema=schema)
    metadata = {
        VERSION_KEY: str(version),
        JOURNAL_KEY: journal_id,
        FIRST_KEY: str(first),
        LAST_KEY: str(last),
    }
    day = datetime.fromtimestamp(events[0].at / 1000, UTC).date().isoformat()
    name = segment_name(day, journal_id, first, last)
    # As exporters do: without pyarrow's own schema, with checksums.
    options: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True, "store_schema": False}
    with place.writing(name) as file, pq.ParquetWriter(file, schema, **options) as writer:
        writer.add_key_value_metadata(metadata)
        writer.write_table(table)
    return name


def no_spark() -> Any:
    """For runs over so little that this process does it by itself."""
    raise AssertionError("Spark was asked for")


def cut(events: Sequence[JournalEvent], pieces: int, rng: random.Random) -> list[list[JournalEvent]]:
    """The events in so many pieces (or fewer) of consecutive rows."""
    marks = sorted({0, len(events), *(rng.randrange(len(events)) for _ in range(pieces - 1))})
    return [list(events[low:high]) for low, high in itertools.pairwise(marks) if low < high]
