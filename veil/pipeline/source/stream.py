"""What a streaming query does with its queue, whichever way it reaches it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_POLL_S = 1


class Offset(TypedDict, total=False):
    """How far a query is. `epoch` names the checkpoint; `n` counts its batches; `by` is the way, sqs or veil; `rows` and
    `parts` say how the batch that ends here was cut."""

    epoch: str
    n: int
    by: str
    rows: int
    parts: int


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
    def next_offset(self, start: Offset, rows_max: int, *, budget: int | None) -> Offset:
        """Acknowledge everything up to `start`, then the end of the next batch, or `start` where nothing waits.

        Spark asks for it only once the batch that ends at `start` is in its commit log: that makes it the place to
        acknowledge. `budget` is what AvailableNow may still take.
        """

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
    def backlog(self) -> int:
        """How many messages wait in the queue."""

    @abstractmethod
    def stop(self) -> None:
        """Stop extending; what is not acknowledged comes back, or is replayed by the next run."""
