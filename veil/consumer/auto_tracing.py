"""Spans without being asked: for processes that have set OpenTelemetry up, and at no cost to those that have not."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from veil.consumer.message import Message
from veil.consumer.middleware import CallNext, CallNextBatch
from veil.consumer.outcome import Outcome
from veil.consumer.telemetry.tracing import Tracing


class AutoTracing:
    """The outermost middleware; does nothing until `look` finds that spans would go somewhere."""

    def __init__(self) -> None:
        self._tracing: Tracing | None = None

    def look(self) -> None:
        """Begin to trace if a tracer provider was set up; called at every start."""
        # Whoever sets one up has imported it: importing it here would cost everybody else.
        trace = sys.modules.get("opentelemetry.trace")
        if trace is None or self._tracing is not None:
            return
        if type(trace.get_tracer_provider()).__name__ not in ("ProxyTracerProvider", "NoOpTracerProvider"):
            self._tracing = Tracing()

    async def __call__(self, message: Message, call_next: CallNext) -> Outcome:
        """Around one message."""
        if self._tracing is None:
            return await call_next(message)
        return await self._tracing(message, call_next)

    async def call_batch(self, messages: Sequence[Message], call_next: CallNextBatch) -> list[Outcome]:
        """Around a batch."""
        if self._tracing is None:
            return await call_next(messages)
        return await self._tracing.call_batch(messages, call_next)
