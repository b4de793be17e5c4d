"""A message as a handler sees it, the envelope that it may come in, and the log lines that say which message they are about."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, NamedTuple

import msgspec

from veil.client.api import Attribute, RawMessage
from veil.consumer.error_reports import reported_failure
from veil.consumer.lease import Lease
from veil.core.attempt import NO_OUTCOME, ReportedOutcome

_log = logging.getLogger(__name__)


# ---- envelopes
#
# CloudEvents are recognised by their `specversion`. Only the outermost names are read; the payload stays the bytes it was, for
# the handler's own type to decode once.


class Content(NamedTuple):
    """What is left once the wrapping is off: the message's type, if it said one, and the payload.

    One of the others is set: `text` is a body as it is, `json` and `binary` are what an envelope carried, `problem` is
    why it cannot be read.
    """

    type: str | None
    text: str | None = None
    json: bytes | None = None
    binary: bytes | None = None
    problem: str | None = None


class _CloudEvent(msgspec.Struct):
    specversion: str
    type: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    data_base64: str | None = None


_CLOUD_EVENT: Final = msgspec.json.Decoder(_CloudEvent)


def opened(body: str) -> Content:
    """The content of a body; one that is in no envelope is its own content."""
    # A look for the mark costs next to nothing, decoding does: most bodies are in no envelope.
    if '"specversion"' not in body:
        return Content(None, text=body)
    try:
        event = _CLOUD_EVENT.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Content(None, text=body)  # it only looked like one
    if event.data_base64 is None:
        return Content(event.type, json=bytes(event.data))
    try:
        return Content(event.type, binary=base64.b64decode(event.data_base64, validate=True))
    except binascii.Error:
        return Content(event.type, problem="data_base64 is not base64")


# ---- messages

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Message:
    """One delivery of one message: what was sent, what the queue says about it, and the lease that holds it.

    Everything is read when it is asked for: a handler that wants only the body pays for nothing else.
    """

    _content: Content | None = None
    # The error that ended this attempt, the user's part of its traceback, and whether more than its class is reported. The report
    # is made with the request that ends the attempt: for ten messages one after the other it takes half the time that it takes
    # for each of them when it fails.
    failed_with: tuple[BaseException, TracebackType | None, bool] | None = None
    _failure: ReportedOutcome | None = None
    came_at_ms = 0  # wall time, for a journal of the consumer's own
    worked_ms: int | None = None  # how long its handler worked, where it was held for longer
    settling: Callable[[], AbstractContextManager[object]] | None = None  # around its delete: a span

    def __init__(self, raw: RawMessage, *, queue: str, lease: Lease, type_attribute: str = "type") -> None:
        self.raw = raw
        self.queue = queue
        self.lease = lease
        self._type_attribute = type_attribute  # wins over what the body says

    def end_lease(self) -> bool:
        """End the lease; whether it was held until now, so that an outcome may be carried out."""
        lease = self.lease
        if not lease.released and lease.end():
            return True
        if lease.lost:
            text = "its lease was lost, so the outcome is not carried out: %s"
            _log.warning(text, lease.why, extra=self.extra())
        return False

    @property
    def failure(self) -> ReportedOutcome | None:
        """The report of this attempt, where its handler failed."""
        if self.failed_with is not None:
            # The error's frames hold this message.
            self._failure, self.failed_with = reported_failure(*self.failed_with), None
        return self._failure

    def reported(self, otherwise: ReportedOutcome | None = None) -> ReportedOutcome | None:
        """What is reported to the queue with the end of this attempt; `otherwise` where its handler did not fail."""
        reported = otherwise if self.failed_with is None and self._failure is None else self.failure
        if self.worked_ms is None:
            return reported
        return msgspec.structs.replace(reported or NO_OUTCOME, worked_ms=self.worked_ms)

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
            self._content = opened(self.raw.body)
        return self._content

    @property
    def type(self) -> str | None:
        """What kind of message it is: the type attribute, else what its envelope says."""
        attribute = self.raw.attributes.get(self._type_attribute)
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

    def extra(self, **more: object) -> dict[str, object]:
        """The facts as `extra` of a log line: together, and one by one for formatters."""
        facts = {**self.facts, **more}
        return {"facts": facts, **facts}

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.queue}, receive {self.receive_count}>"

    def _instant(self, name: str) -> datetime | None:
        text = self.raw.system.get(name)
        # Whole milliseconds all the way: a float of seconds would blur the last digit.
        return _EPOCH + timedelta(milliseconds=int(text)) if text else None


# ---- log lines that say which message they are about, a handler's own too

# Set around a handler. What it starts, threads and tasks, inherits it.
CURRENT: Final[ContextVar[Message | None]] = ContextVar("veil_handled_message", default=None)


def current_message() -> Message | None:
    """The message being handled here, if any."""
    return CURRENT.get()


class MessageFacts(logging.Filter):
    """Adds message id, queue and receive count to whatever is logged while a message is handled; drops nothing.

    Put it on a logging handler: `logging.getLogger().handlers[0].addFilter(MessageFacts())`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = CURRENT.get()
        if message is not None and not hasattr(record, "facts"):
            record.__dict__ |= message.extra() | record.__dict__
        return True
