"""Looking at a queue without receiving: pages of messages in any state, as they were when the action began.

Nothing that is sent later is shown, nothing is shown twice, and whatever stays in the queue meanwhile is shown. The time
of sending divides the work: each part looks at a span of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from veil.pipeline.queues.client import PeekedMessage, QueueAddress, QueueClient, client_for
from veil.pipeline.source.columns import instants, to_batch
from veil.pipeline.source.options import SourceOptions
from veil.pipeline.source.stream import SourcePartition

if TYPE_CHECKING:
    import pyarrow as pa

_PAGE: Final = 1_000
_SENT_AT: Final = ("sent_at",)


@dataclass(frozen=True, slots=True)
class BrowseFilter:
    """What is looked for: sent within two instants, both included; attributes with these texts."""

    after_ms: int | None = None
    before_ms: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def narrowed(self, given: Filter) -> BrowseFilter:
        """By one of Spark's filters, as far as it speaks of the time of sending; never by more than it says."""
        bounds = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
        if (
            not isinstance(given, bounds)
            or given.attribute != _SENT_AT
            or not isinstance(given.value, datetime)
        ):
            return self
        instant = given.value if given.value.tzinfo else given.value.replace(tzinfo=UTC)
        ms = instant.timestamp() * 1000
        look = self
        if isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual):
            look = replace(look, after_ms=max(math.floor(ms), self.after_ms or 0))
        if isinstance(given, EqualTo | LessThan | LessThanOrEqual):
            before_ms = math.ceil(ms)
            look = replace(
                look, before_ms=before_ms if self.before_ms is None else min(before_ms, self.before_ms)
            )
        return look

    def wants(self, message: PeekedMessage) -> bool:
        """Whether the attributes are those looked for; the server has compared the times."""
        for name, text in self.attributes.items():
            value = message.attributes.get(name)
            if value is None or value.string_value != text:
                return False
        return True


@dataclass(frozen=True)
class BrowsedPart(SourcePartition):
    """The messages sent within one span of time."""

    address: QueueAddress
    queue: str
    look: BrowseFilter
    seen_at_ms: int

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for page in pages(client_for(self.address), self.look):
            messages = [message for message in page if self.look.wants(message)]
            if messages:
                more = {
                    "state": pa.array([message.state for message in messages], pa.string()),
                    "visible_at": instants(message.visible_at for message in messages),
                    # Nobody has received it by this.
                    "received_at": pa.nulls(len(messages), pa.timestamp("us", tz="UTC")),
                }
                yield to_batch(messages, self.queue, schema, self.seen_at_ms, more)


def pages(client: QueueClient, look: BrowseFilter, size: int = _PAGE) -> Iterator[list[PeekedMessage]]:
    """The messages of a look, oldest first, a page at a time."""
    token: str | None = None
    while True:
        page = client.peek(size, token=token, sent_after_ms=look.after_ms, sent_before_ms=look.before_ms)
        if page.messages:
            yield page.messages
        token = page.next_token
        if token is None:
            return


def browsed_parts(client: QueueClient, options: SourceOptions, look: BrowseFilter) -> Sequence[BrowsedPart]:
    """The look in parts, bounded by now: none where nothing is found."""
    now_ms = int(time.time() * 1000)
    end_ms = now_ms if look.before_ms is None else min(now_ms, look.before_ms)
    look = replace(look, before_ms=end_ms)
    first = next(pages(client, look, 1), None)
    if first is None:
        return []
    attributes = client.attributes()
    begin_ms = int(first[0].system["SentTimestamp"])
    names = ("", "NotVisible", "Delayed")
    count = sum(int(attributes.get(f"ApproximateNumberOfMessages{name}", "0")) for name in names)
    parts = max(1, min(options.partitions, -(-count // _PAGE), end_ms - begin_ms + 1))
    address = QueueAddress(client.url, client.endpoint, client.region, options.address.profile)
    queue = attributes["QueueArn"].rsplit(":", 1)[-1]
    edges = [begin_ms + (end_ms - begin_ms + 1) * at // parts for at in range(parts + 1)]
    return [
        BrowsedPart(address, queue, replace(look, after_ms=edge, before_ms=after - 1), now_ms)
        for edge, after in pairwise(edges)
    ]
