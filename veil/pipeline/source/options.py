"""The options of the source, checked together at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from veil.core.limits import IN_FLIGHT_MAX, VISIBILITY_MAX_S
from veil.journal.storage import Storage
from veil.pipeline.options import OptionError, OptionValues
from veil.pipeline.queues import QueueAddress

# So many that what Spark does for each batch, whatever its size, is a small part; two of them are within the limit of messages in
# flight, as one is deleted while the next is received. No more than waits is taken, so a trickle does not wait for the rest.
BATCH_ROWS: Final = 50_000
AUTO, SQS, VEIL = "auto", "sqs", "veil"
DRAIN, BROWSE = "drain", "browse"
# A receive round must be short against the timeout: what came first has to be sealed long before its window ends.
RECEIVE_SHARE: Final = 4
_RECEIVE_S_MAX: Final = 5.0
_VISIBILITY_S_MIN: Final = 4
DRAINED: Final = "drainedBatch"  # not for people: how `drain` tells the reader what it took


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What one query or read was asked for."""

    address: QueueAddress
    messages_max: int  # in one trigger
    partitions: int
    visibility_s: int | None  # None: the queue's own
    receive_s: float | None  # None: a share of the visibility
    rate: float | None  # messages a second at most
    segments: str | None
    protocol: str
    mode: str | None  # of a batch; a stream has none
    body_schema: str | None
    sent_after_ms: int | None
    sent_before_ms: int | None
    attributes: dict[str, str]
    metrics_port: int | None
    drained: str | None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SourceOptions:
        """The options as Spark hands them over; raises OptionError."""
        values = OptionValues(given)
        queue = values.text("queue")
        options = cls(
            address=QueueAddress(
                queue or "", values.text("endpoint"), values.text("region"), values.text("profile")
            ),
            messages_max=values.whole("maxMessagesPerTrigger", BATCH_ROWS, 1, IN_FLIGHT_MAX),
            partitions=values.whole("partitions", 2, 1, 10_000),
            visibility_s=values.whole("visibilityTimeout", None, _VISIBILITY_S_MIN, VISIBILITY_MAX_S),
            receive_s=values.number("receiveTime", None, 0.1, 3600),
            rate=values.number("rate", None, 0.001, 1e9),
            segments=values.text("segments"),
            protocol=values.choice("protocol", AUTO, (AUTO, SQS, VEIL)),
            mode=values.choice("mode", "", ("", DRAIN, BROWSE)) or None,
            body_schema=values.text("bodySchema"),
            sent_after_ms=values.instant_ms("sentAfter"),
            sent_before_ms=values.instant_ms("sentBefore"),
            attributes=values.texts("attributes"),
            metrics_port=values.whole("metricsPort", None, 1, 65535),
            drained=values.text(DRAINED),
        )
        values.check_all_known()
        if queue is None:
            raise OptionError("queue", None, "the name, URL or ARN of a queue")
        if options.segments is not None:
            options.segments_place()
        if options.body_schema is not None:
            check_body_schema(options.body_schema)
        if options.visibility_s is not None:
            options.receive_seconds(options.visibility_s)
        return options

    def window_s(self, queue_visibility_s: int) -> int:
        """The visibility to work with: the option's, else the queue's own; raises OptionError where that is too short."""
        if self.visibility_s is not None:
            return self.visibility_s
        if queue_visibility_s < _VISIBILITY_S_MIN:
            raise OptionError(
                "visibilityTimeout",
                None,
                f"{_VISIBILITY_S_MIN} seconds or more, since the queue's own is {queue_visibility_s}",
            )
        return queue_visibility_s

    def receive_seconds(self, window_s: int) -> float:
        """How long one round of receives may take; raises OptionError where the two options do not fit together."""
        allowed = window_s / RECEIVE_SHARE
        if self.receive_s is None:
            return min(_RECEIVE_S_MAX, allowed)
        if self.receive_s > allowed:
            raise OptionError(
                "receiveTime",
                self.receive_s,
                f"at most a quarter of the visibility timeout ({window_s} s), so {allowed:g} seconds",
            )
        return self.receive_s

    def segments_place(self) -> Storage:
        """Where the segments go; raises OptionError where that cannot be."""
        expected = "a directory (path or URI) that driver and executors share, for what was received and not acknowledged"
        if self.segments is None:
            raise OptionError("segments", None, expected)
        try:
            return Storage.at(self.segments)
        except ValueError as problem:
            raise OptionError("segments", self.segments, f"{expected}: {problem}") from None

    def for_stream(self) -> SourceOptions:
        """Itself, once it is sure that all of it can be meant for a stream."""
        for option, value in (
            ("mode", self.mode),
            ("sentAfter", self.sent_after_ms),
            ("sentBefore", self.sent_before_ms),
            ("attributes", self.attributes or None),
        ):
            if value is not None:
                raise OptionError(
                    option, value, "nothing: it is for batches (spark.read), and this is a stream"
                )
        if self.protocol == SQS:
            self.segments_place()
        return self


_PLAIN: Final = (
    "(?:boolean|tinyint|byte|smallint|short|int|integer|bigint|long|float|real|double|string|binary|date|timestamp"
    "|timestamp_ntz|decimal|dec|numeric)"
)
_COLUMN: Final = rf"\s*\w+(?:\s*:\s*|\s+){_PLAIN}\s*"
# A type that has others inside, or numbers, all of which are plain.
_NESTED: Final = re.compile(
    rf"\barray\s*<\s*{_PLAIN}\s*>|\bmap\s*<\s*{_PLAIN}\s*,\s*{_PLAIN}\s*>|\bstruct\s*<{_COLUMN}(?:,{_COLUMN})*>"
    r"|\b(?:decimal|dec|numeric)\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\)",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile("`(?:[^`]|``)+`")
_EXPECTED: Final = (
    "columns such as id bigint, at timestamp, tags map<string, array<string>>, none of them not null, since a body can lack "
    "any of them"
)


def check_body_schema(text: str) -> None:
    """Raise OptionError unless the text is a list of columns with types that a body can be parsed by."""
    left, nested = _QUOTED.sub("name", text), 1
    while nested:  # from the innermost on, until only plain types are left
        left, nested = _NESTED.subn("string", left)
    for column in left.split(","):
        if re.fullmatch(_COLUMN, column, re.IGNORECASE) is None:
            raise OptionError("bodySchema", text, f"{_EXPECTED}; not {column.strip()!r}")
