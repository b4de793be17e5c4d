"""The way that works with any SQS: the driver receives, seals what it received, and only then makes it an offset."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, Final

from veil.consumer.message import RawMessage
from veil.pipeline.queues.client import QueueClient
from veil.pipeline.source.acknowledger import Acknowledger
from veil.pipeline.source.claims import Claims
from veil.pipeline.source.columns import to_batch
from veil.pipeline.source.keeper import Keeper
from veil.pipeline.source.options import RECEIVE_SHARE, SQS, SourceOptions
from veil.pipeline.source.sealed import Seal, SealedSegments, read_part
from veil.pipeline.source.stream import LONGEST_POLL_S, Offset, Part, Stream, backlog
from veil.pipeline.source.tally import Tally

if TYPE_CHECKING:
    import pyarrow as pa

# A message whose window is half over before it could be sealed is left to come back: sealing it would be a gamble.
_TOO_OLD: Final = 2


class SealedPart(Part):
    """A file of a segment."""

    def __init__(self, epoch_uri: str, segment: str, part: int) -> None:
        super().__init__()
        self.epoch_uri, self.segment, self.part = epoch_uri, segment, part

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        yield from read_part(self.epoch_uri, self.segment, self.part)


class SealedStream(Stream):
    """See `Stream`; all that is not acknowledged lies in segments, and its receipts in memory for the keeper.

    `at` is an offset that Spark's log has: the segments that lead to it are this query's.
    """

    def __init__(
        self, client: QueueClient, options: SourceOptions, at: Offset, tally: Tally, schema: pa.Schema
    ) -> None:
        self._client, self._options, self._epoch, self._tally = client, options, at["epoch"], tally
        self._schema = schema
        attributes = client.attributes()
        self._window_s = options.window_s(int(attributes["VisibilityTimeout"]))
        self._receive_s = options.receive_seconds(self._window_s)
        self._queue = attributes["QueueArn"].rsplit(":", 1)[-1]
        self._segments = SealedSegments(options.segments_place(), self._epoch, secrets.token_hex(4))
        self._segments.take_over()
        self._budget: int | None = None
        self._claims = Claims(client, self._window_s, tally)
        self._seals: dict[str, Seal] = {}
        self._strays = self._segments.numbers()
        self._find_again(at)
        self._acknowledger = Acknowledger(self.acknowledge)
        self._fresh = True
        self._keeper = Keeper(self._window_s, self._claims.extend_all)
        self._keeper.start()

    # ---- what Spark asks

    def only_what_is_there(self) -> None:
        self._budget = backlog(self._client)

    def next_offset(self, start: Offset, rows_max: int) -> Offset:
        self._segments.check_owner()
        self._acknowledger.wait()
        name = self._sealed_after(start)  # before a crash, but not yet an offset
        given = {message_id for name in self._line(start) for message_id in self._seals[name].message_ids}
        self._acknowledger.begin(start)
        # What is finished must be gone before anything is received, or it could be received again: after a restart, and
        # when a lease was lost. Otherwise the keeper holds it, and both go on side by side.
        if self._fresh or not self._keeper.is_sure or self._claims.some_lost():
            self._acknowledger.wait()
            self._fresh = False
        end = self.take(start, rows_max, name, given)
        if end is None:
            self._acknowledger.wait()
            return start
        self._tally.say()
        return end

    def take(
        self, start: Offset, rows_max: int, sealed: str | None = None, given: Set[str] = frozenset()
    ) -> Offset | None:
        wanted = rows_max if self._budget is None else min(rows_max, self._budget)
        name = sealed
        if name is None and wanted > 0:
            name = self._receive(start, wanted, given)
        if name is None:
            return None
        if self._budget is not None:
            self._budget = max(0, self._budget - len(self._seals[name].receipts))
        return {"epoch": self._epoch, "n": start["n"] + 1, "by": SQS, "segment": name}

    def parts(self, start: Offset, end: Offset) -> Sequence[Part]:
        uri, name = self._segments.uri, end["segment"]
        return [SealedPart(uri, name, part) for part in range(self._seal(name).parts)]

    def acknowledge(self, end: Offset) -> None:
        for name in self._line(end):
            if self._claims.delete(name):
                self._segments.remove(name)
                del self._seals[name]
        # Segments beside the line that leads here, left by runs that died: no log can speak of them any more.
        for name in [name for name, number in self._strays.items() if number <= end["n"]]:
            self._claims.drop(name)
            self._segments.remove(name)
            self._seals.pop(name, None)
            del self._strays[name]
        if not self._seals:
            self._tally.oldest_ms = None

    def size(self, end: Offset) -> int:
        return len(self._seal(end["segment"]).receipts)

    def behind(self) -> int:
        return backlog(self._client)

    def stop(self) -> None:
        self._keeper.stop()
        self._acknowledger.stop()
        self._tally.say(now=True)

    # ---- within

    def _find_again(self, at: Offset) -> None:
        """What an earlier run has left, to be held again: the line up to `at`, and what was sealed behind it."""
        for name, number in self._strays.items():
            seal = self._segments.find(name) if number <= at["n"] + 1 else None
            if seal is not None:
                self._seals[name] = seal
        ours = {*self._line(at), *(name for name in self._seals if self._is_after(name, at))}
        for name in list(self._seals):
            if name in ours:
                del self._strays[name]
                self._claims.add(name, self._seals[name].receipts)
            else:
                del self._seals[name]

    def _line(self, end: Offset) -> list[str]:
        """The segments up to the offset that are still there, the oldest first."""
        names, name = list[str](), end.get("segment", "")
        while name in self._seals:
            names.append(name)
            name = self._seals[name].before
        return names[::-1]

    def _is_after(self, name: str, start: Offset) -> bool:
        seal = self._seals[name]
        return seal.number == start["n"] + 1 and seal.before == start.get("segment", "")

    def _sealed_after(self, start: Offset) -> str | None:
        found = [name for name in self._seals if self._is_after(name, start)]
        # Should two runs have left one each: the other is a stray as soon as this one is acknowledged.
        self._strays.update(dict.fromkeys(found[1:], start["n"] + 1))
        return found[0] if found else None

    def _seal(self, name: str) -> Seal:
        seal = self._seals.get(name)
        if seal is None:
            raise FileNotFoundError(
                f"segment {name} is not in {self._segments.uri}, but the checkpoint speaks of it: was the option segments "
                "changed?"
            )
        return seal

    def _receive(self, start: Offset, wanted: int, given: Set[str]) -> str | None:
        """Receive and seal; the name of the segment, None where nothing was there."""
        asked_at_s, asked_at_ms = time.monotonic(), int(time.time() * 1000)
        received = self._client.receive(
            wanted, seconds=self._receive_s, visibility_s=self._window_s, wait_s=LONGEST_POLL_S
        )
        messages = self._surely_held(self._not_given(received, given))
        if not messages:
            return None
        share = -(-len(messages) // self._options.partitions)
        parts = []
        for begin in range(0, len(messages), share):
            several = messages[begin : begin + share]
            at_ms = [asked_at_ms + int((message.asked_at_s - asked_at_s) * 1000) for message in several]
            parts.append(to_batch(several, self._queue, self._schema, at_ms))
        ids, receipts = [m.message_id for m in messages], [m.receipt for m in messages]
        seal = Seal(start["n"] + 1, start.get("segment", ""), len(parts), ids, receipts)
        self._claims.add("", receipts)  # held from now on, also if sealing takes long
        try:
            name = self._segments.seal(parts, seal)
            self._claims.add(name, receipts)
        finally:
            self._claims.drop("")
        self._seals[name] = seal
        self._segments.check_owner()
        self._tally.add("received", len(messages))
        self._tally.oldest_ms = min(int(m.system.get("SentTimestamp", "0")) for m in messages)
        return name

    def _not_given(self, received: list[RawMessage], given: Set[str]) -> list[RawMessage]:
        """Without those that a finished batch has given already: their leases were lost, or the queue gave them twice."""
        again = [message for message in received if message.message_id in given]
        if not again:
            return received
        self._client.delete([message.receipt for message in again])
        return [message for message in received if message.message_id not in given]

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
