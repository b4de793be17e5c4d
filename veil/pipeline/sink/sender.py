"""Makes batches of rows and sends them: several calls at a time, each entry tried again by itself while the service is away.

Every call has a name that is the same whenever the same rows are sent again, over retries of tasks and restarts of queries.
It goes along as the invocation id, by which SDKs name the repetitions of one call: Veil answers a call that it has
stored already, of the last five minutes, with the first answer, and stores nothing twice, on any queue.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from veil.client.api import ApiError, Failure
from veil.core.errors import MessageRefused
from veil.core.limits import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, DELAY_MAX_S
from veil.core.message import MessageAttribute
from veil.core.message_rules import Draft, check_draft, size_bytes
from veil.core.queue import QueueSettings
from veil.pipeline.queues import QueueAddress, ServiceClient, may_pass, retried, settled
from veil.pipeline.sink.options import SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa


_NAMES: Final = uuid.UUID("5b0d3f6e-6f1c-4d36-9f0b-0f2b8a6c1d57")


class Sender(ServiceClient):
    """One service, for the tasks of one process."""

    def __init__(self, service: QueueAddress) -> None:
        super().__init__(service, user_agent="pipeline sink")
        self._urls: dict[str, str] = {}
        self._entries_max: dict[str, int] = {}

    def url(self, queue: str, retry_s: float) -> str | None:
        """The URL of a queue by name, ARN or URL; None where there is no such queue. Raises SinkFailed."""
        found = self._urls.get(queue)
        if found is None:
            try:
                found = self._loop.run(retried(lambda: self._client.queue_url(queue), retry_s))
            except ApiError as error:
                if error.is_missing_queue:
                    return None
                raise SinkFailed(f"queue {queue} at {self.endpoint}: {error}") from None
            self._urls[queue] = found
            # Nobody was asked about a URL, and how rows are cut must not depend on what was asked before.
            self._entries_max[queue] = BATCH_ENTRIES_MAX if "://" in queue else self._client.send_max
        return found

    def entries_max(self, queue: str) -> int:
        """How many messages a call to a queue, whose URL is known, may have: SQS's ten, or what Veil offers."""
        return self._entries_max[queue]

    def begin(
        self, sequences: Sequence[list[RowBatch]], name: str, calls_at_once: int, retry_s: float
    ) -> Future[Sent]:
        """Begin to send every sequence, its batches one after the other: how many each queue took, and the rows it refused.

        Comes to SinkFailed when something could not be sent that was nobody's fault. `name` is that of the partition's write.
        """
        return self._loop.begin(self._send(sequences, name, calls_at_once, retry_s))

    # ---- within

    async def _send(
        self, sequences: Sequence[list[RowBatch]], name: str, calls_at_once: int, retry_s: float
    ) -> Sent:
        sent: Counter[str] = Counter()
        refused: list[tuple[SinkRow, str]] = []
        waiting = iter(sequences)

        async def work() -> None:
            for sequence in waiting:
                for batch in sequence:
                    answers = await self._settle(batch.queue, batch.rows, name, retry_s)
                    away = [each for each in answers if may_pass(each)]
                    if away:
                        raise SinkFailed(
                            f"queue {batch.queue}: {len(away)} messages could not be sent within {retry_s:g} s: {away[0]}"
                        )
                    sent[batch.queue] += answers.count(None)
                    refused.extend(
                        (row, str(why)) for row, why in zip(batch.rows, answers, strict=True) if why
                    )

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(calls_at_once, len(sequences))):
                    group.create_task(work())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return sent, refused

    async def _settle(
        self, queue: str, rows: Sequence[SinkRow], name: str, retry_s: float
    ) -> list[ApiError | None]:
        """Send the rows in one call, and say of each why it was not sent."""

        async def call(rows: Sequence[SinkRow]) -> list[ApiError | None]:
            try:
                return await self._call(queue, rows, f"{name}/{rows[0].ordinal}")
            except ApiError as error:
                if error.failure is Failure.FATAL:
                    raise SinkFailed(f"queue {queue}: {error}") from None
                if error.may_pass or len(rows) == 1:
                    raise
            # The call as a whole is wrong: for its length, where a node of another version has it; else which of them is to
            # blame shows when each goes alone.
            size = BATCH_ENTRIES_MAX if len(rows) > BATCH_ENTRIES_MAX else 1
            pieces = [rows[at : at + size] for at in range(0, len(rows), size)]
            return [each for piece in pieces for each in await self._settle(queue, piece, name, retry_s)]

        return await settled(rows, call, retry_s)

    async def _call(self, queue: str, rows: Sequence[SinkRow], name: str) -> list[ApiError | None]:
        entries = [on_the_wire(row.draft) for row in rows]
        invocation = str(uuid.uuid5(_NAMES, name))
        answers = await self._client.send_batch(self._urls[queue], entries, invocation=invocation)
        return [each if isinstance(each, ApiError) else None for each in answers]


# ---- rows on their way to be messages: what the columns say, checked by the rules of the queue, and cut into batches
#
# A batch of SendMessageBatch has ten messages (on Veil a hundred), within the limit of bytes, for one queue. Where rows are cut
# depends on the rows and the service alone, not on time: the same rows give the same batches again, so that a batch that is
# sent once more can be known by its name.


class RowRefused(ValueError):
    """Names the row by its partition, its index there and its key, and says why it cannot be sent."""

    def __init__(
        self, queue: str, partition: int, ordinal: int, key: tuple[str, Any] | None, reason: str
    ) -> None:
        super().__init__(queue, partition, ordinal, key, reason)  # see OptionError

    def __str__(self) -> str:
        queue, partition, ordinal, key, reason = self.args
        named = "" if key is None else f" ({key[0]}={key[1]!r})"
        return f"row {ordinal} of partition {partition}{named} cannot be sent to queue {queue or 'without a name'}: {reason}"


