"""Looking at a queue without receiving: messages in any state, page by page, side by side on executors.

Nothing is shown twice, and whatever stays in the queue meanwhile is shown. A queue of many messages is looked at in parts: each
is a range of `seq`, the order of the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from veil.core.sequence import first_seq_of
from veil.pipeline.queues import BrowsedMessage, QueueAddress, QueueClient, SourceMessages, shared
from veil.pipeline.source.columns import instants, to_batch
from veil.pipeline.source.stream import SourcePartition

if TYPE_CHECKING:
    import pyarrow as pa

PART_LEAST: Final = 5_000  # fewer messages than this are read sooner than they are divided
_PAGE: Final = 1_000
_SECOND: Final = first_seq_of(1_000)  # of `seq`, whose upper bits are milliseconds
_COUNTS: Final = tuple(f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed"))


@dataclass(frozen=True)
class BrowseFilter:
    """What is looked for: sent within two instants, both included; attributes with these texts."""

    after_ms: int | None = None
    before_ms: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def wants(self, message: BrowsedMessage) -> bool:
        """Whether the attributes are those looked for; the server has compared the times."""
        texts = {name: value.string_value for name, value in message.attributes.items()}
        return all(texts.get(name) == text for name, text in self.attributes.items())


@dataclass(frozen=True)
class BrowsedPart(SourcePartition):
    """The messages after the one `seq` and up to the other; None leaves an end open."""

    address: QueueAddress
    queue: str
    after: int | None
    up_to: int | None
    look: BrowseFilter

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        client, look, token = shared(QueueClient, self.address), self.look, None
        while True:
            page = client.peek(
                _PAGE, token=token, after=self.after, up_to=self.up_to, sent_after_ms=look.after_ms,
                sent_before_ms=look.before_ms,
            )  # fmt: skip
            messages = [message for message in page.messages or () if look.wants(message)]
            if messages:
                more = {
                    "seq": pa.array([int(message.sequence_number) for message in messages], pa.int64()),
                    "state": pa.array([message.state for message in messages], pa.string()),
                    "visible_at": instants(message.visible_at for message in messages),
                    # Nobody has received it by this.
                    "received_at": pa.nulls(len(messages), pa.timestamp("us", tz="UTC")),
                }
                yield to_batch(SourceMessages.of(messages), self.queue, schema, 0, more)
            token = page.next_token
            if token is None:
                return


def browsed_parts(client: QueueClient, parts_max: int, look: BrowseFilter) -> list[BrowsedPart]:
    """The queue in as many parts as its messages are worth."""
    attributes = client.attributes()
    queue = attributes["QueueArn"].rsplit(":", 1)[-1]
    parts = min(parts_max, sum(int(attributes.get(each, "0")) for each in _COUNTS) // PART_LEAST)
    first = _next(client, None)
    edges: list[int] = []
    if parts > 1 and first is not None:
        step = max(1, -(-(_last(client, first) - first) // parts))
        edges = [first + step * number for number in range(1, parts)]
    ranges = zip([None, *edges], [*edges, None], strict=True)
    return [BrowsedPart(client.resolved, queue, after, up_to, look) for after, up_to in ranges]


def _next(client: QueueClient, after: int | None) -> int | None:
    found = client.peek(1, after=after).messages
    return int(found[0].sequence_number) if found else None


def _last(client: QueueClient, first: int) -> int:
    """Where the queue ends, to a hundredth of its length: found by halving, since it is looked at from its beginning."""
    low, length = first, _SECOND
    while (found := _next(client, low + length)) is not None:
        low, length = found, 4 * length
    high = low + length
    while high - low > max(_SECOND, (high - first) // 100):
        middle = (low + high) // 2
        found = _next(client, middle)
        if found is None:
            high = middle
        else:
            low = found
    return high
