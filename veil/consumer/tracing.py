"""One OpenTelemetry span for each message that is handled, and one for its delete, within the trace of its sender.

So a trace tells a message's whole life, every attempt at it. A batch has many senders and one span: it is linked to them.
Whatever goes wrong in it never reaches the message.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from veil.consumer.handlers.running import CallNext, CallNextBatch
from veil.consumer.message import Message
from veil.consumer.outcomes import Outcome, label

_log = logging.getLogger(__name__)


# ---- trace context


def sender_context(message: Message) -> Any:
    """OpenTelemetry's name for the span in which the message was sent, if it says so in a way that can be read; the attribute of
    the sender's own tracing wins."""
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attribute = message.attributes.get("traceparent")
    given = attribute.value if attribute is not None else ""
    for parent in (str(given), _as_traceparent(message.system.get("AWSTraceHeader", ""))):
        within = TraceContextTextMapPropagator().extract({"traceparent": parent}, Context())
        found = get_current_span(within).get_span_context()
        if found.is_valid:
            return found
    return None


def _as_traceparent(header: str) -> str:
    """Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1, as W3C's trace context writes it."""
    parts = dict(part.strip().partition("=")[::2] for part in header.lower().split(";"))
    version, start, rest = (*parts.get("root", "").split("-"), "", "", "")[:3]
    sampled = "01" if parts.get("sampled") == "1" else "00"
    return f"00-{start}{rest}-{parts.get('parent', '')}-{sampled}" if version == "1" else ""


class Tracing:
    """A middleware; register it first, so that the span covers all others. `tracer` is the global one unless given."""

    def __init__(self, tracer: Any = None) -> None:
        from opentelemetry import context, trace

        self._trace: Any = trace
        self._context: Any = context
        self._tracer = tracer or trace.get_tracer("veil.consumer")

    async def __call__(self, message: Message, call_next: CallNext) -> Outcome:
        """Around one message."""
        with self._processing([message]) as outcomes:
            outcomes.append(await call_next(message))
        return outcomes[0]

    async def call_batch(self, messages: Sequence[Message], call_next: CallNextBatch) -> list[Outcome]:
        """Around a batch: one span, linked to every sender."""
        with self._processing(messages) as outcomes:
            outcomes += await call_next(messages)
        return outcomes

    @contextmanager
    def _processing(self, messages: Sequence[Message]) -> Iterator[list[Outcome]]:
        """A span around a block, which appends the outcomes to the list."""
        outcomes: list[Outcome] = []
        with self._span("process", messages) as span:
            within = self._trace.set_span_in_context(span)
            for message in messages:
                message.settling = partial(self._span, "delete", [message], within)
            try:
                yield outcomes
            except BaseException as error:
                with _quietly():
                    span.record_exception(error)
                    span.set_attribute("error.type", type(error).__qualname__)
                    span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
                raise
            with _quietly():
                span.set_attribute("veil.outcome", ",".join(sorted({label(each) for each in outcomes})))

    @contextmanager
    def _span(self, operation: str, messages: Sequence[Message], within: Any = None) -> Iterator[Any]:
        """A span that is the current one in the block, `within` that context or its sender's; several senders are linked. Nothing
        that it does raises: one that cannot be begun records nothing."""
        first, kinds = messages[0], self._trace.SpanKind
        attributes: dict[str, Any] = {
            "messaging.system": "aws_sqs",
            "messaging.operation.name": operation,
            "messaging.operation.type": "settle" if operation == "delete" else operation,
            "messaging.destination.name": first.queue,
        }
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes["messaging.message.id"] = first.id
        if operation == "process" and len(messages) == 1:
            attributes["veil.receive_count"] = first.receive_count
        span, token = self._trace.INVALID_SPAN, None
        with _quietly():
            senders = list(filter(None, map(sender_context, messages))) if within is None else []
            if len(messages) == 1 and senders:
                within = self._trace.set_span_in_context(self._trace.NonRecordingSpan(senders.pop()))
            span = self._tracer.start_span(
                f"{attributes['messaging.operation.type']} {first.queue}",
                context=within,
                kind=kinds.CLIENT if operation == "delete" else kinds.CONSUMER,
                attributes=attributes,
                links=[self._trace.Link(sender) for sender in senders],
            )
            token = self._context.attach(self._trace.set_span_in_context(span))
        try:
            yield span
        finally:
            with _quietly():
                if token is not None:
                    self._context.detach(token)
            with _quietly():
                span.end()


@contextmanager
def _quietly() -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.debug("a span could not be recorded", exc_info=True)


# ---- whether anybody wants spans


def is_set_up() -> bool:
    """Whether a tracer provider was set up, so that spans would go somewhere."""
    # A program that sets one up has imported it; importing it here would cost all others.
    trace = sys.modules.get("opentelemetry.trace")
    unset = ("ProxyTracerProvider", "NoOpTracerProvider")
    return trace is not None and type(trace.get_tracer_provider()).__name__ not in unset
