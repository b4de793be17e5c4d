"""What a streaming query does with its queue, whichever way it reaches it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypedDict

from pyspark.sql.datasource import InputPartition

from veil.pipeline.queues.client import QueueClient

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_POLL_S: Final = 1


class Offset(TypedDict, total=False):
    """How far a query is. `epoch` names the checkpoint; `n` counts its batches; `by` is the way, sqs or veil. Of the batch
    that ends here, `segment` names what holds its rows (sqs); `rows` and `parts` say how it was cut, and `at_ms` when
    (veil)."""

    epoch: str
    n: int
    by: str
    segment: str
    rows: int
    parts: int
    at_ms: int


class StreamTaken(RuntimeError):
    """Another query works on the same checkpoint since: this one must not go on."""


class Part(InputPartition):
    """One partition of a batch: knows on its own, on any executor, where its rows are."""

    def __init__(self) -> None:
        super().__init__(None)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows: the same whenever it is asked, until the batch is acknowledged."""
        raise NotImplementedError


class Stream(ABC):
    """The running side of a query, in the one process that lives as long as the query does."""

    @abstractmethod
    def only_what_is_there(self) -> None:
        """From now on take no more than what is in the queue now: AvailableNow."""

    @abstractmethod
    def next_offset(self, start: Offset, rows_max: int) -> Offset:
        """Acknowledge everything up to `start`, then the end of the next batch, or `start` where nothing waits.

        Spark asks for it only once the batch that ends at `start` is in its commit log: that makes it the place to
        acknowledge. When it returns `start`, all up to there is acknowledged.
        """

    @abstractmethod
    def take(self, start: Offset, rows_max: int) -> Offset | None:
        """The end of a batch after `start`, taken without acknowledging anything; None where nothing waits."""

    @abstractmethod
    def parts(self, start: Offset, end: Offset) -> Sequence[Part]:
        """The partitions of the batch between the two; asked more than once, and first of all after a restart."""

    @abstractmethod
    def acknowledge(self, end: Offset) -> None:
        """Delete everything up to `end` from the queue; repeated calls do nothing."""

    @abstractmethod
    def size(self, end: Offset) -> int:
        """How many messages the batch that ends there was cut for."""

    @abstractmethod
    def behind(self) -> int:
        """How many messages wait that are in no batch yet, as far as is known."""

    @abstractmethod
    def stop(self) -> None:
        """Stop extending; what is not acknowledged comes back, or is replayed by the next run."""


def backlog(client: QueueClient) -> int:
    """How many messages wait in the queue, visible."""
    return int(client.attributes().get("ApproximateNumberOfMessages", "0"))
