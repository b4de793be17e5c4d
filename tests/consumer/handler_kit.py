"""Messages, leases and clocks for tests of handlers: no queue, no waiting."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from veil.client.api import Attribute, RawMessage
from veil.consumer.lease import Lease
from veil.consumer.message import Message


class ManualTime:
    """Monotonic seconds that move when told."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def a_message(
    body: str = "{}",
    *,
    id: str = "m-1",
    queue: str = "orders",
    receive_count: int = 1,
    group: str | None = None,
    attributes: Mapping[str, Attribute] | None = None,
    system: Mapping[str, str] | None = None,
    visibility_s: float = 30.0,
    token: int | None = None,
    time: ManualTime | None = None,
    type_attribute: str = "type",
) -> Message:
    """A message with whatever the test does not speak of filled in."""
    time = time or ManualTime()
    lease = Lease(
        queue_url=f"http://127.0.0.1:9324/000000000000/{queue}",
        message_id=id,
        receipt=f"receipt-of-{id}",
        token=receive_count if token is None else token,
        received_at_s=time(),
        visibility_s=visibility_s,
        monotonic=time,
    )
    told = {"ApproximateReceiveCount": str(receive_count), "SentTimestamp": "1700000000123", **(system or {})}
    if group is not None:
        told["MessageGroupId"] = group
    raw = RawMessage(id, lease.receipt, body, attributes=dict(attributes or {}), system=told)
    return Message(raw, queue=queue, lease=lease, type_attribute=type_attribute)


def text(value: str) -> Attribute:
    return Attribute.of("String", value)


def as_logged(records: Iterable[logging.LogRecord]) -> str:
    """The records as an ordinary handler writes them, whatever formatter others gave to the one that collected them."""
    return "\n".join(logging.Formatter().format(record) for record in records)
