"""The way through Veil itself: executors receive, in bulk, under names that always give the same messages.

The queue is the replayable store. The driver only says how many messages the next batch may take and in how many parts;
each part receives under the name of its stream, batch and part (a hold). Extending and deleting go by stream and batch,
one call for thousands of messages.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from veil.client.api import ApiError
from veil.pipeline.queues import HoldAnswer, HoldCounts, QueueAddress, QueueClient, shared
from veil.pipeline.source.columns import to_batch
from veil.pipeline.source.options import VEIL, SourceOptions
from veil.pipeline.source.stream import CheckpointTaken, Offset, SourcePartition, Stream, Tally, backlog

if TYPE_CHECKING:
    import pyarrow as pa

PIECE: Final = 500  # messages a call: what the server answers without a thread, where they are small
AHEAD: Final = 4  # calls at a time: the server has work while the disk syncs and rows are made
_PIECE_BEFORE, _AHEAD_BEFORE = 1_000, 1  # of batches whose offsets do not say it
_PIECES_BITS: Final = 20
_PART_ROWS_MIN: Final = 100  # a few messages are not worth a task each
_LOOK_EVERY_S: Final = 1.0  # Spark asks every 10 ms while nothing is there
_TAKEN: Final = "Veil.StreamTaken"


@dataclass(frozen=True)
class HeldPart(SourcePartition):
    """A share of a batch, received under its name by whoever runs it."""

    address: QueueAddress
    queue: str
    stream: str
    batch: int
    part: int
    rows: int
    window_s: int
    received_ms: int
    piece: int
    ahead: int

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        # Whether a piece is asked for depends on those before it alone, and on what they had at first: a part that is read
        # again must stop where it stopped the first time.
        calls = (self._asked(start) for start in range(0, self.rows, self.piece))
        coming = deque(islice(calls, self.ahead))
        while coming:
            asked, answer = coming.popleft()
            content = answer.result()
            found = len(content.messages.message_id)
            if found + content.lost == asked:
                coming.extend(islice(calls, 1))
            if found:
                yield to_batch(content.messages, self.queue, schema, self.received_ms)

    def _asked(self, start: int) -> tuple[int, Future[HoldAnswer]]:
        asked = min(self.piece, self.rows - start)
        name = self.part << _PIECES_BITS | start // self.piece
        return asked, shared(QueueClient, self.address).receive_hold(
            self.stream, self.batch, name, asked, self.window_s
        )


class HeldStream(Stream):
    """See `Stream`; nothing is kept here but the name of the stream."""

    def __init__(self, client: QueueClient, options: SourceOptions, at: Offset, tally: Tally) -> None:
        super().__init__(client, options, at, tally)
        self._owner = secrets.token_hex(8)
        self._acknowledged = -1
        self._lost = 0
        self._behind = 0
        self._cut: dict[int, int] = {}  # batches of this run, and for how many messages they were cut
        # Acknowledged ones, and how many messages they came to; None where that got lost with an answer.
        self._counted: dict[int, int | None] = {}
        self._looked_at_s = float("-inf")
        client.open_stream(self._epoch, self._owner)
        self._renewer.start()

    # ---- what Spark asks

    def next_offset(self, start: Offset, rows_max: int) -> Offset:
        self._begin_acknowledging(start, some_lost=bool(self._lost))
        end = self.take(start, rows_max)
        if end is None:
            self._wait_acknowledged()
            # AvailableNow: now it is known what the last batch really got, and more may be left than it seemed.
            end = self.take(start, rows_max) if self._budget is not None else None
        if end is None:
            return start
        self._tally.say()
        return end

    def take(self, start: Offset, rows_max: int) -> Offset | None:
        rows = self._rows(rows_max)
        if rows <= 0:
            return None
        number = start["n"] + 1
        self._cut[number] = rows
        parts = min(self._options.partitions, -(-rows // _PART_ROWS_MIN))
        # The instant goes into Spark's log: whoever reads the batch, and however often, sees it received at the same time.
        at_ms = int(time.time() * 1000)
        end: Offset = {"epoch": self._epoch, "n": number, "by": VEIL, "queue": self._arn, "rows": rows}
        return {**end, "parts": parts, "piece": PIECE, "ahead": AHEAD, "at_ms": at_ms}

    def parts(self, start: Offset, end: Offset) -> Sequence[SourcePartition]:
        rows, parts = end["rows"], end["parts"]
        address = self._client.resolved
        shares = [rows // parts + (at < rows % parts) for at in range(parts)]
        at_ms = end.get("at_ms") or int(time.time() * 1000)  # checkpoints of old do not say it
        calls = end.get("piece", _PIECE_BEFORE), end.get("ahead", _AHEAD_BEFORE)
        return [
            HeldPart(address, self._queue, self._epoch, end["n"], at, share, self._window_s, at_ms, *calls)
            for at, share in enumerate(shares)
        ]

    def acknowledge(self, end: Offset) -> bool:
        if end["n"] <= self._acknowledged:
            return True
        done = _unless_taken(lambda: self._client.delete_holds(self._epoch, self._owner, end["n"]))
        self._acknowledged = end["n"]
        self._counted[end["n"]] = None if done.repeated else done.messages + done.lost
        self._tally.add("received", done.messages + done.lost)
        self._tally.add("deleted", done.messages)
        self._tally.add("lost", max(0, done.lost - self._lost))
        self._lost = 0
        return True

    def size(self, end: Offset) -> int:
        return end["rows"]

    def behind(self) -> int:
        return self._behind

    # ---- within

    def _rows(self, rows_max: int) -> int:
        """How many messages the next batch may take."""
        for number in list(self._counted):
            got = self._counted.pop(number)
            asked = self._cut.pop(number, 0)
            if self._budget is not None and asked and got is not None:
                # None at all: others took them, or their groups are busy; then it is over. Where it is not known how many,
                # the budget stays: one batch too many at the most, and none too few.
                self._budget = self._budget - got if got else 0
        wanted = rows_max
        if self._budget is not None:
            wanted = min(wanted, self._budget - sum(self._cut.values()))
        elif time.monotonic() - self._looked_at_s < _LOOK_EVERY_S:
            return 0
        if wanted <= 0:
            return 0
        waiting = backlog(self._client)
        if not waiting:
            self._looked_at_s = time.monotonic()
        rows = min(wanted, waiting)
        self._behind = waiting - rows
        return rows

    def extend_all(self) -> bool:
        done = _unless_taken(lambda: self._client.extend_holds(self._epoch, self._owner, self._window_s))
        self._tally.add("renewed", done.messages)
        self._tally.add("lost", max(0, done.lost - self._lost))
        self._lost = max(self._lost, done.lost)
        oldest = self._client.peek(1).messages
        self._tally.oldest_ms = int(oldest[0].system["SentTimestamp"]) if oldest else None
        return True


def _unless_taken(call: Callable[[], HoldCounts]) -> HoldCounts:
    try:
        return call()
    except ApiError as error:
        if error.code != _TAKEN:
            raise
        raise CheckpointTaken(f"{error.message}: two queries must not share a checkpoint") from None
