"""The way through Veil itself: executors receive, in bulk, under names that always give the same messages.

The queue is the replayable store. The driver only says how many messages the next batch may take and in how many parts;
each part receives under the name of its stream, batch and part (a hold). Extending and deleting go by stream and batch,
one call for thousands of messages.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from veil.pipeline.queues.client import QueueClient
from veil.pipeline.queues.open_clients import client_for
from veil.pipeline.queues.own_actions import HeldMessage
from veil.pipeline.queues.queue_place import QueuePlace
from veil.pipeline.source.columns import Taken, to_batch
from veil.pipeline.source.keeper import Keeper
from veil.pipeline.source.options import VEIL, SourceOptions
from veil.pipeline.source.stream import Offset, Part, Stream
from veil.pipeline.source.tally import Tally

if TYPE_CHECKING:
    import pyarrow as pa

PIECE: Final = 1_000  # messages a call
_PIECES_BITS: Final = 20
_LOOK_EVERY_S: Final = 1.0  # Spark asks every 10 ms while nothing is there


class HeldPart(Part):
    """A share of a batch, received under its name by whoever runs it."""

    def __init__(
        self, place: QueuePlace, queue: str, stream: str, batch: int, part: int, rows: int, window_s: int
    ) -> None:
        super().__init__()
        self.place, self.queue, self.stream, self.batch, self.part = place, queue, stream, batch, part
        self.rows, self.window_s = rows, window_s

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        client, left, piece = client_for(self.place), self.rows, 0
        while left > 0:
            asked = min(PIECE, left)
            name = self.part << _PIECES_BITS | piece
            content = client.receive_hold(self.stream, self.batch, name, asked, self.window_s)
            messages = content.messages or []
            if messages:
                now_ms = int(time.time() * 1000)
                yield to_batch([_taken(message, now_ms) for message in messages], self.queue, schema)
            # Counted with what was lost since: a part that is read again must stop where it stopped the first time.
            got = len(messages) + content.lost
            if got < asked:
                return
            left -= got
            piece += 1


class HeldStream(Stream):
    """See `Stream`; nothing is kept here but the name of the stream."""

    def __init__(self, client: QueueClient, options: SourceOptions, epoch: str, tally: Tally) -> None:
        self._client, self._options, self._epoch, self._tally = client, options, epoch, tally
        attributes = client.attributes()
        self._window_s = options.window_s(int(attributes["VisibilityTimeout"]))
        self._queue = attributes["QueueArn"].rsplit(":", 1)[-1]
        self._owner = uuid.uuid4().hex
        self._acknowledged = -1
        self._looked_at_s = float("-inf")
        client.open_stream(epoch, self._owner)
        self._keeper = Keeper(self._window_s, self._extend_all)
        self._keeper.start()

    def next_offset(self, start: Offset, rows_max: int, *, budget: int | None) -> Offset:
        self.acknowledge(start)
        wanted = rows_max if budget is None else min(rows_max, budget)
        if wanted <= 0 or (budget is None and time.monotonic() - self._looked_at_s < _LOOK_EVERY_S):
            return start
        rows = min(wanted, self.backlog())
        if rows <= 0:
            self._looked_at_s = time.monotonic()
            return start
        self._tally.say()
        parts = min(self._options.partitions, -(-rows // 100))
        return {"epoch": self._epoch, "n": start["n"] + 1, "by": VEIL, "rows": rows, "parts": parts}

    def parts(self, start: Offset, end: Offset) -> Sequence[Part]:
        rows, parts = end["rows"], end["parts"]
        place = QueuePlace(
            self._client.url, self._client.endpoint, self._client.region, self._options.place.profile
        )
        shares = [rows // parts + (at < rows % parts) for at in range(parts)]
        return [
            HeldPart(place, self._queue, self._epoch, end["n"], at, share, self._window_s)
            for at, share in enumerate(shares)
        ]

    def acknowledge(self, end: Offset) -> None:
        if end["n"] <= self._acknowledged:
            return
        done = self._client.delete_holds(self._epoch, self._owner, end["n"])
        self._acknowledged = end["n"]
        self._tally.add("received", done.messages + done.lost)
        self._tally.add("deleted", done.messages)
        self._tally.add("lost", done.lost)

    def size(self, end: Offset) -> int:
        return end["rows"]

    def backlog(self) -> int:
        return int(self._client.attributes().get("ApproximateNumberOfMessages", "0"))

    def stop(self) -> None:
        self._keeper.stop()
        self._tally.say(now=True)

    def _extend_all(self) -> bool:
        done = self._client.extend_holds(self._epoch, self._owner, self._window_s)
        self._tally.add("renewed", done.messages)
        return True


def _taken(message: HeldMessage, received_ms: int) -> Taken:
    attributes = [
        (name, value.data_type, value.string_value, value.binary_value)
        for name, value in message.message_attributes.items()
    ]
    return Taken(message.message_id, message.body, attributes, message.attributes, received_ms)
