"""A message as a handler sees it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from veil.consumer.handlers.envelope import Content, Envelopes
from veil.consumer.lease import Lease
from veil.consumer.queue_api import Attribute, RawMessage

DEFAULT_ENVELOPES: Final = Envelopes()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    """One delivery of one message: what was sent, what the queue says about it, and the lease that holds it.

    Everything is read when it is asked for: a handler that wants only the body pays for nothing else.
    """

    def __init__(
        self, raw: RawMessage, *, queue: str, lease: Lease, envelopes: Envelopes = DEFAULT_ENVELOPES
    ) -> None:
        self.raw = raw
        self.queue = queue
        self.lease = lease
        self._envelopes = envelopes
        self._content: Content | None = None

    @property
    def id(self) -> str:
        """The id that the queue gave it; the same for every delivery."""
        return self.raw.message_id

    @property
    def body(self) -> str:
        """What was sent, untouched."""
        return self.raw.body

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """The sender's attributes."""
        return self.raw.attributes

    @property
    def system(self) -> Mapping[str, str]:
        """The queue's own attributes, under the names SQS gives them."""
        return self.raw.system

    @property
    def group(self) -> str | None:
        """The message group, on queues that have them."""
        return self.raw.group

    @property
    def is_fifo(self) -> bool:
        """Whether the order within its group matters."""
        return self.queue.endswith(".fifo")

    @property
    def receive_count(self) -> int:
        """How often the message was received, this time included."""
        return self.raw.receive_count

    @property
    def sent_at(self) -> datetime | None:
        """When it was sent, in UTC; None where the service does not say."""
        return self._instant("SentTimestamp")

    @property
    def first_received_at(self) -> datetime | None:
        """When it was received for the first time, in UTC; None where the service does not say."""
        return self._instant("ApproximateFirstReceiveTimestamp")

    @property
    def content(self) -> Content:
        """The payload, out of its envelope if it came in one, and the type that the envelope tells."""
        # Not a cached_property: that takes a lock, which costs more than all the rest of most messages.
        if self._content is None:
            self._content = self._envelopes.open(self.raw.body)
        return self._content

    @property
    def type(self) -> str | None:
        """What kind of message it is: the type attribute, else what its envelope says."""
        attribute = self.raw.attributes.get(self._envelopes.type_attribute)
        if attribute is not None and isinstance(attribute.value, str):
            return attribute.value
        return self.content.type

    @property
    def facts(self) -> dict[str, object]:
        """What every log line about the message carries. Never its body."""
        facts: dict[str, object] = {
            "message_id": self.raw.message_id,
            "queue": self.queue,
            "receive_count": self.receive_count,
        }
        if self.raw.group is not None:
            facts["group"] = self.raw.group
        return facts

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.queue}, receive {self.receive_count}>"

    def _instant(self, name: str) -> datetime | None:
        text = self.raw.system.get(name)
        # Whole milliseconds all the way: a float of seconds would blur the last digit.
        return _EPOCH + timedelta(milliseconds=int(text)) if text else None
