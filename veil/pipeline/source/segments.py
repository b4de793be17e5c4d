"""The way that works with any SQS: the driver receives, seals what it received, and only then makes it an offset.

A segment is what was received and not yet acknowledged, kept durably, one for each micro-batch: a folder
`EPOCH/NUMBER-RUN` with the rows in Arrow files, one for each partition, and a last file, `sealed`, with the receipts: only a
segment that has it counts. So a batch that is tried again, or comes again after a restart, reads the same rows, and the
receipts survive the driver. The epoch is new with every checkpoint: a query never meets the segments of another one. The
run is new with every start: whatever an older run that is not quite dead still writes, it never mixes with what this one
wrote, and Spark's own log decides whose segment is the batch, since the offset names it. Each seal names the segment before
it, so that the whole line can be told from the rest.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from veil.client.api import ApiError, Failure, RawMessage
from veil.journal.storage import Storage
from veil.pipeline.queues import QueueClient, SourceMessages
from veil.pipeline.source.columns import to_batch
from veil.pipeline.source.options import RECEIVE_SHARE, SQS, SourceOptions
from veil.pipeline.source.stream import (
    LONGEST_POLL_S,
    CheckpointTaken,
    Offset,
    SourcePartition,
    Stream,
    Tally,
    backlog,
)

if TYPE_CHECKING:
    import pyarrow as pa

_SEALED: Final = "sealed"
_OWNER: Final = "_owner"
_NAME: Final = re.compile(r"(\d{12})-[0-9a-f]+")


class Seal(msgspec.Struct, frozen=True):
    """The last file of a segment."""

    number: int
    before: str  # the name of the segment before it, empty for the first
    parts: int
    message_ids: list[str]
    receipts: list[str]


class SealedSegments:
    """The segments of one epoch, as one run works with them."""

    def __init__(self, place: Storage, epoch: str, run: str) -> None:
        self._place = place.sub(epoch)
        self._run = run

    @property
    def uri(self) -> str:
        """Where the segments are, for whoever reads them."""
        return self._place.uri

    def take_over(self) -> None:
        """Be the one who writes here from now on: whoever did before finds out."""
        self._place.write(_OWNER, self._run.encode())

    def check_owner(self) -> None:
        """Raise CheckpointTaken if somebody else took over."""
        try:
            found = self._place.read(_OWNER).decode()
        except FileNotFoundError:
            found = "nobody"
        if found != self._run:
            raise CheckpointTaken(
                f"the segments in {self.uri} were taken over by another run ({found}): two queries must not share a checkpoint"
            )

    def seal(self, parts: Sequence[pa.RecordBatch], seal: Seal) -> str:
        """Write the rows, then what makes them count; returns the name."""
        from veil.pipeline.lifecycles.columns import packed

        name = f"{seal.number:012d}-{self._run}"
        for at, part in enumerate(parts):
            self._place.write(part_name(name, at), packed(part))
        self._place.write(f"{name}/{_SEALED}", msgspec.msgpack.encode(seal))
        return name

    def find(self, name: str) -> Seal | None:
        """The seal of a segment; None while it has none."""
        try:
            return msgspec.msgpack.decode(self._place.read(f"{name}/{_SEALED}"), type=Seal)
        except FileNotFoundError:
            return None

    def numbers(self) -> dict[str, int]:
        """Every segment that is there by name, sealed or not, with its number."""
        names = [entry.name for entry in self._place.entries() if entry.is_folder]
        return {name: int(parts[1]) for name in names if (parts := _NAME.fullmatch(name))}

    def remove(self, name: str) -> None:
        """Take a segment away, its seal included."""
        self._place.remove_folder(name)


def part_name(segment: str, part: int) -> str:
    """The file of one part, relative to its epoch."""
    return f"{segment}/part-{part:05d}.arrow"


_EXTEND_PATIENCE = 6  # a share of the window: the next round comes soon, and the oldest leases first


@dataclass(slots=True)
class _HeldReceipts:
    receipts: list[str]
    lost: set[str] = field(default_factory=set)
    finished: bool = False  # its batch is done: a lease that is gone by now is no loss


class SegmentLeases:
    """What a run holds, by the name of the segment; safe from any thread."""

    def __init__(self, client: QueueClient, window_s: int, tally: Tally) -> None:
        self._client, self._window_s, self._tally = client, window_s, tally
        self._lock = threading.Lock()
        self._open: dict[str, _HeldReceipts] = {}

    def add(self, name: str, receipts: Sequence[str]) -> None:
        """Hold these from now on."""
        with self._lock:
            self._open[name] = _HeldReceipts(list(receipts))

    def drop(self, name: str) -> None:
        """Hold them no longer: they come back when their windows end."""
        with self._lock:
            self._open.pop(name, None)

    def some_lost(self) -> bool:
        """Whether a lease could not be kept: its message may be visible."""
        with self._lock:
            return any(claim.lost for claim in self._open.values())

    def extend_all(self) -> bool:
        """Give all of them a new window; False where some could not be asked for and must be tried again soon."""
        with self._lock:
            held = [
                (claim, receipt)
                for claim in self._open.values()
                for receipt in claim.receipts
                if receipt not in claim.lost
            ]
        if not held:
            return True
        results = self._client.extend(
            [receipt for _, receipt in held], self._window_s, retry_s=self._window_s / _EXTEND_PATIENCE
        )
        lost = 0
        for (claim, receipt), failed in zip(held, results, strict=True):
            if is_lost(failed) and not claim.finished:
                claim.lost.add(receipt)
                lost += 1
        self._tally.add("lost", lost)
        self._tally.add("renewed", sum(failed is None for failed in results))
        _raise_fatal(results)
        return all(failed is None or is_lost(failed) for failed in results)

    def delete(self, name: str) -> bool:
        """Delete a segment's messages from the queue; False while some must be tried again."""
        with self._lock:
            claim = self._open.get(name)
        if claim is None:
            return True
        claim.finished = True
        results = self._client.delete(claim.receipts)
        again = [
            receipt
            for receipt, failed in zip(claim.receipts, results, strict=True)
            if failed is not None and not is_lost(failed)
        ]
        gone = sum(is_lost(failed) for failed in results) - len(claim.lost)
        self._tally.add("deleted", sum(failed is None for failed in results))
        self._tally.add("failed_deletes", len(again))
        self._tally.add("lost", max(0, gone))
        claim.receipts = again
        _raise_fatal(results)
        if not again:
            self.drop(name)
        return not again


