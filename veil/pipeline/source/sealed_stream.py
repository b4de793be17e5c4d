"""The way that works with any SQS: the driver receives, seals what it received, and only then makes it an offset."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from veil.consumer.queue_api import ApiError, Failure, RawMessage
from veil.journal.place import Place
from veil.pipeline.queues.client import QueueClient
from veil.pipeline.source.columns import Taken, to_batch
from veil.pipeline.source.keeper import Keeper
from veil.pipeline.source.options import RECEIVE_SHARE, SQS, SourceOptions
from veil.pipeline.source.sealed import Seal, SealedSegments, read_part
from veil.pipeline.source.stream import LONGEST_POLL_S, Offset, Part, Stream
from veil.pipeline.source.tally import Tally

if TYPE_CHECKING:
    import pyarrow as pa

# A message whose window is half over before it could be sealed is left to come back: sealing it would be a gamble.
_TOO_OLD = 2


class SealedPart(Part):
    """A file of a segment."""

    def __init__(self, epoch_uri: str, number: int, part: int) -> None:
        super().__init__()
        self.epoch_uri, self.number, self.part = epoch_uri, number, part

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield from read_part(self.epoch_uri, self.number, self.part)


class SealedStream(Stream):
    """See `Stream`; all that is not acknowledged lies in segments, and its receipts in memory for the keeper."""

    def __init__(
        self, client: QueueClient, options: SourceOptions, epoch: str, tally: Tally, schema: pa.Schema
    ) -> None:
        self._client, self._options, self._epoch, self._tally = client, options, epoch, tally
        self._schema = schema
        attributes = client.attributes()
        self._window_s = options.window_s(int(attributes["VisibilityTimeout"]))
        self._receive_s = options.receive_seconds(self._window_s)
        self._queue = attributes["QueueArn"].rsplit(":", 1)[-1]
        place = Place.at(options.segments or "")
        self._segments = SealedSegments(place, epoch, uuid.uuid4().hex)
        self._segments.take_over()
        self._lock = threading.Lock()
        self._open = {seal.number: seal for seal in self._segments.all()}
        self._lost: set[str] = set()
        self._acknowledging = ThreadPoolExecutor(1, thread_name_prefix="veil-acknowledge")
        self._fresh = True
        self._keeper = Keeper(self._window_s, self._extend_all)
        self._keeper.start()

    # ---- what Spark asks

    def next_offset(self, start: Offset, rows_max: int, *, budget: int | None) -> Offset:
        acknowledged = self._acknowledging.submit(self.acknowledge, start)
        # After a restart windows may have ended: what is finished must be gone before anything is received, or it would be
        # received again. Later on the keeper holds it, and both may run side by side.
        if self._fresh or budget == 0:
            acknowledged.result()
            self._fresh = False
        number = start["n"] + 1
        try:
            if number not in self._open:  # sealed before a crash, but not yet an offset
                wanted = rows_max if budget is None else min(rows_max, budget)
                if wanted <= 0 or not self._receive(number, wanted, waiting=budget is None):
                    return start
        finally:
            acknowledged.result()
        self._tally.say()
        return {"epoch": self._epoch, "n": number, "by": SQS}

    def parts(self, start: Offset, end: Offset) -> Sequence[Part]:
        uri = self._segments.uri()
        return [
            SealedPart(uri, number, part)
            for number in range(start["n"] + 1, end["n"] + 1)
            for part in range(self._seal(number).parts)
        ]

    def acknowledge(self, end: Offset) -> None:
        with self._lock:
            done = [seal for number, seal in self._open.items() if number <= end["n"]]
        for seal in done:
            if self._delete(seal):
                with self._lock:
                    self._open.pop(seal.number, None)
                self._segments.remove(seal.number)

    def backlog(self) -> int:
        return int(self._client.attributes().get("ApproximateNumberOfMessages", "0"))

    def size(self, end: Offset) -> int:
        return len(self._seal(end["n"]).receipts)

    def stop(self) -> None:
        self._keeper.stop()
        self._acknowledging.shutdown()
        self._tally.say(now=True)

    # ---- within

    def _seal(self, number: int) -> Seal:
        seal = self._open.get(number) or self._segments.find(number)
        if seal is None:
            raise FileNotFoundError(
                f"segment {number} of epoch {self._epoch} is not in {self._segments.uri()}: the checkpoint speaks of it; "
                "was the option segments changed?"
            )
        return seal

    def _receive(self, number: int, wanted: int, *, waiting: bool) -> bool:
        asked_at_s, asked_at_ms = time.monotonic(), int(time.time() * 1000)
        messages = self._client.receive(
            wanted,
            seconds=self._receive_s,
            visibility_s=self._window_s,
            wait_s=LONGEST_POLL_S if waiting else 0,
        )
        messages = self._surely_held(messages)
        if not messages:
            return False
        share = -(-len(messages) // self._options.partitions)
        parts = []
        for begin in range(0, len(messages), share):
            taken = [
                _taken(message, asked_at_ms + int((message.asked_at_s - asked_at_s) * 1000))
                for message in messages[begin : begin + share]
            ]
            parts.append(to_batch(taken, self._queue, self._schema))
        seal = Seal(number, len(parts), [m.message_id for m in messages], [m.receipt for m in messages])
        with self._lock:
            self._open[number] = seal  # the keeper's from now on, also if sealing takes long
        try:
            self._segments.seal(number, parts, seal)
        except BaseException:
            with self._lock:
                del self._open[number]
            raise
        self._tally.add("received", len(messages))
        self._tally.oldest_ms = min((int(m.system.get("SentTimestamp", "0")) for m in messages), default=None)
        return True

    def _surely_held(self, messages: list[RawMessage]) -> list[RawMessage]:
        """Those whose window is fresh, or was made so; one message at a time, the latest receipt, if the queue gave it twice."""
        now_s = time.monotonic()
        young, older = dict[str, RawMessage](), dict[str, RawMessage]()
        for message in messages:
            young.pop(message.message_id, None)
            older.pop(message.message_id, None)
            age_s = now_s - message.asked_at_s
            if age_s < self._window_s / RECEIVE_SHARE:
                young[message.message_id] = message
            elif age_s < self._window_s / _TOO_OLD:
                older[message.message_id] = message
        held = list(young.values())
        if older:
            results = self._client.extend([m.receipt for m in older.values()], self._window_s)
            held += [m for m, failed in zip(older.values(), results, strict=True) if failed is None]
        return held

    def _extend_all(self) -> bool:
        with self._lock:
            receipts = [r for seal in self._open.values() for r in seal.receipts if r not in self._lost]
        if not receipts:
            return True
        results = self._client.extend(receipts, self._window_s, patience_s=self._window_s / 6)
        lost = [r for r, failed in zip(receipts, results, strict=True) if _is_lost(failed)]
        self._lost.update(lost)
        self._tally.add("lost", len(lost))
        self._tally.add("renewed", sum(failed is None for failed in results))
        return all(failed is None or _is_lost(failed) for failed in results)

    def _delete(self, seal: Seal) -> bool:
        """Delete the messages of a segment; False while some must be tried again."""
        results = self._client.delete(seal.receipts)
        failed = sum(result is not None and not _is_lost(result) for result in results)
        self._tally.add("deleted", sum(result is None for result in results))
        self._tally.add("failed_deletes", failed)
        self._lost.difference_update(seal.receipts)
        return failed == 0


def _is_lost(failed: ApiError | None) -> bool:
    # The cap is reached by a batch that runs for twelve hours: no extension can help it any more.
    return failed is not None and failed.failure in (Failure.LOST, Failure.CAPPED, Failure.REFUSED)


def _taken(message: RawMessage, received_ms: int) -> Taken:
    attributes = [
        (name, value.data_type, None, value.value)
        if isinstance(value.value, bytes)
        else (name, value.data_type, value.value, None)
        for name, value in message.attributes.items()
    ]
    return Taken(message.message_id, message.body, attributes, dict(message.system), received_ms)