class SinkFailed(RuntimeError):
    """The service was throttling or away for longer than the time for retries, or takes nothing from us at all."""


# The rules that hold for every queue of a kind; what one queue has beyond these it says itself.
_STANDARD: Final = QueueSettings()
_FIFO: Final = QueueSettings(fifo=True)


@dataclass(slots=True)
class SinkRow:
    """One row; `ordinal` is its index in its partition, `key` what its key column says."""

    ordinal: int
    queue: str
    draft: Draft
    key: Any = None
    size: int = 0


def is_fifo(queue: str) -> bool:
    """Whether a name, ARN or URL is a FIFO queue's: SQS gives that ending to no other."""
    return queue.endswith(".fifo")


def rows_of(batch: pa.RecordBatch, columns: SinkColumns, queue: str | None, first: int) -> Iterator[SinkRow]:
    """The rows of a batch, unchecked; `queue` where they do not name it themselves."""
    places = (
        columns.body, columns.attributes, columns.group, columns.deduplication, columns.delay, columns.trace, columns.queue,
        columns.key,
    )  # fmt: skip
    values = ([None] * batch.num_rows if at is None else batch.column(at).to_pylist() for at in places)
    rows = enumerate(zip(*values, strict=True), first)
    for ordinal, (body, pairs, group, deduplication, delay_s, trace, to, key) in rows:
        draft = Draft(
            body or "",
            attributes=_attributes(pairs, columns.are_typed) if pairs else None,
            trace_header=trace,
            delay_s=delay_s,
            group=group,
            deduplication_id=None if deduplication is None else str(deduplication),
        )
        yield SinkRow(ordinal, (queue if columns.queue is None else to) or "", draft, key)


def why_refused(row: SinkRow) -> str | None:
    """Why the row cannot be sent, in a sentence; None, with its size filled in, where it can."""
    draft = row.draft
    if not row.queue:
        return "the row names no queue"
    if draft.delay_s is not None and not 0 <= draft.delay_s <= DELAY_MAX_S:
        return f"delay_s={draft.delay_s}: expected 0 to {DELAY_MAX_S}"
    try:
        check_draft(draft, _FIFO if is_fifo(row.queue) else _STANDARD)
    except MessageRefused as refused:
        return str(refused)
    row.size = size_bytes(draft)
    return None


def on_the_wire(draft: Draft) -> dict[str, Any]:
    """The message as an entry of SendMessageBatch, its id left out."""
    entry: dict[str, Any] = {"MessageBody": draft.body}
    if draft.attributes:
        entry["MessageAttributes"] = {
            name: {"DataType": data_type, "BinaryValue" if isinstance(value, bytes) else "StringValue": value}
            for name, (data_type, value) in draft.attributes.items()
        }
    if draft.trace_header is not None:
        traced = {"DataType": "String", "StringValue": draft.trace_header}
        entry["MessageSystemAttributes"] = {"AWSTraceHeader": traced}
    if draft.group is not None:
        entry["MessageGroupId"] = draft.group
    if draft.deduplication_id is not None:
        entry["MessageDeduplicationId"] = draft.deduplication_id
    if draft.delay_s is not None:
        entry["DelaySeconds"] = draft.delay_s
    return entry


def _attributes(pairs: list[tuple[str, Any]], are_typed: bool) -> dict[str, MessageAttribute]:
    if not are_typed:
        return {name: MessageAttribute("String", value or "") for name, value in pairs}
    found = {}
    for name, value in pairs:
        given = value or {}
        text, binary = given.get("string_value"), given.get("binary_value")
        found[name] = MessageAttribute(given.get("data_type") or "", text or binary or "")
    return found


Sent = tuple[Counter[str], list[tuple[SinkRow, str]]]  # how many by queue, and what was refused, and why


@dataclass(slots=True)
class RowBatch:
    """Rows for one call."""

    queue: str
    rows: list[SinkRow] = field(default_factory=list)
    size: int = 0


class RowBatcher:
    """Takes rows in their order and gives lists of batches: those of one list must be sent one after the other.

    The rows of one group of a FIFO queue are always in one lane, in their order. Elsewhere each batch goes by itself.
    """

    def __init__(self, lanes: int, entries_max: Callable[[str], int]) -> None:
        self._lanes, self._entries_max = lanes, entries_max
        self._open: dict[tuple[str, int], RowBatch] = {}
        self._full: dict[tuple[str, int], list[RowBatch]] = {}

    def add(self, row: SinkRow) -> None:
        """Take a row in."""
        group = (row.draft.group or "").encode()
        lane = (row.queue, crc32(group) % self._lanes if is_fifo(row.queue) else 0)
        batch = self._open.get(lane)
        if batch is not None and (
            len(batch.rows) >= self._entries_max(row.queue) or batch.size + row.size > BATCH_BYTES_MAX
        ):
            self._close(lane, batch)
            batch = None
        if batch is None:
            batch = self._open[lane] = RowBatch(row.queue)
        batch.rows.append(row)
        batch.size += row.size

    def full(self) -> list[list[RowBatch]]:
        """What is ready now; batches with room left wait for more."""
        taken, self._full = self._full, {}
        return list(taken.values())

    def rest(self) -> list[list[RowBatch]]:
        """All that is left."""
        for lane, batch in self._open.items():
            self._close(lane, batch)
        self._open = {}
        return self.full()

    def _close(self, lane: tuple[str, int], batch: RowBatch) -> None:
        after = lane if is_fifo(batch.queue) else (batch.queue, batch.rows[0].ordinal)
        self._full.setdefault(after, []).append(batch)
