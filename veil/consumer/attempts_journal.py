"""A consumer's own journal: its attempts as segments, for queues whose service keeps none, such as Amazon SQS.

The events are those that a server would have recorded, as far as the consumer can know: a receive, and how the attempt
ended; renewals are told as one, with the last deadline. Segments are written by a thread, once a minute and at the stop. What
cannot be written waits, up to a bound; beyond it events are dropped, and their rows are missing from the journal, by which its
readers know that it is not whole.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from veil.consumer.message import Message
from veil.consumer.outcomes import DeadLetter, Delete, Discard, Outcome
from veil.core.attempt import GIVEN_BACK, ReportedOutcome
from veil.core.event import ExportPlan, Kind, pack
from veil.core.message import Caller
from veil.core.queue import QueueKey
from veil.core.sequence import seq_with_counter

if TYPE_CHECKING:
    from veil.journal.storage import Storage

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
EVENTS_MAX: Final = 100_000  # that wait to be written


class AttemptsJournal:
    """Takes events from the consumer's event loop, and writes them from a thread of its own."""

    def __init__(
        self, where: str | os.PathLike[str], queue: QueueKey, *, wall: Callable[[], float] = time.time
    ) -> None:
        from veil.journal.storage import Storage

        self._place: Storage = Storage.at(where)
        self._queue, self._wall = queue, wall
        self._journal_id = f"c{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._events: list[tuple[object, ...]] = []
        self._row, self._dropped = 0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._write_now_and_then, name="veil-attempts-journal", daemon=True
        )

    def start(self) -> None:
        """Mark the place as a journal, and begin to write; raises OSError, LocationRefused."""
        from veil.journal.schema import VERSION
        from veil.journal.storage import MARK, OF_CONSUMERS, Location

        store_id = f"{OF_CONSUMERS}{self._queue.region}-{self._queue.account}"
        # Not claimed as a server would: other consumers write there too, and their drafts are not ours to remove.
        if not Location(self._place.uri, store_id).check():
            self._place.write(MARK, json.dumps({"store_id": store_id, "version": VERSION}).encode())
        self._thread.start()

    def received(self, message: Message) -> None:
        """A message has come. Its lease is counted from before the receive was sent; but that may have waited twenty seconds for
        the message, and none of them was spent on it."""
        at_ms = message.came_at_ms = self._now_ms()
        self._add(Kind.RECEIVED, at_ms, message, at_ms + round(message.lease.visibility_s * 1000))

    def ended(self, message: Message, outcome: Outcome | None) -> None:
        """An attempt has ended; None: its lease was lost."""
        at_ms = self._now_ms()
        lease = message.lease
        if lease.extensions:
            deadline_ms = at_ms + round(lease.remaining_s * 1000)
            self._add(Kind.EXTENDED, message.came_at_ms + 1, message, deadline_ms)
        if outcome is None:
            self._add(Kind.DELETE_REFUSED, at_ms, message, None)
        elif isinstance(outcome, Delete | Discard | DeadLetter):
            self._add(Kind.DELETED, at_ms, message, None, message.reported())
        else:
            self._add(Kind.GIVEN_BACK, at_ms, message, at_ms, message.reported(GIVEN_BACK))

    def stop(self) -> None:
        """Write what is left."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(INTERVAL_S)

    def _now_ms(self) -> int:
        return round(self._wall() * 1000)

    def _add(
        self,
        kind: Kind,
        at_ms: int,
        message: Message,
        deadline_ms: int | None,
        reported: ReportedOutcome | None = None,
    ) -> None:
        sent = message.sent_at
        sent_ms = at_ms if sent is None else round(sent.timestamp() * 1000)
        seq = seq_with_counter(sent_ms, zlib.crc32(message.id.encode()))
        facts = (
            message.id,
            message.receive_count,
            deadline_ms,
            message.receive_count,
            len(message.body.encode()),
        )
        told = () if reported is None else (None, None, *msgspec.structs.astuple(reported))
        with self._lock:
            if len(self._events) >= EVENTS_MAX:
                self._dropped += 1
                return
            self._events.append((int(kind), at_ms, 0, seq, *facts, message.type, 0, *told))

    def _write_now_and_then(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(INTERVAL_S)
            try:
                self._write()
            except Exception as problem:  # whatever a file system can think of; the consumer goes on
                _log.warning("attempts could not be written to %s, and wait: %s", self._place.uri, problem)

    def _write(self) -> None:
        from veil.journal.segment_writer import write_segment

        with self._lock:
            events, dropped = list(self._events), self._dropped
        day = datetime.fromtimestamp(self._wall(), UTC).date().isoformat()
        # What was dropped is a row between two that no segment has.
        half = len(events) // 2 if dropped else len(events)
        for some, step in ((events[:half], 1), (events[half:], 2)):
            if some:
                row = self._row + step
                packed = pack([self._queue], [Caller()], some)
                write_segment(self._place, ExportPlan(self._journal_id, row, row, day), [(row, packed)])
                self._row = row
                with self._lock:
                    del self._events[: len(some)]
        with self._lock:
            self._dropped -= dropped