def _raise_fatal(results: Sequence[ApiError | None]) -> None:
    """Raise what the service refuses for good, such as for want of a permission: to go on would give everything twice."""
    for failed in results:
        if failed is not None and failed.failure is Failure.FATAL:
            raise failed


def is_lost(failed: ApiError | None) -> bool:
    """Whether no further call can help: somebody else has the message, or twelve hours are over."""
    return failed is not None and failed.failure in (Failure.LOST, Failure.CAPPED, Failure.REFUSED)


BATCH_BYTES: Final = 64 << 20  # what the driver has in memory until it is sealed; then the batch ends
# A message whose window is half over before it could be sealed is left to come back: sealing it would be a gamble.
_TOO_OLD: Final = 2


@dataclass(frozen=True)
class SealedPart(SourcePartition):
    """A file of a segment."""

    epoch_uri: str
    segment: str
    part: int

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        name = part_name(self.segment, self.part)
        try:
            data = Storage.at(self.epoch_uri).read(name)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"segment file {name} is not in {self.epoch_uri}: the option segments must name a place that driver and executors"
                " share"
            ) from None
        with pa.ipc.open_stream(data) as reader:
            yield from reader


class SealedStream(Stream):
    """See `Stream`; all that is not acknowledged lies in segments, and its receipts in memory for the renewer.

    `at` is an offset that Spark's log has: the segments that lead to it are this query's.
    """

    def __init__(
        self, client: QueueClient, options: SourceOptions, at: Offset, tally: Tally, schema: pa.Schema
    ) -> None:
        super().__init__(client, options, at, tally)
        self._schema = schema
        self._receive_s = options.receive_seconds(self._window_s)
        self._segments = SealedSegments(options.segments_place(), self._epoch, secrets.token_hex(4))
        self._segments.take_over()
        self._leases = SegmentLeases(client, self._window_s, tally)
        self._seals: dict[str, Seal] = {}
        self._strays = self._segments.numbers()
        self._find_again(at)
        self._renewer.start()

    # ---- what Spark asks

    def next_offset(self, start: Offset, rows_max: int) -> Offset:
        self._segments.check_owner()
        self._wait_acknowledged()
        name = self._sealed_after(start)  # before a crash, but not yet an offset
        given = {message_id for name in self._line(start) for message_id in self._seals[name].message_ids}
        self._begin_acknowledging(start, some_lost=self._leases.some_lost())
        end = self.take(start, rows_max, name, given)
        if end is None:
            self._wait_acknowledged()
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
        return {"epoch": self._epoch, "n": start["n"] + 1, "by": SQS, "queue": self._arn, "segment": name}

    def parts(self, start: Offset, end: Offset) -> Sequence[SourcePartition]:
        uri, name = self._segments.uri, end["segment"]
        return [SealedPart(uri, name, part) for part in range(self._seal(name).parts)]

    def acknowledge(self, end: Offset) -> bool:
        is_done = True
        for name in self._line(end):
            # One by one from the oldest: the line to those that must be tried again leads through the segments after them.
            is_done = self._leases.delete(name) and is_done
            if is_done:
                self._segments.remove(name)
                del self._seals[name]
        # Segments beside the line that leads here, left by runs that died: no log can speak of them any more.
        for name in [name for name, number in self._strays.items() if number <= end["n"]]:
            self._leases.drop(name)
            self._segments.remove(name)
            self._seals.pop(name, None)
            del self._strays[name]
        if not self._seals:
            self._tally.oldest_ms = None
        return is_done

    def extend_all(self) -> bool:
        return self._leases.extend_all()

    def size(self, end: Offset) -> int:
        return len(self._seal(end["segment"]).receipts)

    def behind(self) -> int:
        return backlog(self._client)

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
                self._leases.add(name, self._seals[name].receipts)
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
            wanted,
            bytes_max=BATCH_BYTES,
            seconds=self._receive_s,
            visibility_s=self._window_s,
            wait_s=LONGEST_POLL_S,
        )
        messages = self._surely_held(self._not_given(received, given))
        if not messages:
            return None
        share = -(-len(messages) // self._options.partitions)
        parts = []
        for begin in range(0, len(messages), share):
            several = messages[begin : begin + share]
            at_ms = [asked_at_ms + int((message.began_at_s - asked_at_s) * 1000) for message in several]
            parts.append(to_batch(SourceMessages.of(several), self._queue, self._schema, at_ms))
        ids, receipts = [m.message_id for m in messages], [m.receipt for m in messages]
        seal = Seal(start["n"] + 1, start.get("segment", ""), len(parts), ids, receipts)
        self._leases.add("", receipts)  # held from now on, also if sealing takes long
        try:
            name = self._segments.seal(parts, seal)
            self._leases.add(name, receipts)
        finally:
            self._leases.drop("")
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
        latest = {message.message_id: message for message in messages}.values()
        sure_s, too_old_s = self._window_s / RECEIVE_SHARE, self._window_s / _TOO_OLD
        held = [message for message in latest if now_s - message.began_at_s < sure_s]
        older = [message for message in latest if sure_s <= now_s - message.began_at_s < too_old_s]
        if older:
            results = self._client.extend([message.receipt for message in older], self._window_s)
            held += [message for message, failed in zip(older, results, strict=True) if failed is None]
        return held
