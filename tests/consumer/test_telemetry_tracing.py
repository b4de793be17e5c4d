"""One span for each message, within its sender's trace; and never a message lost over it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.consumer.handler_kit import a_message, text
from veil.consumer.handlers.table import HandlerTable
from veil.consumer.message import Message
from veil.consumer.outcomes import Delete, Discard, Outcome
from veil.consumer.tracing import Tracing, sender_context

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
W3C = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
XRAY = (0x5759E988BD862E3FE1BE46A994272793, 0x53995C3F42CD8AD8)
HEADER = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    assert not trace.get_current_span().get_span_context().is_valid, "a span was left open"


async def called(tracing: Tracing, message: Message, error: BaseException | None = None) -> Outcome | None:
    table = HandlerTable(on_failure=Discard())
    table.use(tracing)

    @table.handler
    async def handle(body: str) -> None:
        if error:
            raise error

    (handler,) = table.handlers
    return await handler.call(message)  # type: ignore[arg-type,return-value]


async def test_a_span_tells_of_the_message_and_is_within_its_senders(spans: Spans) -> None:
    message = a_message(attributes={"traceparent": text(PARENT)}, receive_count=2)
    assert await called(Tracing(spans.tracer), message) == Delete()
    (span,) = spans.all
    assert span.name == "process orders"
    assert span.kind is trace.SpanKind.CONSUMER
    assert dict(span.attributes or {}) == {
        "messaging.system": "aws_sqs",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": "m-1",
        "veil.receive_count": 2,
        "veil.outcome": "delete",
    }
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == W3C
    assert span.parent.is_remote
    assert span.parent.trace_flags.sampled
    assert not span.links


async def test_the_handlers_own_spans_are_inside(spans: Spans) -> None:
    table = HandlerTable()
    table.use(Tracing(spans.tracer))

    @table.handler
    def handle(body: str) -> None:  # in a thread
        with spans.tracer.start_as_current_span("inside"):
            pass

    (handler,) = table.handlers
    await handler.call(a_message())  # type: ignore[arg-type]
    inside, outside = spans.all
    assert inside.parent is not None
    assert outside.context is not None
    assert inside.parent.span_id == outside.context.span_id


async def test_a_failure_is_told_on_the_span_and_still_judged_by_the_policy(spans: Spans) -> None:
    assert await called(Tracing(spans.tracer), a_message(), ValueError("no stock")) == Discard()
    (span,) = spans.all
    assert span.status.status_code is trace.StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "ValueError"
    assert span.events[0].name == "exception"


async def test_a_cancelled_handler_ends_its_span(spans: Spans) -> None:
    table, began = HandlerTable(), asyncio.Event()
    table.use(Tracing(spans.tracer))

    @table.handler
    async def handle(body: str) -> None:
        began.set()
        await asyncio.Event().wait()

    (handler,) = table.handlers
    task = asyncio.create_task(handler.call(a_message()))  # type: ignore[arg-type]
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(spans.all) == 1


async def test_a_batch_is_one_span_with_a_link_for_each_sender(spans: Spans) -> None:
    table = HandlerTable()
    table.use(Tracing(spans.tracer))

    @table.handler(batch=10)
    async def handle(messages: list[Message]) -> None: ...

    (handler,) = table.handlers
    senders: list[dict[str, Any]] = [
        {"attributes": {"traceparent": text(PARENT)}},
        {"system": {"AWSTraceHeader": HEADER}},
        {},
    ]
    messages = [a_message(id=f"m-{number}", **sender) for number, sender in enumerate(senders)]
    assert await handler.call(messages) == [Delete()] * 3  # type: ignore[arg-type]
    (span,) = spans.all
    assert len(span.links) == 2
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    assert (span.attributes or {})["veil.outcome"] == "delete"


class Broken:
    """A tracer whose every part fails."""

    def __init__(self, *, starts: bool) -> None:
        self._starts = starts

    def start_span(self, *arguments: Any, **named: Any) -> Any:
        if not self._starts:
            raise RuntimeError("no span")
        return BrokenSpan()


class BrokenSpan(trace.NonRecordingSpan):
    def __init__(self) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)

    def set_attribute(self, key: str, value: Any) -> None:
        raise RuntimeError("no attribute")

    def record_exception(self, *arguments: Any, **named: Any) -> None:
        raise RuntimeError("no exception")

    def end(self, end_time: int | None = None) -> None:
        raise RuntimeError("no end")


@pytest.mark.parametrize("starts", [True, False])
async def test_tracing_that_fails_does_not_touch_the_message(starts: bool) -> None:
    tracing = Tracing(Broken(starts=starts))
    assert await called(tracing, a_message()) == Delete()
    assert await called(tracing, a_message(), ValueError()) == Discard()


async def test_without_a_provider_the_global_tracer_does_nothing() -> None:
    assert await called(Tracing(), a_message(attributes={"traceparent": text(PARENT)})) == Delete()


@pytest.mark.parametrize(
    ("attributes", "system", "expected"),
    [
        ({"traceparent": text(PARENT)}, {}, (*W3C, True)),
        ({"traceparent": text(PARENT[:-1] + "0")}, {}, (*W3C, False)),
        ({}, {"AWSTraceHeader": HEADER}, (*XRAY, True)),
        ({}, {"AWSTraceHeader": HEADER[:-1] + "0"}, (*XRAY, False)),
        ({"traceparent": text("nonsense")}, {"AWSTraceHeader": HEADER}, (*XRAY, True)),
        ({"traceparent": text("00-" + "0" * 32 + "-" + "0" * 16 + "-01")}, {}, None),
        ({"traceparent": text("\x00" * 500)}, {}, None),
        ({}, {"AWSTraceHeader": "Root=1-5759e988-bd862e3fe1be46a994272793"}, None),
        ({}, {"AWSTraceHeader": ";;==;Root"}, None),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_the_senders_context_is_read_or_there_is_none(
    attributes: Any, system: Any, expected: tuple[int, int, bool] | None
) -> None:
    found = sender_context(a_message(attributes=attributes, system=system))
    assert expected == (found and (found.trace_id, found.span_id, found.trace_flags.sampled))
