"""One OpenTelemetry span for each request of an SQS client, within the trace of its caller.

It is on where a tracer provider was set up before the server, as `opentelemetry-instrument veil serve` does; else a request
passes nothing of this.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from veil.wire.exchange import Handler, Request, Response
from veil.wire.front_end import action_of

_log = logging.getLogger(__name__)
_NONE_SET_UP: Final = ("ProxyTracerProvider", "NoOpTracerProvider")
_READ_BYTES_MAX: Final = 65_536  # of a body, to name the queue; beyond it the span goes without


class _Named(msgspec.Struct, rename="pascal"):
    queue_url: str = ""
    queue_name: str = ""


_read_named: Final = msgspec.json.Decoder(_Named).decode


def traced(handler: Handler) -> Handler:
    """The handler itself, or with a span around each call where spans would go somewhere."""
    # Whoever sets up a provider has imported it: importing it here would cost everybody else.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or type(trace.get_tracer_provider()).__name__ in _NONE_SET_UP:
        return handler
    tracer = trace.get_tracer("veil.server")

    async def handle(request: Request) -> Response:
        span = _begun(trace, tracer, request)
        try:
            response = await handler(request)
        except BaseException as error:
            _end(trace, span, None, type(error).__qualname__)
            raise
        _end(trace, span, response.status, _error_in(response))
        return response

    return handle


def _begun(trace: ModuleType, tracer: Any, request: Request) -> Any:
    """A span within the caller's, or None: whatever is wrong with tracing is no reason to refuse a request."""
    try:
        from opentelemetry import propagate

        action, queue = action_of(request), _queue_in(request)
        attributes = {
            "messaging.system": "aws_sqs",
            "rpc.system": "aws-api",
            "rpc.service": "SQS",
            "rpc.method": action,
            "http.request.method": request.method,
            "client.address": request.peer,
        }
        if queue:
            attributes["messaging.destination.name"] = queue
        return tracer.start_span(
            f"{action} {queue}" if queue else action,
            context=propagate.extract(request.headers),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
        )
    except Exception:
        _log.debug("no span could be begun", exc_info=True)
        return None


def _end(trace: ModuleType, span: Any, status: int | None, error: str) -> None:
    if span is None:
        return
    try:
        if status is not None:
            span.set_attribute("http.response.status_code", status)
        if error:
            span.set_attribute("error.type", error)
        if status is None or status >= 500:  # what the caller did wrong is no failure of the server
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end()
    except Exception:
        _log.debug("a span could not be told", exc_info=True)


def _error_in(response: Response) -> str:
    """The code of a refusal, as SDKs name it."""
    if response.status < 400:
        return ""
    told = dict(response.headers).get("x-amzn-query-error", "")
    return told.partition(";")[0] or str(response.status)


def _queue_in(request: Request) -> str:
    """The name of the queue that the request is about, if it can be read at little cost."""
    if len(request.body) > _READ_BYTES_MAX:
        return ""
    if "x-amz-target" in request.headers:
        try:
            named = _read_named(request.body)
        except msgspec.DecodeError:
            return ""
        url, name = named.queue_url, named.queue_name
    else:
        form = parse_qs(f"{request.query}&{request.body.decode('ascii', 'replace')}", max_num_fields=1_000)
        url = form.get("QueueUrl", [request.path])[0]
        name = form.get("QueueName", [""])[0]
    return name or url.rstrip("/").rpartition("/")[2]
